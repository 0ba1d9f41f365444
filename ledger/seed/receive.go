package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/verify"
)

// receiver writes another node's state into a directory, with a log that continues after it.
type receiver struct {
	o       *Options
	d       *datadir.Directory
	node    uint64           // the node that owns the directory
	again   bool             // the node was a member before; otherwise, if it is not one, it joins again under a new id
	ledger  machine.LedgerID // the ledger that the state must belong to
	atLeast uint64           // log index that the state must have reached
	// state returns the Raft state of the node's previous log. The new log keeps it.
	state func(at raftlog.Position) (raftlog.State, error)
}

// progressEvery is the interval at which the progress is logged.
const progressEvery = 5 * time.Second

// ErrDamaged means that a seed is not what a node sent.
var ErrDamaged = errors.New("the state that was received is damaged or cut off")

// seed is where the state comes from.
type seed struct {
	read   func(open verify.Opener, progress func(done, total int64)) (backupfile.Info, error)
	replay func(path string, info *backupfile.Info) error // brings the state in a file further; nil for none
}

// fromNode returns what another node sends.
func (v *receiver) fromNode(ctx context.Context, r io.Reader) seed {
	return seed{read: func(open verify.Opener, progress func(done, total int64)) (backupfile.Info, error) {
		return backupfile.Read(ctx, r, func(info *backupfile.Info) error {
			if !info.Whole() {
				return fmt.Errorf("%w: it has not all block files", ErrDamaged)
			}
			// A state of which nothing needs to be fetched, because it would be refused at the end anyway.
			_, err := v.accept(info)
			return err
		}, open, progress)
	}}
}

// receive creates state and log. When it returns without an error, all of it is verified and durable; otherwise parts
// may remain.
func (v *receiver) receive(from seed) (at raftlog.Position, err error) {
	info, err := v.makeState(from)
	var state raftlog.State
	if err == nil {
		state, err = v.accept(&info)
	}
	if err != nil {
		if damage, is := errors.AsType[*backupfile.DamageError](err); is {
			err = fmt.Errorf("%w: at byte %d: %s", ErrDamaged, damage.Offset, damage.What)
		}
		return at, err
	}
	at = info.At
	if err := v.o.step("check the state"); err != nil {
		return at, finalError{err}
	}
	if err := v.checkState(&info); err != nil {
		return at, err
	}
	if err := v.o.step("make the log"); err != nil {
		return at, finalError{err}
	}
	o := raftlog.Options{Dir: v.d.Log(), Identity: v.d.Identity(), Logger: v.o.Logger}
	if err := raftlog.CreateAt(o, at, info.Members, state); err != nil {
		return at, finalError{err}
	}
	return at, nil
}

// accept refuses a state that this node cannot start from. It returns the Raft state for the new log.
func (v *receiver) accept(info *backupfile.Info) (state raftlog.State, err error) {
	switch {
	case info.LedgerID != v.ledger:
		return state, fmt.Errorf("it is of ledger %s, and this node is of ledger %s", info.LedgerID, v.ledger)
	case info.At.Index < v.atLeast:
		return state, fmt.Errorf("the state is of index %d, and one of %d or later is needed", info.At.Index, v.atLeast)
	}
	if err := v.checkMembers(info.Members); err != nil {
		return state, err
	}
	return v.state(info.At)
}

// checkMembers checks that this node is a member.
func (v *receiver) checkMembers(encoded []byte) error {
	members, _, err := raftlog.DecodeMembers(encoded)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case members.Has(v.node):
		return nil
	case v.again && v.node <= members.Highest:
		return finalError{cluster.ErrRemoved}
	}
	return fmt.Errorf("node %d is not among the members of the state", v.node)
}

// makeState writes the files of the state.
func (v *receiver) makeState(from seed) (info backupfile.Info, err error) {
	next := time.Now().Add(progressEvery)
	progress := func(done, total int64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressEvery)
			v.o.Logger.Info("fetching the state", "bytes", done, "of", total)
		}
	}
	var disk error // the disk's first error, which no other node can solve
	fill := func(open func(file uint64) (io.Writer, error)) (err error) {
		info, err = from.read(func(file uint64) (io.Writer, error) {
			w, err := open(file)
			if err != nil {
				disk = err
				return nil, err
			}
			w = v.o.disk(w)
			return writerFunc(func(b []byte) (int, error) {
				n, err := w.Write(b)
				disk = err
				return n, err
			}), nil
		}, progress)
		return err
	}
	err = v.d.MakeState(fill, func(path string) error {
		if err := v.o.step("adopt the state"); err != nil {
			return finalError{err}
		}
		if from.replay != nil {
			return from.replay(path, &info)
		}
		_, err := boltstore.AdoptAt(path, v.d.Identity())
		return err
	})
	if disk != nil {
		return info, finalError{fmt.Errorf("write the state that is received: %w", disk)}
	}
	return info, err
}

type writerFunc func([]byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// checkState opens the state once, as each start does, which also computes the checksums of its pages. The state must
// be the announced one.
func (v *receiver) checkState(info *backupfile.Info) (err error) {
	s, err := boltstore.Open(v.d.State(), boltstore.Options{Identity: v.d.Identity()})
	if err != nil {
		return fmt.Errorf("the state that was received: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.View(func(r machine.Reader) error {
		m, err := machine.Open(r)
		if err != nil {
			return err
		}
		view := m.View(r)
		if !view.Created() || view.LedgerID() != info.LedgerID || view.Index() != info.Index ||
			view.Digest() != info.Digest || raftlog.Position(s.Checkpoint()) != info.At {
			return fmt.Errorf("%w: it is not the state that was announced", ErrDamaged)
		}
		return nil
	})
}
