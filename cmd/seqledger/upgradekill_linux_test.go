package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// oldData unpacks a data directory of an older program, which package ledger has, and tells up to which index it goes
// and with which digest.
func oldData(t *testing.T, name string) (dir, index, digest string) {
	t.Helper()
	base := filepath.Join("..", "..", "ledger", "testdata", filepath.FromSlash(name))
	text, err := os.ReadFile(base + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	var writes int
	if _, err := fmt.Sscanf(string(text), "writes %d\nindex %s\ndigest %s\n", &writes, &index, &digest); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	out, err := exec.CommandContext(t.Context(), "tar", "-xzf", base+".tar.gz", "-C", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("tar: %v %s", err, out)
	}
	return filepath.Join(dir, "data"), index, digest
}

// upgradeCalls are the calls of an upgrade that are killed, with the number up to which a thread makes them.
var upgradeCalls = map[string]int{
	"pwrite64": 120, "write": 1, "fsync": 8, "fdatasync": 8, "openat": 40, "unlinkat": 6, "renameat": 1, "mkdirat": 1,
}

// TestUpgradeKilled kills seqledger upgrade at calls that change the directory. The older state is there then, byte for
// byte, or the new one, and the same command ends the upgrade. SEQLEDGER_FAULT_ALL=1 tries every call of four
// directories, which takes half an hour.
func TestUpgradeKilled(t *testing.T) {
	t.Parallel()
	names, all := []string{"level1/killed", "format3/ahead"}, os.Getenv("SEQLEDGER_FAULT_ALL") != ""
	if all {
		names = append(names, "level1/ahead", "format3/clean")
	} else if testing.Short() {
		names = names[1:]
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killed, replaced := 0, 0
			for call, last := range upgradeCalls {
				step := max(1, last/2)
				if all {
					step = 1
				} else if testing.Short() {
					step = last
				}
				if testing.Short() && call != "pwrite64" && call != "renameat" && call != "fsync" {
					continue
				}
				for when := 1; when <= last; when += step {
					wasKilled, isNew := killUpgrade(t, name, call, when)
					if wasKilled {
						killed++
					}
					if isNew {
						replaced++
					}
				}
			}
			// A process that makes fewer such calls came to its end.
			if killed < 3 || killed == replaced {
				t.Errorf("%d were killed, and %d directories were upgraded then: too little is tested",
					killed, replaced)
			}
		})
	}
}

// killUpgrade kills an upgrade at a call, and expects the next one to end it.
func killUpgrade(t *testing.T, name, call string, when int) (killed, replaced bool) {
	t.Helper()
	dir, index, digest := oldData(t, name)
	state := filepath.Join(dir, "state.db")
	before, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	killed = traced(t, filepath.Join(t.TempDir(), "trace"), []string{"trace=" + call,
		fmt.Sprintf("inject=%s:error=EIO:signal=KILL:when=%d", call, when)}, "upgrade", "--data", dir) != nil
	left, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	replaced = !bytes.Equal(left, before)
	again := seqledger(t, "upgrade", "--data", dir, "--json").
		expect(t, exitDone, `"index":"`+index+`"`, `"digest":"`+digest+`"`)
	if said := strings.Contains(again.stdout, `"upgraded":true`); said == replaced {
		t.Errorf("%s %d: the state was replaced: %v; the next upgrade says %s", call, when, replaced, again.stdout)
	}
	seqledger(t, "verify", "--data", dir).expect(t, exitDone, "problems       0", digest)
	names, err := filepath.Glob(filepath.Join(dir, "*.new-*"))
	if err != nil || len(names) != 0 {
		t.Errorf("%s %d: %v are left, %v", call, when, names, err)
	}
	return killed, replaced
}
