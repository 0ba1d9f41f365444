package wire

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

func TestPageToken(t *testing.T) {
	t.Parallel()
	q := NewQuery("entities", "acme", "main", "prefix")
	token := q.Token([]byte("cursor"))
	check.Equal(t, string(must.Get(q.Cursor(token))(t)), "cursor")
	if got, err := q.Cursor(""); got != nil || err != nil {
		t.Errorf("an empty token is the beginning: got %q, %v", got, err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	must.Do(t, err, "a token must go into a URL as it is")
	raw[0]++
	future := base64.RawURLEncoding.EncodeToString(raw)
	for name, bad := range map[string]string{
		"not base64": "ä", "short": "AAAA", "without a cursor": q.Token(nil), "another version": future,
		"another procedure": NewQuery("clients", "acme", "main", "prefix").Token([]byte("cursor")),
		"another scope":     NewQuery("entities", "acme", "", "prefix").Token([]byte("cursor")),
		"shifted parts":     NewQuery("entities", "acme", "mainp", "refix").Token([]byte("cursor")),
		"too long":          strings.Repeat("A", maxTokenBytes+1),
	} {
		_, err := q.Cursor(bad)
		if field, ok := err.(*machine.FieldError); //nolint:errorlint // Not wrapped.
		!ok || field.Field != "page_token" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLongestCursorFitsIntoAToken(t *testing.T) {
	t.Parallel()
	q := NewQuery("relationships")
	cursor := make([]byte, 2*machine.MaxScopePart+3*machine.MaxKeyBytes+64)
	check.Equal(t, len(must.Get(q.Cursor(q.Token(cursor)))(t)), len(cursor))
}

// FuzzPageToken: what a token is read as makes the same token, and anything else is refused as a mistake of the client.
func FuzzPageToken(f *testing.F) {
	q := NewQuery("list", "filter")
	f.Add(q.Token([]byte("cursor")))
	f.Add(NewQuery("other").Token([]byte("cursor")))
	f.Add("")
	f.Add("AQ==")
	f.Fuzz(func(t *testing.T, token string) {
		cursor, err := q.Cursor(token)
		if err != nil {
			if _, ok := errors.AsType[*machine.FieldError](err); !ok {
				t.Errorf("%q: %v is no field error", token, err)
			}
			return
		}
		if token == "" {
			return
		}
		// The alphabet allows unused bits, and newlines.
		want, _ := base64.RawURLEncoding.DecodeString(token)
		got, _ := base64.RawURLEncoding.DecodeString(q.Token(cursor))
		if !bytes.Equal(got, want) {
			t.Errorf("%q is read as %x, which makes %q", token, cursor, q.Token(cursor))
		}
	})
}

// TestHeights: a list of blocks goes on where its token says, and takes no other token.
func TestHeights(t *testing.T) {
	t.Parallel()
	q := NewQuery("blocks", "acme")
	if got, err := q.Height("", 5); got != 5 || err != nil {
		t.Error("without a token:", got, err)
	}
	if got, err := q.Height(q.HeightToken(1<<40), 5); got != 1<<40 || err != nil {
		t.Error("with a token:", got, err)
	}
	for _, token := range []string{q.Token([]byte("k")), NewQuery("blocks", "b").HeightToken(5), "?"} {
		if _, err := q.Height(token, 5); err == nil {
			t.Errorf("%q was taken", token)
		}
	}
}

func TestPageSize(t *testing.T) {
	t.Parallel()
	for asked, want := range map[uint32]int{0: defaultPageSize, 1: 1, maxPageSize: maxPageSize, maxPageSize + 1: 0} {
		got, err := PageSize(asked)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%d: got %d, %v", asked, got, err)
		}
	}
}
