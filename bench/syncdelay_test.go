package main

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// A delayed sync bounds how often a lone writer is answered.
func TestSyncDelay(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		t.Skipf("strace cannot trace here: %v %s", err, out)
	}
	const delay = 50 * time.Millisecond
	var text strings.Builder
	arguments := []string{"-only", "^engine/1$", "-quick", "-markdown", "-sync-delay", delay.String()}
	if err := run(t.Context(), arguments, &text); err != nil {
		t.Fatal(err)
	}
	found, err := parseTable(text.String())
	if most := float64(time.Second / delay); err != nil || found["engine/1"] > most || found["engine/1"] <= 0 {
		t.Errorf("%v, %v: want at most %v writes a second with syncs of %v\n%s", found, err, most, delay, &text)
	}
}
