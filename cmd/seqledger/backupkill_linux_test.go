package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// traced runs the program under strace, which writes what it sees of some calls to a file.
func traced(t *testing.T, trace string, expressions []string, args ...string) error {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed, which kills the process of this test at a call: apt-get install strace")
	}
	command := []string{"-f", "-qq", "-y", "--seccomp-bpf", "-o", trace, "-e", "signal=none"}
	for _, e := range expressions {
		command = append(command, "-e", e)
	}
	cmd := exec.CommandContext(t.Context(), strace, append(append(command, binary), args...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	if strings.Contains(said.String(), "ptrace") {
		t.Skipf("strace may not trace here, which kills the process of this test at a call: %s", &said)
	}
	t.Logf("%v: %v %s", expressions, err, &said)
	return err
}

// TestBackupKilled kills seqledger backup at the calls that make its file. Under the file's name is a
// whole backup or nothing, and the same command makes it afterwards.
func TestBackupKilled(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	s.do(t, "write", "--scope", "acme/main", "--client-id", "c", "--append", "one").expect(t, exitDone)
	killed, whole := 0, 0 // killed counts those that failed, too
	for call, last := range map[string]int{"write": 6, "fsync": 2, "linkat": 1, "unlinkat": 1} {
		if testing.Short() && call == "write" {
			last = 1
		}
		for when := 1; when <= last; when++ {
			made := filepath.Join(dir, fmt.Sprint(call, when))
			args := []string{"backup", made, "--server", s.address}
			err := traced(t, filepath.Join(dir, "trace"), []string{"trace=" + call,
				fmt.Sprintf("inject=%s:error=EIO:signal=KILL:when=%d", call, when)}, args...)
			if err != nil {
				killed++
			}
			if _, err := os.Stat(made); err == nil {
				whole++
				seqledger(t, "verify", "--backup", made).expect(t, exitDone, "problems       0")
				seqledger(t, args...).expect(t, exitUsage, "exists already")
				continue
			}
			mustBePartial(t, made)
			seqledger(t, args...).expect(t, exitDone, "up to index")
			if left, _ := filepath.Glob(made + ".partial-*"); left != nil {
				t.Errorf("the next backup has left %v", left)
			}
			seqledger(t, "verify", "--backup", made).expect(t, exitDone, "problems       0")
		}
	}
	// After the call the process may end before the signal comes; the call has failed then.
	if killed < 3 || whole < 1 {
		t.Errorf("%d were killed, and %d backups were there: the test tested too little", killed, whole)
	}
}

// mustBePartial expects what a killed backup has left to be refused, unless all of it had arrived.
func mustBePartial(t *testing.T, made string) {
	t.Helper()
	left := must.Get(filepath.Glob(made + ".partial-*"))(t)
	for _, path := range left {
		checked := seqledger(t, "verify", "--backup", path)
		if checked.code != exitDone && !strings.Contains(checked.stdout, "byte ") {
			t.Errorf("what is left in %s: %v", path, checked)
		}
	}
}

// TestBackupRemovesLeftovers: what a killed backup has left, the next one of that name removes, and nothing else: not
// the file of a backup that is being made, and not those of other names.
func TestBackupRemovesLeftovers(t *testing.T) {
	t.Parallel()
	s := serve(t)
	made := filepath.Join(t.TempDir(), "made")
	held := must.Get(os.Create(made + ".partial-held"))(t)
	defer held.Close()
	must.Do(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	for _, name := range []string{made + ".partial-1", made + ".partial-2", made + "2.partial-1"} {
		must.Do(t, os.WriteFile(name, []byte("left"), 0o600))
	}
	s.do(t, "backup", made).expect(t, exitDone)
	left, err := filepath.Glob(made + "*")
	if err != nil || !slices.Equal(left, []string{made, made + ".partial-held", made + "2.partial-1"}) {
		t.Errorf("want the backup and what is not its leftover, got %v, %v", left, err)
	}
}

// TestBackupIsSyncedFirst: a loss of power leaves no name of a backup that is not on disk, and none that was
// reported is missing: the file is synced before it gets its name, and the directory afterwards.
func TestBackupIsSyncedFirst(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	made, trace := filepath.Join(dir, "made"), filepath.Join(t.TempDir(), "trace")
	err := traced(t, trace, []string{"trace=write,fsync,linkat,renameat,renameat2"}, "backup", made,
		"--server", s.address)
	must.Do(t, err)
	b := must.Get(os.ReadFile(trace))(t)
	var steps []string
	path := regexp.QuoteMeta
	for line := range strings.Lines(string(b)) {
		for step, pattern := range map[string]string{
			"write":    `write\(\d+<` + path(made) + `\.partial-`,
			"sync":     `fsync\(\d+<` + path(made) + `\.partial-`,
			"name":     `linkat\(.*` + path(made) + `"`,
			"sync dir": `fsync\(\d+<` + path(dir) + `>`,
		} {
			again := len(steps) > 0 && steps[len(steps)-1] == step
			if !again && regexp.MustCompile(pattern).MatchString(line) {
				steps = append(steps, step)
			}
		}
	}
	if got := strings.Join(steps, ", "); got != "write, sync, name, sync dir" {
		t.Errorf("the steps are %s\n%s", got, b)
	}
}
