package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// DefaultDuration is the default duration of faults and kills.
const DefaultDuration = 10 * time.Second

// PayCommand is the command of Options.Program that runs [Pay] with the options that its flags
// name, and closes its stop when standard input ends. So a client also ends when its parent is
// gone.
const PayCommand = "demo-client"

// progressEvery is how often Options.Progress is called.
const progressEvery = 200 * time.Millisecond

// Options configure a run. Program is required.
type Options struct {
	// Program is the path of the seqledger executable, which must have the commands serve and
	// [PayCommand].
	Program string
	// Duration is the duration of faults and kills, at least 1s; 0 means DefaultDuration. A run
	// is extended until each kind of fault and kill has happened. Settling and the audit take
	// additional time.
	Duration time.Duration
	// Clients is how many clients each column has; 0 means 4. At most 32.
	Clients int
	// Seed decides which request meets which fault, when which process is killed, and the
	// amounts. Timing also depends on the machine.
	Seed uint64
	// Keep leaves the directory with all files; Report.Dir is its name.
	Keep bool
	// Progress is called now and then, in one goroutine, until Run returns; it may be nil.
	Progress func(Progress)
}

// Progress is the state of a run.
type Progress struct {
	Elapsed          time.Duration
	Protected, Plain Counts
}

// Report is the outcome of a run.
type Report struct {
	Seed uint64 `json:"seed,string"`
	// Seconds is how long the faults and kills lasted.
	Seconds float64 `json:"seconds"`
	// Protected has the clients with Writers and journals.
	Protected *Side `json:"protected"`
	// Plain has the clients that repeat unanswered requests as new writes.
	Plain *Side `json:"plainRetries"`
	// Dir holds all files; empty unless Options.Keep.
	Dir string `json:"dir,omitempty"`
}

// Validate fills in the defaults and checks the options.
func (o *Options) Validate() error {
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	if o.Clients == 0 {
		o.Clients = 4
	}
	switch {
	case o.Program == "":
		return errors.New("no program to run")
	case o.Duration < time.Second:
		return fmt.Errorf("the duration is %s, must be at least 1s", o.Duration)
	case o.Clients < 1 || o.Clients > 32:
		return fmt.Errorf("%d clients, must be 1 to 32", o.Clients)
	}
	return nil
}

// Run runs both columns side by side and audits them. When it returns, all processes have ended
// and, without Keep, all files are removed. An error means that the demo could not be carried
// out; the report says whether the ledger was correct. If ctx ends, the error is its cause.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "seqledger-demo-*")
	if err != nil {
		return nil, err
	}
	report := &Report{Seed: o.Seed, Seconds: o.Duration.Seconds(), Dir: dir}
	defer func() {
		if o.Keep {
			if err != nil {
				err = fmt.Errorf("%w (everything is kept in %s)", err, dir)
			}
			return
		}
		report.Dir = ""
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	protected, plain := newSide(&o, dir, "protected", false), newSide(&o, dir, "plain-retries", true)
	group, running := errgroup.WithContext(ctx)
	// Both end with running at the latest, and kill their processes before.
	// Wait, below, waits for them.
	group.Go(func() (err error) { report.Protected, err = protected.run(running); return err })
	group.Go(func() (err error) { report.Plain, err = plain.run(running); return err })
	watched := make(chan struct{})
	stop := make(chan struct{})
	// Ended by stop, waited for on watched.
	go func() {
		defer close(watched)
		o.watch(stop, protected.tally, plain.tally)
	}()
	err = group.Wait()
	close(stop)
	<-watched
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return report, err
}

// watch reports progress until stop is closed.
func (o *Options) watch(stop <-chan struct{}, protected, plain *tally) {
	if o.Progress == nil {
		return
	}
	began := time.Now()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			o.Progress(Progress{time.Since(began), protected.snapshot(), plain.snapshot()})
		case <-stop:
			return
		}
	}
}
