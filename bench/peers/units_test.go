package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
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
