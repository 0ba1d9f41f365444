package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestParseTable(t *testing.T) {
	t.Parallel()
	const table = `2026-11-21, a machine, 2 cores

| row | per second | must reach |  | p50 ms |
|---|---:|---:|---|---:|
| engine/16 | 96,849 | 50,000 | reached | 0.138 |
| unary/64 | 17 | 0 | reached | 3 |
`
	found, err := parseTable(table)
	if err != nil || len(found) != 2 || found["engine/16"] != 96849 || found["unary/64"] != 17 {
		t.Errorf("got %v, %v", found, err)
	}
	for _, broken := range []string{"", "| a/1 | fast | |", "nothing of a table"} {
		if found, err := parseTable(broken); err == nil {
			t.Errorf("%q: want an error, got %v", broken, found)
		}
	}
}

// Without a flag the baseline is something else than the tree, also on main.
func TestDefaultBaseline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(arguments ...string) string {
		t.Helper()
		c := exec.Command("git", arguments...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", arguments, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := func() string {
		git("commit", "-q", "--allow-empty", "-m", "x")
		return git("rev-parse", "HEAD")
	}
	want := func(when, revision string) {
		t.Helper()
		if got, err := defaultBaseline(t.Context(), dir); err != nil || got != revision {
			t.Errorf("%s: %q, %v, want %q", when, got, err, revision)
		}
	}
	git("init", "-q", "-b", "main")
	if _, err := defaultBaseline(t.Context(), dir); err == nil {
		t.Error("no commit is something to compare with")
	}
	first := commit()
	if _, err := defaultBaseline(t.Context(), dir); err == nil {
		t.Error("a commit is compared with itself")
	}
	for range 20 {
		commit()
	}
	want("on main", first)
	last := git("rev-parse", "HEAD")
	git("checkout", "-q", "-b", "work")
	want("on a branch without commits", first)
	commit()
	want("on a branch", last)
}

// A slowdown that both sides share is none; one of the tree alone is.
func TestCheckComparesPairs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		now    float64 // speed of this tree, where the baseline has 1000
		broken bool
		says   string
	}{
		"the same":      {now: 1000},
		"faster":        {now: 3000},
		"a bit slower":  {now: 870},
		"much slower":   {now: 840, says: "engine/1"},
		"does not run":  {broken: true, says: "broken"},
		"has other row": {now: -1, says: "no row in common"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls, firsts := 0, [2]int{}
			ratios, err := comparePairs(4, func(side int) (map[string]float64, error) {
				ours := side == 1
				if calls%2 == 0 {
					firsts[side]++
				}
				calls++
				noise := 1 / float64(1+(calls-1)/2) // the machine gets busier, pair by pair
				switch {
				case test.broken:
					return nil, errors.New("broken")
				case ours && test.now < 0:
					return map[string]float64{"other/1": 1}, nil
				case ours:
					return map[string]float64{"engine/1": test.now * noise}, nil
				}
				return map[string]float64{"engine/1": 1000 * noise}, nil
			})
			var out strings.Builder
			if err == nil {
				if firsts[0] != firsts[1] {
					t.Errorf("one side always began: %v", firsts)
				}
				err = judge(&out, ratios, 0.15, "main")
			}
			switch {
			case test.says == "" && err != nil:
				t.Errorf("want no complaint, got %v", err)
			case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
				t.Errorf("want a complaint with %q, got %v", test.says, err)
			}
		})
	}
}
