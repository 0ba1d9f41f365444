package cluster

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// joins makes node 2 a learner.
func (f *fakeLedger) joins(t *testing.T) {
	t.Helper()
	q := JoinRequest{Nonce: [16]byte{1}, Peer: "127.0.0.1:1"}
	must.Get(f.Admit(t.Context(), q))(t)
}

// TestAddressIsCommittedOnceTheNodeAnswers: anything may listen at an address that an operator has mistyped, and a
// committed address at which the node is not would keep it out of the cluster.
func TestAddressIsCommittedOnceTheNodeAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what    string
		answer  http.HandlerFunc // nil: nothing listens
		refusal string           // empty: the address is committed
	}{
		{"the node", isNode(2), ""},
		{"nothing", nil, "connection refused"},
		{"another node", isNode(3), "it is node 3"},
		{"a node of another ledger", says(200, `{"ledger":1,"node":2}`), "of ledger 0000000000000001"},
		{"a node that refuses it", says(421, `{"error":"it is for node 2"}`), "it is for node 2"},
		{"a web server", says(200, "<html>"), "no node"},
	} {
		f := newFake(t, nil, nil).connect(t)
		f.joins(t)
		q := JoinRequest{ID: 2, Peer: "127.0.0.1:1", Client: "c:1"}
		if test.answer != nil {
			q.Peer = other(t, test.answer)
		}
		before := f.log.MembersChanged()
		_, err := f.Admit(t.Context(), q)
		members := f.log.Members()
		a, _ := members.Address(2)
		check.Equal(t, a.Peer == q.Peer && a.Client == q.Client, test.refusal == "",
			"%s answers: the address is %+v: %v: %v", test.what, a, err)
		switch {
		case test.refusal == "" && err != nil:
			t.Errorf("%s answers: %v", test.what, err)
		case test.refusal != "" && (err == nil || !strings.Contains(err.Error(), test.refusal) ||
			!strings.Contains(err.Error(), q.Peer) || f.log.MembersChanged() != before):
			t.Errorf("%s answers: %v", test.what, err)
		}
	}
}

// TestRepeatedAnnouncementCommitsNothing: a node announces its address at each start, and more often while it is not
// confirmed.
func TestRepeatedAnnouncementCommitsNothing(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil).connect(t)
	for range 3 {
		must.Get(f.Admit(t.Context(), f.ownAddress()))(t)
	}
	check.Equal(t, f.ticks, 1, "%d commands were committed for one change")
}

// TestAnnounceUntilConfirmed: what the node's own log says of its address does not count, because the other nodes may
// have another one. Once the leader has confirmed it, the node is silent.
func TestAnnounceUntilConfirmed(t *testing.T) {
	t.Parallel()
	asked, answer := 0, says(503, `{"error":"busy"}`)
	m := voters(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		answer(w, r)
	})
	f := newFake(t, m, func(h *Host) { h.Options.Peer = m.Addresses[0].Peer })
	f.connect(t)
	again := func() {
		f.announcer.next = time.Time{}
		f.announce()
	}
	again()
	again()
	if strings.Count(f.logged.String(), "tried again") != 1 {
		t.Errorf("one problem is said once: %s", f.logged.String())
	}
	f.announce()
	check.Equal(t, asked, 2, "asked %d times, the last without a pause")
	answer = says(200, `{"id":1}`)
	again()
	again()
	check.Equal(t, asked, 3, "asked %d times, want 3: the third was confirmed")
}

// TestAnnounceToNodesThatWereNamed: all other nodes may have moved, so that the log names none of their addresses.
func TestAnnounceToNodesThatWereNamed(t *testing.T) {
	t.Parallel()
	asked := 0
	named := other(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		says(200, `{"id":1}`)(w, r)
	})
	f := newFake(t, voters(t, nil), func(h *Host) { h.Options.Nodes = []string{h.Options.Peer, named} })
	f.connect(t)
	f.announce()
	if asked != 1 || !f.announcer.confirmed {
		t.Errorf("asked %d times: %s", asked, f.logged.String())
	}
}

// TestLeaderAnnouncesToItself: the leader of a cluster changes its own address itself, by the same rule.
func TestLeaderAnnouncesToItself(t *testing.T) {
	t.Parallel()
	for _, reachable := range []bool{true, false} {
		f := newFake(t, nil, nil).connect(t)
		if !reachable {
			f.host.Options.Peer = "127.0.0.1:1"
		}
		f.announce()
		members := f.log.Members()
		a, _ := members.Address(1)
		check.Equal(t, a.Peer == f.host.Options.Peer && a.Client == f.host.Options.Client, reachable,
			"node 1 is at %+v, and answers there: %t: %v", a, reachable)
	}
}

// TestForgottenNode: a node that has lost what it acknowledged is sent nothing, and is taken back once it says itself
// that its log has that again. Nothing is kept of a node that was removed.
func TestForgottenNode(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil).connect(t)
	f.joins(t)
	var last atomic.Uint64 // of the node itself, whatever another one announces in its name
	last.Store(9)
	q := JoinRequest{ID: 2, Peer: other(t, isNodeWith(2, &last))}
	announce := func() error {
		_, err := f.Admit(t.Context(), q)
		return err
	}
	must.Do(t, errors.Join(announce(), f.connectMembers()))
	connected := func() bool {
		_, is := f.transport.Load().Connected()[2]
		return is
	}
	if !connected() {
		t.Fatal("node 2 is no peer")
	}
	err := f.tellForgotten(t.Context(), &raftlog.ForgottenError{Leader: 1, Acknowledged: 12, Last: 9})
	if err == nil || !connected() {
		t.Error("a leader takes from itself that it has forgotten something:", err)
	}
	tell := func(from uint64) int {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+f.host.Options.Peer+forgottenPath, strings.NewReader(`{"node":2,"acknowledged":12,"last":9}`)))(t)
		as := transport.Identity{Token: f.token(), Ledger: testLedger.String(), From: from}
		sent := transport.As(transport.NewRoundTripper(nil), func() transport.Identity { return as })
		response := must.Get(sent.RoundTrip(r))(t)
		_ = response.Body.Close()
		return response.StatusCode
	}
	if status := tell(1); status != http.StatusForbidden || !connected() {
		t.Errorf("one node says it of another: %d", status)
	}
	check.Equal(t, tell(2), http.StatusNoContent, "the node says it of itself: %d")
	status := f.Status()
	if m := status.find(2); m == nil || !m.OldCopy || status.find(1).OldCopy {
		t.Errorf("the status is %+v", status)
	}
	if connected() || !strings.Contains(f.logged.String(), "old copy") {
		t.Error("the node is still a peer:", f.logged.String())
	}
	if err := announce(); !errors.Is(err, errForgotten) || connected() {
		t.Error("the old copy is taken back:", err)
	}
	last.Store(12)
	if err := announce(); err != nil || !connected() {
		t.Error("the node with its own directory:", err)
	}
	if status := tell(2); status != http.StatusNoContent || !f.hasForgotten(2) {
		t.Errorf("it forgets again: %d", status)
	}
	if err := errors.Join(f.Remove(t.Context(), 2, false), f.connectMembers()); err != nil || len(f.forgot) != 0 {
		t.Errorf("after its removal %v is known: %v", f.forgot, err)
	}
}
