package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestSimulation runs episodes until enough commands have been decided. `make sim SEED=… COMMANDS=…` sets its two
// variables; without them it is CI's share with a seed of its own.
func TestSimulation(t *testing.T) {
	t.Parallel()
	commands := 150_000
	if raceDetector {
		commands = 12_000 // one thread has no races; this is for the rest of the test
	}
	if testing.Short() {
		commands /= 20
	}
	commands = int(variable(t, "SIM_COMMANDS", uint64(commands)))
	seed := variable(t, "SIM_SEED", rand.Uint64N(1<<40))
	t.Logf("repeat with: make sim SEED=%d COMMANDS=%d", seed, commands)
	s := simulation{T: t, dir: t.TempDir(), commands: commands, counted: map[string]int{}}
	s.plan(seed)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		// Ends when no episode is left or one has failed; joined right below.
		workers.Go(s.work)
	}
	workers.Wait()
	must.Do(t, s.failed)
	for _, what := range slices.Sorted(maps.Keys(s.counted)) {
		t.Logf("%9d %s", s.counted[what], what)
	}
	const enough = 1_000_000 // the number of make sim; fewer may miss rare events
	if commands < enough {
		return
	}
	for _, what := range slices.Concat(mustHappen, keysMustMeet) {
		if s.counted[what] == 0 {
			t.Errorf("in %d commands there was never: %s; the simulation has become tamer than it was", commands, what)
		}
	}
}

// mustHappen lists the events that a useful simulation produces.
var mustHappen = []string{
	"kills", "power losses", "syncs failed", "torn tails cut", "checkpoints", "syncs of blocks",
	"blocks behind a checkpoint", "truncations", "kills between the steps of a checkpoint",
	"answered from the state",
	"clients died", "connections broken", "queue full", "callers that led", "streams given up", "streams kept alive",
	"writes done", "writes not executed", "writes unsettled",
	"write: COMMITTED", "write: REPLAYED", "write: SEQUENCE_GAP", "write: ALREADY_COMMITTED",
	"write: IDEMPOTENCY_KEY_REUSED", "write: SEQUENCE_REUSED", "write: SEQUENCE_EXHAUSTED",
	"write: SESSION_EXPIRED", "write: SESSION_FENCED", "write: SESSION_REQUIRED", "write: KEY_EXISTS",
	"write: KEY_NOT_FOUND", "write: VERSION_MISMATCH", "write: TOO_MANY_STREAMS",
	"open session: COMMITTED", "open session: SESSION_EXPIRED", "open session: SESSION_FENCED",
	"update config: INVALID_ARGUMENT",
	"block files removed", "starts with files removed", "values carried", "carried values removed",
	"transactions that are gone", "keys: answered from the state", "died before: the carrying of values",
	"died before: the record of where the files begin", "died before: the removal of files",
	"archive: files copied", "archive: failed", "archive: away", "archive: exchanged", "archive: gone", "archive: full",
	"archive: power losses", "died while the archive was used", "states recomputed with an archive",
	"stream evicted", "stream put back", "entities expired", "mark", "horizon moved",
}

// simulation distributes episodes among workers. Which worker runs an episode makes no difference.
type simulation struct {
	*testing.T
	dir      string
	commands int
	episodes []episode
	next     atomic.Int64

	mu      sync.Mutex
	done    int
	told    int
	counted map[string]int
	failed  error
}

type episode struct {
	seed  uint64
	limit int
}

// plan gives the episodes consecutive seeds, and shortens the last one.
func (s *simulation) plan(seed uint64) {
	for left := s.commands; left > 0; seed++ {
		s.episodes = append(s.episodes, episode{seed, left})
		left -= newPlan(seed).commands
	}
}

func (s *simulation) work() {
	for {
		i := int(s.next.Add(1)) - 1
		if i >= len(s.episodes) {
			return
		}
		e := s.episodes[i]
		if !s.report(run(e.seed, e.limit, bugs{}, s.dir)) {
			return
		}
	}
}

// report records a result and reports whether to continue.
func (s *simulation) report(r result) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.err != nil && s.failed == nil {
		s.failed = r.err
	}
	s.done += r.commands
	for what, n := range r.counted {
		s.counted[what] += n
	}
	const step = 100_000
	if s.done/step > s.told {
		s.told = s.done / step
		s.Logf("%d of %d commands", s.done, s.commands)
	}
	return s.failed == nil
}

func variable(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	v, err := strconv.ParseUint(text, 10, 64)
	must.Do(t, err, "%s", name)
	return v
}

// One seed determines one run, to the last step, whatever ran before it.
func TestOneSeedIsOneRun(t *testing.T) {
	t.Parallel()
	traces := map[uint64]bool{}
	realOnes := 0
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			const commands = 1_000
			first := run(seed, commands, bugs{}, t.TempDir())
			again := run(seed, commands, bugs{}, t.TempDir())
			if first.err != nil || again.err != nil {
				t.Fatal(first.err, again.err)
			}
			if first.trace != again.trace || first.commands != again.commands ||
				!maps.Equal(first.counted, again.counted) {
				t.Errorf("trace %x with %d commands, then %x with %d", first.trace, first.commands, again.trace,
					again.commands)
			}
			t.Logf("trace %x", first.trace) // equal in every process, too
			traces[first.trace] = true
		})
		if newPlan(seed).real {
			realOnes++
		}
	}
	check.Equal(t, len(traces), 12, "%d different traces of 12 seeds")
	if realOnes == 0 {
		t.Error("none of the seeds uses real files")
	}
}

// The command that a control's failure prints reproduces the failure.
func TestFailureIsRepeated(t *testing.T) {
	t.Parallel()
	b := bugs{wallEviction: true}
	for seed := range uint64(20) {
		first := run(seed, 6_000, b, t.TempDir())
		if first.err == nil {
			continue
		}
		again := run(seed, 6_000, b, t.TempDir())
		if again.err == nil || again.err.Error() != first.err.Error() {
			t.Errorf("first %v\nthen %v", first.err, again.err)
		}
		return
	}
	t.Error("nothing to repeat")
}
