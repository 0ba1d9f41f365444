package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// TestAddresses of servers: what is taken, and as what; the rest is refused with its reason.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ledger:7450": "http://ledger:7450", "http://a": "http://a", "https://a:1/": "https://a:1",
		"https://a/path/": "https://a/path", "[::1]:1": "http://[::1]:1",
		"": "error", "ftp://a": "error", "http://": "error", "://a": "error", "http://a b": "error",
		"unix:///run/l": "error",
	} {
		got, err := parseServer(text)
		switch {
		case want == "error" && err == nil:
			t.Errorf("%q is read as %s", text, got)
		case want != "error" && (err != nil || got.String() != want):
			t.Errorf("%q is read as %v, %v; want %s", text, got, err, want)
		}
	}
}

// TestWhoMayHaveTheToken: nothing but this machine gets it in clear text unless the caller says so.
func TestWhoMayHaveTheToken(t *testing.T) {
	t.Parallel()
	token := func(context.Context) (string, error) { return "t", nil }
	for server, want := range map[string]bool{
		"http://127.0.0.1:1": true, "http://127.9.9.9": true, "http://[::1]": true, "http://localhost": true,
		"http://LOCALHOST:1": true, "http://[::ffff:127.0.0.1]": true, "https://ledger.example": true,
		"http://ledger.example": false, "http://10.0.0.1": false, "http://127.0.0.1.example": false,
		"http://localhost.example": false, "http://0.0.0.0": false, "http://128.0.0.1": false,
	} {
		base := must.Get(url.Parse(server))(t)
		o := Options{Token: token}
		clear := Options{Token: token, CleartextToken: true}
		if got := o.mayHaveToken(base); got != want || !clear.mayHaveToken(base) || !new(Options).mayHaveToken(base) {
			t.Errorf("%s may have the token: %v, want %v", server, got, want)
		}
	}
}

// TestMovingBetweenServers against a model: a call moves on from the server that it used alone, to the leader
// if one is named that may be used, otherwise to the next in the list; a named server that is not in the list
// is followed by the first.
func TestMovingBetweenServers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := &Options{}
		names := []string{"a:1", "b:1", "c:1"}[:rapid.IntRange(1, 3).Draw(t, "servers")]
		var bases []*url.URL
		for _, name := range names {
			base := must.Get(parseServer(name))(t)
			bases = append(bases, base)
		}
		s := newEndpoints(bases, func(base *url.URL) *Endpoint { return &Endpoint{base: base, options: o} })
		current := names[0]
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			from := s.use()
			must.Equal(t, from.Host(), current, "in use is %s")
			leader := rapid.SampledFrom([]string{"", "a:1", "c:1", "x:9", "http://y:9", "https://z:9", "::",
				"b:1"}).Draw(t, "leader")
			late := rapid.Bool().Draw(t, "twice")
			s.moveOn(from, leader)
			host := strings.TrimPrefix(leader, "http://")
			switch {
			case leader == "" || leader == "::" || strings.HasPrefix(leader, "https"): // none, or none that may be used
				current = names[(slices.Index(names, current)+1)%len(names)]
			default:
				current = host
			}
			if late { // another call, which had used the same server, comes too late to move on
				was := s.use()
				if s.moveOn(from, ""); was != from && s.use() != was {
					t.Fatalf("a late call has moved from %s to %s", was.Host(), s.use().Host())
				} else if was == from {
					current = s.use().Host()
				}
			}
		}
	})
}

// TestLearningTheLeader goes to it if it is in the list, once, and not back to one that was left a moment ago.
func TestLearningTheLeader(t *testing.T) {
	t.Parallel()
	o := &Options{}
	var bases []*url.URL
	for _, name := range []string{"a:1", "b:1", "https://c:1"} {
		base := must.Get(parseServer(name))(t)
		bases = append(bases, base)
	}
	s := newEndpoints(bases, func(base *url.URL) *Endpoint { return &Endpoint{base: base, options: o} })
	a, b := s.all[0], s.all[1]
	learn := func(from *Endpoint, leader string, want *Endpoint) {
		t.Helper()
		if s.learn(from, leader); s.use() != want {
			t.Errorf("%s names %q: in use is %s, want %s", from.Host(), leader, s.use().Host(), want.Host())
		}
	}
	for _, leader := range []string{"", "a:1", "x:1", "c:1", "::", "ftp://b:1"} {
		learn(a, leader, a) // unknown, itself, or reached in another way
	}
	learn(b, "b:1", a) // an answer that comes late, of a server that is not in use
	learn(a, "http://b:1", b)
	learn(b, "a:1", b) // they contradict each other
	s.moveOn(b, "")    // c
	s.moveOn(s.use(), "")
	learn(a, "b:1", a) // it could not be reached just now
	b.left = b.left.Add(-leftMemory)
	learn(a, "b:1", b)
	s.moveOn(b, "a:1") // a refusal that names the leader is followed at once
	if s.use() != a {
		t.Errorf("in use is %s", s.use().Host())
	}
}

// scripted answers calls of GetStatus with what a test says.
type scripted struct {
	seqledgerv1connect.UnimplementedAdminServiceHandler
	answer func(token string) error
	calls  atomic.Int32
}

func (s *scripted) GetStatus(
	_ context.Context, r *connect.Request[seqledgerv1.GetStatusRequest],
) (*connect.Response[seqledgerv1.GetStatusResponse], error) {
	s.calls.Add(1)
	if err := s.answer(r.Header().Get("Authorization")); err != nil {
		return nil, err
	}
	return connect.NewResponse(&seqledgerv1.GetStatusResponse{Status: &seqledgerv1.Status{LedgerId: "1"}}), nil
}

// RoundTrip implements http.RoundTripper in the caller's goroutine.
func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	_, handler := seqledgerv1connect.NewAdminServiceHandler(s)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// status calls GetStatus.
func status(ctx context.Context, c *Client) error {
	_, err := Call(ctx, c, (*Endpoint).GetStatus, &seqledgerv1.GetStatusRequest{}, nil)
	return err
}

func (s *scripted) client(t *testing.T, o Options) *Client {
	t.Helper()
	o.Server, o.HTTPClient = "127.0.0.1", &http.Client{Transport: s}
	c := must.Get(New(o))(t)
	return c
}

// TestHowOftenACallIsSent: until it is answered, refused, out of attempts, or its context ends; with pauses that
// the server may lengthen, up to a bound.
func TestHowOftenACallIsSent(t *testing.T) {
	t.Parallel()
	code := func(c connect.Code) error { return connect.NewError(c, errors.New("why")) }
	detailed := func(c connect.Code, w *seqledgerv1.WriteError) error {
		e := connect.NewError(c, errors.New("why"))
		d := must.Get(connect.NewErrorDetail(w))(t)
		e.AddDetail(d)
		return e
	}
	for name, test := range map[string]struct {
		attempts int
		answers  []error // the last one for ever
		calls    int32
		want     error // nil: success
	}{
		"success":     {0, []error{nil}, 1, nil},
		"third time":  {0, []error{code(connect.CodeUnavailable), code(connect.CodeInternal), nil}, 3, nil},
		"out of them": {3, []error{code(connect.CodeUnavailable)}, 3, failure.ErrUnavailable},
		"final":       {0, []error{code(connect.CodeNotFound)}, 1, failure.ErrNotFound},
		"no token":    {0, []error{code(connect.CodeUnauthenticated)}, 1, failure.ErrUnauthenticated},
		"leader's turn": {4, []error{detailed(connect.CodeUnavailable, &seqledgerv1.WriteError{
			Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING})}, 4, failure.ErrUnavailable},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			s := &scripted{answer: func(string) error {
				n++
				return test.answers[min(n, len(test.answers))-1]
			}}
			c := s.client(t, Options{MaxAttempts: test.attempts})
			err := status(t.Context(), c)
			if s.calls.Load() != test.calls || !errors.Is(err, test.want) {
				t.Errorf("%s: %d calls, %v; want %d, %v", name, s.calls.Load(), err, test.calls, test.want)
			}
			if repeats := int32(c.Counters.CallRepeats.Load()); repeats < test.calls-1 {
				t.Errorf("%s: %d repeats are counted of %d calls", name, repeats, test.calls)
			}
			check.Is(t, c.Close(), nil)
			check.Is(t, status(t.Context(), c), failure.ErrClosed, "%s: a call of a closed Client", name)
		})
	}
}

// TestTheEndOfAPause: a call waits no longer than its context or its Client, and says what it waited for.
func TestTheEndOfAPause(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"context", "client"} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{answer: func(string) error { return connect.NewError(connect.CodeUnavailable, io.EOF) }}
			c := s.client(t, Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			done := make(chan error)
			began := time.Now()
			go func() { done <- status(ctx, c) }() // ends with ctx or the Client
			want := error(context.DeadlineExceeded)
			if end == "client" {
				synctest.Wait()
				want = failure.ErrClosed
				check.Is(t, c.Close(), nil)
			}
			if err := <-done; !errors.Is(err, want) || !errors.Is(err, failure.ErrUnavailable) {
				t.Errorf("%s: %v", end, err)
			}
			if waited := time.Since(began); end == "client" && waited != 0 || waited > 3*time.Second {
				t.Errorf("%s: the call ended after %v", end, waited)
			}
			_ = c.Close()
		})
	}
}

// TestATokenIsRenewedOnce for a call: a function that makes a new token each time must not repeat for ever.
func TestATokenIsRenewedOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		good  string // token
		calls int32
	}{"the second is good": {"Bearer t-2", 2}, "none is": {"", 2}} {
		made := 0
		s := &scripted{answer: func(token string) error {
			if token == test.good {
				return nil
			}
			return connect.NewError(connect.CodeUnauthenticated, errors.New("unknown token"))
		}}
		// The function is asked for a call, for whether there is another one, and for the repeat.
		sequence := []string{"t-1", "t-2", "t-2", "t-3"}
		c := s.client(t, Options{Token: func(context.Context) (string, error) {
			made++
			return sequence[min(made, len(sequence))-1], nil
		}})
		err := status(t.Context(), c)
		if s.calls.Load() != test.calls || (err == nil) != (test.good != "") {
			t.Errorf("%s: %d calls, %v", name, s.calls.Load(), err)
		}
		_ = c.Close()
	}
}

// TestWritersEndWithTheirClient: the Client makes them once, none after its end, and joins their errors.
func TestWritersEndWithTheirClient(t *testing.T) {
	t.Parallel()
	s := &scripted{}
	c := s.client(t, Options{})
	made := 0
	w := &writers{closed: errors.New("unsettled")}
	for range 2 {
		got, err := c.Writers(func() Writers { made++; return w })
		if err != nil || got != Writers(w) {
			t.Fatal(got, err)
		}
	}
	if err := c.Shutdown(t.Context()); made != 1 || w.shutdowns != 1 || w.closes != 1 || !errors.Is(err, w.closed) {
		t.Errorf("made %d times, %d shutdowns, %d closes, %v", made, w.shutdowns, w.closes, err)
	}
	check.Is(t, check.Err(c.Writers(func() Writers { return w })), failure.ErrClosed, "a Writer of a closed Client")
	if c.Context().Err() == nil {
		t.Error("the context of a closed Client goes on")
	}
}

type writers struct {
	shutdowns, closes int
	closed            error
}

func (w *writers) Close() error                   { w.closes++; return w.closed }
func (w *writers) Shutdown(context.Context) error { w.shutdowns++; return nil }
