package demo

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	"github.com/seqledger/seqledger/internal/embedded"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// realServer serves a ledger until the test ends and returns its address.
func realServer(t *testing.T) string {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := must.Get(embedded.Open(t.Context(), embedded.Options{Dir: t.TempDir() + "/data", Listener: listener}))(t)
	t.Cleanup(func() { _ = l.Close() })
	return listener.Addr().String()
}

// payUntil runs a client until the proxy has seen so many payments.
func payUntil(t *testing.T, p *proxy, payments uint64, o PayerOptions) {
	t.Helper()
	o.Server = p.Address
	stop, done := make(chan struct{}), make(chan error, 1)
	// Ended by stop, waited for on done.
	go func() { done <- Pay(t.Context(), stop, o) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p.tally.snapshot().Payments < payments {
		select {
		case err := <-done:
			t.Fatalf("the client has ended: %v", err)
		case <-tick.C:
		}
	}
	close(stop)
	must.Do(t, <-done)
}

// TestPay runs a client of each kind in two lives through a proxy that has
// every fault, and audits.
func TestPay(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprint("plain ", plain), func(t *testing.T) {
			t.Parallel()
			backend := realServer(t)
			p := must.Get(startProxy(backend, 7, newTally()))(t)
			t.Cleanup(p.close)
			o := PayerOptions{Dir: t.TempDir(), Name: "client-1", Seed: 7, Plain: plain}
			payUntil(t, p, 240, o)
			payUntil(t, p, 480, o)
			p.settle()

			all := must.Get(payments.ReadLog(filepath.Join(o.Dir, logName)))(t)
			conn := must.Get(client.New(client.Options{Server: backend}))(t)
			defer conn.Close()
			found := must.Get(child.Transactions(t.Context(), conn, scope()))(t)
			got := compare(all, found)
			if got.Attempted < 480 || got.Acknowledged != got.Attempted || got.Lost != 0 || got.Extra != 0 {
				t.Errorf("want all acknowledged and none lost, got %+v", got)
			}
			if plain != (got.Duplicates > 0) {
				t.Errorf("want duplicates from a plain client and from no other, got %+v", got)
			}
			if counts := p.tally.snapshot(); counts.LostAnswers == 0 || counts.Twice == 0 {
				t.Errorf("no answer was lost or no request sent twice, so this says nothing: %+v", counts)
			}
		})
	}
}

// TestReadLedgerEmpty: a new ledger has no payments.
func TestReadLedgerEmpty(t *testing.T) {
	t.Parallel()
	conn := must.Get(client.New(client.Options{Server: realServer(t)}))(t)
	defer conn.Close()
	check.Equal(t, len(must.Get(child.Transactions(t.Context(), conn, scope()))(t)), 0, "want nothing: got %v")
}

// TestPayAmounts: amounts follow from the seed and the number, so that two runs
// with one seed pay the same.
func TestPayAmounts(t *testing.T) {
	t.Parallel()
	amounts := func(seed uint64) (list []int64) {
		p := &payer{options: PayerOptions{Name: "c", Seed: seed}, log: new(payments.Log)}
		for i, payment := range p.next() {
			check.Equal(t, payment.Tag, fmt.Sprint("c/", i+1))
			list = append(list, payment.Cents)
		}
		return list
	}
	if one, same := amounts(3), amounts(3); !slices.Equal(one, same) {
		t.Errorf("one seed, but %v and %v", one, same)
	}
	if one, other := amounts(3), amounts(4); slices.Equal(one, other) {
		t.Errorf("two seeds, but both times %v", one)
	}
}

// refusingServer answers the first writes with one error each, and then as the
// fake does.
type refusingServer struct {
	fakeServer
	refusals chan *connect.Error
}

func (f *refusingServer) Write(ctx context.Context,
	r *connect.Request[seqledgerv1.WriteRequest]) (*connect.Response[seqledgerv1.WriteResponse], error) {
	select {
	case err := <-f.refusals:
		f.take(r.Msg)
		return nil, err
	default:
		return f.fakeServer.Write(ctx, r)
	}
}

// refusal is an error that carries a code of the ledger.
func refusal(t *testing.T, code connect.Code, why seqledgerv1.WriteErrorCode) *connect.Error {
	t.Helper()
	detail := must.Get(connect.NewErrorDetail(&seqledgerv1.WriteError{Code: why}))(t)
	e := connect.NewError(code, nil)
	e.AddDetail(detail)
	return e
}

// TestPlainPoster: each attempt is a write of its own, and a decision of the
// ledger ends them.
func TestPlainPoster(t *testing.T) {
	t.Parallel()
	unknown := refusal(t, connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN)
	full := refusal(t, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
	invalid := refusal(t, connect.CodeInvalidArgument, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)
	for _, test := range []struct {
		name     string
		answers  []*connect.Error
		attempts int
		paid     bool
	}{
		{"at once", nil, 1, true},
		{"unknown", []*connect.Error{unknown, unknown}, 3, true},
		{"no detail", []*connect.Error{connect.NewError(connect.CodeUnavailable, nil)}, 2, true},
		{"queue full", []*connect.Error{full}, 2, true},
		{"refused", []*connect.Error{unknown, invalid}, 2, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := &refusingServer{refusals: make(chan *connect.Error, len(test.answers))}
			for _, answer := range test.answers {
				f.refusals <- answer
			}
			mux := http.NewServeMux()
			mux.Handle(seqledgerv1connect.NewLedgerServiceHandler(f))
			conn := must.Get(client.New(client.Options{Server: listen(t, mux), MaxAttempts: 1}))(t)
			defer conn.Close()
			l := must.Get(payments.OpenLog(filepath.Join(t.TempDir(), logName), false))(t)
			defer l.Close()
			due := []*payments.Payment{{Tag: "a/1", Cents: 1}}
			must.Do(t, l.Intend(due...))
			n := &plainPoster{client: conn, log: l}
			if err := n.Post(t.Context(), due); (err == nil) != test.paid || due[0].Paid != test.paid {
				t.Errorf("want paid %t, got %v and the error %v", test.paid, due[0], err)
			}
			names := f.names()
			slices.Sort(names)
			if distinct := len(slices.Compact(slices.Clone(names))); distinct != test.attempts ||
				len(names) != test.attempts {
				t.Errorf("want %d different attempts, got %s", test.attempts, strings.Join(names, " "))
			}
		})
	}
}
