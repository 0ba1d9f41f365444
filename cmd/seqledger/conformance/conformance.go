package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// DefaultTimeout bounds one case.
const DefaultTimeout = 2 * time.Minute

// Options configure a run. Program and Command are required.
type Options struct {
	// Program is the path of the seqledger executable.
	Program string
	// Command starts the client: the program and its arguments.
	Command []string
	// Only selects cases by their names; nil means all.
	Only *regexp.Regexp
	// Seed decides the random faults and kills. Timing also depends on the machine.
	Seed uint64
	// Timeout bounds one case; 0 means DefaultTimeout.
	Timeout time.Duration
	// Short does fewer repeats of the cases that kill.
	Short bool
	// Keep leaves the directory with all files; Report.Dir is its name.
	Keep bool
	// Progress is called with each result, in one goroutine; it may be nil.
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

	// Problem is what the client did wrong; empty if it did nothing wrong.
	Problem string `json:"problem,omitempty"`
	// Seconds is how long the case took.
	Seconds float64 `json:"seconds"`
}

// Report is the outcome of a run.
type Report struct {
	Seed    uint64   `json:"seed,string"`
	Results []Result `json:"results"`
	// Dir holds the files of all cases; empty unless Options.Keep.
	Dir string `json:"dir,omitempty"`
}

// Failed returns how many cases the client falls short of.
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

// Run holds a client against the cases, one after the other. When it returns, all processes have
// ended and, without Keep, all files are removed. An error means that the cases could not be carried
// out. If ctx ends, the error is its cause.
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
	for _, c := range cases {
		if o.Only != nil && !o.Only.MatchString(c.Name) {
			continue
		}
		began := time.Now()
		err := runCase(ctx, &o, c, filepath.Join(dir, c.Name))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		result := Result{Case: c.Case, Seconds: time.Since(began).Seconds()}
		if _, broken := errors.AsType[*setupError](err); broken {
			return nil, fmt.Errorf("case %s: %w", c.Name, err)
		}
		if err != nil {
			result.Problem = err.Error()
		}
		report.Results = append(report.Results, result)
		if o.Progress != nil {
			o.Progress(result)
		}
	}
	return report, nil
}

// setupError says that a case could not begin, which is not the client's fault.
type setupError struct{ error }

// Unwrap returns what failed.
func (e *setupError) Unwrap() error { return e.error }

// runCase runs a case in a directory of its own.
func runCase(ctx context.Context, o *Options, c testCase, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return &setupError{err}
	}
	limited, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("after %s", o.Timeout))
	defer cancel()
	b := &bed{options: o, dir: dir, ctx: limited, books: newBooks()}
	// Processes are killed when ctx ends, which must not look like the client's own end.
	defer b.close()
	if err := b.start(c.flags...); err != nil {
		return &setupError{err}
	}
	return c.run(b)
}
