package ledger

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// Seed writes the state of this node to w for another node of the cluster, as Backup does and in its turn
// with it; begin is told what comes before the first byte. The state has applied the log up to atLeast.
// While a seed is under way, and for a while after it, the log is kept for the node that begins with it.
func (l *Ledger) Seed(
	ctx context.Context, w io.Writer, atLeast uint64, rate int64, begin func() error,
) error {
	if l.options.Cluster == nil {
		return cluster.ErrAlone
	}
	if err := l.takeBackup(ctx, true); err != nil {
		return err
	}
	defer func() { <-l.backups }()
	defer l.seeding.hold()()
	_, err := l.backup(ctx, w, BackupOptions{RateBytes: rate, mayLag: true, Begin: func(info backupfile.Info) error {
		if info.At.Index < atLeast {
			return fmt.Errorf("%w: it is at %d, and %d is asked for", cluster.ErrSeedTooOld, info.At.Index, atLeast)
		}
		if len(info.Members) == 0 {
			return fmt.Errorf("%w: the log was truncated meanwhile", cluster.ErrSeedTooOld)
		}
		return begin()
	}})
	return err
}

// seeding keeps the log from being truncated while nodes start from an older state.
type seeding struct {
	active atomic.Int64
	until  atomic.Int64 // Unix nanoseconds
}

const (
	// seedGrace is how long the log is kept after a seed was sent: the node must open it and connect.
	seedGrace = time.Minute
	// seedLogFactor bounds how much longer the log may become meanwhile than Options.LogBytes.
	seedLogFactor = 16
)

// hold keeps the log until the function that it returns is called, and for seedGrace after that.
func (s *seeding) hold() (release func()) {
	s.active.Add(1)
	return func() {
		// Before active goes down, so that the log is not truncated in between.
		s.until.Store(time.Now().Add(seedGrace).UnixNano())
		s.active.Add(-1)
	}
}

func (s *seeding) held() bool {
	return s.active.Load() > 0 || time.Now().UnixNano() < s.until.Load()
}

// logIsDue reports whether the log has become so long that it is truncated.
func (l *Ledger) logIsDue(log *raftlog.Log) bool {
	due := l.options.LogBytes
	if l.seeding.held() {
		due *= seedLogFactor
	}
	return log.BytesSinceTruncate() >= due
}
