package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/load"
)

func TestParseStrace(t *testing.T) {
	t.Parallel()
	const output = `% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.000900          30        30           fdatasync
 10.00    0.000100          50         2         1 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000          31        32         1 total
`
	if got, err := parseStrace(output); got != 32 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}

// fake is a conn that records its calls.
type fake struct {
	mu     sync.Mutex
	stored map[int]uint64 // last sequence by stream
	lies   bool           // answers retries with something else
}

func (f *fake) do(_ context.Context, j *job, repeat bool) (answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case repeat && (f.lies || j.sequence != f.stored[j.stream]):
		return answer{reply: "another", replayed: true}, nil
	case repeat:
	case j.sequence != f.stored[j.stream]+1:
		return answer{}, errors.New("gap")
	default:
		f.stored[j.stream]++
	}
	return answer{reply: j.client(), replayed: repeat}, nil
}

func (f *fake) once(_ context.Context, _ string, work func() []byte) ([]byte, error) {
	result := work()
	if f.lies {
		result[0]++ // as the result of another key
	}
	return result, nil
}

func (f *fake) close() error { return nil }

// A mixed row has its share of retries, and a wrong answer to one ends it.
func TestOperationMixesAndChecks(t *testing.T) {
	t.Parallel()
	for workload, want := range map[string]uint64{"fresh": 1000, "mixed-1": 990, "mixed-10": 900, "retry-hot": 0} {
		to := &fake{stored: make(map[int]uint64)}
		callers := []*caller{{job: job{stream: 7}}}
		do, err := operation(t.Context(), row{workload, 1, false, smallPayload}, callers, to)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if err := do(t.Context(), 0); err != nil {
				t.Fatal(workload, err)
			}
		}
		if got := to.stored[7] - 1; got != want { // the first one prepares
			t.Errorf("%s: %d fresh writes of 1000, want %d", workload, got, want)
		}
	}
	for _, workload := range []string{"retry-hot", keyedPairs} {
		to := &fake{stored: make(map[int]uint64)}
		do, err := operation(t.Context(), row{workload, 1, false, smallPayload}, []*caller{{}}, to)
		if err != nil {
			t.Fatal(err)
		}
		if err := do(t.Context(), 0); err != nil {
			t.Error(workload, err)
		}
		to.lies = true
		if err := do(t.Context(), 0); err == nil {
			t.Errorf("%s: another answer than the stored one was not detected", workload)
		}
	}
}

// Calls that come while a batch is under way share the next one, and each gets
// its own answer.
func TestBatcher(t *testing.T) {
	t.Parallel()
	began, release, sizes := make(chan struct{}, 3), make(chan struct{}), []int(nil)
	b := newBatcher(func(batch []*call) {
		began <- struct{}{}
		<-release
		sizes = append(sizes, len(batch))
		for _, c := range batch {
			c.answer.reply = c.job.client()
		}
	})
	var callers sync.WaitGroup
	begin := func(stream int) {
		callers.Go(func() {
			j := &job{stream: stream}
			if a, err := b.do(t.Context(), j); err != nil || a.reply != j.client() {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	begin(0)
	<-began
	const later = 20
	for i := range later {
		begin(1 + i)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for len(b.calls) < later {
		<-tick.C
	}
	close(release)
	callers.Wait()
	b.close()
	if !slices.Equal(sizes, []int{1, later}) {
		t.Errorf("want a batch of 1 and one of %d, got %v", later, sizes)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	quiet := func(string, ...any) {}
	valid := func() *options {
		return &options{rounds: 1, duration: time.Second, notice: quiet}
	}
	o := valid()
	if err := o.choose("seqledger-unary,seqledger", "^fresh/64$", "10,20"); err != nil || len(o.kinds) != 2 ||
		len(o.rows) != 1 ||
		!slices.Equal(o.rates, []int{10, 20}) {
		t.Errorf("got %+v, %v", o, err)
	}
	for _, wrong := range [][3]string{{"oracle"}, {"", "("}, {"", "nothing"}, {"", "", "fast"}} {
		if err := valid().choose(wrong[0], wrong[1], wrong[2]); err == nil {
			t.Errorf("%q: want an error", wrong)
		}
	}
	if err := new(options).choose("", "", ""); err == nil {
		t.Error("no rounds: want an error")
	}
}

func TestPools(t *testing.T) {
	t.Parallel()
	k := kind{pools: []int{8, 64, 256}}
	for callers, want := range map[int][]int{1: {1}, 8: {8}, 16: {8, 16}, 64: {8, 64},
		100: {8, 64, 100}, 1024: {8, 64, 256}} {
		if got := k.connections(callers, false); !slices.Equal(got, want) {
			t.Errorf("%d callers: %v, want %v", callers, got, want)
		}
	}
}

// Every value of a row's table is in the report, but for what only some systems have.
func TestReportFields(t *testing.T) {
	t.Parallel()
	f := &findings{samples: map[cell][]harness.Values{{row{"fresh", 64, false, smallPayload}, "seqledger"}: {
		(&load.Result{
			Latency: load.NewLatencies(), Operations: 1,
			Used: harness.Values{"bytes_per_write": 1, "cpu_us_per_write": 1},
		}).Values()}}}
	row := f.report(&options{rows: allRows, kinds: kinds()})["rows"].([]harness.Line)[0]
	for _, c := range rowColumns {
		if _, ok := row[c.Name]; !ok && !slices.Contains([]string{"charged_bytes_per_write", "client_cpu_us_per_write",
			"resident_bytes"}, c.Name) {
			t.Errorf("the column %s has nothing", c.Name)
		}
	}
}
