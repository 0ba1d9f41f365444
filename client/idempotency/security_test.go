package idempotency_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The values that a store writes to its database contain neither keys nor principals, and a conflict reveals nothing
// about the first request.
func TestStoredValuesHaveNoKeys(t *testing.T) {
	t.Parallel()
	backend := newMapBackend()
	s := &service{T: t, store: idempotency.NewStore(backend), metrics: newCounter()}
	s.charge.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	s.use(func(o *idempotency.Options) {
		o.Namespace = func(*http.Request) string { return "secret-namespace" }
		o.Principal = func(context.Context, http.Header) (string, error) { return "secret-principal", nil }
	})
	secret := header("Idempotency-Key", `"secret-key"`)
	s.expect(s.send(secret, body("secret-body")), http.StatusNoContent, "false", 1)
	conflict := s.send(secret, body("other"))
	var text bytes.Buffer
	must.Do(t, conflict.Write(&text))
	if said := strings.ReplaceAll(text.String(), `"secret-key"`, ""); strings.Contains(said, "secret") {
		t.Errorf("the conflict says %s", said) // it echoes the key, which the client has sent
	}
	backend.mu.Lock()
	defer backend.mu.Unlock()
	if len(backend.values) < 2 {
		t.Fatalf("%d values are stored", len(backend.values))
	}
	for key, value := range backend.values {
		if strings.Contains(key+string(value.bytes), "secret") {
			t.Errorf("the database has %q under %q", value.bytes, key)
		}
	}
}
