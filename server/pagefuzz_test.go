package server

import (
	"bytes"
	"encoding/base64"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/seqledger/seqledger/ledger/machine"
)

// FuzzPageToken: what a token is read as makes the same token, and anything
// else is refused as a mistake of the client.
func FuzzPageToken(f *testing.F) {
	q := newQuery("list", "filter")
	f.Add(q.token([]byte("cursor")))
	f.Add(newQuery("other").token([]byte("cursor")))
	f.Add("")
	f.Add("AQ==")
	f.Fuzz(func(t *testing.T, token string) {
		cursor, err := q.cursor(token)
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
		got, _ := base64.RawURLEncoding.DecodeString(q.token(cursor))
		if !bytes.Equal(got, want) {
			t.Errorf("%q is read as %x, which makes %q", token, cursor, q.token(cursor))
		}
	})
}

// FuzzBoundJSON: the scan never panics, what it says is UTF-8, and what it lets
// through is within its bounds.
func FuzzBoundJSON(f *testing.F) {
	f.Add([]byte(`{"writes":[{"a":"\"{"},{}]}`))
	f.Add(bytes.Repeat([]byte("["), 20))
	f.Add([]byte(`{"\`))
	f.Add([]byte(`]}:,"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		problem, depth := boundJSON(data)
		if (problem == nil) != (depth == 0) {
			t.Errorf("%q: %v at depth %d", data, problem, depth)
		}
		if problem != nil && !utf8.ValidString(problem.Error()) {
			t.Errorf("%q: the answer is not UTF-8: %q", data, problem.Error())
		}
	})
}
