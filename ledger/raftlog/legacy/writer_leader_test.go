package legacy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// Leader tells whether this node is the leader, where the leader is as far as
// known (empty when it is not), and in which term.
func (l *Log) Leader() (isLeader bool, address string, term uint64) {
	at, _ := l.raft.LeaderWithID()
	return l.raft.State() == raft.Leader, string(at), l.raft.CurrentTerm()
}

// Ready waits until this node is the leader and has applied everything that was
// ever committed. It returns the failure of a failed log, ErrClosed, or the
// context's error.
func (l *Log) Ready(ctx context.Context) error {
	// One slot is enough and no send blocks on it: it says that something
	// changed, and what is true now is read afterwards.
	changed := make(chan raft.Observation, 1)
	observer := raft.NewObserver(changed, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.RaftState)
		return ok
	})
	l.raft.RegisterObserver(observer)
	defer l.raft.DeregisterObserver(observer)
	for {
		if err := l.unusable(); err != nil {
			return err
		}
		if l.raft.State() == raft.Leader {
			err := l.establish(ctx)
			if !errors.Is(err, ErrNotLeader) {
				return err
			}
			if l.raft.State() == raft.Leader {
				// Won again meanwhile, or a transfer of leadership was given up,
				// which changes no state that would wake us.
				continue
			}
		}
		select {
		case <-changed:
		case <-l.stop:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ReadBarrier returns once the machine's state is as fresh as every write
// acknowledged before the call, by any node. For a sole voter that has been
// Ready it costs a few loads; otherwise a majority confirms the leadership. It
// fails with ErrNotLeader, ErrClosed, the failure, or the context's error.
func (l *Log) ReadBarrier(ctx context.Context) error {
	if l.sole.Load() && l.current() {
		// No other node can lead, and what this node acknowledged it has applied.
		return nil
	}
	if err := l.unusable(); err != nil {
		return err
	}
	if err := l.establish(ctx); err != nil {
		return err
	}
	if err := l.await(ctx, l.raft.VerifyLeader()); err != nil {
		return err
	}
	// The confirmation is for the term at its end: what was applied must be
	// what that term began with.
	if !l.current() {
		return ErrNotLeader
	}
	return nil
}

// current tells whether this node leads a term in which it has applied all that
// earlier leaders had committed.
func (l *Log) current() bool {
	return l.raft.State() == raft.Leader && l.currentAt.Load() == l.raft.CurrentTerm()
}

// establish sees to it that current holds, with one barrier for each term.
func (l *Log) establish(ctx context.Context) error {
	select {
	case l.establishing <- struct{}{}:
	case <-l.stop:
		return l.stopped()
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.establishing }()
	if l.current() {
		return nil
	}
	term := l.raft.CurrentTerm()
	if l.raft.State() != raft.Leader {
		return ErrNotLeader
	}
	if err := l.await(ctx, l.raft.Barrier(0)); err != nil {
		return err
	}
	if l.raft.State() != raft.Leader || l.raft.CurrentTerm() != term {
		return ErrNotLeader // the barrier may belong to another term than the one read
	}
	l.currentAt.Store(term)
	return nil
}

// await waits for a future that stands for no write, so that a lost leadership
// leaves nothing unknown.
func (l *Log) await(ctx context.Context, future raft.Future) error {
	stop := make(chan struct{})
	giveUp := sync.OnceFunc(func() { close(stop) })
	// Its goroutine closes a channel and ends by itself, so that nothing waits for it.
	defer context.AfterFunc(ctx, giveUp)()
	if !stopWith(future, stop) {
		return l.stopped()
	}
	answered := make(chan struct{})
	var watch sync.WaitGroup
	// Ended by answered or by the log's stop; waited for right below.
	watch.Go(func() {
		select {
		case <-l.stop:
			giveUp()
		case <-answered:
		}
	})
	err := future.Error()
	close(answered)
	watch.Wait()
	switch failure := l.failed(); {
	case failure != nil:
		return failure
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, raft.ErrRaftShutdown):
		return l.stopped()
	}
	return fmt.Errorf("%w: %w", ErrNotLeader, err)
}

// stopped says why Raft does not answer any more.
func (l *Log) stopped() error {
	if err := l.failed(); err != nil {
		return err
	}
	return ErrClosed
}
