package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/receipt"
	"github.com/seqledger/seqledger/ledger/stats"
	"github.com/seqledger/seqledger/ledger/witness"
)

// The tree of receipts is built from what is applied, beside the way of writes, on every node. Nothing waits for it but
// the removal of blocks that are not in it yet; what goes wrong with it is logged, and tried again.

// ReceiptOptions say how the ledger signs what it has.
type ReceiptOptions struct {
	// Keys sign. More than one while a key is replaced.
	Keys []*witness.Key
	// Origin begins the origin of checkpoints, which the ledger's id ends.
	Origin string
	// Policy says which witnesses are asked to cosign, and which of them must have. May be nil.
	Policy *witness.Policy
	// Interval is the time between two checkpoints; 0 means ten seconds.
	Interval time.Duration
}

// ErrNoReceipts says that a ledger gives no receipts that verify offline, or none of a transaction.
var ErrNoReceipts = errors.New("no receipt")

// ErrReceiptsFail says that receipts are not to be had until something is repaired.
var ErrReceiptsFail = errors.New("receipts are not to be had")

// errGap says that the tree lacks blocks which are not there any more.
var errGap = errors.New("blocks that the tree of receipts lacks were dropped; stop the node and copy the directory " +
	"tlog of another one")

// receiptsName is the name of the directory of the trees, one below it for each ledger id.
const receiptsName = "tlog"

// receipts is what the loop has published. changed must be made.
type receipts struct {
	mu        sync.Mutex
	cosigned  published     // the newest that met the quorum
	newest    published     // the newest that witnesses have had their time for
	changed   chan struct{} // closed when something is published, or fails
	problem   error
	failing   time.Time        // since when there is one, or a cosignature is missing
	witnesses *stats.Witnesses // nil where they are not asked
	covered   uint64
	gap       bool
}

// published is a checkpoint with the tree that has it.
type published struct {
	receipt.Signed

	tree *receipt.Tree
}

func (p *published) set(s receipt.Signed, tree *receipt.Tree) {
	if s.N >= p.N && s.N <= tree.Saved().N {
		*p = published{s, tree}
	}
}

// inTree returns the first of the files whose blocks are all in the tree, if there is to be one. What it can no longer
// get is not waited for.
func (r *receipts) inTree(files []blockfile.SealedFile, wanted bool) []blockfile.SealedFile {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !wanted || r.gap {
		return files
	}
	n := 0
	for n < len(files) && files[n].Last <= r.covered {
		n++
	}
	return files[:n]
}

func (r *receipts) stats() (failing time.Time, w *stats.Witnesses) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failing, r.witnesses
}

// treeBuilder belongs to receiptLoop.
type treeBuilder struct {
	tree  *receipt.Tree
	log   *receipt.Log
	began uint64 // no block of the tree lies before this ledger index

	compared bool // with the blocks
}

// gathering belongs to receiptLoop. Witnesses are asked beside it, so that no checkpoint waits for one that hangs.
type gathering struct {
	*witness.Gatherer // nil for no witnesses

	ended  chan gathered // of capacity 1, so that no sender waits
	asking bool
	stats  stats.Witnesses
	err    error // what was missing the last time
}

type gathered struct {
	receipt.Signed

	err error
}

// receiptLoop adds the blocks to the tree, and signs it where this node leads.
func (l *Ledger) receiptLoop() {
	timer := time.NewTicker(cmp.Or(l.options.Receipts.Interval, 10*time.Second))
	defer timer.Stop()
	g := &gathering{ended: make(chan gathered, 1)}
	if p := l.options.Receipts.Policy; p != nil {
		g.Gatherer = witness.NewGatherer(p, nil)
	}
	var b *treeBuilder
	for {
		leads, err := l.extendTree(&b)
		if l.stopping.Err() != nil {
			return
		}
		asks := leads && g.Gatherer != nil
		if !asks {
			g.err, g.stats = nil, stats.Witnesses{}
		} else if err == nil && b != nil && !g.asking {
			l.askWitnesses(g, b)
		}
		l.noteReceipts(b, g, asks, err)
		if err != nil {
			b = nil // it is opened anew: what the files have is not known
		}
		for ticked := false; !ticked; {
			select {
			case <-timer.C:
				ticked = true
			case got := <-g.ended:
				if l.stopping.Err() != nil {
					return
				}
				if g.asking = false; asks && b != nil {
					l.keepCosigned(g, b, got)
				}
			case <-l.failed:
				return
			case <-l.stopping.Done():
				return
			}
		}
	}
}

// askWitnesses asks those that have not cosigned the newest checkpoint.
func (l *Ledger) askWitnesses(g *gathering, b *treeBuilder) {
	s, tree := b.log.Newest(), b.tree
	if s.N == 0 {
		return // it is built again
	}
	g.asking = true
	l.loops.Go(func() { // ends with stopping
		cosigned, err := g.Gather(l.stopping, s.Note, func(old int64) (tlog.TreeProof, error) {
			return tree.ProveTree(s.Tree, old)
		})
		if cosigned != nil {
			s.Note = cosigned
		}
		g.ended <- gathered{s, err}
	})
}

// keepCosigned stores and publishes what the witnesses have made of a checkpoint.
func (l *Ledger) keepCosigned(g *gathering, b *treeBuilder, got gathered) {
	by, err := b.log.Keep(got.Signed)
	if g.stats.Cosigned = len(by); err == nil {
		g.stats.QuorumMissing = time.Time{}
	} else if g.stats.QuorumMissing.IsZero() {
		g.stats.QuorumMissing = time.Now()
	}
	before := g.err
	g.err = errors.Join(got.err, err)
	if g.err != nil && (before == nil || before.Error() != g.err.Error()) {
		l.options.Logger.Error("receipts: a checkpoint lacks cosignatures, which are asked for again", "size", got.N,
			"error", g.err)
	}
	l.receipts.mu.Lock()
	l.receipts.newest.set(got.Signed, b.tree)
	l.receipts.mu.Unlock()
	l.noteReceipts(b, g, true, nil)
}

// extendTree reports whether this node leads.
func (l *Ledger) extendTree(b **treeBuilder) (leads bool, err error) {
	var tree machine.Tree
	err = l.StoredView(l.stopping, func(v machine.View) error {
		if v.Created() {
			tree = v.Tree()
		}
		return nil
	})
	if err != nil || tree.Leaves == 0 {
		return false, err
	}
	if *b == nil {
		if *b, err = l.openTree(&tree); err != nil {
			return false, err
		}
	}
	leads = l.cluster.Term() != 0 // then it has applied all that ever was
	switch size := (*b).tree.Size(); {
	case size <= int64(tree.Leaves):
		err = l.compareTree(*b)
	case leads:
		err = fmt.Errorf("%w: the tree has %d leaves, the ledger %d", receipt.ErrForked, size, tree.Leaves)
	}
	if err == nil {
		err = l.addBlocks(*b)
	}
	if err == nil && leads {
		err = (*b).log.Sign()
	}
	return leads, err
}

// openTree opens the tree of a ledger id, or begins it. One that is damaged is made again of the blocks.
func (l *Ledger) openTree(t *machine.Tree) (*treeBuilder, error) {
	dir := filepath.Join(l.options.Dir, receiptsName, t.ID.String())
	tree, err := receipt.Open(dir)
	if errors.Is(err, receipt.ErrDamaged) {
		l.options.Logger.Error("the tree of receipts is damaged; it is made again of the blocks", "error", err)
		tree, err = receipt.Empty(dir), nil
	}
	if err != nil {
		return nil, err
	}
	b := &treeBuilder{tree: tree, began: t.Start}
	if tree.Size() == 0 {
		tree.Add(t.Origin)
	}
	o := l.options.Receipts
	origin := receipt.Origin(o.Origin, t.ID)
	if b.log, err = receipt.OpenLog(tree, origin, o.Keys, o.Policy); err != nil {
		return nil, err
	}
	for _, key := range o.Keys {
		l.options.Logger.Info("the ledger signs checkpoints", "key", key.As(origin))
	}
	return b, nil
}

// compareTree compares the last leaf of the tree with its block, once.
func (l *Ledger) compareTree(b *treeBuilder) error {
	if b.compared || b.tree.Last() < b.began {
		return nil
	}
	b.compared = true
	data, err := b.tree.ReadHashes(0, b.tree.Size()-1, 1)
	if err != nil {
		return err
	}
	same, dropped := false, l.store.BlockBase() > 0
	err = l.Blocks(l.stopping, func(blocks machine.Blocks) error {
		return blocks.VisitLeaves(b.tree.Last(), func(r machine.RecordLeaves) bool {
			if r.Index == b.tree.Last() {
				same, dropped = r.Blocks[len(r.Blocks)-1] == machine.Hash(data), false
			}
			return false
		})
	})
	if err == nil && !same && !dropped {
		err = fmt.Errorf("%w: at ledger index %d", receipt.ErrForked, b.tree.Last())
	}
	return err
}

// stepTime is for how long blocks are read at once; see package read. saveLeaves bounds what is in memory.
const (
	stepTime   = 200 * time.Microsecond
	saveLeaves = 1 << 16
)

// addBlocks adds the blocks that are applied.
func (l *Ledger) addBlocks(b *treeBuilder) error {
	last := max(b.tree.Last(), b.began-1)
	for more := true; more; {
		more = false
		err := l.Blocks(l.stopping, func(blocks machine.Blocks) (err error) {
			began := time.Now()
			failed := blocks.VisitLeaves(last+1, func(r machine.RecordLeaves) bool {
				if size := uint64(b.tree.Size()); r.First != size {
					err = fmt.Errorf("%w: %d leaves are followed by leaf %d", receipt.ErrForked, size, r.First)
					if r.First > size {
						err = fmt.Errorf("%w: leaves %d to %d", errGap, size, r.First-1)
					}
					return false
				}
				for _, hash := range r.Blocks {
					b.tree.Add(hash)
				}
				last, more = r.Index, true
				return time.Since(began) < stepTime
			})
			return errors.Join(err, failed)
		})
		if _, gone := errors.AsType[*machine.GoneError](err); gone {
			err = fmt.Errorf("%w: %w", errGap, err)
		}
		if err != nil {
			return err
		}
		if n := b.tree.Unsaved(); n >= saveLeaves || n > 0 && !more {
			if err := b.tree.Save(last); err != nil {
				return err
			}
		}
	}
	return nil
}

// noteReceipts publishes what a pass has come to, which may have asked witnesses.
func (l *Ledger) noteReceipts(b *treeBuilder, g *gathering, asks bool, err error) {
	r := &l.receipts
	r.mu.Lock()
	defer r.mu.Unlock()
	if b != nil && err == nil {
		r.covered = b.tree.Last()
		r.cosigned.set(b.log.Cosigned(), b.tree)
		if !asks {
			r.newest.set(b.log.Newest(), b.tree)
		}
	}
	if r.witnesses = nil; asks {
		w := g.stats
		r.witnesses = &w
	}
	if err == nil && g.err == nil {
		r.failing = time.Time{}
	} else if r.failing.IsZero() {
		r.failing = time.Now()
	}
	if r.gap = errors.Is(err, errGap); err != nil && (r.problem == nil || r.problem.Error() != err.Error()) {
		l.options.Logger.Error("receipts: the tree or its checkpoint could not be made; writes go on", "error", err)
	}
	r.problem = err
	close(r.changed)
	r.changed = make(chan struct{})
}

// OfflineReceipt returns the receipt of a transaction, which verifies offline. It waits for the checkpoint that covers
// it until ctx ends, and calls waits once nearly all of the work is done; waits may be nil.
func (l *Ledger) OfflineReceipt(ctx context.Context, id machine.TxID, waits func()) (*receipt.Receipt, error) {
	if l.options.Receipts == nil {
		return nil, fmt.Errorf("%w: the ledger signs no checkpoints; see serve --receipt-key", ErrNoReceipts)
	}
	if ledger, _ := id.Parts(); ledger != l.Head().Ledger {
		return nil, fmt.Errorf("%w: the transaction is of the ledger %s, before a restore", ErrNoReceipts, ledger)
	}
	var leaf machine.TransactionLeaf
	err := l.Blocks(ctx, func(b machine.Blocks) (err error) {
		leaf, err = b.Leaf(id)
		return err
	})
	if err != nil {
		return nil, err
	}
	chain, err := l.Chain(ctx, leaf.Header.Scope)
	if err != nil {
		return nil, err
	}
	block, err := l.BlockTree(ctx, chain, leaf.Header.Height)
	if err != nil {
		return nil, err
	}
	path, err := block.Proof(leaf.Position)
	if err != nil {
		return nil, err
	}
	r := &receipt.Receipt{Leaf: leaf.Data, Position: leaf.Position, Path: path.Path, Header: path.Header,
		Index: int64(leaf.Block)}
	if waits != nil {
		waits()
	}
	p, err := l.awaitCheckpoint(ctx, r.Index)
	if err != nil {
		return nil, err
	}
	r.Checkpoint = p.Note
	if r.Proof, err = p.tree.ProveLeaf(p.Tree, r.Index); err == nil {
		err = r.Check(p.Checkpoint)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w: stop the node and remove %s, and it is made again of the blocks: %w",
			ErrReceiptsFail, receipt.ErrDamaged, receiptsName, err)
	}
	return r, nil
}

// awaitCheckpoint returns a checkpoint that has a leaf: one that met the quorum, if there is one.
func (l *Ledger) awaitCheckpoint(ctx context.Context, leaf int64) (published, error) {
	for {
		l.receipts.mu.Lock()
		p, problem, changed := l.receipts.newest, l.receipts.problem, l.receipts.changed
		if leaf < l.receipts.cosigned.N {
			p = l.receipts.cosigned
		}
		l.receipts.mu.Unlock()
		if leaf < p.N {
			return p, nil
		}
		if problem != nil {
			return p, fmt.Errorf("%w: %w", ErrReceiptsFail, problem)
		}
		select {
		case <-changed:
		case <-l.failed:
			return p, l.Err()
		case <-l.stopping.Done():
			return p, ErrClosed
		case <-ctx.Done():
			return p, context.Cause(ctx)
		}
	}
}
