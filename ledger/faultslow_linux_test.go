package ledger_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestFault_SlowSync delays every sync before the disk hears of it. Nothing
// fails; but between two acknowledgements a sync of the log must have come to
// its end, as strace saw it.
func TestFault_SlowSync(t *testing.T) {
	t.Parallel()
	strace := straceOrSkip(t)
	dir, trace := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "trace")
	run := runFaultChild(t, dir, []string{
		strace, "-f", "-qq", "-y", "--seccomp-bpf", "-o", trace, "-e", "signal=none", "-e",
		"trace=fsync,fdatasync,write",
		"-e", "inject=fsync,fdatasync:delay_enter=5000", // microseconds
	})
	if run.code != 0 || len(run.acknowledged) != faultWrites {
		t.Fatalf("exit code %d with %d of %d writes: %s", run.code, len(run.acknowledged), faultWrites, run.said)
	}
	b := must.Get(os.ReadFile(trace))(t)
	acknowledged, synced := 0, 0
	for _, event := range syncEvents(string(b)) {
		if event == logSynced {
			synced++
			continue
		}
		if acknowledged++; synced == 0 {
			t.Errorf("acknowledgement %d came with no sync of the log since the one before it", acknowledged)
		}
		synced = 0
	}
	check.Equal(t, acknowledged, faultWrites, "the trace has %d acknowledgements")
	run.wantKept(t, dir)
}

// syncEvent is what a trace has of interest.
type syncEvent int

const (
	logSynced syncEvent = iota
	writeAcknowledged
)

var (
	syncBegun   = regexp.MustCompile(`^(\d+) +f(?:data)?sync\(\d+<([^>]*)>( <unfinished)?`)
	syncResumed = regexp.MustCompile(`^(\d+) +<\.\.\. f(?:data)?sync resumed>\) += 0`)
	lineWritten = regexp.MustCompile(`^\d+ +write\(1<[^>]*>, "\d+ \d+\\n"`)
)

// syncEvents returns the ends of the log's syncs and the beginnings of what the
// child says, in their order.
func syncEvents(trace string) (events []syncEvent) {
	underWay := map[string]string{} // file, by thread
	for line := range strings.Lines(trace) {
		switch begun, resumed := syncBegun.FindStringSubmatch(line), syncResumed.FindStringSubmatch(line); {
		case begun != nil && begun[3] != "":
			underWay[begun[1]] = begun[2]
		case begun != nil:
			if strings.HasSuffix(begun[2], ".log") && strings.Contains(line, " = 0") {
				events = append(events, logSynced)
			}
		case resumed != nil:
			if strings.HasSuffix(underWay[resumed[1]], ".log") {
				events = append(events, logSynced)
			}
		case lineWritten.MatchString(line):
			events = append(events, writeAcknowledged)
		}
	}
	return events
}

// The reading of a trace is tested by itself: a wrong one would find every order
// right.
func TestSyncEvents(t *testing.T) {
	t.Parallel()
	const trace = `7 write(1<pipe:[3]>, "1 2\n", 4) = 4
8 fsync(5</d/log/segments/0001.log> <unfinished ...>
7 write(1<pipe:[3]>, "2 3\n", 4) = 4
9 fdatasync(6</d/state.db>) = 0
8 <... fsync resumed>)                  = 0 (DELAYED)
8 fsync(5</d/log/segments/0001.log>) = -1 EIO (Input/output error) (INJECTED)
8 fsync(5</d/log/segments/0001.log>)         = 0 (DELAYED)
7 write(1<pipe:[3]>, "3 4\n" <unfinished ...>
7 write(2<pipe:[4]>, "5 6\n", 4) = 4
`
	got := fmt.Sprint(syncEvents(trace))
	check.Equal(t, got, fmt.Sprint([]syncEvent{writeAcknowledged, writeAcknowledged, logSynced, logSynced,
		writeAcknowledged}))
}
