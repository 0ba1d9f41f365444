package conformance

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCasesHaveNames checks that a case's name is unique, because it names the case's directory and row, and that each
// case has a duty, which is shown for a client that fails.
func TestCasesHaveNames(t *testing.T) {
	t.Parallel()
	form, seen := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`), map[string]bool{}
	for _, c := range Cases() {
		if !form.MatchString(c.Name) || filepath.Base(c.Name) != c.Name || seen[c.Name] || c.Duty == "" {
			t.Errorf("%+v", c)
		}
		seen[c.Name] = true
	}
	if len(seen) != len(cases) || len(seen) == 0 {
		t.Errorf("%d of %d cases are listed", len(seen), len(cases))
	}
}

// TestRunsThatCannotBegin checks that a failure that is not the client's fault is an error of the run, and not a
// result.
func TestRunsThatCannotBegin(t *testing.T) {
	t.Parallel()
	first := Cases()[0].Name
	only := regexp.MustCompile("^" + regexp.QuoteMeta(first) + "$")
	missing := filepath.Join(t.TempDir(), "none")
	tell := func(r Result) { t.Errorf("a result: %+v", r) }
	report, err := Run(t.Context(), Options{Program: missing, Command: []string{missing}, Only: only, Progress: tell})
	if report != nil || err == nil || !strings.Contains(err.Error(), "case "+first) ||
		!strings.Contains(err.Error(), missing) {
		t.Errorf("a server that does not start: %+v, %v", report, err)
	}
	stop := errors.New("the user has had enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := Run(ctx, Options{Program: missing, Only: only, Progress: tell}); !errors.Is(err, stop) {
		t.Errorf("a run that was ended: %v", err)
	}
	report, err = Run(t.Context(), Options{Program: missing, Only: regexp.MustCompile("^$"), Seed: 7})
	if err != nil || report.Seed != 7 || len(report.Results) != 0 || report.Failed() != 0 || report.Dir != "" {
		t.Errorf("a run of no case: %+v, %v", report, err)
	}
	some := Report{Results: []Result{{}, {Problem: "it lies"}, {}, {Problem: "it is silent"}}}
	if some.Failed() != 2 {
		t.Errorf("%d of 2 failures are counted", some.Failed())
	}
}
