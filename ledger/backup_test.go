package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

var unlimited = ledger.BackupOptions{RateBytes: -1}

// written makes a data directory with some hundred writes in it.
func written(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	l := open(t, ledger.Options{Dir: dir})
	for sequence := uint64(1); sequence <= 300; sequence++ {
		w := appendWrite(fmt.Sprint("client-", sequence%5), (sequence-1)/5+1, fmt.Appendf(nil, "needle-%03d", sequence))
		w.Operations = append(w.Operations, machine.Operation{
			Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "key-%d", sequence%50),
			Value: fmt.Appendf(nil, "hay-%03d", sequence),
		})
		mustWrite(t, l, w, machine.Committed)
	}
	closeLedger(t, l)
	return dir
}

// backUp returns a backup of a ledger.
func backUp(t testing.TB, l *ledger.Ledger) ([]byte, backupfile.Info) {
	t.Helper()
	var b bytes.Buffer
	info := must.Get(l.Backup(t.Context(), &b, unlimited))(t)
	if info.Bytes != int64(b.Len()) {
		t.Errorf("the backup has %d bytes, and says %d", b.Len(), info.Bytes)
	}
	return b.Bytes(), info
}

// restoreBackup makes a new directory of a backup.
func restoreBackup(t testing.TB, backup []byte) (string, restore.Info) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	info := must.Get(restore.Backup(t.Context(), bytes.NewReader(backup), restoreTo(dir)))(t)
	return dir, info
}

func restoreTo(dir string) restore.Options {
	return restore.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)}
}

func openSession(t testing.TB, l *ledger.Ledger, client string, attempt byte, expected uint64) machine.Outcome {
	t.Helper()
	out := must.Get(l.OpenSession(context.Background(), &machine.OpenSession{
		Scope: scope, ClientID: client, Actor: "system:test", AttemptID: [16]byte{attempt, 0xa7},
		ExpectedSession: expected,
	}))(t)
	return out
}

// mustVerify expects a directory and a backup without a problem.
func mustVerify(t testing.TB, dir string, backup []byte) {
	t.Helper()
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 {
		t.Errorf("verify of the restored directory: %v %+v", err, report)
	}
	report, err = verify.Backup(t.Context(), bytes.NewReader(backup), verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Index == 0 {
		t.Errorf("verify of the backup: %v %+v", err, report)
	}
}

// load is writers with sessions, and what they were told.
type load struct {
	mu       sync.Mutex
	receipts []machine.Receipt // in the order of their acknowledgement
	clients  []string          // whose they are
	grown    chan struct{}     // has room for one
}

// acknowledged returns what has been acknowledged until now.
func (l *load) acknowledged() (receipts []machine.Receipt, clients []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.receipts[:len(l.receipts):len(l.receipts)], l.clients[:len(l.clients):len(l.clients)]
}

// await returns once so many writes more have been acknowledged.
func (l *load) await(more int) {
	before, _ := l.acknowledged()
	for {
		if now, _ := l.acknowledged(); len(now) >= len(before)+more {
			return
		}
		<-l.grown
	}
}

func (l *load) write(t *testing.T, to *ledger.Ledger, client string, session uint64, stop chan struct{}) {
	for sequence := uint64(1); ; sequence++ {
		select {
		case <-stop:
			return
		default:
		}
		w := appendWrite(client, sequence, fmt.Appendf(nil, "%s/%d", client, sequence))
		w.Session = session
		w.Key = machine.Key{UUID: [16]byte{client[0], byte(len(client)), byte(sequence >> 8), byte(sequence)},
			Present: true}
		// Expired at once, so that eviction passes have something to remove.
		w.Operations = append(w.Operations, machine.Operation{
			Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "%s/%d", client, sequence%7), Value: []byte("v"),
			ExpiresAt: 1,
		})
		out, err := to.Write(context.Background(), w)
		if err != nil || out.Code != machine.Committed {
			t.Errorf("%s/%d: %s %v", client, sequence, out.Code, err)
			return
		}
		l.mu.Lock()
		l.receipts, l.clients = append(l.receipts, out.Receipt), append(l.clients, client)
		l.mu.Unlock()
		select {
		case l.grown <- struct{}{}:
		default:
		}
	}
}

// oldStreams makes a ledger with streams that are all due for eviction when it
// is opened with the returned clock.
func oldStreams(t *testing.T, dir string, streams int) (clock func() time.Time) {
	t.Helper()
	l := open(t, ledger.Options{Dir: dir, Config: machine.Config{EvictionInterval: 100, EvictionLimit: 10}})
	for i := range streams {
		mustWrite(t, l, appendWrite(fmt.Sprint("once-", i), 1, []byte("x")), machine.Committed)
	}
	closeLedger(t, l)
	return func() time.Time { return time.Now().Add(48 * time.Hour) }
}

// TestBackupUnderLoad takes backups while many write and eviction passes
// run, and finds everything in each that was acknowledged before it began.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	const writers, backups, streams = 6, 4, 300
	dir := t.TempDir()
	clock := oldStreams(t, dir, streams)
	l := open(t, ledger.Options{Dir: dir, Clock: clock, CheckpointBytes: 64 << 10, LogBytes: 256 << 10})
	told := &load{grown: make(chan struct{}, 1)}
	stop := make(chan struct{})
	var running sync.WaitGroup
	for i := range writers {
		client := fmt.Sprint("writer-", i)
		session := openSession(t, l, client, byte(i), 0).Session
		running.Go(func() { told.write(t, l, client, session, stop) }) // ends with stop
	}
	type taken struct {
		backup   []byte
		info     backupfile.Info
		receipts []machine.Receipt
		clients  []string
	}
	var all []taken
	for range backups {
		told.await(400)
		var b taken
		b.receipts, b.clients = told.acknowledged()
		b.backup, b.info = backUp(t, l)
		all = append(all, b)
	}
	close(stop)
	running.Wait()
	given, _ := told.acknowledged()
	var newest uint64
	for _, r := range given {
		newest = max(newest, r.Index)
	}
	closeLedger(t, l)
	for _, b := range all {
		dir, info := restoreBackup(t, b.backup)
		mustVerify(t, dir, b.backup)
		r := open(t, ledger.Options{Dir: dir, Clock: clock})
		mustHoldReceipts(t, r, b.receipts, b.clients)
		if !reflect.DeepEqual(info.Backup, b.info) || info.Index <= newest {
			t.Errorf("restored %+v from %+v, and the old ledger went up to index %d", info, b.info, newest)
		}
		mustBeginAnew(t, r, info, newest)
		closeLedger(t, r)
	}
}

// mustHoldReceipts finds every receipt by its tx_id, unchanged, and the streams
// at least where they were.
func mustHoldReceipts(t *testing.T, l *ledger.Ledger, receipts []machine.Receipt, clients []string) {
	t.Helper()
	last := map[string]uint64{}
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		for i, r := range receipts {
			tx, err := v.Transaction(machine.NewTxID(r.LedgerID, r.Index))
			if err != nil {
				return fmt.Errorf("%s/%d: %w", clients[i], r.Sequence, err)
			}
			if got := receiptOf(tx); !reflect.DeepEqual(got, r) || tx.ClientID != clients[i] {
				t.Errorf("%s/%d: the receipt is %+v, was %+v", clients[i], r.Sequence, got, r)
			}
			last[clients[i]] = max(last[clients[i]], r.Sequence)
		}
		for client, want := range last {
			if s, found, err := v.Stream(scope, client); err != nil || !found || s.Last < want {
				t.Errorf("%s: found %t, last %d, want %d: %v", client, found, s.Last, want, err)
			}
		}
		return nil
	}))
}

func receiptOf(t machine.Transaction) machine.Receipt {
	return machine.Receipt{
		LedgerID: t.LedgerID, Index: t.Index, Sequence: t.Sequence, Session: t.Session, BlockHeight: t.BlockHeight,
		Position: t.Position, CommittedAt: t.CommittedAt, Actor: t.Actor, RequestHash: t.RequestHash, Key: t.Key,
		Versions: t.Versions,
	}
}

// mustBeginAnew: a restored ledger refuses what belongs to the old one, and
// gives out nothing that the old one may have given out.
func mustBeginAnew(t *testing.T, l *ledger.Ledger, info restore.Info, newest uint64) {
	t.Helper()
	var s machine.StreamState
	must.Do(t, l.View(t.Context(), func(v machine.View) (err error) {
		s, _, err = v.Stream(scope, "writer-0")
		return err
	}))
	for _, old := range []uint64{s.Session, s.Session + 1, newest, info.Backup.Index} {
		w := appendWrite("writer-0", s.Last+1, []byte("late"))
		w.Session = old
		mustWrite(t, l, w, machine.SessionExpired)
		check.Equal(t, openSession(t, l, "writer-0", 99, old).Code, machine.SessionExpired,
			"a session that expects the old session %d: %s", old)
	}
	check.Equal(t, openSession(t, l, "writer-0", 0, 0).Code, machine.SessionExpired, "the old session's attempt: %s")
	fresh := openSession(t, l, "writer-0", 98, 0)
	w := appendWrite("writer-0", fresh.Stream.Last+1, []byte("new"))
	w.Session = fresh.Session
	r := mustWrite(t, l, w, machine.Committed).Receipt
	if fresh.Session <= info.Index || r.Index <= newest || r.LedgerID != info.LedgerID ||
		r.LedgerID == info.Backup.LedgerID {
		t.Errorf("after the restore %+v: session %d, receipt %+v", info, fresh.Session, r)
	}
}

// The same backup twice, and a backup of a restored ledger: each restore is a
// ledger of its own, and knows every older id.
func TestRestoreOfRestore(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	first := mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed).Receipt
	backup, _ := backUp(t, l)
	dirA, a := restoreBackup(t, backup)
	_, b := restoreBackup(t, backup)
	if a.Index == b.Index {
		t.Errorf("two restores of one backup both begin at index %d: sessions of one could pass for sessions of "+
			"the other", a.Index)
	}
	if a.LedgerID == b.LedgerID || a.LedgerID == a.Backup.LedgerID || a.Digest == b.Digest {
		t.Errorf("two restores of one backup: %+v and %+v", a, b)
	}
	restored := open(t, ledger.Options{Dir: dirA})
	second := mustWrite(t, restored, appendWrite("c", 2, []byte("b")), machine.Committed).Receipt
	again, _ := backUp(t, restored)
	closeLedger(t, restored)
	dir, info := restoreBackup(t, again)
	mustVerify(t, dir, again)
	if info.Index <= second.Index || info.Backup.LedgerID != a.LedgerID {
		t.Errorf("restore of a restore: %+v after %+v", info, a)
	}
	mustHoldReceipts(t, open(t, ledger.Options{Dir: dir}), []machine.Receipt{first, second}, []string{"c", "c"})
}

// Ledger time stands still during a restore, whatever the clock says, so that a
// wrong clock expires nothing before somebody may look.
func TestRestoreLooksAtNoClock(t *testing.T) {
	t.Parallel()
	past := time.Unix(1_000_000_000, 0)
	l := open(t, ledger.Options{Clock: func() time.Time { return past }})
	mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed)
	backup, _ := backUp(t, l)
	dir, _ := restoreBackup(t, backup)
	r := open(t, ledger.Options{Dir: dir, Clock: func() time.Time { return past }})
	must.Do(t, r.View(t.Context(), func(v machine.View) error {
		if at := time.Unix(0, v.Time()); at.Sub(past) > time.Hour {
			t.Errorf("ledger time is %s after a restore, was %s", at, past)
		}
		return nil
	}))
}

// A ledger that has run with a wrong clock is restored with the right time: what
// has not expired yet has its time again, and the next start believes its clock.
func TestRestoreSetsTime(t *testing.T) {
	t.Parallel()
	now := time.Now().Round(0)
	wall := now
	o := ledger.Options{Dir: filepath.Join(t.TempDir(), "data"), Clock: func() time.Time { return wall }}
	set := func(sequence uint64, key string, expires time.Time) *machine.Write {
		w := appendWrite("c", sequence, nil)
		w.Operations = []machine.Operation{{Kind: machine.OpSetEntity, Key: []byte(key), Value: []byte("x"),
			ExpiresAt: expires.UnixNano()}}
		return w
	}
	l := open(t, o)
	mustWrite(t, l, set(1, "late", now.AddDate(90, 0, 0)), machine.Committed)
	closeLedger(t, l)
	wall, o.AcceptClock = now.AddDate(80, 0, 0), true // somebody insists
	l = open(t, o)
	mustWrite(t, l, set(2, "soon", now.AddDate(0, 0, 1)), machine.Committed)
	closeLedger(t, l)

	wall, o.AcceptClock = now, false
	for _, wrong := range []time.Time{time.Unix(-1, 0), now.AddDate(300, 0, 0)} {
		to := restoreTo(filepath.Join(t.TempDir(), "refused"))
		to.Time = wrong
		if _, err := restore.Directory(t.Context(), o.Dir, to); err == nil ||
			!strings.Contains(err.Error(), "Options.Time") {
			t.Errorf("a restore to the time %s: %v", wrong, err)
		}
	}
	to := restoreTo(filepath.Join(t.TempDir(), "restored"))
	to.Time = now
	must.Get(restore.Directory(t.Context(), o.Dir, to))(t)
	o.Dir = to.Dir
	check := func() {
		t.Helper()
		err := l.View(t.Context(), func(v machine.View) error {
			if at := time.Unix(0, v.Time()); at.Sub(now) > time.Hour || at.Before(now) {
				t.Errorf("ledger time is %s after the restore, want %s", at, now)
			}
			_, err := v.Entity(scope, "late")
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	l = open(t, o)
	check()
	w := set(3, "soon", now.AddDate(0, 0, 1))
	out := must.Get(l.OpenSession(t.Context(), &machine.OpenSession{Scope: scope, ClientID: "c", Actor: w.Actor}))(t)
	w.Session = out.Session
	mustWrite(t, l, w, machine.Committed)
	closeLedger(t, l)
	wall = now.AddDate(0, 2, 0) // which is no pause that this ledger has seen
	if l, err := ledger.Open(t.Context(), o); err == nil {
		t.Errorf("the pause of 80 years is remembered: %v", l.Close())
	}
	wall = now
	l = open(t, o)
	check()
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		_,
			err := v.Entity(scope, "soon")
		return err
	}))
}

// gate is a writer that lets nothing through until it is opened.
type gatedWriter struct{ reached, open chan struct{} }

func (w gatedWriter) Write(b []byte) (int, error) {
	select {
	case w.reached <- struct{}{}:
	default:
	}
	<-w.open
	return len(b), nil
}

func TestBackupOneAtATime(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	w := gatedWriter{make(chan struct{}, 1), make(chan struct{})}
	done := make(chan error)
	// Ends when the gate is opened; received below.
	go func() {
		_, err := l.Backup(context.Background(), w, unlimited)
		done <- err
	}()
	<-w.reached
	check.Is(t, check.Err(l.Backup(t.Context(), io.Discard, unlimited)), ledger.ErrBackupRefused, "a second backup")
	mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed) // is not held up
	close(w.open)
	must.Do(t, <-done)
	backUp(t, l)
}

func TestBackupEnds(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed)
	broken := errors.New("broken pipe")
	check.Is(t, check.Err(l.Backup(t.Context(), failAfter(1000, broken, io.Discard), unlimited)), broken,
		"a writer that fails")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, check.Err(l.Backup(ctx, io.Discard, unlimited)), context.Canceled, "a context that has ended")
	refused := errors.New("refused")
	if _, err := l.Backup(t.Context(), io.Discard,
		ledger.BackupOptions{Begin: func(backupfile.Info) error { return refused }}); !errors.Is(err, refused) {
		t.Errorf("a refusal of the header: %v", err)
	}
	backUp(t, l) // none of this was the ledger's fault
	// A slow one ends with the ledger, which waits for it.
	w := gatedWriter{make(chan struct{}, 1), make(chan struct{})}
	done := make(chan error)
	// Ends with the ledger; received below.
	go func() {
		_, err := l.Backup(context.Background(), w, ledger.BackupOptions{RateBytes: 1})
		done <- err
	}()
	<-w.reached
	close(w.open)
	closeLedger(t, l)
	check.Is(t, <-done, ledger.ErrClosed, "a backup of a ledger that was closed")
	check.Is(t, check.Err(l.Backup(t.Context(), io.Discard, unlimited)), ledger.ErrClosed, "a backup after that")
}

// failAfter returns a writer that fails behind so many bytes.
func failAfter(n int, err error, w io.Writer) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		if n -= len(b); n < 0 {
			return 0, err
		}
		return w.Write(b)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestVerifyBackupFindsDamage(t *testing.T) {
	t.Parallel()
	dir := written(t)
	l := open(t, ledger.Options{Dir: dir})
	backup, _ := backUp(t, l)
	cut := backup[:len(backup)-5]
	changed := bytes.Clone(backup)
	changed[len(changed)/2] ^= 1
	for name, b := range map[string][]byte{"cut": cut, "changed": changed, "empty": nil,
		"another file": []byte("hello, this is a letter and no backup")} {
		report, err := verify.Backup(t.Context(), bytes.NewReader(b), verify.Options{})
		if err != nil || len(report.Problems) != 1 {
			t.Errorf("%s: %v %+v", name, err, report)
		}
	}
}

// Blocks may come between the checkpoint of a backup and its snapshot. The backup
// stands for the checkpoint, and nothing of them is restored.
func TestBackupBeforeMoreBlocks(t *testing.T) {
	t.Parallel()
	l := open(t, ledger.Options{})
	mustWrite(t, l, appendWrite("c", 1, []byte("covered")), machine.Committed)
	must.Do(t, l.Flush())
	mustWrite(t, l, appendWrite("c", 2, []byte("later")), machine.Committed)
	var backup bytes.Buffer
	info, err := l.BackupNow(&backup)
	if err != nil || info.Index != 2 { // the creation and one write
		t.Fatal(info, err)
	}
	report, err := verify.Backup(t.Context(), bytes.NewReader(backup.Bytes()), verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != 1 {
		t.Errorf("verify: %v %+v", err, report)
	}
	dir, _ := restoreBackup(t, backup.Bytes())
	report, err = verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != 1 {
		t.Errorf("verify of the restored directory: %v %+v", err, report)
	}
}
