package embedded_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/embedded"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

// open opens a ledger for a test.
func open(t *testing.T, o embedded.Options) *embedded.Ledger {
	t.Helper()
	o.Dir = t.TempDir() + "/data"
	l := must.Get(embedded.Open(t.Context(), o))(t)
	t.Cleanup(func() {
		check.Is(t, l.Close(), nil)
	})
	return l
}

// The store of a ledger in the process passes what every store must pass.
func TestStore(t *testing.T) {
	t.Parallel()
	store := open(t, embedded.Options{}).Store()
	storetest.Run(t, func(*testing.T) idempotency.Store { return store })
}

func request(key string) *idempotency.ReserveRequest {
	return &idempotency.ReserveRequest{
		Key: idempotency.RecordKey{
			Scope: idempotency.Scope{Organization: "acme"}, Namespace: "charges", Principal: "alice", Key: key,
		},
		AttemptID: idempotency.NewAttemptID(), ValidUntil: time.Now().Add(time.Minute),
	}
}

// Errors are those of a ledger behind a connection.
func TestErrors(t *testing.T) {
	t.Parallel()
	l := open(t, embedded.Options{PrincipalKeys: 1})
	store := l.Store()
	first := request("first")
	check.Is(t, check.Err(store.Get(t.Context(), &first.Key)), idempotency.ErrNotFound, "Get of an absent record")
	must.Equal(t, must.Get(store.Reserve(t.Context(), first))(t).Outcome, idempotency.Acquired,
		"the first Reserve: %+v")
	_, err := store.Reserve(t.Context(), request("second"))
	if _, full := errors.AsType[*idempotency.QuotaError](err); !full {
		t.Errorf("a Reserve beyond the bound: %v", err)
	}
	far := request("first")
	far.ValidUntil = time.Now().Add(time.Hour)
	_, err = store.Reserve(t.Context(), far)
	if invalid, ok := errors.AsType[*idempotency.InvalidError](err); !ok || invalid.Field != "valid_until" {
		t.Errorf("a Reserve that is valid for an hour: %v", err)
	}
	clock, ok := store.(idempotency.Clock)
	if !ok || time.Since(clock.Now()).Abs() > time.Minute {
		t.Error("the store does not tell its time")
	}
}

// A response that the disk has damaged is told as damage: a store that does not answer is another case.
func TestDamagedResponse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reserved, response := request("key"), bytes.Repeat([]byte("response"), 10_000)
	use := func(work func(idempotency.Store)) {
		l := must.Get(embedded.Open(t.Context(), embedded.Options{Dir: dir}))(t)
		work(l.Store())
		_ = l.Close() // fails after damage
	}
	use(func(store idempotency.Store) {
		r, err := store.Reserve(t.Context(), reserved)
		if err == nil {
			_, err = store.Complete(t.Context(), &idempotency.Ownership{
				Key: reserved.Key, Token: r.Token, AttemptID: reserved.AttemptID,
			}, idempotency.Result{Response: response})
		}
		must.Do(t, err)
	})
	use(func(store idempotency.Store) {
		state := must.Get(os.OpenFile(filepath.Join(dir, "state.db"), os.O_RDWR, 0))(t)
		defer state.Close()
		content, err := io.ReadAll(state)
		if err == nil {
			_, err = state.WriteAt([]byte("damage"), int64(bytes.Index(content, response[:1000])))
		}
		must.Do(t, err)
		check.Is(t, check.Err(store.Get(t.Context(), &reserved.Key)), idempotency.ErrDamaged, "Get")
		check.Is(t, check.Err(store.Reserve(t.Context(), reserved)), idempotency.ErrDamaged, "Reserve")
	})
}

// What one way to the ledger has stored, the other one shows.
func TestListener(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	store := open(t, embedded.Options{Listener: listener}).Store()
	other := must.Get(client.New(client.Options{Server: listener.Addr().String()}))(t)
	defer other.Close()
	reserved := request("key")
	must.Get(store.Reserve(t.Context(), reserved))(t)
	record := must.Get(idempotency.Ledger(other).Get(t.Context(), &reserved.Key))(t)
	check.Equal(t, record.State, idempotency.Pending, "Get over the network: %+v")
}

// A ledger that does not open leaves no listener behind.
func TestOpenFails(t *testing.T) {
	t.Parallel()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	if _, err := embedded.Open(t.Context(), embedded.Options{Dir: "/dev/null/data", Listener: listener}); err == nil {
		t.Fatal("a ledger below a device was opened")
	}
	check.Is(t, check.Err(listener.Accept()), net.ErrClosed, "the listener is still open")
}
