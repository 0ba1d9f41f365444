package legacy

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// Routine goes to debug, the rest keeps its level and its attributes.
func TestLibraryLogLevels(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := newHclog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), "raft")
	l.Info("entering leader state", "leader", "one")
	l.Warn("heartbeat timeout reached, starting election")
	l.Warn("failed to contact", "server-id", "two")
	l.Error("failed", "peers", hclog.Fmt("%d of %d", 1, 3))
	want := []string{
		`level=DEBUG msg="entering leader state" component=raft leader=one`,
		`level=DEBUG msg="heartbeat timeout reached, starting election"`,
		`level=WARN msg="failed to contact" component=raft server-id=two`,
		`level=ERROR msg=failed component=raft peers="1 of 3"`,
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out.String())
	}
	for i, line := range lines {
		if !strings.Contains(line, want[i]) {
			t.Errorf("line %d: %s, want %s", i, line, want[i])
		}
	}
}

// A healthy node says nothing at the information level.
func TestHealthyNodeIsQuiet(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := options(t.TempDir(), &recorder{})
	o.Create, o.Logger = true, slog.New(slog.NewTextHandler(&out, nil))
	l := open(t, o)
	write(t, l, "one")
	must(t, l.Truncate())
	closeLog(t, l)
	for line := range strings.Lines(out.String()) {
		// A machine that is busy elsewhere may let a vote take too long.
		if !strings.Contains(line, "Election timeout reached") {
			t.Errorf("said at info or above: %s", line)
		}
	}
}
