package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

// newReadLedger returns a ledger in which each step of Pieces has a View of its own.
func newReadLedger(t *testing.T) *Ledger {
	t.Helper()
	l, err := Open(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	l.pieceTime = 0
	return l
}

// commitPayloads commits a write for each payload, in one submission.
func commitPayloads(t *testing.T, l *Ledger, client string, payloads ...string) {
	t.Helper()
	var writes []*machine.Write
	for i, payload := range payloads {
		writes = append(writes, &machine.Write{
			Scope: testScope, ClientID: client, Actor: "client:test", Sequence: uint64(i) + 1,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte(payload)}},
		})
	}
	s, err := l.Submit(t.Context(), commandsOf(t, writes...))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// No more Views run at once than half of the processors can run.
func TestViewsAtOnce(t *testing.T) {
	t.Parallel()
	l := newReadLedger(t)
	var inside, most atomic.Int64
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 200 {
				err := l.View(t.Context(), func(machine.View) error {
					now := inside.Add(1)
					for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
					}
					runtime.Gosched() // lets another one in, if it may come
					inside.Add(-1)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if got, want := most.Load(), int64(max(1, runtime.GOMAXPROCS(0)/2)); got > want {
		t.Errorf("%d Views ran at once, want at most %d", got, want)
	}
}

// A View that waits for its turn ends with its context.
func TestViewWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	l := newReadLedger(t)
	for range cap(l.views) {
		l.views <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.View(ctx, func(machine.View) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error("got", err)
	}
	for range cap(l.views) {
		<-l.views
	}
	if err := l.View(t.Context(), func(machine.View) error { return nil }); err != nil {
		t.Error(err)
	}
}

// Writes are applied between the pieces of a read, however many there are.
func TestWritesGoOnBetweenPieces(t *testing.T) {
	t.Parallel()
	l := newReadLedger(t)
	written := make(chan struct{})
	var first uint64
	err := l.Pieces(t.Context(), func(v machine.View) (bool, error) {
		if first == 0 {
			first = v.Index()
			go func() { // ends with the write; received below
				defer close(written)
				commitPayloads(t, l, "c", "x")
			}()
		}
		return v.Index() == first, nil
	})
	if err != nil {
		t.Error(err)
	}
	<-written
}

// Pieces ends with what its steps say, and with its context.
func TestPiecesEnd(t *testing.T) {
	t.Parallel()
	l := newReadLedger(t)
	failure := errors.New("enough")
	steps := 0
	if err := l.Pieces(t.Context(), func(machine.View) (bool, error) {
		steps++
		return true, failure
	}); !errors.Is(err, failure) || steps != 1 {
		t.Errorf("%v after %d steps", err, steps)
	}
	ctx, cancel := context.WithCancel(t.Context())
	steps = 0
	err := l.Pieces(ctx, func(machine.View) (bool, error) {
		steps++
		cancel()
		return true, nil
	})
	if !errors.Is(err, context.Canceled) || steps != 1 {
		t.Errorf("%v after %d steps", err, steps)
	}
}

// A block that is read in pieces is the block, and so are its proofs.
func TestBlocksInPieces(t *testing.T) {
	t.Parallel()
	l := newReadLedger(t)
	var payloads []string
	for i := range 20 {
		payloads = append(payloads, strings.Repeat(fmt.Sprint(i), 10_000))
	}
	commitPayloads(t, l, "c", payloads...)
	var want machine.Block
	if err := l.View(t.Context(), func(v machine.View) (err error) {
		want, err = v.Block(testScope, 1)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(want.Transactions) != len(payloads) {
		t.Fatalf("the block has %d transactions", len(want.Transactions))
	}
	var got machine.Block
	var err error
	got.Header, err = l.VisitBlock(t.Context(), testScope, 1, 0, func(x machine.Transaction) bool {
		got.Transactions = append(got.Transactions, x)
		return true
	})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("another block, %v", err)
	}
	var some []machine.Transaction
	header, err := l.VisitBlock(t.Context(), testScope, 1, 7, func(x machine.Transaction) bool {
		some = append(some, x)
		return len(some) < 9
	})
	if err != nil || header != want.Header || !reflect.DeepEqual(some, want.Transactions[7:16]) {
		t.Errorf("from 7 on: %d transactions, %v", len(some), err)
	}
	tree, err := l.BlockTree(t.Context(), testScope, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want.Transactions {
		var proof machine.Proof
		err := l.View(t.Context(), func(v machine.View) (err error) {
			proof, err = v.Proof(want.Transactions[i].Index)
			return err
		})
		if got, treeErr := tree.Proof(uint32(i)); err != nil || treeErr != nil || !reflect.DeepEqual(got, proof) {
			t.Errorf("proof %d: %+v, %v, %v", i, got, err, treeErr)
		}
	}
	for _, height := range []uint64{0, 2} {
		_, blockErr := l.VisitBlock(t.Context(), testScope, height, 0, func(machine.Transaction) bool { return true })
		_, treeErr := l.BlockTree(t.Context(), testScope, height)
		if !errors.Is(blockErr, machine.ErrNotFound) || !errors.Is(treeErr, machine.ErrNotFound) {
			t.Errorf("height %d: %v, %v", height, blockErr, treeErr)
		}
	}
}
