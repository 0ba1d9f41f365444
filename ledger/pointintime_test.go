package ledger_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// moment is where a ledger stood between two entries of its log.
type moment struct {
	index  uint64
	time   time.Time
	digest machine.Hash
}

func momentOf(t *testing.T, l *ledger.Ledger) (m moment) {
	t.Helper()
	must.Do(t, l.StoredView(t.Context(), func(v machine.View) error {
		m = moment{v.Index(), time.Unix(0, v.Time()), v.Digest()}
		return nil
	}))
	return m
}

// archivePoint archives everything, and returns where the ledger stands.
func archivePoint(t *testing.T, l *ledger.Ledger) moment {
	t.Helper()
	var last moment
	must.Await(t, func() (done bool) {
		before := momentOf(t, l)
		index, at, err := l.ArchivePoint(t.Context())
		if err != nil && !errors.Is(err, ledger.ErrNotArchived) { // a slow target counts as one that hangs
			t.Fatal(err)
		}
		last = momentOf(t, l)
		if err == nil && before == last && (last.index != index || !last.time.Equal(at)) {
			t.Fatalf("archived up to index %d, of %s, and the ledger is at %+v", index, at, last)
		}
		return err == nil && before == last // a cluster takes an index by itself now and then
	}, "everything in the archive")
	return last
}

// archivedHistory makes an archive with several states and much log between them, of writes by several clients at once
// whose entities expire, and returns moments of it.
func archivedHistory(t *testing.T) (target archive.Target, id machine.LedgerID, moments []moment) {
	t.Helper()
	target = archive.Directory(t.TempDir())
	o := ledger.Options{
		Dir: t.TempDir(), Archive: target, ArchiveInterval: time.Nanosecond, ArchiveWindow: -1,
		CheckpointBytes: 64 << 10, LogBytes: 256 << 10, Config: machine.DefaultConfig(),
	}
	o.Config.EvictionInterval, o.Config.EvictionLimit = 50, 20
	l := open(t, o)
	for round := range 4 {
		ledger.ArchiveNow(t.Context(), l)
		var group sync.WaitGroup
		for client := range 4 {
			group.Go(func() {
				for i := range 200 {
					w := appendWrite(fmt.Sprint(client), uint64(round*200+i+1), make([]byte, 200))
					w.Operations = append(w.Operations, machine.Operation{
						Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "%d/%d/%d", round, client, i),
						Value: []byte("v"), ExpiresAt: time.Now().UnixNano(),
					})
					mustWrite(t, l, w, machine.Committed)
					if client == 0 {
						moments = append(moments, momentOf(t, l))
					}
				}
			})
		}
		group.Wait()
		if round == 2 { // a restart between two states
			closeLedger(t, l)
			l = open(t, o)
		}
	}
	moments = append(moments, archivePoint(t, l))
	id = l.Head().Ledger
	closeLedger(t, l)
	states := must.Get(archive.States(t.Context(), target, id))(t)
	if len(states) < 4 {
		t.Fatalf("%d states: the test tests too little", len(states))
	}
	return target, id, moments
}

// restored returns where a restore up to a moment ends. What it makes is audited.
func restored(t *testing.T, target archive.Target, id machine.LedgerID, until verify.Until) moment {
	t.Helper()
	from := must.Get(verify.FromArchive(t.Context(), target, id, until))(t)
	report := must.Get(verify.State(t.Context(), from[0], verify.Options{}))(t)
	must.Do(t, report.Problem(fmt.Sprintf("what was restored up to %+v", until)))
	return moment{index: report.Index, digest: report.Digest}
}

// TestPointInTime: a ledger is restored as it was at any index and any time, to the last whole entry, also where an
// entry has evicted much.
func TestPointInTime(t *testing.T) {
	t.Parallel()
	target, id, moments := archivedHistory(t)
	seed := must.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	last := moments[len(moments)-1]
	passed := 0
	for range 50 {
		m := moments[random.IntN(len(moments))]
		at := restored(t, target, id, verify.Until{Index: m.index})
		if at.index != m.index || at.digest != m.digest {
			t.Errorf("index %d: restored %+v, and it was %+v", m.index, at, m)
		}
		index := 2 + random.Uint64N(last.index)
		before := moments[0]
		for _, m := range moments {
			if m.index <= index {
				before = m
			}
		}
		if index < before.index || index > last.index {
			continue
		}
		got := restored(t, target, id, verify.Until{Index: index})
		if got.index > index || got.index < before.index {
			t.Errorf("index %d: restored up to %d, and %d is a whole entry", index, got.index, before.index)
		}
		if got.index < index {
			passed++
		}
	}
	if passed == 0 {
		t.Error("no index was within an entry: the test tests too little")
	}
	for range 10 {
		m := moments[random.IntN(len(moments))]
		got := restored(t, target, id, verify.Until{Time: m.time})
		if at := slices.IndexFunc(moments, func(m moment) bool { return m.index == got.index }); got.index < m.index ||
			at >= 0 && !moments[at].time.Equal(m.time) {
			t.Errorf("%s: restored %+v, and it was %+v", m.time, got, m)
		}
	}
	if got := restored(t, target, id, verify.Until{}); got.index != last.index || got.digest != last.digest {
		t.Errorf("restored %+v, and it was %+v", got, last)
	}
	check.Is(t, check.Err(verify.FromArchive(t.Context(), target, id, verify.Until{Time: time.Unix(1, 0)})),
		verify.ErrNoState, "a time before the first state")
	report := must.Get(verify.Archive(t.Context(), target, id, verify.Options{}, nil))(t)
	must.Do(t, report.Problem("the archive"))
	if report.Index != last.index || report.Digest != last.digest || report.LogEntries == 0 {
		t.Errorf("the archive is verified up to %+v, and it ends at %+v", report, last)
	}
}

// TestDamagedLog: whatever becomes of an object of the log or of a state is told by a check of the archive, and a
// restore goes round it or names it.
func TestDamagedLog(t *testing.T) {
	t.Parallel()
	target, id, moments := archivedHistory(t)
	dir := target.(interface{ Path() string }).Path() //nolint:forcetypeassert // A directory has one.
	last := moments[len(moments)-1]
	var objects []string
	must.Do(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (strings.HasSuffix(path, ".log") || strings.Contains(path, "/state/")) {
			objects = append(objects, path)
		}
		return err
	}))
	slices.Sort(objects)
	end := objects[slices.IndexFunc(objects, func(path string) bool { return strings.Contains(path, "/state/") })-1]
	for _, path := range objects {
		for what, damage := range map[string]func(b []byte) []byte{
			"missing": nil,
			"changed": func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
			"shorter": func(b []byte) []byte { return b[:len(b)-1] },
		} {
			if damage == nil && path == end {
				continue // nothing says that the log went on
			}
			whole := must.Get(os.ReadFile(path))(t)
			if must.Do(t, os.Remove(path)); damage != nil {
				must.Do(t, os.WriteFile(path, damage(bytes.Clone(whole)), 0o600))
			}
			mustNotice(t, target, id, last, what+": "+path)
			must.Do(t, os.WriteFile(path, whole, 0o600))
		}
	}
}

// TestStateTwice: two leaders may copy the same state, which is no problem; and one damaged object of the log is one
// problem, behind which the next state is where the check goes on.
func TestStateTwice(t *testing.T) {
	t.Parallel()
	target, id, _ := archivedHistory(t)
	states := must.Get(archive.States(t.Context(), target, id))(t)
	lists := must.Get(filepath.Glob(filepath.Join(target.String(), "*", "state", "*.state")))(t)
	for _, list := range lists {
		parts := strings.TrimSuffix(list, ".state")
		again := parts[:len(parts)-16] + "ffffffffffffffff"
		must.Do(t, os.CopyFS(again, os.DirFS(parts)))
		must.Do(t, os.WriteFile(again+".state", must.Get(os.ReadFile(list))(t), 0o600))
	}
	report := must.Get(verify.Archive(t.Context(), target, id, verify.Options{}, nil))(t)
	must.Do(t, report.Problem("the archive"))
	objects := must.Get(filepath.Glob(filepath.Join(target.String(), "*", "log", "*", "*")))(t)
	for _, path := range objects {
		whole := must.Get(os.ReadFile(path))(t)
		must.Do(t, os.WriteFile(path, whole[:len(whole)-1], 0o600))
		report := must.Get(verify.Archive(t.Context(), target, id, verify.Options{}, nil))(t)
		if len(report.Problems) > 1 || report.Index < states[len(states)-1].Index {
			t.Errorf("without %s it is checked up to %d: %+v", path, report.Index, report.Problems)
		}
		must.Do(t, os.WriteFile(path, whole, 0o600))
	}
}

// mustNotice expects an archive with one damaged object to be found damaged, and a restore of all of it to go round
// that or to fail.
func mustNotice(t *testing.T, target archive.Target, id machine.LedgerID, last moment, what string) {
	t.Helper()
	objects := must.Get(archive.Verify(t.Context(), target, id, nil))(t)
	replay := must.Get(verify.Archive(t.Context(), target, id, verify.Options{}, nil))(t)
	if len(objects.Problems)+len(objects.Unlisted)+len(replay.Problems) == 0 {
		t.Errorf("%s: it is not found", what)
	}
	from := must.Get(verify.FromArchive(t.Context(), target, id, verify.Until{}))(t)
	for i := range from {
		report, err := verify.State(context.Background(), from[i], verify.Options{})
		must.Do(t, err)
		if report.Problem("") == nil {
			check.Equal(t, report.Index, last.index, "%s: it is restored up to %d in silence, want %d", what)
			return
		}
	}
	if !strings.Contains(what, ".log") {
		t.Errorf("%s: nothing is restored", what)
	}
}

// TestLogThatIsLostBeforeAState: where the log from one state to the next is lost no moment between them is restored as
// if nothing had been written there.
func TestLogThatIsLostBeforeAState(t *testing.T) {
	t.Parallel()
	target, id, _ := archivedHistory(t)
	objects := must.Get(filepath.Glob(filepath.Join(target.String(), "*", "log", "*", "*")))(t)
	for _, path := range objects {
		must.Do(t, os.Remove(path))
	}
	states := must.Get(archive.States(t.Context(), target, id))(t)
	from := must.Get(verify.FromArchive(t.Context(), target, id, verify.Until{Time: states[1].Time.Add(-1)}))(t)
	report := must.Get(verify.State(t.Context(), from[0], verify.Options{}))(t)
	if err := report.Problem(""); err == nil {
		t.Errorf("it is restored up to %d, and nothing is said of what comes before the state of %d", report.Index,
			states[1].Index)
	}
}

// TestForgottenArchive: a start that does not name the archive keeps the log for it, as it keeps the block files.
func TestForgottenArchive(t *testing.T) {
	t.Parallel()
	o := ledger.Options{
		Dir: t.TempDir(), Archive: archive.Directory(t.TempDir()), LogBytes: 1 << 20, CheckpointBytes: 64 << 10,
	}
	target := o.Archive
	l := open(t, o)
	mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed)
	ledger.ArchiveNow(t.Context(), l)
	archivePoint(t, l)
	closeLedger(t, l)
	o.Archive = nil
	l = open(t, o)
	mustWrite(t, l, appendWrite("c", 2, []byte("a")), machine.Committed)
	want := momentOf(t, l)
	fill(t, l, 1, 20) // several truncations
	closeLedger(t, l)
	o.Archive = target
	l = open(t, o)
	archivePoint(t, l)
	id := l.Head().Ledger
	closeLedger(t, l)
	if got := restored(t, target, id, verify.Until{Index: want.index}); got.digest != want.digest {
		t.Errorf("restored %+v, and it was %+v", got, want)
	}
}

// TestCopyWithTheArchiveOfItsOriginal: an old copy of a data directory is not told that its writes are archived because
// those of the original are.
func TestCopyWithTheArchiveOfItsOriginal(t *testing.T) {
	t.Parallel()
	o := ledger.Impatient(ledger.Options{Dir: t.TempDir(), Archive: archive.Directory(t.TempDir())})
	l := open(t, o)
	mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed)
	closeLedger(t, l)
	older := filepath.Join(t.TempDir(), "copy")
	must.Do(t, os.CopyFS(older, os.DirFS(o.Dir)))
	l = open(t, o)
	ledger.ArchiveNow(t.Context(), l)
	for i := range uint64(20) {
		mustWrite(t, l, appendWrite("c", 2+i, []byte("original")), machine.Committed)
	}
	archivePoint(t, l)
	closeLedger(t, l)
	o.Dir = older
	l = open(t, o)
	ledger.ArchiveNow(t.Context(), l)
	mustWrite(t, l, appendWrite("c", 2, []byte("copy")), machine.Committed)
	_, _, err := l.ArchivePoint(t.Context())
	check.Is(t, err, ledger.ErrNotArchived, "the archive has the log of another history")
	if s := l.Stats().Archive; !strings.Contains(s.Problem, "another history") {
		t.Errorf("the status says %q", s.Problem)
	}
	closeLedger(t, l)
}

// TestHandOverWaitsForNoArchive: a leader that stops hands the leadership over, and asks an archive that hangs for
// nothing before, because it takes no writes any more.
func TestHandOverWaitsForNoArchive(t *testing.T) {
	t.Parallel()
	target := &logTarget{Target: archive.Directory(t.TempDir())}
	nodes := startClusterWith(t, 3, func(dir string) ledger.Options {
		return ledger.Patient(ledger.Options{Dir: dir, Archive: target})
	})
	leader := awaitLeader(t, nodes...)
	ledger.ArchiveNow(t.Context(), leader.Ledger)
	archivePoint(t, leader.Ledger)
	target.set(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	must.Do(t, onLeader(t, nodes, func(n *clusterNode) error {
		leader = n
		_, err := n.Write(t.Context(), appendWrite("c", 1, []byte("a")))
		return err
	}))
	closed := make(chan error, 1)
	go func() { closed <- leader.Close() }()
	awaitLeader(t, slices.DeleteFunc(nodes, func(n *clusterNode) bool { return n == leader })...)
	must.Do(t, <-closed)
}

// TestLogGap: a log that is dropped before a target takes it leaves a gap, which the next state closes. Writes go on.
func TestLogGap(t *testing.T) {
	t.Parallel()
	dir, target := t.TempDir(), archive.Directory(t.TempDir())
	o := ledger.Options{Dir: dir, Archive: target, LogBytes: 1 << 20, CheckpointBytes: 64 << 10}
	l := open(t, o)
	ledger.ArchiveNow(t.Context(), l)
	mustWrite(t, l, appendWrite("c", 1, []byte("a")), machine.Committed)
	archivePoint(t, l)
	closeLedger(t, l)
	o.Archive = nil
	must.Do(t, os.Rename(filepath.Join(dir, "ARCHIVE"), filepath.Join(t.TempDir(), "ARCHIVE")))
	l = open(t, o) // which copies nothing, and drops its log at the end
	missing := momentOf(t, l).index + 1
	fill(t, l, 1, 20)
	closeLedger(t, l)

	o.Archive = target
	l = open(t, o)
	mustWrite(t, l, appendWrite("c", 2, []byte("a")), machine.Committed)
	must.Await(t, func() bool {
		_, _, err := l.ArchivePoint(t.Context())
		if err != nil && !errors.Is(err, ledger.ErrNotArchived) {
			t.Fatal(err)
		}
		ledger.ArchiveNow(t.Context(), l)
		return err == nil
	}, "a state that closes the gap")
	mustWrite(t, l, appendWrite("c", 3, []byte("a")), machine.Committed)
	last, id := archivePoint(t, l), l.Head().Ledger
	closeLedger(t, l)
	if got := restored(t, target, id, verify.Until{}); got.index != last.index || got.digest != last.digest {
		t.Errorf("restored %+v, and it was %+v", got, last)
	}
	from := must.Get(verify.FromArchive(t.Context(), target, id, verify.Until{Index: missing}))(t)
	report := must.Get(verify.State(t.Context(), from[0], verify.Options{}))(t)
	if err := report.Problem(""); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("an index within the gap is restored: %v", err)
	}
}

// logTarget is a target whose objects of the log have a fault.
type logTarget struct {
	archive.Target

	fault atomic.Pointer[func(ctx context.Context) error]
}

// set sets the fault; nil for none.
func (l *logTarget) set(fault func(ctx context.Context) error) {
	if fault == nil {
		l.fault.Store(nil)
		return
	}
	l.fault.Store(&fault)
}

// Put implements archive.Target.
func (l *logTarget) Put(ctx context.Context, name string, r io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	if fault := l.fault.Load(); fault != nil && strings.Contains(name, "/log/") {
		if err := (*fault)(ctx); err != nil {
			return err
		}
	}
	return l.Target.Put(ctx, name, r, size, sum)
}

// TestLogIsKept: while a target refuses the log or hangs writes go on and the log is kept, so that it is whole once the
// target takes it again; a stop keeps it for the next start.
func TestLogIsKept(t *testing.T) {
	t.Parallel()
	for what, fault := range map[string]func(ctx context.Context) error{
		"full":     func(context.Context) error { return syscall.ENOSPC },
		"answers":  func(context.Context) error { return errors.New("503 Slow Down") },
		"hanging":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"half put": nil,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			target := &logTarget{Target: archive.Directory(t.TempDir())}
			o := ledger.Impatient(ledger.Options{
				Dir: t.TempDir(), Archive: target, LogBytes: 512 << 10, CheckpointBytes: 64 << 10,
			})
			l := open(t, o)
			ledger.ArchiveNow(t.Context(), l)
			archivePoint(t, l)
			if fault == nil { // the object is there, and the answer is lost
				fault = func(context.Context) error { return nil }
			}
			target.set(fault)
			next := fill(t, l, 1, 40) // five truncations or so
			if what != "half put" {
				_, _, err := l.ArchivePoint(t.Context())
				check.Is(t, err, ledger.ErrNotArchived, "everything is archived")
				if s := l.Stats().Archive; s.Problem == "" || s.FailingSince.IsZero() {
					t.Errorf("the status says nothing: %+v", s)
				}
			}
			closeLedger(t, l)
			target.set(nil)
			l = open(t, o)
			fill(t, l, next, 1)
			last, id := archivePoint(t, l), l.Head().Ledger
			closeLedger(t, l)
			if got := restored(t, target, id, verify.Until{}); got.index != last.index || got.digest != last.digest {
				t.Errorf("restored %+v, and it was %+v", got, last)
			}
			report := must.Get(verify.Archive(t.Context(), target, id, verify.Options{}, nil))(t)
			must.Do(t, report.Problem("the archive"))
		})
	}
}

// TestLogIsNotKeptForEver: a target that is away for long does not fill the disk.
func TestLogIsNotKeptForEver(t *testing.T) {
	t.Parallel()
	target, dir := &logTarget{Target: archive.Directory(t.TempDir())}, t.TempDir()
	l := open(t, ledger.Options{Dir: dir, Archive: target, LogBytes: 256 << 10, CheckpointBytes: 64 << 10})
	ledger.ArchiveNow(t.Context(), l)
	archivePoint(t, l)
	target.set(func(context.Context) error { return syscall.EROFS })
	fill(t, l, 1, 240) // 30 MB, and sixteen truncations are 12 or so
	size := int64(0)
	must.Do(t, filepath.WalkDir(filepath.Join(dir, "log"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			size += must.Get(d.Info())(t).Size()
		}
		return err
	}))
	if size > 18<<20 {
		t.Errorf("the log has grown to %d bytes", size)
	}
	target.set(nil)
	must.Await(t, func() bool {
		ledger.ArchiveNow(t.Context(), l)
		_, _, err := l.ArchivePoint(t.Context())
		return err == nil
	}, "a state that closes the gap")
	last, id := archivePoint(t, l), l.Head().Ledger
	closeLedger(t, l)
	if got := restored(t, target, id, verify.Until{}); got.index != last.index || got.digest != last.digest {
		t.Errorf("restored %+v, and it was %+v", got, last)
	}
}

// TestLogOfSeveralLeaders: whichever node leads, the log in the archive has no gap, and what two of them have copied is
// the same.
func TestLogOfSeveralLeaders(t *testing.T) {
	t.Parallel()
	target := archive.Directory(t.TempDir())
	nodes := startClusterWith(t, 3, func(dir string) ledger.Options {
		return ledger.Impatient(ledger.Options{
			Dir: dir, Archive: target, LogBytes: 256 << 10, CheckpointBytes: 64 << 10,
		})
	})
	must.Await(t, func() bool {
		for _, n := range nodes {
			ledger.ArchiveNow(t.Context(), n.Ledger)
		}
		return awaitLeader(t, nodes...).Stats().Archive.StateIndex > 0
	}, "a state")
	next := uint64(1)
	for range 12 {
		for range 8 { // nearly as much as a node keeps that does not lead
			must.Do(t, onLeader(t, nodes, func(leader *clusterNode) error {
				_, err := leader.Write(t.Context(), appendWrite("c", next, make([]byte, 25_000)))
				return err
			}))
			next++
		}
		handOver(t, nodes, 0)
	}
	var last moment
	must.Await(t, func() bool {
		leader := awaitLeader(t, nodes...)
		_, _, err := leader.ArchivePoint(t.Context())
		last = momentOf(t, leader.Ledger)
		return err == nil
	}, "everything in the archive")
	if got := restored(t, target, nodes[0].Head().Ledger, verify.Until{}); got.index != last.index ||
		got.digest != last.digest {
		t.Errorf("restored %+v, and it was %+v", got, last)
	}
	id := nodes[0].Head().Ledger
	must.Do(t, must.Get(verify.Archive(t.Context(), target, id, verify.Options{}, nil))(t).Problem("the archive"))
	if report := must.Get(archive.Verify(t.Context(), target, id, nil))(t); len(report.Problems) > 0 {
		t.Errorf("the archive: %+v", report.Problems)
	}
}

// lateTarget lists what was there of the log one list ago.
type lateTarget struct {
	archive.Target

	mu   sync.Mutex
	last map[string][]archive.Object
}

// List implements archive.Target.
func (l *lateTarget) List(ctx context.Context, folder string) ([]archive.Object, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, err := l.Target.List(ctx, folder)
	if !strings.Contains(folder, "/log/") {
		return now, err
	}
	late := l.last[folder]
	l.last[folder] = now
	return late, err
}

// TestListsThatAreLate: a store whose lists are late gets some objects twice, and loses none.
func TestListsThatAreLate(t *testing.T) {
	t.Parallel()
	target := archive.Directory(t.TempDir())
	o := ledger.Options{
		Dir: t.TempDir(), Archive: &lateTarget{Target: target, last: map[string][]archive.Object{}},
		ArchiveInterval: time.Nanosecond, ArchiveWindow: time.Nanosecond, LogBytes: 256 << 10,
		CheckpointBytes: 64 << 10,
	}
	next, last, id := uint64(1), moment{}, machine.LedgerID(0)
	for range 4 {
		l := open(t, o)
		next = fill(t, l, next, 4)
		must.Await(t, func() bool {
			ledger.ArchiveNow(t.Context(), l)
			_, _, err := l.ArchivePoint(t.Context())
			return err == nil
		}, "everything in the archive")
		last, id = momentOf(t, l), l.Head().Ledger
		closeLedger(t, l)
	}
	if got := restored(t, target, id, verify.Until{}); got.index != last.index || got.digest != last.digest {
		t.Errorf("restored %+v, and it was %+v", got, last)
	}
	must.Do(t, must.Get(verify.Archive(t.Context(), target, id, verify.Options{}, nil))(t).Problem("the archive"))
}
