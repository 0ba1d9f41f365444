package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// books record what the application knows: what it wants written, and what the client reported. They outlive the
// client's processes.
type books struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	writes  map[string]*entry
	order   []string // ids in the order of first submission
	// Events of the current process.
	opened, ended *event
	resumed       int
	// recovered holds the writes whose outcomes the process has announced but not yet reported.
	recovered map[string]bool
	// noted holds the commits that the process has reported, until they are acknowledged.
	noted []string
	// problem is the first thing that the client reported and must not report.
	problem error
	partial []byte // incomplete line
	trail   *trail // trail of the case; nil records nothing
}

// entry is a write that the application wants.
type entry struct {
	command command
	outcome event // empty until there is one
}

func newBooks() *books {
	return &books{changed: make(chan struct{}), writes: make(map[string]*entry)}
}

// begin clears what an earlier process of the client reported about itself.
func (b *books) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened, b.ended, b.resumed, b.recovered, b.noted, b.partial = nil, nil, 0, nil, nil, nil
}

// intend records a write that is about to be submitted.
func (b *books) intend(c command) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.writes[c.ID] == nil {
		b.writes[c.ID] = new(entry)
		b.order = append(b.order, c.ID)
	}
	b.writes[c.ID].command, b.writes[c.ID].outcome = c, event{}
}

// Write receives the client's standard output.
func (b *books) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.partial = append(b.partial, data...)
	for {
		line, rest, whole := bytes.Cut(b.partial, []byte("\n"))
		if !whole {
			break
		}
		b.partial = rest
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		b.trail.note("the client says %s", line)
		var e event
		err := json.Unmarshal(line, &e)
		if err == nil {
			err = b.note(&e)
		}
		if err != nil && b.problem == nil {
			b.problem = fmt.Errorf("the client said %q: %w", line, err)
		}
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return len(data), nil
}

func (b *books) note(e *event) error {
	switch e.Event {
	case "opened":
		b.opened, b.recovered = e, make(map[string]bool)
		for _, id := range e.Recovered {
			if b.writes[id] == nil {
				return fmt.Errorf("%s was never submitted", id)
			}
			b.recovered[id] = true
		}
		return nil
	case "outcome":
		return b.noteOutcome(e)
	case "resumed":
		b.resumed++
		return nil
	case "ended":
		b.ended = e
		return nil
	}
	return errors.New("no such event")
}

func (b *books) noteOutcome(e *event) error {
	w := b.writes[e.ID]
	if w == nil {
		return errors.New("it was never submitted")
	}
	if !slices.Contains([]string{committed, notExecuted, unknown, known}, e.Outcome) {
		return errors.New("no such outcome")
	}
	before := w.outcome
	delete(b.recovered, e.ID)
	if before.Outcome == committed && e.Outcome == unknown {
		return nil // a process that was killed knew it; this process ended before it did
	}
	if before.Outcome == committed && e.Outcome != committed || before.Outcome == notExecuted {
		return fmt.Errorf("the outcome was %s before", before.Outcome)
	}
	if before.TxID != "" && e.TxID != "" && before.TxID != e.TxID {
		return fmt.Errorf("the transaction was %s before", before.TxID)
	}
	w.outcome = *e
	if e.Outcome == committed {
		b.noted = append(b.noted, e.ID)
	}
	return nil
}

// await waits until a condition holds. It fails if the client reports something that it must not, if the process ends,
// or if ctx ends.
func (b *books) await(ctx context.Context, process <-chan struct{}, what string, holds func() bool) error {
	over := false
	for {
		b.mu.Lock()
		changed, done, err := b.changed, holds(), b.problem
		b.mu.Unlock()
		switch {
		case err != nil:
			return err
		case done:
			return nil
		case over:
			return fmt.Errorf("the client has ended by itself before there is %s", what)
		case ctx.Err() != nil:
			return fmt.Errorf("no %s: %w", what, context.Cause(ctx))
		}
		select {
		case <-changed:
		case <-process:
			over = true // check once more, for its last output
		case <-ctx.Done():
		}
	}
}

// missing returns the ids without an outcome, in order. The caller holds mu, or runs inside view.
func (b *books) missing() (ids []string) {
	for _, id := range b.order {
		if b.writes[id].outcome.Outcome == "" || b.recovered[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// view calls f while nothing changes.
func (b *books) view(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}
