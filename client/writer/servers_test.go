package writer_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// nodes serves one ledger from several servers.
func nodes(t *testing.T, n int) []*fakeServer {
	t.Helper()
	ledger := newFakeLedger()
	var all []*fakeServer
	for range n {
		s := &fakeServer{ledger: ledger, height: 3}
		listener := must.Get(freeport.Listen(t.Context(), ""))(t) // its address stays free once it is closed
		s.address = listener.Addr().String()
		stop := s.serve(listener)
		var once atomic.Bool
		s.stop = func() {
			if once.CompareAndSwap(false, true) {
				stop()
			}
		}
		t.Cleanup(s.stop)
		all = append(all, s)
	}
	return all
}

// dialAll returns a client of all servers, in their order.
func dialAll(t *testing.T, all []*fakeServer, change ...func(*client.Options)) *client.Client {
	t.Helper()
	var addresses []string
	for _, s := range all {
		addresses = append(addresses, s.address)
	}
	return dial(t, &fakeServer{address: strings.Join(addresses, ",")}, change...)
}

// answerOf makes every call and write of a fake be answered with a WriteError.
func (s *fakeServer) answerOf(connectCode connect.Code, e *seqledgerv1.WriteError) {
	s.set(func(s *fakeServer) {
		s.onRead = func() error { return withDetail(connectCode, e) }
		s.onUnary = func(*seqledgerv1.WriteRequest) error { return withDetail(connectCode, e) }
		s.onAnswer = func(*seqledgerv1.WriteRequest,
			*seqledgerv1.WriteResult) *seqledgerv1.WriteResult {
			return refusal(e)
		}
	})
}

// TestTheNextServer takes over when one is gone or drains, for calls, for the write stream
// and for a watch; each write is committed once.
func TestTheNextServer(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*fakeServer){
		"gone": func(s *fakeServer) { s.stop() },
		"draining": func(s *fakeServer) {
			s.answerOf(connect.CodeUnavailable, &seqledgerv1.WriteError{Code: codeDraining})
			s.set(func(s *fakeServer) { s.onWatch = func(uint64) error { return errBroken } })
		},
		"not the leader": func(s *fakeServer) {
			s.answerOf(connect.CodeUnavailable, &seqledgerv1.WriteError{Code: codeNotLeader})
			s.set(func(s *fakeServer) { s.onWatch = func(uint64) error { return errBroken } })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := nodes(t, 3)
			c := dialAll(t, all)
			w := newWriter(t, c, "w")
			for i := range uint64(10) {
				if i == 5 {
					leave(all[0])
				}
				wantCommitted(t, burst(t, w, payload("x"))[0], i+1)
				must.Do(t, ask(t.Context(), c))
			}
			if seen, err := watchedUntil(t, c, 3); seen != 3 || err != nil {
				t.Errorf("the watch saw %d blocks, %v", seen, err)
			}
			check.Equal(t, len(all[0].ledger.history()), 10, "%d writes are committed")
		})
	}
}

// TestTheLeaderIsAsked where its address says, whether that is in the list or not, and all
// servers in turn where it does not.
func TestTheLeaderIsAsked(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		listed  int // servers that the client is told of; the last node leads
		address func(string) string
	}{
		"not in the list": {2, func(a string) string { return a }},
		"not told":        {4, func(string) string { return "" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := nodes(t, 4)
			leader := all[3]
			for _, s := range all[:3] {
				s.answerOf(connect.CodeUnavailable,
					&seqledgerv1.WriteError{Code: codeNotLeader, LeaderAddress: test.address(leader.address)})
			}
			c := dialAll(t, all[:test.listed])
			receipt, err := c.Write(t.Context(), numbered(1))
			if err != nil || receipt.GetReplayed() {
				t.Fatal(receipt, err)
			}
			wantCommitted(t, burst(t, newWriter(t, c, "w"), payload("x"))[0], 1)
			must.Do(t, ask(t.Context(), c))
			check.Equal(t, len(leader.unary), 1, "the leader got %d calls")
		})
	}
}

// TestTheLeaderIsLearnt from the answers of a node that passes calls on: the next call, and the writes of a stream, go
// to the leader itself. Where it cannot be reached, they stay with the node that reaches it.
func TestTheLeaderIsLearnt(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]func(*client.Options){
		"": func(*client.Options) {}, "HTTP/2": func(o *client.Options) { o.HTTP2 = true },
	} {
		t.Run("leader"+name, func(t *testing.T) {
			t.Parallel()
			all := nodes(t, 2)
			c := dialAll(t, all, options)
			all[0].set(func(s *fakeServer) { s.leader = all[1].address })
			for i := range uint64(3) {
				must.Get(c.Write(t.Context(), numbered(i+1)))(t)
			}
			if n, m := len(all[0].unary), len(all[1].unary); n != 1 || m != 2 {
				t.Errorf("the follower got %d calls and the leader %d, want 1 and 2", n, m)
			}
		})
	}
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		all := nodes(t, 2)
		all[0].set(func(s *fakeServer) {
			s.afterOpen = func(*seqledgerv1.OpenSessionRequest) error { // so that the stream's answer is the first
				s.set(func(s *fakeServer) { s.leader = all[1].address })
				return nil
			}
			s.onWrite = func(*seqledgerv1.WriteRequest) fault {
				t.Error("a write went to the follower")
				return faultNone
			}
		})
		c := dialAll(t, all)
		wantCommitted(t, burst(t, newWriter(t, c, "w"), payload("x"))[0], 1)
	})
	t.Run("not reached", func(t *testing.T) {
		t.Parallel()
		all := nodes(t, 2)
		all[1].stop()
		all[0].set(func(s *fakeServer) { s.leader = all[1].address })
		c := dialAll(t, all)
		for i := range uint64(3) {
			must.Get(c.Write(t.Context(), numbered(i+1)))(t)
			wantCommitted(t, burst(t, newWriter(t, c, fmt.Sprint("w", i)), payload("x"))[0], 1)
		}
		check.Equal(t, len(all[0].unary), 3, "the node got %d calls")
	})
}
