package sim

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// clusterPart is a kind of fault, or of work, that an episode of a cluster can do without.
type clusterPart struct {
	name     string
	leaveOut func(*plan, *clusterPlan)
}

// clusterParts are tried in this order when a failure is shrunk: what takes the most steps to follow comes first.
var clusterParts = []clusterPart{
	{"changes", func(_ *plan, c *clusterPlan) { c.change = 0 }},
	{"partitions", func(_ *plan, c *clusterPlan) { c.partition = 0 }},
	{"drills", func(_ *plan, c *clusterPlan) { c.drill = 0 }},
	{"duels", func(_ *plan, c *clusterPlan) { c.duel = 0 }},
	{"rivals", func(_ *plan, c *clusterPlan) { c.rivals = 0 }},
	{"transfers", func(_ *plan, c *clusterPlan) { c.transfer = 0 }},
	{"disks", func(_ *plan, c *clusterPlan) { c.badDisks = false }},
	{"states", func(_ *plan, c *clusterPlan) { c.badStates = false }},
	{"kills", func(_ *plan, c *clusterPlan) { c.kill = 0 }},
	{"crashes", func(_ *plan, c *clusterPlan) { c.crash = 0 }},
	{"clocks", func(p *plan, c *clusterPlan) { p.wallJump, c.wrongClocks = 0, false }},
	{"hangs", func(_ *plan, c *clusterPlan) { c.hangs = false }},
	{"doubles", func(p *plan, _ *clusterPlan) { p.dup = 0 }},
	{"losses", func(p *plan, _ *clusterPlan) { p.drop, p.connBreak = 0, 0 }},
	{"deaths", func(p *plan, _ *clusterPlan) { p.clientCrash = 0 }},
	{"keys", func(p *plan, _ *clusterPlan) { p.owners, p.jobbers = 0, 0 }},
	{"buggy", func(p *plan, _ *clusterPlan) { p.buggy = 0 }},
	{"pairs", func(p *plan, _ *clusterPlan) { p.pairs = 0 }},
	{"simple", func(p *plan, _ *clusterPlan) { p.simple = 0 }},
	{"writers", func(p *plan, _ *clusterPlan) { p.writers = 1 }},
}

// leaveOut leaves parts out of an episode.
func leaveOut(parts []string, p *plan, c *clusterPlan) {
	for _, part := range clusterParts {
		if slices.Contains(parts, part.name) {
			part.leaveOut(p, c)
		}
	}
}

var digits = regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)

// sameFailure reports whether two failures are of the same check.
func sameFailure(a, b error) bool {
	kind := func(err error) string {
		_, what, _ := strings.Cut(firstLine(err), ": ")
		return digits.ReplaceAllString(what, "#")
	}
	return a != nil && b != nil && kind(a) == kind(b)
}

// shrink looks for a smaller episode that fails in the same way: one part after the other is left out if the failure
// stays. The seed means other random choices then, so a part that stays is not always needed.
func shrink(e clusterEpisode, failed result) (clusterEpisode, result) {
	for _, part := range clusterParts {
		smaller := e
		smaller.without = append(slices.Clone(e.without), part.name)
		if r := smaller.run(); sameFailure(r.err, failed.err) {
			e, failed = smaller, r
		}
	}
	return e, failed
}

// repeat returns the command that repeats an episode.
func (e *clusterEpisode) repeat() string {
	command := fmt.Sprintf("make sim-cluster SEED=%d SEEDS=1", e.seed)
	if len(e.without) > 0 {
		command += " WITHOUT=" + strings.Join(e.without, ",")
	}
	return command
}

// withoutVariable returns the parts that SIM_WITHOUT names.
func withoutVariable(t *testing.T) (parts []string) {
	t.Helper()
	for name := range strings.SplitSeq(os.Getenv("SIM_WITHOUT"), ",") {
		if name == "" {
			continue
		}
		if !slices.ContainsFunc(clusterParts, func(p clusterPart) bool { return p.name == name }) {
			t.Fatalf("SIM_WITHOUT: there is no part %q", name)
		}
		parts = append(parts, name)
	}
	return parts
}

// A failure is shrunk to an episode that fails in the same way, and whose command says what it does without.
func TestShrink(t *testing.T) {
	t.Parallel()
	if raceDetector || testing.Short() {
		t.Skip("takes seconds")
	}
	e := clusterEpisode{limit: 1_500, bugs: bugs{noDeduplication: true}}
	failed := e.run()
	for ; failed.err == nil; failed = e.run() {
		e.seed++
	}
	small, r := shrink(e, failed)
	if !sameFailure(r.err, failed.err) || len(small.without) < 5 {
		t.Fatalf("without %v: %v", small.without, r.err)
	}
	if again := small.run(); again.err == nil || again.err.Error() != r.err.Error() || again.trace != r.trace {
		t.Errorf("again: %v", again.err)
	}
	if want := small.repeat(); !strings.Contains(r.err.Error(), want) || !strings.Contains(want, "WITHOUT=") {
		t.Errorf("no %q in: %v", want, r.err)
	}
	t.Logf("seed %d fails without %v", small.seed, small.without)
}
