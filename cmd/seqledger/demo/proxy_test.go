package demo

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	"github.com/seqledger/seqledger/internal/testkit/check"
)

// TestProxySingle: what each fault does to a single call, on both of its sides
// and in the counts.
func TestProxySingle(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		kind     faultproxy.Kind
		arrives  int
		answered bool
		counts   Counts
	}{
		{"none", faultproxy.Pass, 1, true, Counts{Payments: 1}},
		{"lose the request", faultproxy.Drop, 0, false, Counts{Payments: 1, LostRequests: 1}},
		{"lose the answer", faultproxy.Lose, 1, false, Counts{Payments: 1, LostAnswers: 1}},
		{"delay", delayed, 1, true, Counts{Payments: 1, Delayed: 1}},
		{"twice", faultproxy.Twice, 2, true, Counts{Payments: 1, Twice: 1, Replayed: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, fake, service := rigged(t, test.kind)
			same := newProxy(1, nil)
			same.faults = []faultproxy.Kind{test.kind}
			_, wait := same.next()
			began := time.Now()
			response, err := service.Write(t.Context(), connect.NewRequest(write("a", 1)))
			if (err == nil) != test.answered {
				t.Fatalf("want an answer: %t, got the error %v", test.answered, err)
			}
			if test.answered && (response.Msg.GetReceipt().GetTxId() != "a/1" ||
				response.Msg.GetReceipt().GetReplayed()) {
				t.Errorf("want the first answer, got %v", response.Msg)
			}
			// A lower bound: a slow machine cannot break it.
			if took := time.Since(began); test.kind == delayed && took < wait {
				t.Errorf("want a delay of %s, it took %s", wait, took)
			}
			p.settle()
			if got := fake.names(); len(got) != test.arrives {
				t.Errorf("want it to arrive %d times, got %v", test.arrives, got)
			}
			check.Equal(t, p.tally.snapshot(), test.counts)
		})
	}
}

// TestProxyCountsRetries: a payment that is sent again is a retry, whatever
// became of it before, and a copy of the proxy's own is none.
func TestProxyCountsRetries(t *testing.T) {
	t.Parallel()
	p, fake, service := rigged(t, faultproxy.Drop, faultproxy.Lose, faultproxy.Twice)
	for attempt, answered := range []bool{false, false, true} {
		if _, err := service.Write(t.Context(), connect.NewRequest(write("a", 1))); (err == nil) != answered {
			t.Fatalf("attempt %d: want an answer: %t, got the error %v", attempt, answered, err)
		}
	}
	p.settle()
	want := Counts{Payments: 1, Retried: 2, Replayed: 2, LostRequests: 1, LostAnswers: 1, Twice: 1}
	check.Equal(t, p.tally.snapshot(), want)
	check.Equal(t, len(fake.names()), 3, "want three arrivals: got %v")
}
