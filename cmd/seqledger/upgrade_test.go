package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUpgrade: a directory of this program's format is checked and stays, and what cannot
// be upgraded is refused with what to do. Package ledger upgrades the directories of older
// programs.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := s.data
	s.kill() // its log is replayed by the check
	seqledger(t, "upgrade", "--data", dir).expect(t, exitDone, "has the format of this program already",
		"up to index 1")
	seqledger(t, "upgrade", "--data", dir, "--json").expect(t, exitDone, `"upgraded":false`, `"index":"1"`)
	seqledger(t, "upgrade", "--data", filepath.Join(dir, "none")).expect(t, exitFailed, "no such file")
	state := filepath.Join(dir, "state.db")
	b, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(state, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	seqledger(t, "upgrade", "--data", dir).expect(t, exitFailed, "truncated", "backup")
}
