package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestLogsAndDamage holds that the ledger's next log refuses every damage at rest, in the very
// comparison that says what the others do.
func TestLogsAndDamage(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := damageLogs(t.TempDir(), &out); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for line := range strings.Lines(out.String()) {
		switch {
		case !strings.Contains(line, "| seqledger segment |"), strings.Contains(line, "| nothing |"):
		case strings.Contains(line, "| refused |"):
			refused++
		default:
			t.Error(line)
		}
	}
	if refused != len(logDamages)-1 {
		t.Errorf("%d refused of %d:\n%s", refused, len(logDamages)-1, out.String())
	}
}
