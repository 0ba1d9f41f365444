package server

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

func TestPageToken(t *testing.T) {
	t.Parallel()
	q := newQuery("entities", "acme", "main", "prefix")
	token := q.token([]byte("cursor"))
	if got, err := q.cursor(token); err != nil || string(got) != "cursor" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := q.cursor(""); got != nil || err != nil {
		t.Errorf("an empty token is the beginning: got %q, %v", got, err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal("a token must go into a URL as it is:", err)
	}
	raw[0]++
	future := base64.RawURLEncoding.EncodeToString(raw)
	for name, bad := range map[string]string{
		"not base64": "ä", "short": "AAAA", "without a cursor": q.token(nil), "another version": future,
		"another procedure": newQuery("clients", "acme", "main", "prefix").token([]byte("cursor")),
		"another scope":     newQuery("entities", "acme", "", "prefix").token([]byte("cursor")),
		"shifted parts":     newQuery("entities", "acme", "mainp", "refix").token([]byte("cursor")),
		"too long":          strings.Repeat("A", maxTokenBytes+1),
	} {
		_, err := q.cursor(bad)
		if field, ok := err.(*machine.FieldError); !ok || field.Field != "page_token" { //nolint:errorlint // Not wrapped.
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLongestCursorFitsIntoAToken(t *testing.T) {
	t.Parallel()
	q := newQuery("relationships")
	cursor := make([]byte, 2*machine.MaxScopePart+3*machine.MaxKeyBytes+64)
	if got, err := q.cursor(q.token(cursor)); err != nil || len(got) != len(cursor) {
		t.Error(len(got), err)
	}
}
