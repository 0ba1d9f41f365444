package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// campaign simulates clusters one after the other, with consecutive seeds.
type campaign struct {
	from, clusters   uint64
	commands, faults int
	met              map[string]int
	began            time.Time
	without          []string // parts that are left out
	failure          error
}

// run simulates clusters until both the given number are done and the given time has passed, or one fails.
func (c *campaign) run(t *testing.T, seeds uint64, duration time.Duration) {
	t.Helper()
	for c.clusters < seeds || time.Since(c.began) < duration {
		e := clusterEpisode{seed: c.from + c.clusters, limit: 1 << 30, without: c.without}
		r := e.run()
		c.clusters++
		c.commands, c.faults = c.commands+r.commands, c.faults+r.faults
		for what, n := range r.counted {
			c.met[what] += n
		}
		if r.err != nil {
			c.failure = r.err
			if small, r := shrink(e, r); len(small.without) > len(e.without) {
				c.failure = fmt.Errorf("%w\n\nit fails in the same way without some faults, perhaps for "+
					"another reason: %w", c.failure, r.err)
			}
			return
		}
		t.Logf("seed %d: %d commands, %d faults, trace %x", r.seed, r.commands, r.faults, r.trace)
	}
}

// String returns a summary: the clusters that ran, the faults that occurred, and the failure.
func (c *campaign) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d clusters, seeds %d to %d, in %v: %d commands, %d crashes\n", c.clusters, c.from,
		c.from+c.clusters-1, time.Since(c.began).Round(time.Second), c.commands, c.faults)
	for _, what := range slices.Sorted(maps.Keys(c.met)) {
		fmt.Fprintf(&b, "%9d %s\n", c.met[what], what)
	}
	if c.failure != nil {
		fmt.Fprintf(&b, "failed: %v\n", c.failure)
	}
	return b.String()
}

// TestCluster simulates clusters under faults, with new seeds each time. make sim-cluster sets its variables.
func TestCluster(t *testing.T) {
	t.Parallel()
	count := uint64(12)
	switch {
	case raceDetector:
		count = 1 // one thread has no races
	case testing.Short():
		count = 4
	}
	c := campaign{from: variable(t, "SIM_SEED", rand.Uint64N(1<<40)), met: map[string]int{}, began: time.Now(),
		without: withoutVariable(t)}
	var duration time.Duration
	if text := os.Getenv("SIM_DURATION"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SIM_DURATION: %v", err)
		}
	}
	c.run(t, variable(t, "SIM_SEEDS", count), duration)
	if file := os.Getenv("SIM_SUMMARY"); file != "" {
		must.Do(t, os.WriteFile(file, []byte(c.String()), 0o644))
	}
	must.Do(t, c.failure)
	t.Log(c.String())
	const enough = 100 // the number of make sim-cluster; fewer may miss rare events
	for _, what := range clusterMustMeet {
		if c.clusters >= enough && len(c.without) == 0 && c.met["cluster: "+what] == 0 {
			t.Errorf("in %d clusters there was never: %s; the simulation has become tamer than it was",
				c.clusters, what)
		}
	}
	for _, what := range keysMustMeet {
		if c.clusters >= enough && len(c.without) == 0 && c.met[what] == 0 {
			t.Errorf("in %d clusters there was never: %s; the simulation has become tamer than it was",
				c.clusters, what)
		}
	}
}
