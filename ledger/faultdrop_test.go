package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

// The process of these fault tests keeps a mebibyte: it archives its block files, drops the first of them, carries the
// values that are alive in these, and makes a backup. Otherwise it is as faultChild.

const (
	dropChildEnv = "SEQLEDGER_DROP_TEST_DIR"
	dropWrites   = 100
	// dropPatience is how long the process waits for files to be dropped, which a fault of the archive holds up.
	dropPatience = 2 * time.Second
)

func dropOptions(dir string) ledger.Options {
	return ledger.Options{
		Dir: filepath.Join(dir, "data"), Logger: slog.New(slog.DiscardHandler),
		Archive:         archive.Directory(archiveOf(dir)),
		CheckpointBytes: 48 << 10, LogBytes: 256 << 10,
		Config: machine.Config{EvictionInterval: 1, RetainBytes: 1 << 20},
	}
}

func dropBackup(dir string) string { return filepath.Join(dir, "backup") }

// dropWrite sets a long value now and then, which stays.
func dropWrite(sequence uint64) *machine.Write {
	w := appendWrite(faultClient, sequence, bytes.Repeat([]byte{byte(sequence)}, 20<<10))
	if sequence%10 == 1 {
		w.Operations = append(w.Operations, machine.Operation{
			Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "kept/%d", sequence), Value: dropValue(sequence),
		})
	}
	return w
}

func dropValue(sequence uint64) []byte { return fmt.Appendf(nil, "%01000d", sequence) }

// dropChild is the process under test.
func dropChild(dir string) (err error) {
	if err := os.MkdirAll(archiveOf(dir), 0o700); err != nil {
		return err
	}
	l, err := ledger.Open(context.Background(), dropOptions(dir))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	for sequence := uint64(1); sequence <= dropWrites; sequence++ {
		out, err := l.Write(context.Background(), dropWrite(sequence))
		if err != nil {
			return fmt.Errorf("write %d: %w", sequence, err)
		}
		if _, err := fmt.Printf("%d %d\n", sequence, out.Receipt.Index); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(dropPatience); l.Stats().DroppedFiles == 0 && time.Now().Before(deadline); {
		select {
		case <-ticker.C:
		case <-l.Failed():
			return l.Err()
		}
	}
	backup, err := os.Create(dropBackup(dir))
	if err != nil {
		return err
	}
	_, err = l.Backup(context.Background(), backup, ledger.BackupOptions{RateBytes: -1})
	return errors.Join(err, backup.Close())
}

func runDropChild(t *testing.T, dir string, under []string) faultRun {
	t.Helper()
	return runFaulty(t, under, dropChildEnv+"="+dir)
}

// wantDropped opens the directory without faults and wants every acknowledged write with its receipt, or told as one
// from before the horizon, every value, and a clean verification of the directory, the archive and the backup.
func wantDropped(t *testing.T, run faultRun, dir string) {
	t.Helper()
	must.Do(t, os.MkdirAll(archiveOf(dir), 0o700)) // where the process did not come so far
	l := open(t, dropOptions(dir))
	last := uint64(len(run.acknowledged))
	for sequence := uint64(1); sequence <= last; sequence++ {
		out, err := l.Write(t.Context(), dropWrite(sequence))
		if err != nil || out.Code != machine.AlreadyCommitted &&
			(out.Code != machine.Replayed || out.Receipt.Index != run.acknowledged[sequence]) {
			t.Errorf("write %d, acknowledged at index %d: %+v %v", sequence, run.acknowledged[sequence], out, err)
		}
		if sequence%10 != 1 {
			continue
		}
		must.Do(t, l.View(t.Context(), func(v machine.View) error {
			e, err := v.Entity(scope, fmt.Sprintf("kept/%d", sequence))
			if err == nil && !bytes.Equal(e.Value, dropValue(sequence)) {
				err = fmt.Errorf("it is %d bytes", len(e.Value))
			}
			return err
		}), "the value of write %d", sequence)
	}
	out, err := l.Write(t.Context(), dropWrite(last+1))
	if err != nil || out.Code != machine.Committed && out.Code != machine.Replayed {
		t.Errorf("the repeat of write %d: %v %v", last+1, out.Code, err)
	}
	mustWrite(t, l, dropWrite(last+2), machine.Committed)
	closeLedger(t, l)
	var with []archive.Target
	target := archive.Directory(archiveOf(dir))
	for _, id := range must.Get(archive.Ledgers(t.Context(), target))(t) {
		with = []archive.Target{nil, target}
		check.Equal(t, len(must.Get(archive.Verify(t.Context(), target, id, nil))(t).Problems), 0, "the archive %+v")
	}
	for _, archived := range with {
		report, err := verify.Directory(t.Context(), filepath.Join(dir, "data"), verify.Options{Archive: archived})
		if err != nil || len(report.Problems) != 0 {
			t.Errorf("verify with the archive %v: %v %+v", archived, err, report)
		}
	}
	if run.code != 0 {
		return
	}
	backup, err := os.Open(dropBackup(dir))
	if errors.Is(err, fs.ErrNotExist) {
		t.Error("there is no backup")
	}
	must.Do(t, err)
	report, err := verify.Backup(t.Context(), backup, verify.Options{})
	if err = errors.Join(err, backup.Close()); err != nil || len(report.Problems) != 0 {
		t.Errorf("the backup: %v %+v", err, report)
	}
}

// TestDropChild: without a fault the process of the tests does what they are about.
func TestDropChild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := runDropChild(t, dir, nil)
	if run.code != 0 || len(run.acknowledged) != dropWrites {
		t.Fatalf("exit code %d with %d writes: %s", run.code, len(run.acknowledged), run.said)
	}
	wantDropped(t, run, dir)
	report, err := verify.Directory(t.Context(), filepath.Join(dir, "data"), verify.Options{})
	if err != nil || report.Dropped == 0 || report.Carried == 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
