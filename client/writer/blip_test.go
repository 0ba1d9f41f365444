package writer_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// balancer stands before a server, as a load balancer does, and answers with a status
// of its own while it is told to.
type balancer struct {
	server *httptest.Server
	pass   http.Handler
	// status is what it answers to requests whose path ends in only, 0 to pass everything
	// on; turnedAway counts that.
	status, turnedAway atomic.Int32
	only               string
}

func (b *balancer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if status := b.status.Load(); status != 0 && strings.HasSuffix(r.URL.Path, b.only) {
		b.turnedAway.Add(1)
		http.Error(w, "no backend", int(status))
		return
	}
	b.pass.ServeHTTP(w, r)
}

// breakWith breaks every connection and answers with status from then on.
func (b *balancer) breakWith(status int) {
	b.turnedAway.Store(0)
	b.status.Store(int32(status))
	b.server.CloseClientConnections()
}

// passAfter waits until so many requests were turned away, and passes the next ones.
func (b *balancer) passAfter(t *testing.T, requests int32) {
	t.Helper()
	eventually(t, "requests that are turned away", func() bool { return b.turnedAway.Load() >= requests })
	b.status.Store(0)
}

// balanced serves s behind a balancer.
func balanced(t *testing.T, s *fakeServer) *balancer {
	t.Helper()
	s.ledger, s.sharedOnly = newFakeLedger(), true
	startFake(t, s)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: s.address})
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	proxy.Transport, proxy.FlushInterval = transport, -1
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	b := &balancer{pass: proxy}
	b.server = httptest.NewUnstartedServer(b)
	b.server.Config.Protocols = new(http.Protocols)
	b.server.Config.Protocols.SetUnencryptedHTTP2(true)
	b.server.Config.Protocols.SetHTTP1(true)
	b.server.Start()
	t.Cleanup(func() { b.server.CloseClientConnections(); b.server.Close() })
	s.address = b.server.Listener.Addr().String()
	return b
}

// statuses are some of what load balancers say while they have no server, of those that pass and of those that do not.
var statuses = []int{404, 502}

// TestAWriterOutlivesALoadBalancersWord: nothing but the ledger can end a Writer, so the
// write that was under way is committed once the load balancer has found it again.
func TestAWriterOutlivesALoadBalancersWord(t *testing.T) {
	t.Parallel()
	for _, status := range statuses {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := new(fakeServer)
			b := balanced(t, s)
			w := newWriter(t, dial(t, s), "till")
			must.Get(w.Write(t.Context(), payload("a")))(t)
			b.breakWith(status)
			p := burst(t, w, payload("b"))[0]
			b.passAfter(t, 3)
			wantCommitted(t, p, 2)
			expectHistory(t, s, "a", "b")
		})
	}
}

// TestAFenceOutlivesALoadBalancersWord: the same while the Writer opens a session,
// because a copy of a refused write may be under way.
func TestAFenceOutlivesALoadBalancersWord(t *testing.T) {
	t.Parallel()
	for _, status := range statuses {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := new(fakeServer)
			b := balanced(t, s)
			b.only = "/OpenSession"
			s.ledger.toggle("taken")
			w := newWriter(t, dial(t, s), "till")
			var copies atomic.Int32
			s.set(func(s *fakeServer) {
				s.onWrite = func(*seqledgerv1.WriteRequest) fault {
					if copies.Add(1) == 1 {
						b.status.Store(int32(status))
						return faultDrop
					}
					return faultNone
				}
			})
			p := burst(t, w, create("taken"))[0]
			b.passAfter(t, 3)
			wantNotExecuted(t, p, failure.ErrConditionFailed)
			if n := s.openCount(); n != 2 {
				t.Errorf("want one more session before the report, got %d in all", n)
			}
		})
	}
}

// TestACallTellsOfAWrongAddressAtOnce: what answers there is not a ledger, and repeating
// would only make the caller wait. It does not say that a write was not executed.
func TestACallTellsOfAWrongAddressAtOnce(t *testing.T) {
	t.Parallel()
	for status, unavailable := range map[int]bool{307: false, 401: false, 404: false, 429: true, 503: true} {
		s := new(fakeServer)
		b := balanced(t, s)
		b.status.Store(int32(status))
		c := dial(t, s, func(o *client.Options) { o.MaxAttempts = 2 })
		_, err := c.Write(t.Context(), numbered(1))
		if !errors.Is(err, failure.ErrOutcomeUnknown) || errors.Is(err, failure.ErrNotExecuted) {
			t.Errorf("%d: an intermediary answered, so the outcome must be unknown: %v", status, err)
		}
		attempts := int32(1)
		if unavailable {
			attempts = 2
		}
		if errors.Is(err, failure.ErrUnavailable) != unavailable || b.turnedAway.Load() != attempts {
			t.Errorf("%d: available later: %v; %d attempts, %v", status, unavailable, b.turnedAway.Load(), err)
		}
	}
}

// TestAWatchOutlivesALoadBalancersWord once it has yielded a block.
func TestAWatchOutlivesALoadBalancersWord(t *testing.T) {
	t.Parallel()
	s := new(fakeServer)
	b := balanced(t, s)
	done := make(chan struct{})
	seen := 0
	// Ends once requests were turned away, which the watch's end would prevent.
	go func() { defer close(done); b.passAfter(t, 2) }()
	for block, err := range dial(t, s).Watch(t.Context(), &seqledgerv1.WatchRequest{Scope: org}) {
		must.Do(t, err)
		if seen++; block.GetHeader().GetHeight() != uint64(seen) {
			t.Fatalf("block %d came as number %d", block.GetHeader().GetHeight(), seen)
		}
		if seen == 3 {
			b.breakWith(404)
			s.set(func(s *fakeServer) { s.height = 4 })
		}
		if seen == 4 {
			break
		}
	}
	<-done
}

// unauthenticated is how a seqledger server turns a token away.
func unauthenticated() error {
	err := connect.NewError(connect.CodeUnauthenticated, errors.New("the session token has expired"))
	err.Meta().Set("WWW-Authenticate", `Bearer realm="seqledger", error="invalid_token"`)
	return err
}

// TestATokenIsRenewed: a session token that ends while a Writer is at work is replaced
// by the next one, for the write stream, for sessions and for calls.
func TestATokenIsRenewed(t *testing.T) {
	t.Parallel()
	s := &fakeServer{ledger: newFakeLedger()}
	var life, asked atomic.Int32 // the token's number, and that which the server wants
	life.Store(1)
	asked.Store(1)
	check := func(header http.Header) error {
		if header.Get("Authorization") != fmt.Sprint("Bearer token-", asked.Load()) {
			return unauthenticated()
		}
		return nil
	}
	s.onHeader = check
	c := startFake(t, s, func(o *client.Options) {
		o.Token = func(context.Context) (string, error) { return fmt.Sprint("token-", life.Load()), nil }
	})
	w := newWriter(t, c, "till")
	must.Get(w.Write(t.Context(), payload("a")))(t)
	// The token ends: the stream with it, and the next one is not let in at first.
	asked.Store(2)
	s.set(func(s *fakeServer) { s.onWrite = first(faultDrop) })
	p := burst(t, w, payload("b"))[0]
	eventually(t, "a stream that is not let in", func() bool { return s.refusedCount() > 0 })
	if _, err := c.GetClientState(t.Context(),
		&seqledgerv1.GetClientStateRequest{Scope: org, ClientId: "till"}); !errors.Is(err, failure.ErrUnauthenticated) {
		t.Errorf("a call with a token that is not renewed is told so at once, got %v", err)
	}
	life.Store(2)
	wantCommitted(t, p, 2)
	// A call that meets the end of its token repeats itself with the next one.
	asked.Store(3)
	s.set(func(s *fakeServer) {
		s.onHeader = func(header http.Header) error {
			defer life.Store(3)
			return check(header)
		}
	})
	if _, err := c.GetClientState(t.Context(),
		&seqledgerv1.GetClientStateRequest{Scope: org, ClientId: "till"}); err != nil {
		t.Errorf("want the call repeated with the new token, got %v", err)
	}
}

// TestATokenThatStaysRefused ends a Writer, but only after a minute: until then the token may
// be renewed, or an operator may restore it.
func TestATokenThatStaysRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := newWriter(t, c, "w")
		s.set(func(s *fakeServer) { s.onStream = unauthenticated })
		p := burst(t, w, payload("1"))[0]
		pass(55 * time.Second)
		must.Do(t, w.Err(), "the Writer has ended within the minute")
		<-w.Done()
		check.Is(t, check.Err(p.Wait(t.Context())), failure.ErrUnauthenticated, "want the server's reason")
		check.Is(t, w.Err(), failure.ErrUnauthenticated, "want the reason")
	})
}

// TestATokenRefusedNowAndThen is not one that stays refused: between the two refusals the
// stream was open for an hour, and ended as a drain ends it.
func TestATokenRefusedNowAndThen(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := newWriter(t, c, "w")
		for n := range uint64(3) {
			var drained atomic.Bool
			s.set(func(s *fakeServer) {
				s.onWrite = func(*seqledgerv1.WriteRequest) fault {
					if !drained.CompareAndSwap(false, true) {
						return faultNone
					}
					s.set(func(s *fakeServer) { s.onStream = unauthenticated })
					return faultDraining
				}
			})
			p := burst(t, w, payload("x"))[0]
			pass(50 * time.Second)
			s.set(func(s *fakeServer) { s.onStream = nil })
			wantCommitted(t, p, n+1)
			pass(time.Hour)
		}
		must.Do(t, w.Err(), "the Writer has ended")
	})
}

// TestATokenRefusedBySomethingBetween ends nothing, however long it lasts: the answer is
// in Connect's form, and does not bear the ledger's own demand.
func TestATokenRefusedBySomethingBetween(t *testing.T) {
	inBubble(t, func(t *testing.T, s *fakeServer, c *client.Client) {
		w := newWriter(t, c, "w")
		s.set(func(s *fakeServer) {
			s.onStream = func() error { return connect.NewError(connect.CodeUnauthenticated, errors.New("gateway")) }
		})
		p := burst(t, w, payload("1"))[0]
		pass(5 * time.Minute)
		s.set(func(s *fakeServer) { s.onStream = nil })
		wantCommitted(t, p, 1)
	})
}
