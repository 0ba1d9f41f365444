package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// DefaultTimeout is the default of Options.Timeout.
const DefaultTimeout = 2 * time.Minute

// longestCase bounds the duration of a case, in timeouts.
const longestCase = 5

// Options configure a run. Program and Command are required.
type Options struct {
	// Program is the path of the seqledger executable.
	Program string
	// Command starts the client: the program and its arguments.
	Command []string
	// Only selects cases by their names; nil means all.
	Only *regexp.Regexp
	// Seed determines the random faults and kills. Timing also depends on the machine.
	Seed uint64
	// Timeout bounds how long a case may be silent: no command to the client, no output from it, and no message sent. A
	// case may take five times as long in total. 0 means DefaultTimeout.
	Timeout time.Duration
	// Parallel is the number of concurrent cases, each with its own server, proxy and client; 0 means 1.
	Parallel int
	// Short reduces the repetitions of the cases that kill.
	Short bool
	// Keep keeps the directory with all files; Report.Dir is its name.
	Keep bool
	// Progress is called with each result, from one goroutine; it may be nil.
	Progress func(Result)
}

// Case describes a case.
type Case struct {
	Name string `json:"name"`
	// Duty is what the client must do.
	Duty string `json:"duty"`
}

// Result is the outcome of a case.
type Result struct {
	Case

	// Problem is what the client did wrong; it is empty if nothing.
	Problem string `json:"problem,omitempty"`
	// Trail holds the last events of a failed case, oldest first: what the client was told and what it reported, and
	// its messages with what the proxy did to them. Each line begins with the seconds since the case began.
	Trail []string `json:"trail,omitempty"`
	// Seconds is how long the case took.
	Seconds float64 `json:"seconds"`
}

// Report is the outcome of a run.
type Report struct {
	Seed    uint64   `json:"seed,string"`
	Results []Result `json:"results"`
	// Dir holds the files of all cases; it is empty unless Options.Keep is set.
	Dir string `json:"dir,omitempty"`
}

// Failed returns the number of cases that the client failed.
func (r *Report) Failed() (n int) {
	for _, result := range r.Results {
		if result.Problem != "" {
			n++
		}
	}
	return n
}

// Cases lists the cases.
func Cases() (all []Case) {
	for _, c := range cases {
		all = append(all, c.Case)
	}
	return all
}

// Run tests a client against the cases; the results are in the order of the cases. When it returns, all processes have
// ended and, without Keep, all files are removed. An error means that the cases could not be run. If ctx ends, the
// error is its cause.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	dir, err := os.MkdirTemp("", "seqledger-conformance-*")
	if err != nil {
		return nil, err
	}
	report := &Report{Seed: o.Seed, Dir: dir}
	defer func() {
		if o.Keep {
			return
		}
		report.Dir = ""
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	err = runAll(ctx, &o, dir, func(result Result) {
		report.Results = append(report.Results, result)
		if o.Progress != nil {
			o.Progress(result)
		}
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}

// ran is the result of a case.
type ran struct {
	seconds float64
	trail   []string
	err     error
}

// runAll runs the selected cases. It calls tell with each result as soon as those before it are known, so that a table
// in the order of the cases can be compared with another one. When it returns, all cases have ended.
func runAll(ctx context.Context, o *Options, dir string, tell func(Result)) error {
	var selected []testCase
	for _, c := range cases {
		if o.Only == nil || o.Only.MatchString(c.Name) {
			selected = append(selected, c)
		}
	}
	all, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	turns := make(chan struct{}, max(1, o.Parallel))
	results := make([]chan ran, len(selected))
	for i, c := range selected {
		results[i] = make(chan ran, 1)
		// Ends with its case, or without it when everything is canceled; then results[i] is not read.
		running.Go(func() {
			select {
			case turns <- struct{}{}:
			case <-all.Done():
				return
			}
			began := time.Now()
			seen := newTrail()
			err := runCase(all, o, c, filepath.Join(dir, c.Name), seen)
			results[i] <- ran{time.Since(began).Seconds(), seen.last(), err}
			<-turns
		})
	}
	for i, c := range selected {
		var r ran
		select {
		case r = <-results[i]:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, broken := errors.AsType[*setupError](r.err); broken {
			return fmt.Errorf("case %s: %w", c.Name, r.err)
		}
		result := Result{Case: c.Case, Seconds: r.seconds}
		if r.err != nil {
			result.Problem, result.Trail = r.err.Error(), r.trail
		}
		tell(result)
	}
	return nil
}

// setupError means that a case could not begin, which is not the client's fault.
type setupError struct{ error }

func (e *setupError) Unwrap() error { return e.error }

// limit returns a context that ends when seen has recorded nothing for a timeout, and in any case after some timeouts.
// A limit on the total alone would blame the client for a busy machine, on which starting a client may take ten
// seconds.
func limit(ctx context.Context, timeout time.Duration, seen *trail) (context.Context, context.CancelFunc) {
	longest := longestCase * timeout
	whole, cancelWhole := context.WithTimeoutCause(ctx, longest, fmt.Errorf("after %s", longest))
	limited, cancel := context.WithCancelCause(whole)
	silence := time.AfterFunc(timeout, func() { cancel(fmt.Errorf("nothing has happened for %s", timeout)) })
	seen.noted = func() { silence.Reset(timeout) }
	return limited, func() {
		silence.Stop()
		cancel(nil)
		cancelWhole()
	}
}

// runCase runs a case in its own directory, and records events in seen.
func runCase(ctx context.Context, o *Options, c testCase, dir string, seen *trail) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return &setupError{err}
	}
	limited, cancel := limit(ctx, o.Timeout, seen)
	defer cancel()
	b := &bed{options: o, dir: dir, ctx: limited, books: newBooks(), trail: seen}
	b.books.trail = seen
	// When ctx ends, processes are killed; that must not look like an exit of the client.
	defer b.close()
	err := attempt(func() {
		b.start(c.config)
		c.run(b)
	})
	if _, broken := errors.AsType[*setupError](err); broken {
		return err
	}
	// A problem with the copies explains what happened to them.
	if wrong := b.proxy.copies.wrong(); wrong != nil {
		return wrong
	}
	return err
}
