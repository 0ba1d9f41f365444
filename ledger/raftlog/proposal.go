package raftlog

import (
	"context"
	"errors"
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// Proposal is a proposed entry whose outcome is not yet known.
type Proposal struct {
	done   chan struct{}
	result any
	err    error
}

var errLost = errors.New("the leadership was lost meanwhile")

func (p *Proposal) answer(result any, err error) {
	p.result, p.err = result, err
	close(p.done)
}

// Done returns a channel that is closed once Wait no longer blocks.
func (p *Proposal) Done() <-chan struct{} { return p.done }

// Wait blocks until the entry is committed and applied, and returns the result of Options.Apply. It fails with
// ErrNotLeader, ErrClosed or ErrEntryTooLarge if the entry was certainly never in the log, and with ErrOutcomeUnknown
// if that cannot be determined.
func (p *Proposal) Wait() (any, error) {
	<-p.done
	return p.result, p.err
}

// ProposeIn appends an entry to the log in one term of this node's leadership. In any other term nothing is proposed,
// because the data that the entry is based on, in particular its time, may be out of date. ProposeIn does not wait for
// the disk. Entries appear in the log in the order of the calls. entry must not be empty, has at most MaxEntryBytes,
// and must not be changed afterwards.
func (l *Log) ProposeIn(term uint64, entry []byte) *Proposal {
	p, appends := l.proposeIn(term, entry)
	l.wake(appends, false)
	return p
}

// ProposeHere is ProposeIn which, on a node that has no others, also writes and applies the entry in the caller's
// goroutine. It leaves that to the loops if they are at it, and the apply if the entry is large, or if idle, which must
// not wait, reports false.
func (l *Log) ProposeHere(term uint64, entry []byte, idle func() bool) *Proposal {
	if l.o.Cluster != nil || !l.appending.TryLock() {
		return l.ProposeIn(term, entry)
	}
	defer l.appending.Unlock()
	p, _ := l.proposeIn(term, entry)
	l.appendQueued(idle) // what has failed is recorded, and answered
	return p
}

// proposeIn is ProposeIn, but the caller sees to what is to be appended.
func (l *Log) proposeIn(term uint64, entry []byte) (p *Proposal, appends bool) {
	if len(entry) > MaxEntryBytes {
		return refused(fmt.Errorf("%w: %d bytes, at most %d", ErrEntryTooLarge, len(entry), MaxEntryBytes)), false
	}
	return l.propose(term, func(number uint64) error { return l.node.Propose(number, entry) })
}

// ChangeIn proposes a membership change, as core.Node.Change does, in one term of this node's leadership, and waits
// until this node has applied it. Its errors are those of Proposal.Wait.
func (l *Log) ChangeIn(ctx context.Context, term uint64, change *pb.ConfChangeV2) error {
	p, appends := l.propose(term, func(number uint64) error { return l.node.Change(number, change) })
	l.wake(appends, false)
	select {
	case <-p.Done():
		return p.err
	case <-ctx.Done():
		return unknown(ctx.Err())
	}
}

// propose makes a proposal in a term, and reports whether something is to be appended, which the caller sees to.
func (l *Log) propose(term uint64, do func(number uint64) error) (p *Proposal, appends bool) {
	p = &Proposal{done: make(chan struct{})}
	appends, applies, err := l.step(func() error {
		if l.closing {
			return ErrClosed
		}
		if role := l.node.Role(); role.Term != term {
			return fmt.Errorf("%w: the term is %d and not %d", core.ErrNotLeader, role.Term, term)
		}
		l.number++
		err := do(l.number)
		if err == nil {
			l.proposals[l.number] = p
		}
		return err
	})
	l.wake(false, applies)
	switch failure := l.Err(); {
	case err == nil:
		return p, appends
	case errors.Is(err, ErrClosed):
		err = ErrClosed
	case failure != nil:
		err = fmt.Errorf("%w: the log has failed: %w", ErrNotLeader, failure)
	default:
		err = fmt.Errorf("%w: %w", ErrNotLeader, err)
	}
	return refused(err), appends
}

// takeProposal removes and returns a proposal that has no result yet, or returns nil. The caller must answer it.
func (l *Log) takeProposal(number uint64) *Proposal {
	p := l.proposals[number]
	delete(l.proposals, number)
	return p
}

func refused(err error) *Proposal {
	p := &Proposal{done: make(chan struct{})}
	p.answer(nil, err)
	return p
}

// unknown wraps the reason why it is unknown whether an entry is committed.
func unknown(cause error) error { return fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause) }
