package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestArgumentsThatAreRefused say which one it was, before anything is measured.
func TestArgumentsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		arguments []string
		says      string
	}{
		"another kind":       {[]string{"speed"}, `unknown kind "speed"`},
		"a second kind":      {[]string{"gateway", "growth"}, `unknown argument "growth"`},
		"an unknown flag":    {[]string{"-fast"}, "-fast"},
		"no expression":      {[]string{"-only", "("}, "-only"},
		"no row":             {[]string{"-only", "^no such row$"}, "-only matches no row"},
		"nothing of it":      {[]string{"gateway", "-fraction", "0"}, "-fraction and -rate must be more than 0"},
		"less than nothing":  {[]string{"gateway", "-fraction", "-1"}, "-fraction and -rate must be more than 0"},
		"no duration":        {[]string{"-duration", "long"}, "-duration"},
		"check, an argument": {[]string{"check", "main"}, "check takes flags alone"},
		"check, no pairs":    {[]string{"check", "-pairs", "0"}, "-pairs must be at least 1"},
		"check, a revision":  {[]string{"check", "-baseline", "no such revision"}, "-baseline names another"},
		"growth, no rate":    {[]string{"growth", "-rate", "0"}, "-fraction and -rate"},
		"growth, nothing":    {[]string{"growth", "-streams", "", "-marks", ""}, "-only matches no row"},
		"growth, too few":    {[]string{"growth", "-streams", "1"}, "-streams"},
		"growth, no mark":    {[]string{"growth", "-marks", "1s,soon"}, "-marks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said strings.Builder
			if err := run(t.Context(), test.arguments, &said); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("want %q, got %v", test.says, err)
			}
		})
	}
}

// TestKindsAreTold: who names a kind that is not there learns all that are.
func TestKindsAreTold(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), []string{"unknown"}, io.Discard)
	if err == nil {
		t.Fatal("no error")
	}
	kinds := slices.Concat(slices.Collect(maps.Keys(commands)), slices.Collect(maps.Keys(tables)))
	for _, kind := range kinds {
		if !strings.Contains(err.Error(), kind) {
			t.Errorf("%q is not in %q", kind, err)
		}
		if _, both := commands[kind]; both && tables[kind].title != "" {
			t.Errorf("%q is a command and a table", kind)
		}
	}
}

// TestABedIsRemoved with all that was made on it, last to first, and errors of its end are not lost.
func TestABedIsRemoved(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	broken, unclosed := errors.New("broken"), errors.New("unclosed")
	var order []int
	err := onBed(t.Context(), o, nil, func(_ context.Context, b *bed) error {
		for i := range 3 {
			b.later(func() error {
				if _, err := os.Stat(b.dir); err != nil {
					t.Errorf("the directory has gone before closer %d: %v", i, err)
				}
				order = append(order, i)
				return nil
			})
		}
		b.later(func() error { return unclosed })
		return errors.Join(os.Mkdir(b.data(), 0o700), broken)
	})
	if !errors.Is(err, broken) || !errors.Is(err, unclosed) || !slices.Equal(order, []int{2, 1, 0}) {
		t.Errorf("%v, closed in the order %v", err, order)
	}
	if left, err := os.ReadDir(o.dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	o.dir = filepath.Join(o.dir, "none")
	if err := onBed(t.Context(), o, nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("below a directory that is not there: %v", err)
	}
}

// TestProfiles are written where the flag says, and a place that cannot be written fails before the measurement.
func TestProfiles(t *testing.T) {
	t.Parallel()
	stop, err := startProfile("")
	if err != nil || stop() != nil {
		t.Error("no profile is asked for, and it fails")
	}
	if _, err := startProfile(filepath.Join(t.TempDir(), "none", "p")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("want an error of the file, got %v", err)
	}
}

// TestUnits of the tables.
func TestUnits(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		milliseconds(1.234): "1.23 ms", verdict(true): "reached", verdict(false): "MISSED",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	o := &options{fraction: 2}
	if n, d := scaled(o, 10), scaledTime(o, time.Second); n != 20 || d != time.Second {
		t.Errorf("twice the size: %d, in %v", n, d)
	}
	o.fraction = 0.001
	if n, d := scaled(o, 100), scaledTime(o, time.Minute); n != 1 || d != 300*time.Millisecond {
		t.Errorf("a thousandth: %d, in %v", n, d)
	}
}

// TestTargetsAreRows: a target for a number of workers that is not measured would never be missed.
func TestTargetsAreRows(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	for _, r := range rates {
		if kinds[r.kind] {
			t.Errorf("%s is there twice", r.kind)
		}
		kinds[r.kind] = true
		for workers, target := range r.targets {
			if !slices.Contains(r.workers, workers) || target <= 0 {
				t.Errorf("%s: %v a second with %d workers, which are not measured", r.kind, target, workers)
			}
		}
	}
}

// TestCheckReadsTheTableOfRates: the numbers that bench reports are what bench check reads.
func TestCheckReadsTheTableOfRates(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	o.json = filepath.Join(t.TempDir(), "report.json")
	shown := table{"a title", rateColumns, func(*options) []row {
		return []row{{"engine/16", func(_ context.Context, b *bed) error {
			of := harness.Line{"throughput_per_s": 96849.4, "verdict": "reached"}
			return b.tell(of, harness.Line{"row": "named", "p50_ms": 1.0})
		}}}
	}, ""}
	must.Do(t, shown.measure(t.Context(), "", o, io.Discard))
	content := must.Get(os.ReadFile(o.json))(t)
	found, err := parseReport(content)
	if err != nil || len(found) != 2 || !maps.Equal(found["engine/16"], harness.Values{"throughput_per_s": 96849.4}) ||
		found["named"]["p50_ms"] != 1 {
		t.Errorf("%v, %v of %s", found, err, content)
	}
	if _, err := parseReport(content[:len(content)-3]); err == nil {
		t.Error("half a report is read")
	}
}

// TestATableThatCannotBePrinted ends the run: hours of measurements that nobody sees are of no use.
func TestATableThatCannotBePrinted(t *testing.T) {
	t.Parallel()
	full := errors.New("no space left")
	measured := 0
	shown := table{"a table", findingColumns, func(*options) []row {
		count := func(_ context.Context, b *bed) error { measured++; return b.tell(harness.Line{}) }
		return []row{{"a", count}, {"b", count}}
	}, ""}
	for after := range 2 {
		measured = 0
		err := shown.measure(t.Context(), "", quickOptions(t), &failAfter{left: after, err: full})
		if !errors.Is(err, full) || measured != after {
			t.Errorf("after %d writes: %v, %d rows were measured", after, err, measured)
		}
	}
}

// failAfter is a writer that fails after some writes.
type failAfter struct {
	left int
	err  error
}

func (w *failAfter) Write(p []byte) (int, error) {
	if w.left == 0 {
		return 0, w.err
	}
	w.left--
	return len(p), nil
}

// TestRowsReport: each line has its row's name, and a row that fails leaves no report.
func TestRowsReport(t *testing.T) {
	t.Parallel()
	o := quickOptions(t)
	o.fraction, o.json = 0.5, filepath.Join(t.TempDir(), "report.json")
	rows := []row{
		{"first", func(_ context.Context, b *bed) error { return b.tell(told("a", "1")) }},
		{"second", func(_ context.Context, b *bed) error { return b.tell(held("b", "2", "3", false)) }},
	}
	shown := table{"a table", findingColumns, func(*options) []row { return rows }, ""}
	must.Do(t, shown.measure(t.Context(), "stores", o, io.Discard))
	b, err := os.ReadFile(o.json)
	var r struct {
		Kind, Commit, Machine string
		Findings              []map[string]string
	}
	must.Do(t, errors.Join(err, json.Unmarshal(b, &r)))
	if r.Kind != "stores" || r.Commit == "" || r.Machine == "" || len(r.Findings) != 2 ||
		r.Findings[0]["row"] != "first" || r.Findings[1]["verdict"] != "MISSED" {
		t.Errorf("the report is %s", b)
	}
	o.json = filepath.Join(t.TempDir(), "none.json")
	shown.failure = "a target is missed"
	err = shown.measure(t.Context(), "stores", o, io.Discard)
	if want := "second: " + shown.failure; err == nil || err.Error() != want {
		t.Errorf("want %s, got %v", want, err)
	}
	broken := errors.New("broken")
	rows[1].measure = func(context.Context, *bed) error { return broken }
	if err := shown.measure(t.Context(), "stores", o, io.Discard); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(o.json); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed run left a report: %v", err)
	}
}

// TestRowsHaveNames: -only finds a row by its name, so names must differ.
func TestRowsHaveNames(t *testing.T) {
	t.Parallel()
	for kind, all := range tables {
		names := map[string]bool{}
		for _, row := range all.rows(&options{}) {
			if row.name == "" || names[row.name] {
				t.Errorf("%s: %q is not the name of one row", kind, row.name)
			}
			names[row.name] = true
		}
	}
}
