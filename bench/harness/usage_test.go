package harness

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

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

// Texts, numbers and what is missing have their columns.
func TestTable(t *testing.T) {
	t.Parallel()
	shown := Columns{
		{Head: "row", Name: "row", Width: -5}, {Head: "rate", Name: "rate", Width: 6, Format: ","},
		{Head: "p50", Name: "p50", Format: "%.1f"},
	}
	want := "| row   |   rate | p50 |\n|---|---:|---:|\n| a     |  1,234 | 2.0 |\n| b     |        |  |\n"
	check.Equal(t, shown.Table([]Line{Line{"row": "a", "rate": 1234.0}.With(Values{"p50": 2}), {"row": "b"}}), want)
}

// Our own process is there and has used something; one that is gone counts nothing.
func TestUsage(t *testing.T) {
	t.Parallel()
	used, err := Usage(t.TempDir(), os.Getpid(), 1<<30)()
	if err != nil || used["cpu_us_per_write"] <= 0 || used["client_cpu_us_per_write"] != 0 {
		t.Errorf("got %v, %v", used, err)
	}
	if Memory("VmRSS", os.Getpid(), 1<<30) <= 0 {
		t.Error("no memory is resident")
	}
}

// TestProcessorTimeOfAnOddName: the name of a program may look like the fields behind it.
func TestProcessorTimeOfAnOddName(t *testing.T) {
	t.Parallel()
	shell := must.Get(exec.LookPath("sh"))(t)
	odd := filepath.Join(t.TempDir(), "a) R 1 1 (b")
	must.Do(t, os.Symlink(shell, odd))
	command := exec.Command(odd, "-c", "echo here; while read -r line; do :; done")
	p, _, err := process.LaunchServer(t.Context(), command, "")
	must.Do(t, err)
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
	if n, err := procField(pid, "status", "VmRSS"); err != nil || n <= 0 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := procField(pid, "status", "Pid"); err != nil || n != int64(pid) {
		t.Errorf("%d, %v; want %d", n, err, pid)
	}
	for field, says := range map[string]string{"None": "no None", "State": "invalid syntax", "VmRS": "no VmRS"} {
		check.ErrorContains(t, check.Err(procField(pid, "status", field)), says, "%s", field)
	}
	if _, err := procField(1<<30, "status", "VmRSS"); !gone(err) {
		t.Errorf("of a process that is not there: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "none")
	check.Is(t, check.Err(Usage(dir, pid)()), fs.ErrNotExist, "the disk of a directory that is not there")
}
