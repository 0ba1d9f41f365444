package storetest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
)

// Listing is a store that can list its records.
type Listing interface {
	idempotency.Store
	idempotency.Lister
}

// own makes the test the owner of a key.
func own(t *testing.T, s idempotency.Store, key idempotency.RecordKey) *idempotency.Ownership {
	t.Helper()
	request := &idempotency.ReserveRequest{Key: key, AttemptID: idempotency.NewAttemptID()}
	r, err := s.Reserve(t.Context(), request)
	if err != nil || r.Outcome != idempotency.Acquired {
		t.Fatalf("%s: %+v, %v", key.Key, r, err)
	}
	return &idempotency.Ownership{Key: key, Token: r.Token, AttemptID: request.AttemptID}
}

// must fails the test unless an owner's call succeeded.
func must(t *testing.T, a *idempotency.Answer, err error) {
	t.Helper()
	if err != nil || a.Outcome != idempotency.OK {
		t.Fatalf("%+v, %v", a, err)
	}
}

// MakeRecords makes a record in each state, whose key is the state's name, and one that no longer determines the state
// of its key.
func MakeRecords(t *testing.T, s idempotency.Store, of idempotency.RecordKey) {
	t.Helper()
	owner := func(state string) *idempotency.Ownership {
		of.Key = state
		return own(t, s, of)
	}
	answer, err := s.Complete(t.Context(), owner("COMMITTED"), idempotency.Result{Response: []byte("done")})
	must(t, answer, err)
	answer, err = s.Reject(t.Context(), owner("REJECTED"), idempotency.Result{Response: []byte("never")})
	must(t, answer, err)
	answer, err = s.Release(t.Context(), owner("released"))
	must(t, answer, err)
	// The stored value still says pending, because no call has read it since.
	answer, err = s.Heartbeat(t.Context(), owner("INDETERMINATE"), idempotency.EndLease)
	must(t, answer, err)
	answer, err = s.Checkpoint(t.Context(), owner("PENDING"), []byte("half"))
	must(t, answer, err)
}

// listed returns the items of a list, each as namespace/principal/state.
func listed(t *testing.T, s idempotency.Lister, request *idempotency.ListRequest) (found []string) {
	t.Helper()
	for r, err := range s.List(t.Context(), request) {
		if err != nil {
			t.Fatal(err)
		}
		// The key of a record in these tests is its state.
		if r.KeyHash != sha256.Sum256([]byte(r.Record.State.String())) {
			t.Errorf("%v has the hash %x", r.Record.State, r.KeyHash)
		}
		if r.Record.Response != nil || r.Record.Checkpoint != nil || r.Record.Token == 0 || r.Record.Created.IsZero() {
			t.Errorf("%+v", r.Record)
		}
		found = append(found, fmt.Sprintf("%s/%s/%s", r.Namespace, r.Principal, r.Record.State))
	}
	slices.Sort(found)
	return found
}

// RunList checks the lists of a store: a list contains the records of its scope that match the request, as Get would
// return them. No other test may use the organizations acme and other of the store.
func RunList(t *testing.T, s Listing) {
	t.Helper()
	type listRequest = idempotency.ListRequest
	scope := idempotency.Scope{Organization: "acme", Vault: "main"}
	for _, of := range []idempotency.RecordKey{
		{Scope: scope, Namespace: "charge"}, {Scope: scope, Namespace: "charge", Principal: "bob"},
		{Scope: scope, Namespace: "refund"}, {Scope: idempotency.Scope{Organization: "acme"}, Namespace: "charge"},
		{Scope: idempotency.Scope{Organization: "other", Vault: "main"}, Namespace: "charge"},
	} {
		MakeRecords(t, s, of)
	}
	all := func(prefixes ...string) (want []string) {
		for _, prefix := range prefixes {
			for _, state := range []string{"COMMITTED", "INDETERMINATE", "PENDING", "REJECTED"} {
				want = append(want, prefix+"/"+state)
			}
		}
		slices.Sort(want)
		return want
	}
	for name, test := range map[string]struct {
		request listRequest
		want    []string
	}{
		"own":       {listRequest{}, all("charge/", "refund/")},
		"of one":    {listRequest{Principal: "bob"}, all("charge/bob")},
		"of nobody": {listRequest{Principal: "eve"}, nil},
		"of all":    {listRequest{EveryPrincipal: true}, all("charge/", "charge/bob", "refund/")},
		"namespace": {listRequest{Namespace: "refund", EveryPrincipal: true}, all("refund/")},
		"pending":   {listRequest{Namespace: "refund", State: idempotency.Pending}, []string{"refund//PENDING"}},
		"indeterminate": {
			listRequest{Principal: "bob", State: idempotency.Indeterminate}, []string{"charge/bob/INDETERMINATE"},
		},
		"committed": {listRequest{Principal: "bob", State: idempotency.Committed}, []string{"charge/bob/COMMITTED"}},
	} {
		test.request.Scope = scope
		if got := listed(t, s, &test.request); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	whole := &listRequest{Scope: idempotency.Scope{Organization: "acme"}}
	if got := listed(t, s, whole); !slices.Equal(got, all("charge/")) {
		t.Errorf("the scope without a vault: %q", got)
	}
	for _, err := range s.List(t.Context(), whole) { // the caller stops early
		if err != nil {
			t.Error(err)
		}
		break
	}
}
