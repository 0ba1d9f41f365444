package ledger_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
)

// TestFault_MissingFile takes one file of a data directory away, or everything
// in it. Each start is refused with the file's name, again and again, and nothing
// is made in its place; put back, everything is there.
func TestFault_MissingFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	run := runFaultChild(t, dir, nil)
	must.Equal(t, run.code, 0, "%v: %v", run.said)
	for pattern, says := range map[string]string{
		"LEDGER":             "it has no file LEDGER",
		"state.db":           "state.db: the state file is missing",
		"log":                "its directory segments cannot be found",
		"log/segments":       "its directory segments cannot be found",
		"log/segments/*.log": "it has no segments",

		"blocks":                   "block file 0000000001.blocks: ",
		"blocks/0000000001.blocks": "block file 0000000001.blocks: ",
		"blocks/0000000002.blocks": "block file 0000000002.blocks: ",
		"blocks/*":                 "block file 0000000003.blocks: ",
	} {
		path := filepath.Join(dir, matching(t, dir, pattern))
		away := filepath.Join(t.TempDir(), "away")
		must.Do(t, os.Rename(path, away))
		for range 2 {
			l, err := ledger.Open(t.Context(), faultOptions(dir))
			if err == nil {
				t.Fatalf("a directory without %s was opened: %v", pattern, l.Close())
			}
			if !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "backup") {
				t.Errorf("without %s: %v, want %q and what to do", pattern, err, says)
			}
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the refused start made another %s", pattern)
		}
		must.Do(t, os.Rename(away, path))
	}
	run.wantKept(t, dir)
}

// TestFault_MissingSums takes the page checksums away: the start makes them anew, says so in a warning that names the
// file, and everything is there.
func TestFault_MissingSums(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	run := runFaultChild(t, dir, nil)
	must.Equal(t, run.code, 0, "%v: %v", run.said)
	sums := filepath.Join(dir, "state.sum")
	must.Do(t, os.Remove(sums))
	for _, warns := range []bool{true, false} {
		var log strings.Builder
		o := faultOptions(dir)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		l := must.Get(ledger.Open(t.Context(), o))(t)
		must.Do(t, l.Close())
		warned := strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), sums)
		if _, err := os.Stat(sums); err != nil || warned != warns {
			t.Errorf("made: %v; warned: %v, want %v: %s", err, warned, warns, log.String())
		}
	}
	run.wantKept(t, dir)
}
