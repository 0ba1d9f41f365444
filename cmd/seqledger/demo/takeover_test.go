package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/journal"
	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestPayWithoutJournal: a client that has intended payments and finds its
// journal gone stops rather than send them a second time.
func TestPayWithoutJournal(t *testing.T) {
	t.Parallel()
	p := quietProxy(t, realServer(t))
	o := PayerOptions{Server: p.Address, Dir: t.TempDir(), Name: "client-1"}
	payUntil(t, p, payments.Batch, o)
	must.Do(t, os.Remove(filepath.Join(o.Dir, "journal")))
	if err := Pay(t.Context(), make(chan struct{}), o); !errors.Is(err, journal.ErrMissing) {
		t.Errorf("want that the journal is missing, got %v", err)
	}
}

// quietProxy is a proxy without faults.
func quietProxy(t *testing.T, backend string) *proxy {
	t.Helper()
	p := must.Get(startProxy(backend, 0, newTally()))(t)
	t.Cleanup(p.close)
	p.stop()
	return p
}

// TestPayFenced: when another client takes over the stream, this one ends.
func TestPayFenced(t *testing.T) {
	t.Parallel()
	backend := realServer(t)
	p := quietProxy(t, backend)
	done := make(chan error, 1)
	stop := make(chan struct{})
	dir := t.TempDir()
	// Ends when the stream is fenced; waited for on done.
	go func() { done <- Pay(t.Context(), stop, PayerOptions{Server: p.Address, Dir: dir, Name: "client-1"}) }()
	conn := must.Get(client.New(client.Options{Server: backend}))(t)
	defer conn.Close()
	for block, err := range conn.Watch(t.Context(), &seqledgerv1.WatchRequest{Scope: scope()}) {
		if err != nil || block.GetHeader().GetHeight() >= 1 {
			break
		}
	}
	must.Get(conn.OpenSession(t.Context(), &seqledgerv1.OpenSessionRequest{
		Scope: scope(), ClientId: "client-1", AttemptId: []byte("0123456789abcdef"),
	}))(t)
	if err := <-done; !errors.Is(err, failure.ErrFenced) {
		t.Errorf("want that the stream is fenced, got %v", err)
	}
}

// TestPayEndsWithContext: a client that cannot reach the ledger ends with its
// context.
func TestPayEndsWithContext(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		p := quietProxy(t, "127.0.0.1:1")
		why := errors.New("the parent is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		o := PayerOptions{Server: p.Address, Dir: t.TempDir(), Name: "client-1", Plain: plain}
		// Ended by cancel, waited for on done.
		go func() { done <- Pay(ctx, make(chan struct{}), o) }()
		cancel(why)
		if err := <-done; !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
			t.Errorf("plain %t: want the reason, got %v", plain, err)
		}
	}
}
