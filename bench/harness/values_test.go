package harness_test

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
)

func TestMedianAndInterval(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		values              []float64
		median, low, high   float64
		coverage, tolerance float64
	}{
		"one":   {[]float64{3}, 3, 3, 3, 0, 1e-9},
		"two":   {[]float64{4, 2}, 3, 2, 4, 0.5, 1e-9},
		"five":  {[]float64{5, 1, 4, 2, 3}, 3, 1, 5, 0.9375, 1e-9},
		"seven": {[]float64{7, 6, 5, 4, 3, 2, 1}, 4, 1, 7, 0.984, 1e-3},
		// With eight or more rounds one disturbed round does not stretch it.
		"eight, one disturbed": {[]float64{1, 2, 3, 4, 5, 6, 7, 1000}, 4.5, 1, 1000, 0.992, 1e-3},
		"nine, one disturbed":  {[]float64{1, 2, 3, 4, 5, 6, 7, 8, 1000}, 5, 2, 8, 0.961, 1e-3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			low, high, coverage := harness.Interval(test.values)
			if m := harness.Median(test.values); m != test.median {
				t.Errorf("median %v, want %v", m, test.median)
			}
			if low != test.low || high != test.high || math.Abs(coverage-test.coverage) > test.tolerance {
				t.Errorf("interval %v to %v with %v, want %v to %v with %v", low, high,
					coverage, test.low, test.high, test.coverage)
			}
		})
	}
}

// One bad round must not show, in any of the values.
func TestMedians(t *testing.T) {
	t.Parallel()
	rounds := []harness.Values{{"a": 100, "b": 0}, {"a": 1, "b": 7}, {"a": 2, "b": 6}}
	if m := harness.Medians(rounds); m["a"] != 2 || m["b"] != 6 || len(m) != 2 {
		t.Errorf("got %v", m)
	}
}

// No side always comes first, and each has every round.
func TestTurns(t *testing.T) {
	t.Parallel()
	var order []int
	err := harness.Turns(3, 2, func(round, side int) error {
		order = append(order, 10*round+side)
		return nil
	})
	if want := []int{0, 1, 11, 10, 20, 21}; err != nil || !slices.Equal(order, want) {
		t.Errorf("want %v, got %v, %v", want, order, err)
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for number, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567",
		-123: "-123", -1234: "-1,234"} {
		if got := harness.Count(number); got != want {
			t.Errorf("%v is written %q, want %q", number, got, want)
		}
	}
}

// Texts, numbers and what is missing have their columns, in both kinds of table.
func TestTable(t *testing.T) {
	t.Parallel()
	shown := harness.Table{Columns: []harness.Column{
		{Head: "row", Name: "row", Width: -5}, {Head: "rate", Name: "rate", Width: 6, Format: ","},
		{Head: "p50", Name: "p50", Width: 5, Format: "%.1f"},
	}}
	lines := []harness.Line{harness.Line{"row": "a", "rate": 1234.0}.With(harness.Values{"p50": 2}), {"row": "b"}}
	plain := shown.Head() + shown.Line(lines[0]) + shown.Line(lines[1])
	if want := "row     rate   p50\na      1,234   2.0\nb\n"; plain != want {
		t.Errorf("want %q, got %q", want, plain)
	}
	want := "## T\n\n| row | rate | p50 |\n|---|---:|---:|\n| a | 1,234 | 2.0 |\n| b |  |  |\n\n"
	if got := harness.Section("T", shown.Columns, lines); got != want {
		t.Errorf("want %q, got %q", want, got)
	}
	if got := harness.Section("T", shown.Columns, nil); strings.Contains(got, "T") {
		t.Errorf("a table without lines is %q", got)
	}
}

// Our own process is there and has used something; one that is gone counts nothing.
func TestUsage(t *testing.T) {
	t.Parallel()
	used, err := harness.Usage(t.TempDir(), os.Getpid(), 1<<30)()
	if err != nil || used["cpu_us_per_write"] <= 0 || used["client_cpu_us_per_write"] != 0 {
		t.Errorf("got %v, %v", used, err)
	}
	if harness.Resident(os.Getpid(), 1<<30) <= 0 {
		t.Error("no memory is resident")
	}
}

// A process ends when it is told, as it is told, and what it has said is kept.
func TestProcess(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	p, line, err := harness.LaunchServer(t.Context(), exec.Command("sh", "-c", "echo here; cat; echo gone >&2; exit 3"),
		log)
	if err != nil || line != "here" || len(p.Tree()) == 0 || p.Tree()[0] != p.Pid {
		t.Fatalf("got %q, %v", line, err)
	}
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("it ended with 3 after its input, got %v", err)
	}
	if p, _, err = harness.LaunchServer(t.Context(), exec.Command("sh", "-c", "echo here; cat"), log); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil || p.Stop() != nil {
		t.Errorf("killed: %v, %v", err, p.Stop())
	}
	_, _, err = harness.LaunchServer(t.Context(), exec.Command("sh", "-c", "echo no room >&2; exit 1"), log)
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("it did not start, and the error is %v", err)
	}
}

// The largest sample counts, wherever it is, and the first is taken at once.
func TestLargest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		samples := []int64{1, 7, 3}
		next := 0
		stop := harness.Largest(time.Millisecond, func() int64 {
			next++
			return samples[min(next, len(samples))-1]
		})
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // It is a simulated clock.
		if largest := stop(); largest != 7 || next < len(samples) {
			t.Errorf("got %d after %d samples", largest, next)
		}
		if largest := harness.Largest(time.Hour, func() int64 { return 5 })(); largest != 5 {
			t.Errorf("got %d", largest)
		}
	})
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	if list, err := harness.Numbers("-rates", "10,20,", 1); err != nil || !slices.Equal(list, []int{10, 20}) {
		t.Errorf("got %v, %v", list, err)
	}
	for _, wrong := range []string{"fast", "0", "1,-2"} {
		if _, err := harness.Numbers("-rates", wrong, 1); err == nil || !strings.Contains(err.Error(), "-rates") {
			t.Errorf("%q: want an error with the flag, got %v", wrong, err)
		}
	}
}
