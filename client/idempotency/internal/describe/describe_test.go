package describe

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// testKey is the key of a record whose principal is not valid UTF-8.
func testKey() *idempotency.RecordKey {
	return &idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "acme", Vault: "main"}, Namespace: "charge", Principal: "b\xffb",
		Key: "order-4711",
	}
}

// A description does not contain the key.
func TestDescription(t *testing.T) {
	t.Parallel()
	text := must.Get(json.Marshal(Of(testKey())))(t)
	if strings.Contains(string(text), "4711") {
		t.Errorf("the description has the client's key: %s", text)
	}
	d := must.Get(Parse(string(text)))(t)
	sum := sha256.Sum256([]byte("order-4711"))
	if d.Organization != "acme" || d.Vault != "main" || d.Namespace != "charge" || d.Principal != "b\uFFFDb" ||
		hex.EncodeToString(d.KeyHash) != hex.EncodeToString(sum[:]) {
		t.Errorf("%+v", d)
	}
}

// Malformed descriptions are refused.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "{}", `{"key_hash":"YQ=="}`} {
		if d, err := Parse(text); err == nil {
			t.Errorf("%q is taken for a description: %+v", text, d)
		}
	}
}

// A list contains the records of its scope that match the request.
func TestMatches(t *testing.T) {
	t.Parallel()
	d := Of(testKey())
	scope := testKey().Scope
	for name, c := range map[string]struct {
		request idempotency.ListRequest
		want    bool
	}{
		"own":             {idempotency.ListRequest{Scope: scope, Principal: "b\xffb"}, true},
		"every":           {idempotency.ListRequest{Scope: scope, EveryPrincipal: true, Namespace: "charge"}, true},
		"other principal": {idempotency.ListRequest{Scope: scope}, false},
		"other namespace": {idempotency.ListRequest{Scope: scope, EveryPrincipal: true, Namespace: "c"}, false},
		"other vault": {
			idempotency.ListRequest{Scope: idempotency.Scope{Organization: "acme"}, EveryPrincipal: true}, false,
		},
		"other organization": {
			idempotency.ListRequest{Scope: idempotency.Scope{Vault: "main"}, EveryPrincipal: true}, false,
		},
	} {
		check.Equal(t, d.Matches(&c.request), c.want, "%s: %v", name)
	}
	now := time.Unix(1_000_000, 0)
	record := keyed.Record{State: keyed.Pending, Token: 7, LeaseEnd: now.Add(time.Minute).UnixNano()}
	for state, want := range map[idempotency.State]bool{
		0: true, idempotency.Pending: true, idempotency.Committed: false,
	} {
		listed := must.Get(d.Listed(&idempotency.ListRequest{State: state}, record.Append(nil), now))(t)
		if (listed != nil) != want {
			t.Errorf("state %v: %+v", state, listed)
		}
		if listed != nil && (listed.Record.Token != 7 || listed.KeyHash != [32]byte(d.KeyHash)) {
			t.Errorf("%+v", listed)
		}
	}
	if listed := must.Get(d.Listed(&idempotency.ListRequest{}, nil, now))(t); listed != nil {
		t.Error("a record that stands for nothing is listed")
	}
	check.Is(t, check.Err(d.Listed(&idempotency.ListRequest{}, []byte("x"), now)), idempotency.ErrDamaged,
		"a damaged record")
}
