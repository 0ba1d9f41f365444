package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// backupRate is how fast a backup reads, in bytes per second: slow enough that
// writes go on beside it on a small disk.
const backupRate = 32 << 20

// ErrBackupRefused says that no backup can be made now: another one is being made,
// or the state file has grown so much since the ledger was opened that one could
// hold up writes. The error's text says what to do.
var ErrBackupRefused = errors.New("no backup can be made now")

var errBackupRunning = fmt.Errorf("%w: another backup of this ledger, or a copy of its state for another node, is "+
	"being made: wait until it has ended", ErrBackupRefused)

// BackupOptions say how to make a backup. The zero value is useful.
type BackupOptions struct {
	// RateBytes bounds how many bytes are read in a second. Default:
	// 32 MiB; negative means no bound.
	RateBytes int64
	// Begin is told what the backup holds before its first byte; may be nil.
	// Its error ends the backup.
	Begin func(backupfile.Info) error

	// sealedApart leaves out the block files that are sealed.
	sealedApart bool
	// mayLag takes the state as it is on this node: a follower may lag, and a backup must hold what another node has
	// acknowledged. A seed need not: the request says how new it must be, and the node that asks for it may be needed
	// for a majority.
	mayLag bool
}

// Backup writes a backup to w while the ledger keeps serving. The backup is the
// state at one ledger index and holds everything acknowledged before the call. A
// second concurrent backup fails with ErrBackupRefused. An error of w ends the
// backup only; package restore refuses what was written. Close waits for a call of
// w.Write to return.
//
// Until it ends, every flush makes the state file grow, because no page that the
// backup needs is reused.
func (l *Ledger) Backup(ctx context.Context, w io.Writer, o BackupOptions) (info backupfile.Info, err error) {
	if err := l.takeBackup(ctx, false); err != nil {
		return info, err
	}
	defer func() { <-l.backups }()
	return l.backup(ctx, w, o)
}

// takeBackup takes the place for a backup. It waits for that of a state for the archive, and if so told for others.
func (l *Ledger) takeBackup(ctx context.Context, waits bool) error {
	if !l.yieldState() && !waits {
		select {
		case l.backups <- struct{}{}:
			return nil
		case <-l.stopping.Done():
			return ErrClosed
		default:
			return errBackupRunning
		}
	}
	select {
	case l.backups <- struct{}{}:
		return nil
	case <-l.stopping.Done():
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// backup makes a backup. The caller has the place for it.
func (l *Ledger) backup(ctx context.Context, w io.Writer, o BackupOptions) (info backupfile.Info, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.stopping, func() { cancel(ErrClosed) })()
	select {
	// Held until the end, so that retention removes no block file that the backup has still to read.
	case l.blockFiles <- struct{}{}:
	case <-ctx.Done():
		return info, context.Cause(ctx)
	}
	defer func() { <-l.blockFiles }()
	if !o.mayLag {
		if err := l.Fresh(ctx); err != nil {
			return info, err
		}
	}
	snapshot, err := l.snapshot()
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	if info, err = l.describe(snapshot, o.sealedApart); err != nil {
		return info, l.readFailed(err)
	}
	if o.Begin != nil {
		if err := o.Begin(info); err != nil {
			return info, err
		}
	}
	pace := pacer{rate: o.RateBytes}
	out, err := backupfile.NewWriter(w, &info, func(n int) error { return pace.wait(ctx, n) })
	for _, file := range partsOf(snapshot, &info) {
		if err == nil {
			err = file.CopyTo(out)
		}
	}
	if err == nil {
		info.SHA256, err = out.Finish()
	}
	if errors.Is(err, boltstore.ErrNoRoom) {
		err = fmt.Errorf("%w: %w", ErrBackupRefused, err)
	}
	if err != nil {
		return info, fmt.Errorf("backup at ledger index %d: %w", info.Index, err)
	}
	return info, nil
}

// snapshot returns the state with everything in it that this node has applied.
func (l *Ledger) snapshot() (*boltstore.Snapshot, error) {
	if l.stopping.Err() != nil {
		return nil, ErrClosed
	}
	if err := l.flush(); err != nil {
		l.fail(err)
		return nil, l.Err()
	}
	snapshot, err := l.store.Snapshot()
	return snapshot, l.readFailed(err)
}

// describe reads what a snapshot holds.
func (l *Ledger) describe(s *boltstore.Snapshot, sealedApart bool) (info backupfile.Info, err error) {
	err = s.View(func(r machine.Reader) error {
		m, err := machine.Open(r)
		if err != nil {
			return err
		}
		v := m.View(r)
		if !v.Created() {
			return errors.New("the ledger has no id yet")
		}
		info = backupfile.Info{
			LedgerID: v.LedgerID(), Index: v.Index(), Digest: v.Digest(), Time: v.Time(),
			At: raftlog.Position(s.Applied()), First: s.FirstBlocks(), From: s.FirstBlocks(),
		}
		return nil
	})
	if err != nil {
		return info, err
	}
	members := l.log.MembersAt(info.At.Index)
	// Looked at after MembersAt, because a truncation in between may have dropped the members of that index.
	if l.log.Truncated() <= info.At.Index {
		info.Members = members.Encode()
	}
	if last := s.LastBlocks(); last > 0 {
		if info.Sealed, err = s.HashBefore(last); err != nil {
			return info, err
		}
		if sealedApart {
			info.From = last
		}
	}
	var sizes []int64
	for _, file := range partsOf(s, &info) {
		sizes = append(sizes, file.Size)
	}
	info.SetSizes(sizes)
	return info, nil
}

// partsOf returns the files of a snapshot that go into a backup.
func partsOf(s *boltstore.Snapshot, info *backupfile.Info) (parts []boltstore.SnapshotFile) {
	for _, file := range s.Files() {
		if file.Number == 0 || file.Number >= info.From {
			parts = append(parts, file)
		}
	}
	return parts
}

// pacer keeps a rate. It saves nothing up: what was slow for a while is not
// faster afterwards.
type pacer struct {
	rate int64 // bytes per second; 0 is the default, negative is none
	next time.Time
}

// wait returns when the next n bytes are due, or with the error of ctx.
func (p *pacer) wait(ctx context.Context, n int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.rate < 0 {
		return nil
	}
	rate := p.rate
	if rate == 0 {
		rate = backupRate
	}
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	due := p.next
	p.next = p.next.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	timer := time.NewTimer(due.Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
