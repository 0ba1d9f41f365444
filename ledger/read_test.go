package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// newReadLedger returns a ledger in which each step of Pieces has a View of its own.
func newReadLedger(t *testing.T) *Ledger {
	t.Helper()
	l := must.Get(Open(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(func() {
		check.Is(t, l.Close(), nil)
	})
	l.source.PieceTime = 0
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
	s := must.Get(l.Submit(t.Context(), commandsOf(t, writes...)))(t)
	must.Get(s.Wait(t.Context()))(t)
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
				check.Is(t, err, nil)
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
	for range cap(l.source.Views) {
		l.source.Views <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, l.View(ctx, func(machine.View) error { return nil }), context.Canceled)
	for range cap(l.source.Views) {
		<-l.source.Views
	}
	must.Do(t, l.View(t.Context(), func(machine.View) error { return nil }))
}

// What is in blocks is read while an entry is being applied, and so under its lock: headers,
// transactions, receipts, proofs, long values, and a Watch that has blocks ahead of it.
func TestBlocksAreReadWhileAnEntryIsApplied(t *testing.T) {
	t.Parallel()
	l := must.Get(Open(t.Context(), Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}))(t)
	defer func() { _ = l.Close() }() // the store is stopped below
	long := strings.Repeat("v", 1_000)
	write := machine.Write{
		Scope: testScope, ClientID: "c", Actor: "client:test", Sequence: 1,
		Operations: []machine.Operation{{Kind: machine.OpSetEntity, Key: []byte("k"), Value: []byte(long)}},
	}
	s := must.Get(l.Submit(t.Context(), commandsOf(t, &write)))(t)
	outcomes := must.Get(s.Wait(t.Context()))(t)
	index := outcomes[0].Index
	for i := range 3 {
		commitPayloads(t, l, fmt.Sprint("d", i), "x")
	}
	var value machine.EntityRef
	var id machine.TxID
	must.Do(t, l.View(t.Context(), func(v machine.View) (err error) {
		id = v.TxIDAt(index)
		value, err = v.EntityRef(testScope, "k")
		return err
	}))
	chain, err := l.Chain(t.Context(), testScope)
	if err != nil || chain.Height != 4 {
		t.Fatal(chain, err)
	}
	reads := func() error {
		tree, err := l.BlockTree(t.Context(), chain, 1)
		if err != nil {
			return err
		}
		if proof, err := tree.Proof(0); err != nil || proof.Header.Height != 1 {
			return fmt.Errorf("proof of %+v: %w", proof.Header, err)
		}
		all := func(machine.Transaction) bool { return true }
		if _, err := l.VisitBlock(t.Context(), chain, 2, 0, all); err != nil {
			return err
		}
		return l.Blocks(t.Context(), func(b machine.Blocks) error {
			scope, scopeErr := b.TransactionScope(id)
			x, transactionErr := b.Transaction(id)
			receipt, receiptErr := b.ReceiptAt(index)
			header, headerErr := b.BlockHeader(chain, 4)
			err := errors.Join(scopeErr, transactionErr, receiptErr, headerErr, b.ReadValue(&value))
			if err == nil && (scope != testScope || x.Index != index || receipt.Index != index || header.Height != 4 ||
				string(value.Value) != long) {
				err = fmt.Errorf("%v, %+v, %+v, %+v, %q", scope, x, receipt, header, value.Value)
			}
			return err
		})
	}
	watched, stop := iter.Pull2(l.Watch(t.Context(), testScope, 1))
	defer stop()
	if header, err, _ := watched(); err != nil || header.Height != 1 { // it has looked where the chain ends
		t.Fatal(header, err)
	}
	failure := errors.New("nothing is applied")
	at := l.store.Applied()
	at.Index++
	err = l.store.Update(at, func(machine.Tx) error {
		for height := uint64(2); height <= 4; height++ {
			if header, err, _ := watched(); err != nil || header.Height != height {
				return fmt.Errorf("watched %+v, want height %d: %w", header, height, err)
			}
		}
		return errors.Join(reads(), failure)
	})
	if !errors.Is(err, failure) || strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}

// Pieces ends with what its steps say, and with its context.
func TestPiecesEnd(t *testing.T) {
	t.Parallel()
	l := newReadLedger(t)
	failure := errors.New("enough")
	steps := 0
	if err := l.Pieces(t.Context(), func(machine.Blocks) (bool, error) {
		steps++
		return true, failure
	}); !errors.Is(err, failure) || steps != 1 {
		t.Errorf("%v after %d steps", err, steps)
	}
	ctx, cancel := context.WithCancel(t.Context())
	steps = 0
	err := l.Pieces(ctx, func(machine.Blocks) (bool, error) {
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
	chain := must.Get(l.Chain(t.Context(), testScope))(t)
	var want machine.BlockPart
	must.Do(t, l.Blocks(t.Context(), func(b machine.Blocks) (err error) {
		want, err = b.BlockPart(chain, 1, 0, math.MaxInt)
		return err
	}))
	must.Equal(t, len(want.Transactions), len(payloads), "the block has %d transactions")
	var all []machine.Transaction
	header, err := l.VisitBlock(t.Context(), chain, 1, 0, func(x machine.Transaction) bool {
		all = append(all, x)
		return true
	})
	if err != nil || header != want.Header || !reflect.DeepEqual(all, want.Transactions) {
		t.Errorf("another block, %v", err)
	}
	var some []machine.Transaction
	header, err = l.VisitBlock(t.Context(), chain, 1, 7, func(x machine.Transaction) bool {
		some = append(some, x)
		return len(some) < 9
	})
	if err != nil || header != want.Header || !reflect.DeepEqual(some, want.Transactions[7:16]) {
		t.Errorf("from 7 on: %d transactions, %v", len(some), err)
	}
	tree := must.Get(l.BlockTree(t.Context(), chain, 1))(t)
	for i := range want.Transactions {
		if got, err := tree.Proof(uint32(i)); err != nil || got.Header != want.Header || got.LeafIndex != uint64(i) {
			t.Errorf("proof %d: %+v, %v", i, got, err)
		}
	}
	for _, height := range []uint64{0, 2} {
		_, blockErr := l.VisitBlock(t.Context(), chain, height, 0, func(machine.Transaction) bool { return true })
		_, treeErr := l.BlockTree(t.Context(), chain, height)
		if !errors.Is(blockErr, machine.ErrNotFound) || !errors.Is(treeErr, machine.ErrNotFound) {
			t.Errorf("height %d: %v, %v", height, blockErr, treeErr)
		}
	}
}
