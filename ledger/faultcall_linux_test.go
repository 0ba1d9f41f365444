package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Each of these tests lets one kind of system call fail in a real process, at
// one call after the other (strace counts the calls of each thread by itself).
// Some numbers are drawn; SEQLEDGER_FAULT_ALL=1 tries every one, from the first
// to beyond the last.

func TestFault_FailedWrite(t *testing.T) { t.Parallel(); failCalls(t, "pwrite64", syscall.EIO, 90) }
func TestFault_FailedSync(t *testing.T)  { t.Parallel(); failCalls(t, "fsync", syscall.EIO, 25) }
func TestFault_FailedSyncOfState(t *testing.T) {
	t.Parallel()
	failCalls(t, "fdatasync", syscall.EIO, 70) // of the log, too
}
func TestFault_FullDiskAtWrite(t *testing.T) {
	t.Parallel()
	failCalls(t, "pwrite64", syscall.ENOSPC, 90)
}
func TestFault_FullDiskAtSegment(t *testing.T) {
	t.Parallel()
	failCalls(t, "fallocate", syscall.ENOSPC, 1)
}
func TestFault_FullDiskAtGrowth(t *testing.T) {
	t.Parallel()
	failCalls(t, "ftruncate", syscall.ENOSPC, 3)
}
func TestFault_FullDiskAtName(t *testing.T) { t.Parallel(); failCalls(t, "mkdirat", syscall.ENOSPC, 5) }
func TestFault_FailedRead(t *testing.T)     { t.Parallel(); failCalls(t, "pread64", syscall.EIO, 90) }
func TestFault_NoDescriptors(t *testing.T)  { t.Parallel(); failCalls(t, "openat", syscall.EMFILE, 60) }
func TestFault_ReadOnlyAtOpen(t *testing.T) { t.Parallel(); failCalls(t, "openat", syscall.EROFS, 60) }
func TestFault_FailedRename(t *testing.T)   { t.Parallel(); failCalls(t, "renameat", syscall.EIO, 7) }
func TestFault_FailedLink(t *testing.T)     { t.Parallel(); failCalls(t, "linkat", syscall.EIO, 1) }
func TestFault_FailedRemoval(t *testing.T)  { t.Parallel(); failCalls(t, "unlinkat", syscall.EIO, 12) }
func TestFault_FailedListing(t *testing.T)  { t.Parallel(); failCalls(t, "getdents64", syscall.EIO, 12) }
func TestFault_FailedLock(t *testing.T)     { t.Parallel(); failCalls(t, "flock", syscall.ENOLCK, 8) }

// sampledCalls is how many numbers are tried where not all are.
const sampledCalls = 3

// mostSampled is how many numbers are tried until a process fails.
const mostSampled = 4 * sampledCalls

// pollerWake is how a trace shows what the Go runtime writes to wake its poller.
const pollerWake = `, "\1\0\0\0\0\0\0\0", 8)`

// loaderFailed is the exit code of a program that could not even be loaded.
const loaderFailed = 127

// faultKind is a process that calls are made to fail in.
type faultKind struct {
	run    func(t *testing.T, dir string, under []string) faultRun
	writes int  // that it acknowledges when nothing stops it
	bears  bool // it ends well with some failed calls: those of an archive or of a removal
	costly bool // one number is tried where tests are shortened
	// kept looks, without the fault, at what it has left.
	kept func(t *testing.T, run faultRun, dir string)
}

// plainFaults is the process that only writes.
var plainFaults = faultKind{
	run:    func(t *testing.T, dir string, under []string) faultRun { return runFaultChild(t, dir, under) },
	writes: faultWrites,
	kept:   func(t *testing.T, run faultRun, dir string) { run.wantKept(t, dir) },
}

// failCalls fails the call of a number up to about last, one number a process.
func failCalls(t *testing.T, call string, errno syscall.Errno, last int) {
	t.Helper()
	plainFaults.failCalls(t, call, errno, last)
}

func (k faultKind) failCalls(t *testing.T, call string, errno syscall.Errno, last int) {
	t.Helper()
	strace := straceOrSkip(t)
	all := os.Getenv("SEQLEDGER_FAULT_ALL") != ""
	numbers := callNumbers(t, last, all)
	if testing.Short() && k.costly && !all {
		numbers = numbers[len(numbers)-1:]
	}
	hit, failed := 0, 0
	for i := 0; i < len(numbers) || all; i++ {
		number := i + 1
		if !all {
			number = numbers[i]
		}
		dir := filepath.Join(t.TempDir(), "data")
		trace := filepath.Join(t.TempDir(), "trace")
		run := k.run(t, dir, []string{
			strace, "-f", "-qq", "--seccomp-bpf", "-o", trace, "-e", "signal=none", "-e", "trace=" + call,
			"-e", fmt.Sprintf("inject=%s:error=%s:when=%d", call, errnoName(errno), number),
		})
		injected := injectedCalls(t, trace)
		if injected == "" && all {
			break // beyond the last call
		}
		if injected != "" {
			hit++
		}
		if run.code == loaderFailed {
			continue // the call was not ours
		}
		if run.code != 0 {
			failed++
			// strace counts the calls of each thread, so that the write of the message may fail as well. The Go
			// runtime wakes its poller by a write to a descriptor that is no file, and ends without it.
			silenced := strings.Contains(injected, " write(2,") || strings.Contains(injected, pollerWake)
			if !silenced && !strings.Contains(run.said, errno.Error()) {
				t.Errorf("%s %d failed and the process says %q, which does not name the error", call, number, run.said)
			}
		} else if len(run.acknowledged) != k.writes {
			t.Errorf("%s %d: exit code 0 with %d of %d writes", call, number, len(run.acknowledged), k.writes)
		}
		t.Logf("%s %d: exit code %d with %d acknowledged: %s\n%s", call, number, run.code, len(run.acknowledged),
			run.said, injected)
		k.kept(t, run, dir)
		if t.Failed() {
			t.Fatalf("%s %d with %v: see above", call, number, errno)
		}
		// The calls that were drawn may all be of no file of ours: the program also reads its own.
		if i == len(numbers)-1 && len(numbers) > 1 && failed == 0 && len(numbers) < mostSampled {
			numbers = append(numbers, 1+(number+last/mostSampled)%last)
		}
	}
	// A file that cannot be removed is litter, and stops nothing.
	if hit == 0 && len(numbers) > 1 || failed == 0 && len(numbers) > 1 && call != "unlinkat" && !k.bears {
		t.Errorf("%d calls failed and %d processes with them: this test tests nothing", hit, failed)
	}
}

// callNumbers returns the first number and some others up to last.
func callNumbers(t *testing.T, last int, all bool) []int {
	t.Helper()
	if all {
		return nil
	}
	seed := uint64(1) // the same each time, unless a soak sets another
	if text := os.Getenv("SEQLEDGER_FAULT_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("repeat with: SEQLEDGER_FAULT_SEED=%d go test -run '^%s$' ./ledger", seed, t.Name())
	random := rand.New(rand.NewPCG(seed, 0))
	numbers := []int{1}
	for len(numbers) < min(last, sampledCalls) {
		numbers = append(numbers, 2+random.IntN(last-1))
	}
	return numbers
}

func straceOrSkip(t *testing.T) string {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed, which makes system calls fail for this test: apt-get install strace")
	}
	if out, err := exec.Command(strace, "-f", "-qq", "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		t.Skipf("strace may not trace here, which makes system calls fail for this test: %v %s", err, out)
	}
	return strace
}

func errnoName(errno syscall.Errno) string {
	return map[syscall.Errno]string{
		syscall.EIO: "EIO", syscall.ENOSPC: "ENOSPC", syscall.EMFILE: "EMFILE", syscall.EROFS: "EROFS",
		syscall.ENOLCK: "ENOLCK",
	}[errno]
}

// injectedCalls returns the lines of a trace whose calls were made to fail.
func injectedCalls(t *testing.T, trace string) string {
	t.Helper()
	b := must.Get(os.ReadFile(trace))(t)
	var lines []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "(INJECTED)") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
