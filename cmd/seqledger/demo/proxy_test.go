package demo

import (
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestPlan: a message meets the fault that is due, and both are counted. What a fault does, package faultproxy tests.
func TestPlan(t *testing.T) {
	t.Parallel()
	for kind, counts := range map[faultproxy.Kind]Counts{
		faultproxy.Pass:  {Payments: 1},
		faultproxy.Drop:  {Payments: 1, LostRequests: 1},
		faultproxy.Lose:  {Payments: 1, LostAnswers: 1},
		faultproxy.Twice: {Payments: 1, Twice: 1},
		delayed:          {Payments: 1, Delayed: 1},
	} {
		p := newProxy(1, newTally())
		p.faults = []faultproxy.Kind{kind}
		f := p.plan(&faultproxy.Message{Writes: []*seqledgerv1.WriteRequest{write("a", 1)}})
		want := kind
		if kind == delayed {
			want = faultproxy.Pass
		}
		if waits := f.Before != nil; waits != (kind == delayed) || f.Kind != want {
			t.Errorf("fault %d: got %v, which waits: %t", kind, f, waits)
		}
		check.Equal(t, p.tally.snapshot(), counts)
	}
}
