package demo

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
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
			if got := p.tally.snapshot(); got != test.counts {
				t.Errorf("want %+v, got %+v", test.counts, got)
			}
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
	if got := p.tally.snapshot(); got != want {
		t.Errorf("want %+v, got %+v", want, got)
	}
	if got := fake.names(); len(got) != 3 {
		t.Errorf("want three arrivals, got %v", got)
	}
}

// frames sends frames with two writes each, one after the other's answer, and
// returns how many were answered before the stream broke.
func frames(t *testing.T, service seqledgerv1connect.LedgerServiceClient, count int) (int, error) {
	t.Helper()
	// A proxy that dropped a frame and kept the stream would keep the client waiting.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream := service.WriteStream(ctx)
	defer stream.CloseResponse()
	for n := range count {
		first := uint64(2*n + 1)
		// What Send says is not telling: Receive knows why a stream broke.
		_ = stream.Send(&seqledgerv1.WriteStreamRequest{
			Writes: []*seqledgerv1.WriteRequest{write("a", first), write("a", first+1)},
		})
		response, err := stream.Receive()
		if err != nil {
			return n, err
		}
		if results := response.GetResults(); len(results) != 2 || results[0].GetReceipt().GetSequence() != first ||
			results[0].GetReceipt().GetReplayed() {
			t.Fatalf("frame %d: want two first answers from %d on, got %v", n, first, results)
		}
	}
	return count, stream.CloseRequest()
}

// TestProxyStream: what each fault does to the second of three frames.
func TestProxyStream(t *testing.T) {
	t.Parallel()
	one, two, three := []string{"a/1", "a/2"}, []string{"a/3", "a/4"}, []string{"a/5", "a/6"}
	for _, test := range []struct {
		name     string
		kind     faultproxy.Kind
		arrives  [][]string
		answered int
		counts   Counts
	}{
		{"none", faultproxy.Pass, [][]string{one, two, three}, 3, Counts{Payments: 6}},
		{"lose the request", faultproxy.Drop, [][]string{one}, 1, Counts{Payments: 4, LostRequests: 1}},
		{"lose the answer", faultproxy.Lose, [][]string{one, two}, 1, Counts{Payments: 4, LostAnswers: 1}},
		{"delay", delayed, [][]string{one, two, three}, 3, Counts{Payments: 6, Delayed: 1}},
		{"twice", faultproxy.Twice, [][]string{one, two, two, three}, 3, Counts{Payments: 6, Twice: 1, Replayed: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, fake, service := rigged(t, faultproxy.Pass, test.kind)
			answered, err := frames(t, service, 3)
			if answered != test.answered || (err == nil) != (answered == 3) {
				t.Errorf("want %d frames answered, got %d (%v)", test.answered, answered, err)
			}
			p.settle()
			got, want := fake.names(), slices.Concat(test.arrives...)
			// A copy comes when it likes, but never before its original.
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("want %v to arrive, got %v", want, got)
			}
			if got := p.tally.snapshot(); got != test.counts {
				t.Errorf("want %+v, got %+v", test.counts, got)
			}
		})
	}
}

// TestProxyWithoutServer: when nothing listens behind it, a client sees broken
// connections at once and not silence.
func TestProxyWithoutServer(t *testing.T) {
	t.Parallel()
	p, err := startProxy("127.0.0.1:1", 1, newTally())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	p.stop()
	transport := &http.Transport{Protocols: faultproxy.Protocols(false, true)}
	t.Cleanup(transport.CloseIdleConnections)
	service := seqledgerv1connect.NewLedgerServiceClient(&http.Client{Transport: transport}, "http://"+p.Address)
	if _, err := service.Write(t.Context(), connect.NewRequest(write("a", 1))); err == nil {
		t.Error("want an error from a single call")
	}
	if answered, err := frames(t, service, 1); err == nil || answered != 0 {
		t.Errorf("want an error from a stream, got %d frames answered", answered)
	}
}
