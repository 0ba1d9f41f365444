package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/wire/message"
)

// fleet are servers that say which ledger they have, as the real ones do. Its transport runs in the caller's goroutine.
type fleet struct {
	ledgers map[string]string // by host; "" is older than the question
	down    map[string]bool
	asked   strings.Builder // hosts and what they were asked for
	done    strings.Builder // hosts that executed a call
}

func (f *fleet) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.down[r.Host] {
		return nil, errors.New("connection refused")
	}
	meant, own := r.Header.Get(message.LedgerHeader), f.ledgers[r.Host]
	f.asked.WriteString(r.Host + meant + " ")
	w := httptest.NewRecorder()
	if own != "" && meant != "" && meant != own {
		w.Header().Set(message.LedgerHeader, own)
	}
	if own != "" && meant != "" && meant != own && meant != message.AnyLedger {
		err := connect.NewErrorWriter().Write(w, r, connect.NewError(connect.CodeFailedPrecondition, io.EOF))
		return w.Result(), err
	}
	f.done.WriteString(r.Host)
	w.Header().Set("Content-Type", "application/proto")
	return w.Result(), nil
}

func (f *fleet) client(t *testing.T, servers string) *Client {
	t.Helper()
	c := must.Get(New(Options{Server: servers, HTTPClient: &http.Client{Transport: f}}))(t)
	return c
}

// A Client with several servers says of which ledger they are once it knows, and one of another ledger executes
// nothing of it; a single server is asked nothing.
func TestServersHaveOneLedger(t *testing.T) {
	t.Parallel()
	same, different := map[string]string{"a": "1", "b": "1"}, map[string]string{"a": "1", "b": "2", "c": "1"}
	gone := map[string]bool{"a": true}
	for name, test := range map[string]struct {
		servers     string
		ledgers     map[string]string
		then        map[string]bool // down from the second call on
		asked, done string
		want        error // of the second call; nil: success
	}{
		"one server":   {"a", same, nil, "a a ", "aa", nil},
		"several":      {"a,b", same, nil, "aany a1 ", "aa", nil},
		"the next one": {"a,b", same, gone, "aany b1 ", "ab", nil},
		"an older one": {"a,b", map[string]string{"a": "1"}, gone, "aany b1 ", "ab", nil},
		"older ones":   {"a,b", nil, gone, "aany bany ", "ab", nil},
		"another one":  {"a,b,c", different, gone, "aany b1 c1 ", "ac", nil},
		"only another": {"a,b", different, gone, "", "a", context.DeadlineExceeded},
		"never asked":  {"a,b", different, nil, "aany a1 ", "aa", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fleet{ledgers: test.ledgers}
				c := f.client(t, test.servers)
				must.Do(t, status(t.Context(), c))
				f.down = test.then
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				check.Is(t, status(ctx, c), test.want)
				if test.asked != "" && f.asked.String() != test.asked || f.done.String() != test.done {
					t.Errorf("asked were %q, want %q; done by %q, want %q", f.asked.String(), test.asked,
						f.done.String(), test.done)
				}
				must.Do(t, c.Close())
			})
		})
	}
}

// When all servers have another ledger, as after a restore, a call ends and says so.
func TestAllServersHaveAnotherLedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{ledgers: map[string]string{"a": "1", "b": "1"}}
		c := f.client(t, "a,b")
		must.Do(t, status(t.Context(), c))
		f.ledgers = map[string]string{"a": "2", "b": "2"}
		check.Is(t, status(t.Context(), c), failure.ErrOtherLedger)
		if f.done.String() != "a" || f.asked.String() != "aany a1 b1 " {
			t.Errorf("asked were %q; done by %q", f.asked.String(), f.done.String())
		}
		_ = c.Close()
	})
}

// What is counted as refused by all servers is forgotten when one of them fails for another reason.
func TestWithOther(t *testing.T) {
	t.Parallel()
	a, b := new(Endpoint), new(Endpoint)
	other := failure.FromConnect(connect.NewError(connect.CodeUnavailable, failure.ErrOtherLedger), 0)
	away := failure.FromConnect(connect.NewError(connect.CodeUnavailable, io.EOF), 0)
	others := withOther(withOther(withOther(nil, a, other), a, other), b, other)
	if len(others) != 2 || len(withOther(others, a, away)) != 0 {
		t.Errorf("%d others, want 2, and then none", len(others))
	}
	if !other.IsTemporary() || !other.IsElsewhere() {
		t.Error("another server is not tried")
	}
}
