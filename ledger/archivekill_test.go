package ledger_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The test of kills runs this test binary as a process of its own that copies a state to an archive and kills itself at
// a given step of it. A write is acknowledged before each step, so that the ledger moves on meanwhile.

const (
	archiveChildEnv = "SEQLEDGER_ARCHIVE_TEST_DIR" // has data and archive in it
	archiveStepEnv  = "SEQLEDGER_ARCHIVE_TEST_STEP"
)

// archiveClient is the stream of the writes that are made meanwhile.
const archiveClient = "meanwhile"

// archiveSteps is a target that writes to the ledger before each call and in the middle of each Put, and kills the
// process at one of these steps.
type archiveSteps struct {
	archive.Target
	*suicide

	acked  *os.File // gets a byte for each acknowledged write
	opened chan struct{}
	ended  chan struct{} // once the older state is gone
	ledger *ledger.Ledger

	mu   sync.Mutex // the log is copied beside the state
	next uint64     // sequence
}

func (s *archiveSteps) meanwhile() error {
	<-s.opened
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	out, err := s.ledger.Write(context.Background(), appendWrite(archiveClient, s.next, make([]byte, 30_000)))
	if err != nil || out.Code != machine.Committed {
		return errors.Join(fmt.Errorf("write %d: %s", s.next, out.Code), err)
	}
	_, err = s.acked.Write([]byte{1})
	s.step()
	return err
}

// Put implements archive.Target.
func (s *archiveSteps) Put(ctx context.Context, name string, r io.ReaderAt, size int64, sum [sha256.Size]byte) error {
	if err := s.meanwhile(); err != nil {
		return err
	}
	begun := false
	return s.Target.Put(ctx, name, readerAtFunc(func(b []byte, at int64) (int, error) {
		if at > 0 && !begun {
			begun = true
			if err := s.meanwhile(); err != nil {
				return 0, err
			}
		}
		return r.ReadAt(b[:min(len(b), 16<<10)], at)
	}), size, sum)
}

type readerAtFunc func(b []byte, at int64) (int, error)

// ReadAt implements io.ReaderAt. One that reads less than it was asked for says that more is to come by another read.
func (f readerAtFunc) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = f(b[n:], at+int64(n))
		n += more
	}
	return n, err
}

// List implements archive.Target.
func (s *archiveSteps) List(ctx context.Context, folder string) ([]archive.Object, error) {
	if err := s.meanwhile(); err != nil {
		return nil, err
	}
	return s.Target.List(ctx, folder)
}

// Delete implements archive.Target.
func (s *archiveSteps) Delete(ctx context.Context, name string) error {
	if err := s.meanwhile(); err != nil {
		return err
	}
	err := s.Target.Delete(ctx, name)
	if strings.HasSuffix(name, "/") && strings.Contains(name, "/state/") {
		close(s.ended)
	}
	return err
}

func archiveChild(dir string) (err error) {
	step, err := strconv.Atoi(os.Getenv(archiveStepEnv))
	if err != nil {
		return err
	}
	s := &archiveSteps{
		Target: archive.Directory(filepath.Join(dir, "archive")), suicide: &suicide{left: step},
		opened: make(chan struct{}), ended: make(chan struct{}),
	}
	if s.acked, err = os.Create(filepath.Join(dir, "acked")); err != nil {
		return err
	}
	s.ledger, err = ledger.Open(context.Background(), ledger.ArchivedInParts(ledger.Options{
		Dir: filepath.Join(dir, "data"), Logger: slog.New(slog.DiscardHandler), CheckpointBytes: 64 << 10,
		Archive: s, ArchiveInterval: time.Nanosecond, ArchiveWindow: time.Nanosecond,
	}, 50_000))
	if err != nil {
		return err
	}
	close(s.opened)
	<-s.ended
	acked, err := os.ReadFile(filepath.Join(dir, "acked"))
	if err == nil {
		_, _, err = s.ledger.ArchivePoint(context.Background())
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "archived"), acked, 0o600)
	}
	s.step()
	return errors.Join(err, s.ledger.Close())
}

// killArchiving copies to an archive in a process that kills itself at a step, and tells whether it did.
func killArchiving(t *testing.T, dir string, step int) bool {
	t.Helper()
	return killed(t, archiveChildEnv+"="+dir, archiveStepEnv+"="+strconv.Itoa(step))
}

// TestArchivedStateSurvivesKills kills the process of the ledger at every step of a copy of a state, and of the log
// beside it, to an archive that has a state, which goes. The ledger has every write that was acknowledged meanwhile;
// the archive has a whole state with its block files after each kill, and everything before ArchivePoint once that has
// returned; and the next start copies a newer one.
func TestArchivedStateSurvivesKills(t *testing.T) {
	t.Parallel()
	source, archived := t.TempDir(), t.TempDir()
	l := open(t, ledger.ArchivedInParts(ledger.Options{Dir: source, Archive: archive.Directory(archived)}, 50_000))
	fill(t, l, 1, 3)
	awaitState(t, l, 1)
	fill(t, l, 16, 4)
	closeLedger(t, l)
	kills := 0
	for step := 0; ; step++ {
		dir := t.TempDir()
		must.Do(t, os.CopyFS(filepath.Join(dir, "data"), os.DirFS(source)))
		must.Do(t, os.CopyFS(filepath.Join(dir, "archive"), os.DirFS(archived)))
		if !killArchiving(t, dir, step) {
			break
		}
		kills++
		killedArchiving(t, dir, step)
	}
	if kills < 20 {
		t.Errorf("%d kills: the test tested too little", kills)
	}
	t.Logf("%d kills", kills)
}

func killedArchiving(t *testing.T, dir string, step int) {
	t.Helper()
	acked := must.Get(os.ReadFile(filepath.Join(dir, "acked")))(t)
	archived := filepath.Join(dir, "archive")
	point, err := os.ReadFile(filepath.Join(dir, "archived")) // absent if it was killed before
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	before := mustRestoreArchive(t, archived, uint64(len(point)))
	l := open(t, ledger.ArchivedInParts(ledger.Options{
		Dir: filepath.Join(dir, "data"), Archive: archive.Directory(archived), ArchiveInterval: time.Nanosecond,
	}, 50_000))
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		s, _, err := v.Stream(scope, archiveClient)
		if s.Last < uint64(len(acked)) || s.Last > uint64(len(acked))+1 { // the last one may be without its mark
			t.Errorf("step %d: the stream is at %d, and %d writes were acknowledged", step, s.Last, len(acked))
		}
		return err
	}))
	mustWrite(t, l, appendWrite("after", 1, []byte("a")), machine.Committed)
	awaitState(t, l, l.Head().Index)
	closeLedger(t, l)
	if after := mustRestoreArchive(t, archived, uint64(len(acked))); after <= before {
		t.Errorf("step %d: the archive had the state of index %d, and has that of %d", step, before, after)
	}
}

// mustRestoreArchive verifies an archive and restores it, and expects as many of the writes that were made meanwhile.
// It returns the index of the state.
func mustRestoreArchive(t *testing.T, archived string, writes uint64) uint64 {
	t.Helper()
	target := archive.Directory(archived)
	ids := must.Get(archive.Ledgers(t.Context(), target))(t)
	report := must.Get(archive.Verify(t.Context(), target, ids[0], nil))(t)
	if len(report.Problems) > 0 || len(report.States) == 0 {
		t.Fatalf("the archive: %+v", report)
	}
	dir := filepath.Join(t.TempDir(), "restored")
	must.Do(t, restoreArchive(t.Context(), target, ids[0], restoreTo(dir)))
	l := open(t, ledger.Options{Dir: dir})
	defer closeLedger(t, l)
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		s, _, err := v.Stream(scope, archiveClient)
		if s.Last < writes {
			t.Errorf("what was restored has %d writes, want %d", s.Last, writes)
		}
		return err
	}))
	return report.States[len(report.States)-1].Index
}

// fill writes until the ledger has n sealed block files more, or nearly, and returns the next sequence.
func fill(t testing.TB, l *ledger.Ledger, from uint64, n int) (next uint64) {
	t.Helper()
	// TestMain seals block files at 100 KiB.
	for range n * 5 {
		mustWrite(t, l, appendWrite("filler", from, make([]byte, 25_000)), machine.Committed)
		from++
	}
	return from
}

// awaitState waits until the archive of a ledger has a state of an index or a later one.
func awaitState(t testing.TB, l *ledger.Ledger, index uint64) {
	t.Helper()
	must.Await(t, func() bool {
		ledger.ArchiveNow(t.Context(), l)
		s := l.Stats().Archive
		must.Equal(t, s.Problem, "", "the archive fails: %s")
		return s.StateIndex >= index
	}, "a state in the archive")
}
