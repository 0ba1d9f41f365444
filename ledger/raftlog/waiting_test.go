package raftlog

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// A caller that waits for an index is woken once it is applied, not before; one that has left delays no other.
func TestAwaitApplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := started(t, simdisk.New(), &recorder{}, nil)
		write(t, r, "first")
		at := r.Covered().Index
		must.Do(t, r.AwaitApplied(t.Context(), at))
		must.Do(t, r.AwaitApplied(t.Context(), 0))
		left, leave := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		done := make(chan error, 2)
		go func() { gone <- r.AwaitApplied(left, at+1) }()         // ends when leave is called
		go func() { done <- r.AwaitApplied(t.Context(), at+1) }()  // ends with the first write
		go func() { done <- r.AwaitApplied(t.Context(), at+20) }() // ends when the host is closed
		synctest.Wait()
		leave()
		check.Is(t, <-gone, context.Canceled, "the caller has left")
		if len(done) > 0 {
			t.Fatalf("nothing was applied: %v", <-done)
		}
		write(t, r, "second")
		synctest.Wait()
		if len(done) != 1 {
			t.Fatalf("%d are awake behind entry %d", len(done), r.Covered().Index)
		}
		must.Do(t, <-done)
		must.Do(t, r.Close())
		check.Is(t, <-done, ErrClosed, "closed")
		check.Is(t, r.AwaitApplied(t.Context(), at+20), ErrClosed, "after it was closed")
	})
}

// What has failed wakes its waiters with the reason, and takes nothing any more.
func TestFailureReachesWhoWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := started(t, simdisk.New(), &recorder{}, nil)
		done := make(chan error, 1)
		go func() { done <- r.AwaitApplied(t.Context(), 1000) }() // ends with the failure
		synctest.Wait()
		r.Fail(errDisk)
		check.Is(t, <-done, errDisk, "who waited")
		for what, err := range map[string]error{
			"ready": r.Ready(t.Context()), "read": r.ReadBarrier(t.Context()),
			"change": r.ChangeIn(t.Context(), r.Role().Term, new(pb.ConfChangeV2)),
			"write":  second(r.ProposeIn(r.Role().Term, []byte("x")).Wait()), "write in its term": second(r.ProposeIn(1,
				[]byte("x")).Wait()),
		} {
			check.Is(t, err, errDisk, "%s", what)
		}
		if _, ready := r.IsReady(); ready {
			t.Error("it is ready")
		}
		r.Fail(errors.New("another failure"))
		check.Is(t, r.Err(), errDisk, "the first failure is not the one that is told")
	})
}

func second(_ any, err error) error { return err }

// What must not be in the log is refused before it gets there: it can be proposed again, as if it never had been.
func TestProposalsThatAreRefused(t *testing.T) {
	t.Parallel()
	m := &recorder{}
	r := started(t, simdisk.New(), m, nil)
	term, ready := r.IsReady()
	if !ready {
		t.Fatal("it is not ready")
	}
	large := bytes.Repeat([]byte("x"), MaxEntryBytes+1)
	for what, test := range map[string]struct {
		err, want error
	}{
		"too large":              {second(r.ProposeIn(r.Role().Term, large).Wait()), ErrEntryTooLarge},
		"too large for its term": {second(r.ProposeIn(term, large).Wait()), ErrEntryTooLarge},
		"a term of before":       {second(r.ProposeIn(term-1, []byte("x")).Wait()), ErrNotLeader},
		"a term to come":         {second(r.ProposeIn(term+1, []byte("x")).Wait()), ErrNotLeader},
		"too large, here":        {second(r.ProposeHere(term, large, yes).Wait()), ErrEntryTooLarge},
		"a term of before, here": {second(r.ProposeHere(term-1, []byte("x"), yes).Wait()), ErrNotLeader},
	} {
		if !errors.Is(test.err, test.want) || errors.Is(test.err, ErrOutcomeUnknown) {
			t.Errorf("%s: %v, want %v", what, test.err, test.want)
		}
	}
	if got := m.texts(); len(got) > 0 {
		t.Errorf("%d entries are in the log", len(got))
	}
	if result, err := r.ProposeIn(term, []byte("x")).Wait(); err != nil || result != "result of x" {
		t.Errorf("in its term: %v, %v", result, err)
	}
}

func yes() bool { return true }

// TestProposeHere: on a node that has no others an entry is applied when the call returns, unless the machine is busy
// or the entry is large, and the loops apply it.
func TestProposeHere(t *testing.T) {
	t.Parallel()
	r := started(t, simdisk.New(), &recorder{}, nil)
	term, _ := r.IsReady()
	for _, test := range []struct {
		entry string
		idle  bool
		here  bool
	}{
		{"x", true, true}, {"x", false, false}, {strings.Repeat("x", 4<<10), true, false}, {"x", true, true},
	} {
		p, here := r.ProposeHere(term, []byte(test.entry), func() bool { return test.idle }), false
		select {
		case <-p.Done():
			here = true
		default:
		}
		if result, err := p.Wait(); err != nil || result != "result of "+test.entry || test.here && !here {
			t.Errorf("%d bytes, idle %v: %v, %v, here %v", len(test.entry), test.idle, result, err, here)
		}
	}
}

// Changes of the members that are impossible change nothing, and the node goes on.
func TestImpossibleChanges(t *testing.T) {
	t.Parallel()
	r := started(t, simdisk.New(), &recorder{}, unheard)
	single := func(kind pb.ConfChangeType, id uint64) *pb.ConfChangeV2 {
		return &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{{Type: kind.Enum(), NodeId: &id}}}
	}
	for what, change := range map[string]*pb.ConfChangeV2{
		"the only voter is removed": single(pb.ConfChangeRemoveNode, 1),
		"the leader loses its vote": single(pb.ConfChangeAddLearnerNode, 1),
		"an address of no member":   single(pb.ConfChangeUpdateNode, 2),
		"an address that is cut off": func() *pb.ConfChangeV2 {
			c := single(pb.ConfChangeAddLearnerNode, 2)
			c.Context = []byte("short")
			return c
		}(),
		"an address of another node": func() *pb.ConfChangeV2 {
			c := single(pb.ConfChangeAddLearnerNode, 2)
			(&core.Address{ID: 3, Peer: "three:1"}).AppendTo(c)
			return c
		}(),
	} {
		if err := r.ChangeIn(t.Context(), r.Role().Term, change); err == nil || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if m := r.Members(); len(m.Voters) != 1 || m.Highest != 1 || r.MembersChanged() != 0 {
		t.Errorf("the members are %+v as of entry %d", m, r.MembersChanged())
	}
	must.Do(t, r.ChangeIn(t.Context(), r.Role().Term, single(pb.ConfChangeAddLearnerNode, 2)),
		"a change that is possible")
	changed := r.MembersChanged()
	if before := r.MembersAt(changed - 1); r.MembersAt(changed).Highest != 2 || before.Highest != 1 {
		t.Errorf("the members before entry %d are %+v", changed, before)
	}
	write(t, r, "goes on")
}
