package sim

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestEngineMutants changes one place in the source of the engine, or of the log, at a time, and expects the check that
// is about it to fail: a wrong order in the product shows in the simulation.
func TestEngineMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the simulation once for each mutant: make test-nightly")
	}
	directory := must.Get(filepath.Abs(".."))(t)
	for _, m := range []struct{ name, file, was, is, caught string }{
		{
			"an outcome of another part", "engine/submission.go",
			"at := p.From + i", "at := i", "the outcome of another one|decided",
		},
		{
			"a decided part is forgotten", "engine/submission.go",
			"s.logged = true\n\ts.markUnknown()\n", "", "is refused, and a part of it may be in the log",
		},
		{
			"a lost part is forgotten", "engine/submission.go",
			"s.logged = s.logged || errors.Is(err, ErrOutcomeUnknown)\n" +
				"\tif s.Err == nil || errors.Is(err, ErrOutcomeUnknown) {",
			"if s.Err == nil || errors.Is(s.Err, ErrOutcomeUnknown) {",
			"is refused, and a part of it may be in the log",
		},
		{
			"an answer before the last part", "engine/engine.go",
			"s.decided == len(s.Commands) {", "s.decided >= len(s.Commands)-1 {",
			"is answered before its command",
		},
		{
			"a later submission first", "engine/engine.go",
			"\tfor len(e.queue) > 0 && !entry.Full() {\n\t\ts := e.queue[0]\n",
			"\tif len(e.queue) > 1 {\n\t\te.queue[0], e.queue[1] = e.queue[1], e.queue[0]\n\t}\n" +
				"\tfor len(e.queue) > 0 && !entry.Full() {\n\t\ts := e.queue[0]\n", "behind a later one",
		},
		{
			"an entry beside a change of the configuration", "engine/engine.go",
			"e.alone = spans[0].Submission.Exclusive", "e.alone = false", "beside a change",
		},
		{
			"a change of the configuration among others", "engine/engine.go",
			"if s.Exclusive && entry.Commands > 0 {", "if false {", "beside a change",
		},
		{
			"an entry beside that of a caller that leads", "engine/engine.go",
			"e.alone = true", "", "beside that of a caller",
		},
		{
			"a caller that leads beside an entry", "engine/engine.go",
			"e.inFlight > 0 || e.together", "e.together", "beside that of a caller",
		},
		{
			"a third entry in flight", "engine/engine.go", "e.inFlight == MaxInFlight", "e.inFlight == 5", "in flight",
		},
		{
			"bytes given back twice", "engine/engine.go",
			"s.account.used -= s.cost", "s.account.used -= 2 * s.cost", "bytes of submissions",
		},
		{
			"bytes kept", "engine/engine.go", "s.account.used -= s.cost", "", "bytes of submissions",
		},
		{
			"two jobs at a time", "engine/jobs.go", "e.jobs.running = true", "", "two jobs are done at a time",
		},
		{
			"a truncation beyond the checkpoint", "engine/jobs.go",
			"Kind: Truncate, UpTo: j.covered", "Kind: Truncate, UpTo: j.covered + 3", "are lost",
		},
		{
			"a log that stays long", "engine/jobs.go", " || j.covered <= j.truncated)", ")",
			"is long, and no job is due",
		},
		{
			"a removal before the checkpoint", "engine/jobs.go", "j.removal++", "j.removal = dropping",
			"the horizon of the checkpoint is|no value of it that was",
		},
		{
			"a removal before values are carried", "engine/jobs.go", "= carrying, upTo, nil", "= covering, upTo, nil",
			"no value of it that was",
		},
		{
			"a removal behind another checkpoint", "engine/jobs.go",
			"job.of == noRemoval || job.of != j.removal", "false",
			"no value of it that was|the horizon of the checkpoint is",
		},
		{
			"an entry applied before it is durable", "raftlog/core/alone.go",
			"a.queue[i].number > number", "false", "acknowledged and are lost",
		},
		{
			"a log without syncs", "raftlog/segment/log.go",
			"if l.synced == l.end {", "if l.end > 0 {", "acknowledged and are lost",
		},
		{
			"a log that is believed as it is read", "raftlog/segment/open.go",
			"for at := known; at < used;", "for at := used; at < used;", "is damaged|damaged log|are lost",
		},
		{
			"a torn record believed", "raftlog/segment/record.go",
			"payload) == r.crc", "payload) == r.crc || r.length > 0", "nobody proposed|another one after the start",
		},
	} {
		t.Run(m.name, func(t *testing.T) {
			path := filepath.Join(directory, m.file)
			source := must.Get(os.ReadFile(path))(t)
			must.Equal(t, strings.Count(string(source), m.was), 1, "%s has %q %d times, want once", m.file, m.was)
			dir := t.TempDir()
			mutant, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
			replace := must.Get(json.Marshal(map[string]any{"Replace": map[string]string{path: mutant}}))(t)
			for name, content := range map[string][]byte{
				mutant: []byte(strings.Replace(string(source), m.was, m.is, 1)), overlay: replace,
			} {
				must.Do(t, os.WriteFile(name, content, 0o600))
			}
			test := exec.Command("go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-timeout", "10m",
				"-run", "^(TestSimulation|TestCluster)$", ".")
			test.Env = append(os.Environ(), "SIM_COMMANDS=200000", "SIM_SEEDS=60")
			out, err := test.CombinedOutput()
			if err == nil {
				t.Fatal("the mutant is not caught")
			}
			if !regexp.MustCompile(m.caught).Match(out) {
				t.Errorf("it is caught by another check, want %q:\n%s", m.caught, out)
			}
		})
	}
}
