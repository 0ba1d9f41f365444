package ledger_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// faultAddressEnv has the child live with so many bytes of address space more
// than it has when it begins.
const faultAddressEnv = "SEQLEDGER_FAULT_TEST_ADDRESS_SPACE"

func init() {
	limitFaultChild = func() error {
		text := os.Getenv(faultAddressEnv)
		if text == "" {
			return nil
		}
		var more, pages uint64
		statm, err := os.ReadFile("/proc/self/statm") // its first number is the size of the address space
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(text, &more); err != nil {
			return err
		}
		if _, err := fmt.Sscan(string(statm), &pages); err != nil {
			return err
		}
		limit := pages*uint64(os.Getpagesize()) + more
		return syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: limit, Max: limit})
	}
}

// TestFault_NoAddressSpace: a process that may not have the address space which
// is reserved for the state file says how much that is and for which file. With
// a higher limit everything is there.
func TestFault_NoAddressSpace(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	run := runFaultChild(t, dir, nil)
	must.Equal(t, run.code, 0, "%v: %v", run.said)
	limited := runFaultChild(t, dir, nil, fmt.Sprint(faultAddressEnv, "=", 4<<30))
	if limited.code != 1 || len(limited.acknowledged) != 0 {
		t.Fatalf("exit code %d with %d acknowledged: %s", limited.code, len(limited.acknowledged), limited.said)
	}
	for _, part := range []string{
		filepath.Join(dir, "state.db"), "17179869184 bytes of address space", "ulimit -v", syscall.ENOMEM.Error(),
	} {
		if !strings.Contains(limited.said, part) {
			t.Errorf("the process says %q, without %q", limited.said, part)
		}
	}
	if again := runFaultChild(t, dir, nil,
		fmt.Sprint(faultAddressEnv, "=", 64<<30)); len(again.acknowledged) != faultWrites {
		t.Errorf("with more address space: exit code %d: %s", again.code, again.said)
	}
	run.wantKept(t, dir)
}
