package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/demo"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

func demoReport() *demo.Report {
	return &demo.Report{
		Seed: 42, Seconds: 10, Dir: "/tmp/x",
		Protected: &demo.Side{
			Attempted: 9812, Acknowledged: 9812, Found: 9812, CentsAcknowledged: 5012345, CentsFound: 5012345,
			Counts: demo.Counts{Retried: 612, Replayed: 301, LostRequests: 41, LostAnswers: 42, Delayed: 43,
				Twice: 44, ServersKilled: 5, ClientsKilled: 24},
		},
		Plain: &demo.Side{
			Attempted: 9655, Acknowledged: 9655, Found: 10233, Duplicates: 578, CentsAcknowledged: 100, CentsFound: 105,
			Counts: demo.Counts{Retried: 700},
		},
	}
}

func TestShowDemo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	must.Do(t, showDemo(&environment{stdout: &out}, demoReport()))
	want := `                         exactly once  plain retries
requests dropped                   41              0
answers dropped                    42              0
requests delayed                   43              0
requests sent twice                44              0
servers killed                      5              0
clients killed                     24              0

payments attempted               9812           9655
acknowledged                     9812           9655
retried                           612            700
replayed                          301              0
found by audit                   9812          10233
amount acknowledged          50123.45           1.00
amount found                 50123.45           1.05
duplicates                          0            578
lost                                0              0
never intended                      0              0

seed 42
kept in /tmp/x
`
	if got := out.String(); got != want {
		t.Errorf("want\n%sgot\n%s", want, got)
	}
}

// TestJudgeDemo: only the protected side decides the exit code, and each kind
// of failure does.
func TestJudgeDemo(t *testing.T) {
	t.Parallel()
	check.Is(t, judgeDemo(demoReport()), nil, "want no error")
	for _, c := range []demo.Side{{Duplicates: 1}, {Lost: 1}, {Extra: 1}} {
		err := judgeDemo(&demo.Report{Seed: 7, Protected: &c, Plain: &demo.Side{}})
		failure, ok := errors.AsType[*exitError](err)
		if !ok || failure.code != exitFailed || !strings.Contains(failure.hint, "--seed 7") {
			t.Errorf("%+v: want exit code 1 and the seed, got %v", c, err)
		}
	}
}

// TestDemoDraws: on a terminal it redraws its own lines, cuts long ones, and removes all at the
// end. A file replaces the terminal, so its width is not known.
func TestDemoDraws(t *testing.T) {
	t.Parallel()
	f := must.Get(os.Create(filepath.Join(t.TempDir(), "terminal")))(t)
	defer f.Close()
	p := newDemoProgress(&environment{stderr: f}, 42, time.Second)
	if p.terminal != nil {
		t.Error("a file is taken for a terminal")
	}
	p.terminal = f
	long := demo.Counts{Payments: 1e18, Retried: 1e18, ServersKilled: 1e18}
	p.show(demo.Progress{Elapsed: 500 * time.Millisecond})
	p.show(demo.Progress{Elapsed: 1500 * time.Millisecond, Plain: long})
	p.end()
	p.end() // there is nothing to take away any more
	content := must.Get(os.ReadFile(f.Name()))(t)
	const erase = "\x1b[5A\x1b[J"
	parts := strings.Split(string(content), erase)
	if len(parts) != 3 || parts[2] != "" {
		t.Fatalf("want two pictures, each taken away, got %q", content)
	}
	if strings.Contains(parts[0], "settling") || !strings.Contains(parts[1], "settling") {
		t.Errorf("want to be told of the settling once the time is over, got %q", content)
	}
	for _, picture := range parts[:2] {
		if strings.Count(picture, "\n") != 5 {
			t.Errorf("want five lines, got %q", picture)
		}
		for line := range strings.Lines(picture) {
			if len(line) > 80 {
				t.Errorf("a line of %d characters wraps: %q", len(line), line)
			}
		}
	}
}
