package sim

import (
	"strings"
	"testing"
)

// The controls: a simulation that finds nothing proves nothing unless it finds these. Each is a deliberate bug that the
// corresponding check must detect within the first seeds.
func TestControlsAreCaught(t *testing.T) {
	t.Parallel()
	const seeds = 60
	for _, control := range []struct {
		name string
		bugs bugs
		says string // part of the message of the check that must detect it
		from uint64 // the seed that is tried first: one that is known to produce what the bug needs
	}{
		{"deduplication off", bugs{noDeduplication: true}, "invariant 1", 0},
		{"fencing off", bugs{noFencing: true}, "invariant 7", 1},
		{"answer before fsync", bugs{ackBeforeSync: true}, "acknowledged and are lost", 10},
		{"receipt window of one", bugs{windowOfOne: true}, "gave ALREADY_COMMITTED", 0},
		{"eviction by the wall clock", bugs{wallEviction: true}, "is not the model's", 1},
		{"ledger time from the wall clock", bugs{wallStamp: true}, "the wall clock has jumped", 1},
		{"cache without creation index", bugs{staleCache: true}, "the log would say", 0},
		{"position apart from data", bugs{tornCheckpoint: true}, "invariant 8", 29},
		{"checkpoint before its blocks", bugs{blocksUnsynced: true}, "block file", 1},
		{"truncation before the checkpoint", bugs{truncateEarly: true}, "lost", 6},
		{"removal before the archive confirms", bugs{dropUnconfirmed: true}, "the archive does not have it", 7},
		{"removal before the horizon is durable", bugs{horizonVolatile: true}, "the horizon of the checkpoint is", 1},
		{"values that are alive removed with their blocks", bugs{valuesLeft: true}, "no value of it that was", 0},
		{"archive that confirms before its sync", bugs{archiveUnsynced: true}, "the archive", 0},
		{"refusal reported too early", bugs{hastyClient: true}, "as not executed", 15},
		{"recovery without expected_session", bugs{blindRecovery: true}, "open under session", 9},
	} {
		t.Run(control.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for i := range uint64(seeds) {
				seed := (control.from + i) % seeds
				r := run(seed, 4_000, control.bugs, dir)
				if r.err == nil || !strings.Contains(r.err.Error(), control.says) {
					continue
				}
				t.Logf("caught by seed %d after %d commands: %s", seed, r.commands, firstLine(r.err))
				return
			}
			t.Errorf("%q does not come within %d seeds", control.says, seeds)
		})
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
