package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/seqledger/seqledger/ledger/machine"
)

// Comparison is what two data directories of one ledger have in common.
type Comparison struct {
	Reports [2]*Report // of each directory
	// Index is the last ledger index whose digests were compared: that of the last log entry that both have applied. It
	// is 0 if there is none, because one ends before the checkpoint of the other.
	Index uint64
	// Blocks are the last blocks of the scopes that both have, and that were compared. A block's hash is over all
	// before it.
	Blocks uint64
	// Differences are what cannot be, of two nodes that have applied the same log.
	Differences []machine.Problem
}

// Compare checks two data directories of nodes of one ledger, and whether one of them has what the other has, up to
// where both reach. The nodes are stopped, and need not have stopped at one index.
func Compare(ctx context.Context, one, other string, o Options) (result *Comparison, err error) {
	var standsA, standsB []stand
	a, err := open(ctx, one, o, &standsA)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", one, err)
	}
	defer func() { err = errors.Join(err, a.close()) }()
	b, err := open(ctx, other, o, &standsB)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", other, err)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	result = &Comparison{Reports: [2]*Report{a.report, b.report}}
	if a.m == nil || b.m == nil {
		return result, nil // the reports say why
	}
	if a.report.LedgerID != b.report.LedgerID {
		result.differ("ledger", "they are of two ledgers: %s and %s", a.report.LedgerID, b.report.LedgerID)
		return result, nil
	}
	result.compareStands(standsA, standsB)
	err = a.view(func(va machine.View) error {
		return b.view(func(vb machine.View) error { return result.compareChains(va, vb) })
	})
	if err != nil { // damage, which must not hide what else was found
		result.differ("blocks", "not all of them can be compared: %v", err)
	}
	return result, ctx.Err()
}

func (c *checked) view(read func(v machine.View) error) error {
	return c.store.View(func(r machine.Reader) error { return read(c.m.View(r)) })
}

func (c *Comparison) differ(where, format string, args ...any) {
	c.Differences = append(c.Differences, machine.Problem{Where: where, What: fmt.Sprintf(format, args...)})
}

// compareStands compares the digests at the positions of the log that both have met, and names the first that differ.
func (c *Comparison) compareStands(a, b []stand) {
	for _, s := range a {
		i, found := slices.BinarySearchFunc(b, s.position, func(s stand, at uint64) int {
			return cmp.Compare(s.position, at)
		})
		if !found {
			continue
		}
		c.Index = s.index
		if other := b[i]; s.index != other.index || s.digest != other.digest {
			c.differ(fmt.Sprintf("log entry %d", s.position), "one stands at ledger index %d with the digest %s, the "+
				"other at %d with %s", s.index, s.digest, other.index, other.digest)
			return
		}
	}
}

// compareChains compares the chains of blocks.
func (c *Comparison) compareChains(a, b machine.View) error {
	scopesA, errA := a.Scopes()
	scopesB, errB := b.Scopes()
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	scopes := map[machine.Scope]bool{}
	for _, scope := range slices.Concat(scopesA, scopesB) { // a scope may be in one of them alone
		if scopes[scope] {
			continue
		}
		scopes[scope] = true
		chainA, errA := a.Chain(scope)
		chainB, errB := b.Chain(scope)
		if err := errors.Join(errA, errB); err != nil {
			return err
		}
		if err := c.compareChain(a, b, chainA, chainB); err != nil {
			return err
		}
	}
	return nil
}

// compareChain compares the last block that both have, and if it differs finds the first one that does.
func (c *Comparison) compareChain(a, b machine.View, chainA, chainB *machine.Chain) error {
	// The node that has decided more commands has all blocks of the other one.
	if a.Index() >= b.Index() && chainA.Height < chainB.Height ||
		b.Index() >= a.Index() && chainB.Height < chainA.Height {
		c.differ(fmt.Sprintf("blocks of %s", chainA.Scope), "one has %d of them at ledger index %d, the other %d at %d",
			chainA.Height, a.Index(), chainB.Height, b.Index())
	}
	common := min(chainA.Height, chainB.Height)
	if common == 0 {
		return nil
	}
	var failed error
	differs := func(height uint64) bool { // what one of them has dropped does not
		hashA, errA := hashAt(a, chainA, height)
		hashB, errB := hashAt(b, chainB, height)
		_, goneA := errors.AsType[*machine.GoneError](errA)
		_, goneB := errors.AsType[*machine.GoneError](errB)
		if goneA || goneB {
			return false
		}
		failed = errors.Join(failed, errA, errB)
		return hashA != hashB
	}
	c.Blocks++
	if differs(common) && failed == nil {
		first := 1 + uint64(sort.Search(int(common-1), func(i int) bool { return differs(uint64(i) + 1) }))
		c.differ(fmt.Sprintf("block %d of %s", first, chainA.Scope), "it is not the same in both")
	}
	return failed
}

// hashAt returns the hash of a block, that of the last one from the state, which outlives the block.
func hashAt(v machine.View, c *machine.Chain, height uint64) (machine.Hash, error) {
	if height == c.Height {
		return c.Hash, nil
	}
	header, err := v.BlockHeader(c, height)
	return header.Hash(), err
}
