package ledger_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// spilling makes spills of 16 KiB, and checkpoints that the tests below do not
// reach.
func spilling(dir string) ledger.Options {
	return ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler), CheckpointBytes: 64 << 10}
}

const spilledWrites = 12

// crashedAfterASpill is a directory as a crash leaves it right after a spill
// that had the last write in it, too.
func crashedAfterASpill(t *testing.T) (dir string) {
	t.Helper()
	live := t.TempDir()
	l := open(t, spilling(live))
	for sequence := uint64(1); sequence <= spilledWrites; sequence++ {
		mustWrite(t, l, appendWrite("c", sequence, bytes.Repeat([]byte{byte(sequence)}, 20<<10)), machine.Committed)
		awaitSpill(t, l)
	}
	s := l.Stats()
	if s.SpillSeconds.Count == 0 || s.SpillBytes < spilledWrites*20<<10 || s.CheckpointSeconds.Count != 0 {
		t.Fatalf("%d spills of %d bytes and %d checkpoints", s.SpillSeconds.Count, s.SpillBytes,
			s.CheckpointSeconds.Count)
	}
	dir = t.TempDir()
	copySparse(t, dir, live)
	closeLedger(t, l)
	return dir
}

// awaitSpill waits until less is in memory than makes a spill.
func awaitSpill(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	for l.Stats().PendingBytes > 16<<10 {
		if t.Context().Err() != nil {
			t.Fatal("blocks wait in memory, and none is spilled")
		}
		runtime.Gosched()
	}
}

// damageEndOfLog flips a bit in the last batch of the log.
func damageEndOfLog(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, matching(t, dir, "log/wal/*.wal"))
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(trimZeros(content))-200] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A crash leaves blocks ahead of the checkpoint. The replay makes them again.
func TestStartAfterASpill(t *testing.T) {
	t.Parallel()
	dir := crashedAfterASpill(t)
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != spilledWrites {
		t.Fatalf("verify: %v %+v", err, report)
	}
	l := open(t, spilling(dir))
	awaitSpill(t, l) // what a replay gathers does not wait for the next write
	for sequence := uint64(1); sequence <= spilledWrites; sequence++ {
		mustWrite(t, l, appendWrite("c", sequence, bytes.Repeat([]byte{byte(sequence)}, 20<<10)), machine.Replayed)
	}
	mustWrite(t, l, appendWrite("c", spilledWrites+1, make([]byte, 20<<10)), machine.Committed)
	closeLedger(t, l)
	report, err = verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Transactions != spilledWrites+1 {
		t.Errorf("verify after the replay: %v %+v", err, report)
	}
}

// Damage to the very last batch of the log looks like a torn write. A spill
// that had it proves that it was whole, at every start and to Verify.
func TestLostEndOfTheLogIsNoticed(t *testing.T) {
	t.Parallel()
	dir := crashedAfterASpill(t)
	damageEndOfLog(t, dir)
	state, err := os.ReadFile(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	const what = "the log reaches to ledger index 12, but state.db proves that writes up to index 13 were decided"
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) == 0 || !strings.Contains(report.Problems[0].What, what) {
		t.Errorf("verify: %v %+v", err, report)
	}
	for range 2 { // the first one must not do away with the proof
		l, err := ledger.Open(t.Context(), spilling(dir))
		if err == nil {
			_ = l.Close()
			t.Fatal("a log that lost its end was opened")
		}
		if !errors.Is(err, machine.ErrCorrupt) || !verify.IsDamage(err) || !strings.Contains(err.Error(), what) ||
			!strings.Contains(err.Error(), "from a backup") {
			t.Errorf("open: %v", err)
		}
	}
	if after, err := os.ReadFile(filepath.Join(dir, "state.db")); err != nil || len(after) != len(state) {
		t.Errorf("the state file had %d bytes and has %d, %v", len(state), len(after), err)
	}
}

// aheadOfCheckpoint tells whether a crash has left blocks ahead of the
// checkpoint of a directory.
func aheadOfCheckpoint(t *testing.T, dir string) (ahead bool) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(dir, "state.db"), 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.View(func(tx *bbolt.Tx) error {
		const checksum = 4
		ahead = len(tx.Bucket([]byte("seqledger")).Get([]byte("ahead"))) > checksum
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return ahead
}

// A block ahead of the checkpoint is hidden until the replay has made it again;
// verify must not take that for sound which a running ledger stops at.
func TestVerifyFindsADamagedLeftover(t *testing.T) {
	t.Parallel()
	dir := crashedAfterASpill(t)
	db, err := bbolt.Open(filepath.Join(dir, "state.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte{byte(machine.TableBlocks)})
		cursor := bucket.Cursor()
		cursor.First()
		key, value := cursor.Next() // neither the first nor the last, which every start looks at
		damaged := bytes.Clone(value)
		damaged[1_000] ^= 1
		return bucket.Put(bytes.Clone(key), damaged)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) == 0 {
		t.Errorf("%d problems, %v", len(report.Problems), err)
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
	state, err := os.ReadFile(filepath.Join(other, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(crashed, "state.db"), state, 0o600); err != nil {
		t.Fatal(err)
	}
	// It is another program's state that this stands for, and no damage.
	if err := os.Remove(filepath.Join(crashed, "state.sum")); err != nil {
		t.Fatal(err)
	}
	return crashed
}

// TestReplayThatDecidesOtherwise: a start whose replay goes another way than the log
// went is refused, although no block was written ahead of the checkpoint.
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
	if !errors.Is(err, machine.ErrDiverged) {
		t.Errorf("a start with the other state: %v", err)
	}
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) == 0 {
		t.Errorf("verify finds nothing: %v", err)
	}
	copied := filepath.Join(t.TempDir(), "restored")
	if _, err := ledger.RestoreDirectory(t.Context(), dir, restoreTo(copied)); !verify.IsDamage(err) {
		t.Errorf("a restore of it: %v", err)
	}
}
