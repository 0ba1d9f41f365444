package describe

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// testKey is the key of a record whose principal is not valid UTF-8.
func testKey() *idempotency.RecordKey {
	return &idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "acme", Vault: "main"}, Namespace: "charge", Principal: "b\xffb",
		Key: "order-4711",
	}
}

// A name describes the record and does not contain the key.
func TestName(t *testing.T) {
	t.Parallel()
	want := strings.Repeat("ab", sha256.Size)
	name := Namer{}.Name(testKey(), "records/"+want)
	if strings.Contains(name, "4711") {
		t.Errorf("the name has the client's key: %s", name)
	}
	hash, text, err := Split(name)
	if err != nil || hash != want {
		t.Fatalf("%q, %v", hash, err)
	}
	d := must.Get(Parse(text))(t)
	sum := sha256.Sum256([]byte("order-4711"))
	if d.Organization != "acme" || d.Vault != "main" || d.Namespace != "charge" || d.Principal != "b\uFFFDb" ||
		hex.EncodeToString(d.KeyHash) != hex.EncodeToString(sum[:]) {
		t.Errorf("%+v", d)
	}
}

// Malformed names and descriptions are refused.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "tokens", strings.Repeat("g", hashLength), strings.Repeat("a", hashLength-1)} {
		if _, _, err := Split(name); err == nil {
			t.Errorf("%q is taken for a name", name)
		}
	}
	for _, text := range []string{"", "{", "{}", `{"key_hash":"YQ=="}`} {
		if d, err := Parse(text); err == nil {
			t.Errorf("%q is taken for a description: %+v", text, d)
		}
	}
}

// A list contains the records of its scope that match the request.
func TestMatches(t *testing.T) {
	t.Parallel()
	_, text, err := Split(Namer{}.Name(testKey(), strings.Repeat("ab", sha256.Size)))
	if err != nil {
		t.Fatal(err)
	}
	d := must.Get(Parse(text))(t)
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
		if got := d.Matches(&c.request); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	record := &idempotency.Record{State: idempotency.Pending}
	for state, want := range map[idempotency.State]bool{
		0: true, idempotency.Pending: true, idempotency.Committed: false,
	} {
		listed := d.Listed(&idempotency.ListRequest{State: state}, record)
		if (listed != nil) != want {
			t.Errorf("state %v: %+v", state, listed)
		}
		if listed != nil && (listed.Record != record || listed.KeyHash != [32]byte(d.KeyHash)) {
			t.Errorf("%+v", listed)
		}
	}
	if d.Listed(&idempotency.ListRequest{}, nil) != nil {
		t.Error("a record that stands for nothing is listed")
	}
}
