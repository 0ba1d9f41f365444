package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

// rarely makes checkpoints that the tests below do not reach, and block files of a few
// records.
func rarely(dir string) ledger.Options {
	return ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), CheckpointBytes: 64 << 10}
}

const uncoveredWrites = 12

// crashedBehindACheckpoint is a directory as a crash leaves it, with the blocks of
// writes that no checkpoint covers.
func crashedBehindACheckpoint(t *testing.T) (dir string) {
	t.Helper()
	live := t.TempDir()
	l := open(t, rarely(live))
	for sequence := uint64(1); sequence <= uncoveredWrites; sequence++ {
		mustWrite(t, l, appendWrite("c", sequence, bytes.Repeat([]byte{byte(sequence)}, 20<<10)), machine.Committed)
	}
	for s := l.Stats(); s.BlockSyncBytes < uncoveredWrites*20<<9; s = l.Stats() { // half of them
		if t.Context().Err() != nil || s.CheckpointSeconds.Count != 0 {
			t.Fatalf("%d bytes of blocks are synced after %d checkpoints", s.BlockSyncBytes, s.CheckpointSeconds.Count)
		}
		runtime.Gosched()
	}
	dir = t.TempDir()
	copySparse(t, dir, live)
	if !aheadOfCheckpoint(t, dir) {
		t.Fatal("the checkpoint covers all blocks")
	}
	closeLedger(t, l)
	return dir
}

// damageEndOfLog flips a bit in the last batch of the log.
func damageEndOfLog(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, matching(t, dir, "log/segments/*.log"))
	content := must.Get(os.ReadFile(path))(t)
	content[len(trimZeros(content))-200] ^= 1
	must.Do(t, os.WriteFile(path, content, 0o600))
}

// A crash leaves blocks behind the checkpoint. The replay makes them again.
func TestStartWithUncoveredBlocks(t *testing.T) {
	t.Parallel()
	dir := crashedBehindACheckpoint(t)
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != uncoveredWrites {
		t.Fatalf("verify: %v %+v", err, report)
	}
	l := open(t, rarely(dir))
	for sequence := uint64(1); sequence <= uncoveredWrites; sequence++ {
		mustWrite(t, l, appendWrite("c", sequence, bytes.Repeat([]byte{byte(sequence)}, 20<<10)), machine.Replayed)
	}
	mustWrite(t, l, appendWrite("c", uncoveredWrites+1, make([]byte, 20<<10)), machine.Committed)
	closeLedger(t, l)
	report, err = verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != uncoveredWrites+1 {
		t.Errorf("verify after the replay: %v %+v", err, report)
	}
}

// Damage to the very last batch of the log looks like a torn write. A block of it
// proves that it was whole, at every start and to Verify.
func TestLostEndOfTheLogIsNoticed(t *testing.T) {
	t.Parallel()
	dir := crashedBehindACheckpoint(t)
	damageEndOfLog(t, dir)
	before := storedState(t, dir)
	const what = "the log reaches to the blocks of ledger index 12, but blocks proves that writes up to index 13 " +
		"were decided"
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) == 0 || !strings.Contains(report.Problems[0].What, what) {
		t.Errorf("verify: %v %+v", err, report)
	}
	for range 2 { // the first one must not do away with the proof
		l, err := ledger.Open(t.Context(), rarely(dir))
		if err == nil {
			_ = l.Close()
			t.Fatal("a log that lost its end was opened")
		}
		if !errors.Is(err, machine.ErrCorrupt) || !verify.IsDamage(err) || !strings.Contains(err.Error(), what) ||
			!strings.Contains(err.Error(), "from a backup") {
			t.Errorf("open: %v", err)
		}
	}
	check.Equal(t, storedState(t, dir), before, "a refused start has changed the state file or the blocks: %v")
}

// storedState returns the sizes of the state file and of the block files, and the
// bytes of these.
func storedState(t *testing.T, dir string) (all string) {
	t.Helper()
	info := must.Get(os.Stat(filepath.Join(dir, "state.db")))(t)
	all = fmt.Sprint(info.Size())
	for _, name := range blockFiles(t, dir) {
		b := must.Get(os.ReadFile(name))(t)
		all += name + string(b)
	}
	return all
}

// blockFiles returns the paths of the block files of a directory.
func blockFiles(t *testing.T, dir string) []string {
	t.Helper()
	names := must.Get(filepath.Glob(filepath.Join(dir, "blocks", "*.blocks")))(t)
	return names
}

// aheadOfCheckpoint tells whether a crash has left blocks behind what the checkpoint of
// a directory covers.
func aheadOfCheckpoint(t *testing.T, dir string) bool {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(dir, "state.db"), 0o600, &bbolt.Options{ReadOnly: true})
	must.Do(t, err)
	var mark blockfile.Mark
	err = db.View(func(tx *bbolt.Tx) (err error) {
		const checksum = 4
		sealed := tx.Bucket([]byte("seqledger")).Get([]byte("blocks"))
		mark, err = blockfile.DecodeMark(sealed[:len(sealed)-checksum])
		return err
	})
	must.Do(t, errors.Join(err, db.Close()))
	for _, name := range blockFiles(t, dir) {
		info := must.Get(os.Stat(name))(t)
		last := blockfile.Name(mark.Number)
		if base := filepath.Base(name); base > last || base == last && info.Size() > mark.Length {
			return true
		}
	}
	return false
}

// A block behind the checkpoint that a crash has torn is made again, wherever in it the
// tear is.
func TestTornBlocksAreMadeAgain(t *testing.T) {
	t.Parallel()
	dir := crashedBehindACheckpoint(t)
	names := blockFiles(t, dir)
	content := must.Get(os.ReadFile(names[0]))(t)
	for at := 200; at < len(content); at += 7_001 {
		content[at] ^= 1
	}
	must.Do(t, os.WriteFile(names[0], content, 0o600))
	for range 2 {
		report, err := verify.Directory(t.Context(), dir, verify.Options{})
		if err != nil || len(report.Problems) != 0 || report.Transactions != uncoveredWrites {
			t.Fatalf("verify: %v %+v", err, report)
		}
		closeLedger(t, open(t, rarely(dir)))
	}
}

// A log that is replayed onto blocks of another history is refused, by a start and by
// verify.
func TestBlocksOfAnotherHistoryAreRefused(t *testing.T) {
	t.Parallel()
	dir, other := crashedBehindACheckpoint(t), crashedBehindACheckpoint(t)
	must.Do(t, errors.Join(os.RemoveAll(filepath.Join(dir, "blocks")),
		os.Rename(filepath.Join(other, "blocks"), filepath.Join(dir, "blocks"))))
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) == 0 {
		t.Errorf("verify finds nothing: %v", err)
	}
	if l, err := ledger.Open(t.Context(), rarely(dir)); !verify.IsDamage(err) {
		_ = l.Close()
		t.Errorf("a start says %v", err)
	}
}

// diverged returns a directory whose log was decided on another state than it has. The
// two states stand for two programs: a changed one, too, comes to another state by the
// commands of its predecessor.
func diverged(t *testing.T) (dir string) {
	t.Helper()
	set := func(sequence uint64, value string, condition machine.Condition) *machine.Write {
		w := appendWrite("c", sequence, nil)
		w.Operations = []machine.Operation{{
			Kind: machine.OpSetEntity, Key: []byte("k"), Value: []byte(value), Condition: condition,
		}}
		return w
	}
	created := t.TempDir()
	closeLedger(t, open(t, ledger.Options{Dir: created}))
	// The same commands at the same places of the log, but for a value.
	first, other := t.TempDir(), t.TempDir()
	for dir, value := range map[string]string{first: "1", other: "2"} {
		copySparse(t, dir, created)
		l := open(t, ledger.Options{Dir: dir})
		mustWrite(t, l, set(1, value, machine.Condition{}), machine.Committed)
		closeLedger(t, l)
	}
	l := open(t, ledger.Options{Dir: first})
	mustWrite(t, l, set(2, "paid", machine.Condition{Kind: machine.ConditionValueEquals, Value: []byte("1")}),
		machine.Committed)
	crashed := t.TempDir()
	copySparse(t, crashed, first) // before a checkpoint has the write
	closeLedger(t, l)
	for _, name := range []string{"state.db", "blocks"} {
		to := filepath.Join(crashed, name)
		must.Do(t, errors.Join(os.RemoveAll(to), os.Rename(filepath.Join(other, name), to)))
	}
	// It is another program's state that this stands for, and no damage.
	must.Do(t, os.Remove(filepath.Join(crashed, "state.sum")))
	return crashed
}

// TestReplayThatDecidesOtherwise: a start whose replay goes another way than the log
// went is refused, although no block lies behind the checkpoint.
func TestReplayThatDecidesOtherwise(t *testing.T) {
	t.Parallel()
	var dir string
	var err error
	// A busy machine may need a second election for one of the two, and then the log is
	// refused for its terms before it is replayed.
	for range 10 {
		dir = diverged(t)
		_, err = ledger.Open(t.Context(), ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "another term") {
			break
		}
	}
	check.Is(t, err, machine.ErrDiverged, "a start with the other state")
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) == 0 {
		t.Errorf("verify finds nothing: %v", err)
	}
	copied := filepath.Join(t.TempDir(), "restored")
	if _, err := restore.Directory(t.Context(), dir, restoreTo(copied)); !verify.IsDamage(err) {
		t.Errorf("a restore of it: %v", err)
	}
}

// copySparse copies a directory without writing the zeros of its log segments.
func copySparse(t *testing.T, to, from string) {
	t.Helper()
	must.Do(t, fs.WalkDir(os.DirFS(from), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(to, name), 0o700))
		}
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		used := trimZeros(content)
		if err := os.WriteFile(filepath.Join(to, name), used, 0o600); err != nil {
			return err
		}
		return os.Truncate(filepath.Join(to, name), int64(len(content)))
	}))
}

// trimZeros is bytes.TrimRight(content, "\x00"). It compares whole pieces first: the race detector
// takes seconds to look at each byte of a log segment.
func trimZeros(content []byte) []byte {
	zeros := make([]byte, 64<<10)
	for bytes.HasSuffix(content, zeros) {
		content = content[:len(content)-len(zeros)]
	}
	return bytes.TrimRight(content, "\x00")
}

// matching returns the one file in a directory that a pattern names.
func matching(t *testing.T, dir, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v %v", pattern, names, err)
	}
	name := must.Get(filepath.Rel(dir, names[len(names)-1]))(t)
	return name
}
