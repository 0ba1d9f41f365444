package harness

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// One bad round must not show, in any of the values.
func TestMedians(t *testing.T) {
	t.Parallel()
	rounds := []Values{{"a": 100, "b": 0}, {"a": 1, "b": 7}, {"a": 2, "b": 6}}
	if m := Medians(rounds); m["a"] != 2 || m["b"] != 6 || len(m) != 2 {
		t.Errorf("got %v", m)
	}
}

// Texts, numbers and what is missing have their columns, in both kinds of table.
func TestTable(t *testing.T) {
	t.Parallel()
	shown := Table{Columns: []Column{
		{Head: "row", Name: "row", Width: -5}, {Head: "rate", Name: "rate", Width: 6, Format: ","},
		{Head: "p50", Name: "p50", Width: 5, Format: "%.1f"},
	}}
	lines := []Line{Line{"row": "a", "rate": 1234.0}.With(Values{"p50": 2}), {"row": "b"}}
	plain := shown.Head() + shown.Line(lines[0]) + shown.Line(lines[1])
	check.Equal(t, plain, "row     rate   p50\na      1,234   2.0\nb\n")
	want := "## T\n\n| row | rate | p50 |\n|---|---:|---:|\n| a | 1,234 | 2.0 |\n| b |  |  |\n\n"
	check.Equal(t, Section("T", shown.Columns, lines), want)
	if got := Section("T", shown.Columns, nil); strings.Contains(got, "T") {
		t.Errorf("a table without lines is %q", got)
	}
}

// Our own process is there and has used something; one that is gone counts nothing.
func TestUsage(t *testing.T) {
	t.Parallel()
	used, err := Usage(t.TempDir(), os.Getpid(), 1<<30)()
	if err != nil || used["cpu_us_per_write"] <= 0 || used["client_cpu_us_per_write"] != 0 {
		t.Errorf("got %v, %v", used, err)
	}
	if Resident(os.Getpid(), 1<<30) <= 0 {
		t.Error("no memory is resident")
	}
}

// The largest sample counts, wherever it is, and the first is taken at once.
func TestLargest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		samples := []int64{1, 7, 3}
		next := 0
		stop := Largest(time.Millisecond, func() int64 {
			next++
			return samples[min(next, len(samples))-1]
		})
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // It is a simulated clock.
		if largest := stop(); largest != 7 || next < len(samples) {
			t.Errorf("got %d after %d samples", largest, next)
		}
		check.Equal(t, Largest(time.Hour, func() int64 { return 5 })(), 5)
	})
}

// TestProcessorTimeOfAnOddName: the name of a program may look like the fields behind it.
func TestProcessorTimeOfAnOddName(t *testing.T) {
	t.Parallel()
	shell := must.Get(exec.LookPath("sh"))(t)
	odd := filepath.Join(t.TempDir(), "a) R 1 1 (b")
	must.Do(t, os.Symlink(shell, odd))
	command := exec.Command(odd, "-c", "echo here; while read -r line; do :; done")
	p, _, err := process.LaunchServer(t.Context(), command, "")
	if err != nil {
		t.Fatal(err)
	}
	used, err := processorTime(p.Pid)
	if err != nil || used < 0 || used.Hours() > 1 {
		t.Errorf("it has used %v, %v", used, err)
	}
	must.Do(t, p.Stop())
	if _, err := processorTime(p.Pid); !gone(err) {
		t.Errorf("of one that has ended: %v", err)
	}
}

// TestProcField reads numbers alone, and names what is not there.
func TestProcField(t *testing.T) {
	t.Parallel()
	pid := os.Getpid()
	if n, err := ProcField(pid, "status", "VmRSS"); err != nil || n <= 0 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := ProcField(pid, "status", "Pid"); err != nil || n != int64(pid) {
		t.Errorf("%d, %v; want %d", n, err, pid)
	}
	for field, says := range map[string]string{"None": "no None", "State": "invalid syntax", "VmRS": "no VmRS"} {
		if _, err := ProcField(pid, "status", field); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := ProcField(1<<30, "status", "VmRSS"); !gone(err) {
		t.Errorf("of a process that is not there: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "none")
	check.Is(t, check.Err(Usage(dir, pid)()), fs.ErrNotExist, "the disk of a directory that is not there")
}
