package sim

import (
	"strings"
	"testing"
)

const (
	failedWriteIgnored = "failed write ignored"
	rotBelieved        = "rotten state believed"
	fullIgnored        = "failed checkpoint ignored"
	ownClockBelieved   = "a leader believes its own clock"
	hangUnnoticed      = "a state machine that hangs is not watched"
)

// The controls of the cluster. Each breaks one rule and must be detected by the corresponding check within the first
// seeds.
func TestClusterControlsAreCaught(t *testing.T) {
	t.Parallel()
	const seeds = 60
	for _, control := range []struct {
		mutant string
		bugs   bugs
		from   uint64 // the first seed, one that is known to detect it
		says   string // part of the message of the check that must detect it
		soon   bool   // one of the first seeds detects it
	}{
		{mutant: "acknowledge before the sync", soon: true},
		{mutant: "acknowledge before a majority", says: "acknowledged the log up to index", soon: true},
		{mutant: "vote not stored", from: 216, says: "votes for"},
		{mutant: "term not stored", from: 411, says: "votes for"},
		{mutant: "commit not stored behind a change", from: 45, says: "invariant 2"},
		{mutant: "commit stored before its entries", from: 43, says: "invariant 2"},
		{mutant: failedWriteIgnored, says: "invariant 2"},
		{mutant: "late snapshot accepted", from: 57, says: "applies entry"},
		{mutant: "log emptied before the state is durable", from: 2, says: "starting the consensus"},
		{mutant: "log truncated before the checkpoint", from: 54, says: "starting the consensus"},
		{mutant: "a leader reads without a majority", from: 15, says: "invariant 9"},
		{mutant: rotBelieved, from: 38, says: "invariant 8: the replay"},
		{mutant: fullIgnored, says: "invariant 8"},
		{mutant: ownClockBelieved, says: "ahead of every right clock", soon: true},
		{mutant: hangUnnoticed, says: "hangs for", soon: true},
		{mutant: "deduplication off", bugs: bugs{noDeduplication: true}, says: "invariant 1", soon: true},
		{mutant: "fencing off", bugs: bugs{noFencing: true}, from: 4, says: "invariant 7"},
		{mutant: "eviction by the wall clock", bugs: bugs{wallEviction: true}, from: 8, says: "invariant 8"},
		{mutant: "ledger time from the wall clock", bugs: bugs{wallStamp: true}, from: 1, says: "time: "},
		{mutant: "position apart from data", bugs: bugs{tornCheckpoint: true}, from: 24, says: "invariant 8"},
		{mutant: "refusal reported too early", bugs: bugs{hastyClient: true}, from: 35, says: "as not executed"},
		{
			mutant: "recovery without expected_session", bugs: bugs{blindRecovery: true}, from: 1,
			says: "open under session",
		},
		{
			mutant: "token not compared at a completion", bugs: bugs{noTokens: true}, from: 5,
			says: "under an old token",
		},
		{
			mutant: "lease by the wall clock of the node", bugs: bugs{wallLease: true}, from: 11,
			says: "lease of the first one",
		},
		{
			mutant: "result of a key forgotten", bugs: bugs{resultForgotten: true}, from: 5,
			says: "there is a result", soon: true,
		},
		{
			mutant: "unknown outcome taken over", bugs: bugs{hastyTakeover: true}, from: 32,
			says: "left an unknown outcome",
		},
	} {
		t.Run(control.mutant, func(t *testing.T) {
			t.Parallel()
			if (testing.Short() || raceDetector) && !control.soon {
				t.Skip("takes seconds")
			}
			for seed := control.from; seed < control.from+seeds; seed++ {
				r := runCluster(seed, 1_500, control.bugs, control.mutant)
				if r.err == nil {
					continue
				}
				if !strings.Contains(r.err.Error(), control.says) {
					t.Logf("seed %d: %s", seed, firstLine(r.err))
					continue
				}
				t.Logf("caught by seed %d after %d commands: %s", seed, r.commands, firstLine(r.err))
				return
			}
			t.Errorf("%q does not come within %d seeds", control.says, seeds)
		})
	}
}
