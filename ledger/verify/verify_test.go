package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/verify"
)

func appendWrite(client string, sequence uint64, payload []byte) *machine.Write {
	return &machine.Write{
		Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: client, Actor: "system:test",
		Sequence: sequence, Operations: []machine.Operation{{Kind: machine.OpAppend, Value: payload}},
	}
}

// open opens a ledger that the end of the test closes.
func open(t *testing.T, dir string) *ledger.Ledger {
	t.Helper()
	l := must.Get(ledger.Open(t.Context(), ledger.Options{
		Dir: dir, Logger: slog.New(slog.DiscardHandler), LogBytes: 2 << 20,
	}))(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func mustCommit(t *testing.T, l *ledger.Ledger, w *machine.Write) {
	t.Helper()
	must.Equal(t, must.Get(l.Write(t.Context(), w))(t).Code, machine.Committed)
}

// written makes a data directory with some hundred writes in it.
func written(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	l := open(t, dir)
	for sequence := uint64(1); sequence <= 300; sequence++ {
		w := appendWrite(fmt.Sprint("client-", sequence%5), (sequence-1)/5+1, fmt.Appendf(nil, "needle-%03d", sequence))
		w.Operations = append(w.Operations, machine.Operation{
			Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "key-%d", sequence%50),
			Value: fmt.Appendf(nil, "hay-%03d", sequence),
		})
		mustCommit(t, l, w)
	}
	must.Do(t, l.Close())
	return dir
}

func TestVerifySound(t *testing.T) {
	t.Parallel()
	dir := written(t)
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 {
		t.Fatalf("%v %+v", err, report)
	}
	if report.Transactions != 300 || report.Streams != 5 || report.Entities != 50 || report.Index != 301 {
		t.Errorf("report %+v", report)
	}
}

func TestVerifyFindsFlippedBit(t *testing.T) {
	t.Parallel()
	for needle, name := range map[string]string{
		"needle-123": "blocks/0000000001.blocks", "hay-290": "state.db", "client-3": "state.db",
	} {
		dir := written(t)
		path := filepath.Join(dir, name)
		b := must.Get(os.ReadFile(path))(t)
		if !bytes.Contains(b, []byte(needle)) {
			t.Fatalf("%q is not in the file", needle)
		}
		// Every copy, because older pages are still in the file.
		flipped := bytes.Clone([]byte(needle))
		flipped[len(flipped)-1] ^= 4
		must.Do(t, os.WriteFile(path, bytes.ReplaceAll(b, []byte(needle), flipped), 0o600))
		report, err := verify.Directory(t.Context(), dir, verify.Options{})
		if err != nil || len(report.Problems) == 0 {
			t.Errorf("%q became %q: %v, no problem found", needle, flipped, err)
		}
	}
}

func TestVerifyFindsDamagedLog(t *testing.T) {
	t.Parallel()
	dir := written(t)
	segments, err := filepath.Glob(filepath.Join(dir, "log", "segments", "*.log"))
	if err != nil || len(segments) == 0 {
		t.Fatal(segments, err)
	}
	for _, s := range segments {
		must.Do(t, os.Truncate(s, 100))
	}
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) == 0 {
		t.Errorf("cut segments: %v, no problem found", err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	if _, err := verify.Directory(t.Context(), filepath.Join(t.TempDir(), "none"), verify.Options{}); err == nil {
		t.Error("a directory that is not there was verified")
	}
	if _, err := verify.Directory(t.Context(), t.TempDir(), verify.Options{}); err == nil {
		t.Error("an empty directory was verified")
	}
	dir := t.TempDir()
	_ = open(t, dir)
	check.Is(t, check.Err(verify.Directory(t.Context(), dir, verify.Options{})), datadir.ErrInUse, "a ledger in use")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, check.Err(verify.Directory(ctx, written(t), verify.Options{})), context.Canceled, "cancelled")
}

// Verify changes nothing: a start after it finds what was there before.
func TestVerifyChangesNothing(t *testing.T) {
	t.Parallel()
	dir := written(t)
	read := func() map[string]string {
		files := map[string]string{}
		must.Do(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			files[path] = string(b)
			return err
		}))
		return files
	}
	before := read()
	must.Get(verify.Directory(t.Context(), dir, verify.Options{}))(t)
	for path, content := range read() {
		check.Equal(t, before[path], content, "%s has changed: %v", path)
	}
}

// A crash between the marker and the first command leaves a directory that is
// sound, and empty.
func TestVerifyOfADirectoryThatWasJustMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // ends the opening before the first command
	if l, err := ledger.Open(ctx, ledger.Options{Dir: dir}); err == nil {
		_ = l.Close()
		t.Fatal("it was opened")
	}
	must.Do(t, check.Err(os.Stat(filepath.Join(dir, "LEDGER"))), "the marker is not there yet")
	report, err := verify.Directory(t.Context(), dir, verify.Options{})
	if err != nil || len(report.Problems) != 0 {
		t.Errorf("%v %+v", err, report)
	}
	mustCommit(t, open(t, dir), appendWrite("c", 1, nil))
}

func TestVerifyLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := verify.Directory(t.Context(), dir, verify.Options{}); err == nil {
		t.Error("an empty directory was verified")
	}
	check.Equal(t, len(must.Get(os.ReadDir(dir))(t)), 0, "verify made %v in a directory that is no ledger")
}
