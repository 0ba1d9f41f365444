package idempotency_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// FuzzStoredResponse checks that a response that decodes encodes to bytes that decode to the same response and fit into
// a record.
func FuzzStoredResponse(f *testing.F) {
	f.Add(idempotency.EncodeStored(201, http.Header{"Location": {"/a"}, "Set-Cookie": {"x"}}, []byte("body")))
	f.Add(idempotency.EncodeStored(200, nil, bytes.Repeat([]byte("x"), idempotency.MaxResponse)))
	f.Add(idempotency.EncodeStored(302, http.Header{"Location": {strings.Repeat("x", idempotency.MaxResponse)}}, nil))
	f.Add(idempotency.EncodeStored(200, http.Header{"Etag": {"\"\xe9\"", "é"}}, []byte("body")))
	f.Add([]byte{1, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, stored []byte) {
		again, kept, err := idempotency.DecodeStored(stored)
		if err != nil {
			return
		}
		if len(again) > idempotency.MaxResponse {
			t.Fatalf("%d bytes become %d", len(stored), len(again))
		}
		third, keptAgain, err := idempotency.DecodeStored(again)
		if err != nil || !bytes.Equal(third, again) || keptAgain != kept && len(stored) < idempotency.MaxResponse/2 {
			t.Fatalf("%q becomes %q, and that %q, %v", stored, again, third, err)
		}
	})
}

// FuzzJournalFile checks that a file that decodes is a result, and that its encoding decodes to the same result.
func FuzzJournalFile(f *testing.F) {
	f.Add([]byte("seqledger result 1\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		again, err := idempotency.DecodeJournal(content)
		if err != nil {
			return
		}
		third, err := idempotency.DecodeJournal(again)
		if err != nil || !bytes.Equal(third, again) {
			t.Fatalf("%q becomes %q, and that %q, %v", content, again, third, err)
		}
	})
}

// FuzzLocateJSON checks that the value at a pointer is the one that package json finds.
func FuzzLocateJSON(f *testing.F) {
	f.Add([]byte(`{"a":{"b":[1, {"c~/":"x"} ]}}`), "/a/b/1/c~0~1")
	f.Add([]byte(` [ 1 , [ 2 ] ] `), "/1/0")
	f.Add([]byte(`{"":{"":null}}`), "//")
	f.Add([]byte(`"x"`), "")
	f.Fuzz(func(t *testing.T, text []byte, pointer string) {
		if pointer != "" && pointer[0] != '/' ||
			strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(pointer),
				"~") {
			return // the options refuse it
		}
		if _, err := idempotency.CanonicalJSON(text); err != nil {
			return
		}
		value, found, err := idempotency.LocateJSON(text, pointer)
		must.Do(t, err, "%q in %q", pointer, text)
		var whole any
		if json.Unmarshal(text, &whole) != nil {
			return // nested more deeply than package json accepts
		}
		want, wanted := walk(whole, pointer)
		must.Equal(t, found, wanted, "%q in %q: found %v", pointer, text)
		if !found {
			return
		}
		var got any
		if err := json.Unmarshal(value, &got); err != nil || mustJSON(t, got) != mustJSON(t, want) {
			t.Fatalf("%q in %q is %q, want %v", pointer, text, value, want)
		}
	})
}

// walk resolves a pointer of RFC 6901 in decoded JSON.
func walk(value any, pointer string) (any, bool) {
	if pointer == "" {
		return value, true
	}
	for _, name := range strings.Split(pointer[1:], "/") {
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		switch container := value.(type) {
		case map[string]any:
			member, ok := container[name]
			if !ok {
				return nil, false
			}
			value = member
		case []any:
			found := false
			for i := range container {
				if name == itoa(i) {
					value, found = container[i], true
				}
			}
			if !found {
				return nil, false
			}
		default:
			return nil, false
		}
	}
	return value, true
}

func itoa(i int) string {
	b, _ := json.Marshal(i)
	return string(b)
}
