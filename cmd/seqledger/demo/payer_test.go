package demo

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	"github.com/seqledger/seqledger/internal/embedded"
	"github.com/seqledger/seqledger/internal/testkit/must"
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
