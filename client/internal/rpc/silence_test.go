package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// stopped is the transport of servers of which some take requests and say nothing.
type stopped struct {
	silent func(host string) bool   // to any request
	slow   func(host string) string // "": answers calls at once; or a reason to answer none until the context ends
	calls  func(host string)        // counts
	asked  atomic.Int32             // whether a server is there
}

func (s *stopped) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
	}
	health := r.URL.Path == "/healthz"
	if health {
		s.asked.Add(1)
	} else {
		s.calls(r.Host)
	}
	if s.silent(r.Host) || !health && s.slow(r.Host) != "" {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/proto"}}, Body: io.NopCloser(strings.NewReader("")),
		Request: r,
	}, nil
}

// TestASilentServerIsLeft when there is another one, and one that is only slow is waited for.
func TestASilentServerIsLeft(t *testing.T) {
	t.Parallel()
	never := func(string) bool { return false }
	quick := func(string) string { return "" }
	first := func(host string) bool { return host == "a" }
	slowFirst := func(host string) string {
		if first(host) {
			return "its disk is slow"
		}
		return ""
	}
	for name, test := range map[string]struct {
		servers string
		silent  func(string) bool
		slow    func(string) string
		takes   time.Duration // at most; 0: the call does not end before its context
		calls   string
		asked   int32
	}{
		"all answer":             {"a,b", never, quick, time.Nanosecond, "a", 0},
		"the first is silent":    {"a,b", first, quick, SilenceAfter + silenceFirst + time.Second, "ab", 1},
		"the first is slow":      {"a,b", never, slowFirst, 0, "a", 30},
		"the only one is silent": {"a", first, quick, 0, "a", 0},
		"all are silent":         {"a,b,c", func(string) bool { return true }, quick, 0, "abca", 4},
		"two are silent":         {"a,b,c", func(h string) bool { return h != "c" }, quick, 12 * time.Second, "abc", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var calls strings.Builder
				called := func(host string) { calls.WriteString(host) }
				s := &stopped{silent: test.silent, slow: test.slow, calls: called}
				c, err := New(Options{Server: test.servers, HTTPClient: &http.Client{Transport: s}})
				must.Do(t, err)
				defer func() { _ = c.Close() }()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second+time.Millisecond)
				defer cancel()
				began := time.Now()
				err = status(ctx, c)
				took := time.Since(began)
				switch {
				case test.takes == 0 && !errors.Is(err, context.DeadlineExceeded):
					t.Errorf("the call ended after %v: %v", took, err)
				case test.takes > 0 && (err != nil || took > test.takes):
					t.Errorf("the call took %v, want at most %v: %v", took, test.takes, err)
				}
				if calls.String() != test.calls || s.asked.Load() != test.asked {
					t.Errorf("the calls went to %q, and servers were asked %d times if they are there; want %q, %d",
						calls.String(), s.asked.Load(), test.calls, test.asked)
				}
			})
		})
	}
}

// TestOneAsksForAll: many calls that wait for one server do not each ask whether it is there.
func TestOneAsksForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stopped{
			silent: func(string) bool { return false }, slow: func(string) string { return "slow" },
			calls: func(string) {},
		}
		c := must.Get(New(Options{Server: "a,b", HTTPClient: &http.Client{Transport: s}}))(t)
		defer func() { _ = c.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		const callers = 100
		ended := make(chan error, callers)
		for range callers {
			go func() { ended <- status(ctx, c) }() // ends with ctx
		}
		for range callers {
			check.Is(t, <-ended, context.DeadlineExceeded)
		}
		check.Equal(t, s.asked.Load(), 10, "the server was asked %d times in ten seconds")
	})
}

// TestSilenceIsNoAnswer: what was sent to a server that is silent may have been executed.
func TestSilenceIsNoAnswer(t *testing.T) {
	t.Parallel()
	e := ErrorOfSilence()
	if !e.IsOpen() || !e.IsTemporary() || !e.IsElsewhere() || e.IsFinal() || e.ConnectCode != connect.CodeUnavailable ||
		!errors.Is(e, failure.ErrUnavailable) {
		t.Errorf("%v is open %v, temporary %v, elsewhere %v", e, e.IsOpen(), e.IsTemporary(), e.IsElsewhere())
	}
}
