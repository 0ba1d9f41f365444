package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/restore"
	"github.com/seqledger/seqledger/ledger/verify"
)

// retaining writes history that is dropped, and an entity with a long value before it.
func retaining(t *testing.T, l *ledger.Ledger, from uint64) {
	t.Helper()
	before := l.Stats().DroppedFiles
	for i := range uint64(150) {
		w := appendWrite("filler", from+i, make([]byte, 20_000))
		if i == 0 {
			w.Operations = append(w.Operations, machine.Operation{
				Kind: machine.OpSetEntity, Key: fmt.Append(nil, "k", from), Value: []byte(strings.Repeat("v", 50_000)),
			})
		}
		mustWrite(t, l, w, machine.Committed)
	}
	must.Await(t, func() bool {
		must.Do(t, l.Err())
		return l.Stats().DroppedFiles > before
	}, "a file to be dropped")
}

func wantLongValue(t *testing.T, l *ledger.Ledger, key string) {
	t.Helper()
	must.Do(t, l.View(t.Context(), func(v machine.View) error {
		e, err := v.Entity(scope, key)
		if err == nil && len(e.Value) != 50_000 {
			err = errors.New("it has another value")
		}
		return err
	}), "entity %s", key)
}

func verifyRetained(t *testing.T, dir string) {
	t.Helper()
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Dropped == 0 {
		t.Errorf("verify: %v %+v", err, report)
	}
}

// A backup of a ledger whose first blocks are gone, and a copy of its directory, are restored with what is kept,
// verified, and go on.
func TestBackupAfterRetention(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := machine.Config{EvictionInterval: 1, RetainBytes: 1 << 20}
	l := open(t, ledger.Options{Dir: dir, Config: config, CheckpointBytes: 1 << 20})
	retaining(t, l, 1)
	var backup bytes.Buffer
	info, err := l.Backup(t.Context(), &backup, ledger.BackupOptions{RateBytes: -1})
	if err != nil || info.First < 2 {
		t.Fatalf("%+v, %v", info, err)
	}
	closeLedger(t, l)
	verifyRetained(t, dir)
	report, err := verify.Backup(t.Context(), bytes.NewReader(backup.Bytes()), verify.Options{})
	if err != nil || len(report.Problems) != 0 || report.Dropped == 0 {
		t.Errorf("verify of the backup: %v %+v", err, report)
	}
	for _, directory := range []bool{false, true} {
		to := filepath.Join(t.TempDir(), "restored")
		if directory {
			_, err = restore.Directory(t.Context(), dir, restore.Options{Dir: to})
		} else {
			_, err = restore.Backup(t.Context(), &backup, restore.Options{Dir: to})
		}
		must.Do(t, err)
		again := open(t, ledger.Options{Dir: to, CheckpointBytes: 1 << 20})
		wantLongValue(t, again, "k1")
		retaining(t, again, 151)
		wantLongValue(t, again, "k1")
		wantLongValue(t, again, "k151")
		closeLedger(t, again)
		verifyRetained(t, to)
	}
}
