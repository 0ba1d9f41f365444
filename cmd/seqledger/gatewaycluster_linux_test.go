package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
)

// TestGatewayFailover kills, with SIGKILL, the leader of the three-node ledger behind two gateways while a request is
// in flight. The request is executed once. Its client gets the response, and so does every retry.
func TestGatewayFailover(t *testing.T) {
	t.Parallel()
	kills := 2
	if testing.Short() {
		kills = 1
	}
	c := serveCluster(t, 3)
	conn := c.client(t)
	var addresses []string
	for _, n := range c.nodes {
		addresses = append(addresses, n.address)
	}
	u := newUpstream(t)
	flags := []string{"--ledger", strings.Join(addresses, ","), "--lease", "10s"}
	gateways := []*testGateway{startGateway(t, t.TempDir(), u.URL, flags...),
		startGateway(t, t.TempDir(), u.URL, flags...)}
	var last uint64
	for i := range kills {
		key, want := fmt.Sprintf(`"k%d"`, i), fmt.Sprint("charge ", i+1)
		first := gateways[0].send(key)
		fence := <-u.fences
		if fence <= last {
			t.Errorf("fence %d after %d", fence, last)
		}
		repeat := gateways[1].send(key)
		owners := newKilledOwners(t, idempotency.Ledger(conn), i)

		leader := c.leader(t, conn)
		leader.kill()
		owners.goOn(t)
		u.finish <- struct{}{}
		if a := <-first; a.status != http.StatusCreated || a.replayed || a.text != want {
			t.Errorf("kill %d: the first request: %+v", i, a)
		}
		if a := <-repeat; a.status == http.StatusCreated && (a.text != want || !a.replayed) {
			t.Errorf("kill %d: the repeat: %+v", i, a)
		}
		for _, g := range gateways {
			if a := g.until(t, key, want); !a.replayed {
				t.Errorf("kill %d: a later repeat: %+v", i, a)
			}
		}
		c.restart(t, conn, leader)
		last = owners.replayed(t)
	}
	for i := range kills {
		key, want := fmt.Sprintf(`"k%d"`, i), fmt.Sprint("charge ", i+1)
		if a := gateways[i%2].until(t, key, want); !a.replayed {
			t.Errorf("in the end: %+v", a)
		}
	}
	if n := u.executed.Load(); int(n) != kills {
		t.Errorf("%d requests were executed %d times", kills, n)
	}
	c.alike(t)
}

// killedOwners are the owners of two keys whose leader is killed: one resumes in time, and one resumes too late.
type killedOwners struct {
	store      idempotency.Store
	kept, late *idempotency.ReserveRequest
	tokens     map[*idempotency.ReserveRequest]uint64
	taken      uint64 // token of the late owner's successor
}

func newKilledOwners(t *testing.T, store idempotency.Store, i int) *killedOwners {
	t.Helper()
	request := func(name string, lease time.Duration) *idempotency.ReserveRequest {
		return &idempotency.ReserveRequest{
			Key: idempotency.RecordKey{Scope: idempotency.Scope{Organization: "acme"}, Namespace: "failover",
				Key: fmt.Sprint(name, i)},
			AttemptID: idempotency.NewAttemptID(), Lease: lease, OnLeaseExpired: idempotency.TakeOver,
		}
	}
	o := &killedOwners{
		store: store, kept: request("kept", time.Hour), late: request("late", time.Second),
		tokens: map[*idempotency.ReserveRequest]uint64{},
	}
	for _, r := range []*idempotency.ReserveRequest{o.kept, o.late} {
		o.tokens[r] = o.reserve(t, r, idempotency.Acquired).Token
	}
	return o
}

// reserve retries until the outcome is the wanted one, and fails with any other final outcome.
func (o *killedOwners) reserve(
	t *testing.T, r *idempotency.ReserveRequest, want idempotency.Outcome,
) *idempotency.Reservation {
	t.Helper()
	for deadline := time.Now().Add(hangs); ; {
		again := *r
		again.Wait = time.Second
		got, err := o.store.Reserve(t.Context(), &again)
		if err == nil && got.Outcome == want {
			return got
		}
		if err == nil && got.Outcome != idempotency.InFlight || time.Now().After(deadline) {
			t.Fatalf("a Reserve of %s: %+v, %v, want %v", r.Key.Key, got, err, want)
		}
	}
}

// complete completes a key, and retries while no node leads.
func (o *killedOwners) complete(
	t *testing.T, r *idempotency.ReserveRequest, token uint64, response string, want idempotency.Outcome,
) {
	t.Helper()
	owner := &idempotency.Ownership{Key: r.Key, Token: token, AttemptID: r.AttemptID}
	for deadline := time.Now().Add(hangs); ; {
		got, err := o.store.Complete(t.Context(), owner, idempotency.Result{Response: []byte(response)})
		if err == nil && got.Outcome == want {
			return
		}
		if err == nil || time.Now().After(deadline) {
			t.Fatalf("Complete of %s with token %d: %+v, %v, want %v", r.Key.Key, token, got, err, want)
		}
	}
}

// goOn lets both owners continue with the next leader. A retry of the Reserve gets the same token as before. A lease
// that has ended is taken over under a higher token; after that, the earlier owner can change nothing.
func (o *killedOwners) goOn(t *testing.T) {
	t.Helper()
	if again := o.reserve(t, o.kept, idempotency.Acquired); again.Token != o.tokens[o.kept] {
		t.Errorf("a repeat got token %d, and had %d", again.Token, o.tokens[o.kept])
	}
	o.complete(t, o.kept, o.tokens[o.kept], "kept", idempotency.OK)

	successor := *o.late
	successor.AttemptID = idempotency.NewAttemptID()
	o.taken = o.reserve(t, &successor, idempotency.Acquired).Token
	if o.taken <= o.tokens[o.late] || o.tokens[o.late] <= o.tokens[o.kept] {
		t.Errorf("tokens %d, %d and then %d", o.tokens[o.kept], o.tokens[o.late], o.taken)
	}
	o.complete(t, o.late, o.tokens[o.late], "late", idempotency.LeaseLost)
	o.complete(t, &successor, o.taken, "taken", idempotency.OK)
	o.complete(t, o.late, o.tokens[o.late], "late", idempotency.LeaseLost)
}

// replayed checks what other callers get, and returns the highest token.
func (o *killedOwners) replayed(t *testing.T) uint64 {
	t.Helper()
	for r, want := range map[*idempotency.ReserveRequest]string{o.kept: "kept", o.late: "taken"} {
		other := *r
		other.AttemptID = idempotency.NewAttemptID()
		check.Equal(t, string(o.reserve(t, &other, idempotency.Replay).Record.Response), want, "%s is replayed as %q",
			r.Key.Key)
	}
	return o.taken
}
