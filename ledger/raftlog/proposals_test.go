package raftlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
)

// With many proposers, each gets its own result, and Stored is called for each write with its size.
func TestResultsReachTheirProposers(t *testing.T) {
	t.Parallel()
	var stored atomic.Int64
	r := started(t, simdisk.New(), &recorder{}, func(o *Options) {
		o.Stored = func(bytes int, _ time.Duration) { stored.Add(int64(bytes)) }
	})
	var callers sync.WaitGroup
	for _, text := range numbered(300) {
		callers.Go(func() { // ends with its result; joined below
			result, err := r.ProposeIn(r.Role().Term, []byte(text)).Wait()
			if err != nil || result != "result of "+text {
				t.Errorf("%s: %v, %v", text, result, err)
			}
		})
	}
	callers.Wait()
	check.Equal(t, stored.Load(), int64(300*len("entry-00000")), "told of %d bytes")
}

// Close answers proposals made before it and refuses those made after it.
func TestClose(t *testing.T) {
	t.Parallel()
	r := started(t, simdisk.New(), &recorder{}, nil)
	var before []*Proposal
	for _, text := range numbered(50) {
		before = append(before, r.ProposeIn(r.Role().Term, []byte(text)))
	}
	must.Do(t, r.Close())
	must.Do(t, r.Close())
	for i, p := range before {
		must.Do(t, check.Err(p.Wait()), "proposal %d, made before", i)
	}
	_, err := r.ProposeIn(r.Role().Term, []byte("late")).Wait()
	for what, err := range map[string]error{
		"Propose": err, "Ready": r.Ready(t.Context()), "ReadBarrier": r.ReadBarrier(t.Context()),
		"Truncate": r.Truncate(r.Covered().Index),
	} {
		check.Is(t, err, ErrClosed, "%s after Close", what)
	}
}

// A failed sync under pipelined proposals stops the node for good.
func TestFailedSyncStopsTheLog(t *testing.T) {
	t.Parallel()
	for _, step := range []int{1, 2} { // the write, and the sync
		d, m := simdisk.New(), &recorder{}
		var failures atomic.Int64
		r := started(t, d, m, func(o *Options) { o.OnFailure = func(error) { failures.Add(1) } })
		write(t, r, "first")
		d.FailAt(step, errDisk)
		var doomed []*Proposal
		for range 100 {
			doomed = append(doomed, r.ProposeIn(r.Role().Term, []byte("doomed")))
		}
		for i, p := range doomed {
			_, err := p.Wait()
			unknown := errors.Is(err, ErrOutcomeUnknown)
			if !errors.Is(err, errDisk) || unknown == errors.Is(err, ErrNotLeader) || i == 0 && !unknown {
				t.Fatalf("step %d, proposal %d: %v", step, i, err)
			}
		}
		steps := d.Steps()
		_, err := r.ProposeIn(r.Role().Term, []byte("late")).Wait()
		for what, err := range map[string]error{
			"Propose": err, "Ready": r.Ready(t.Context()), "ReadBarrier": r.ReadBarrier(t.Context()),
			"Truncate": r.Truncate(r.Covered().Index), "Close": r.Close(),
		} {
			if !errors.Is(err, errDisk) {
				t.Errorf("step %d, %s: %v, want the failure", step, what, err)
			}
		}
		if failures.Load() != 1 || d.Steps() != steps || !slices.Equal(m.texts(), []string{"first"}) {
			t.Errorf("step %d: told of %d failures, %d changes of the disk behind it, applied %q",
				step, failures.Load(), d.Steps()-steps, m.texts())
		}
	}
}

// A failure ends every wait at once, even while the state machine hangs.
func TestFailEndsWaits(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	m := &recorder{onApply: func(string) { close(entered); <-release }}
	r := started(t, simdisk.New(), m, nil)
	waiting := []*Proposal{r.ProposeIn(r.Role().Term, []byte("stuck in Apply"))}
	<-entered
	for range 50 {
		waiting = append(waiting, r.ProposeIn(r.Role().Term, []byte("behind it")))
	}
	r.Fail(errDisk)
	for i, p := range waiting {
		if _, err := p.Wait(); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, errDisk) {
			t.Errorf("proposal %d: %v", i, err)
		}
	}
	close(release)
	check.Is(t, r.Close(), errDisk, "Close")
}

// A failed state machine receives no further command, and its return value is not used as a result.
func TestFailedMachineGetsNothingMore(t *testing.T) {
	t.Parallel()
	var h *Log
	m := &recorder{onApply: func(entry string) {
		if entry == "poison" {
			h.Fail(errDisk)
		}
	}}
	h = started(t, simdisk.New(), m, nil)
	write(t, h, "good")
	term := h.Role().Term
	for _, p := range []*Proposal{h.ProposeIn(term, []byte("poison")), h.ProposeIn(term, []byte("after"))} {
		if result, err := p.Wait(); result != nil || !errors.Is(err, errDisk) {
			t.Errorf("%v, %v", result, err)
		}
	}
	_ = h.Close()
	check.EqualSlices(t, m.texts(), []string{"good", "poison"}, "applied %q")
}

// An entry that cannot be proposed is refused and is never in the log.
func TestRefusals(t *testing.T) {
	t.Parallel()
	m := &recorder{}
	d := &stalling{Disk: simdisk.New()}
	r := started(t, d, m, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.Do(t, errors.Join(r.Ready(ctx), r.ReadBarrier(ctx))) // neither has to wait
	_, err := r.ProposeIn(r.Role().Term, make([]byte, MaxEntryBytes+1)).Wait()
	check.Is(t, err, ErrEntryTooLarge, "too large")
	check.Is(t, check.Err(r.ProposeIn(r.Role().Term, nil).Wait()), ErrNotLeader, "empty")
	release := d.stall("sync")
	largest := make([]byte, MaxEntryBytes)
	under := []*Proposal{r.ProposeIn(r.Role().Term, largest), r.ProposeIn(r.Role().Term, largest)}
	check.Is(t, check.Err(r.ProposeIn(r.Role().Term, largest).Wait()), ErrNotLeader,
		"while too much is uncommitted")
	r.Fail(errDisk)
	release()
	for _, p := range under {
		check.Is(t, check.Err(p.Wait()), ErrOutcomeUnknown, "two of the largest entries")
	}
}

// Any disk call fails with proposals in flight, and then the power is lost or the process ends. A restart finds every
// acknowledged entry, in order, and nothing that was never proposed.
func TestPowerLossKeepsTheAcknowledged(t *testing.T) {
	t.Parallel()
	seed := must.Seed(t)
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	met := map[string]int{}
	for round := range rounds {
		if !t.Run("", func(t *testing.T) { faultRound(t, rng, met) }) {
			t.Fatalf("round %d", round)
		}
	}
	for _, what := range []string{"fault", "unknown", "truncation", "acknowledged"} {
		if met[what] == 0 {
			t.Errorf("never met: %s", what)
		}
	}
}

func faultRound(t *testing.T, rng *rand.Rand, met map[string]int) {
	d, m := simdisk.New(), &recorder{}
	createOn(t, d, sole)
	var proposed, acknowledged []string
	for life := range 4 {
		r := startOn(t, d, m, nil)
		must.Do(t, r.Ready(t.Context()))
		d.FailAt(1+rng.IntN(120), errDisk)
		for burst := range 12 {
			var texts []string
			var inFlight []*Proposal
			for i := range 1 + rng.IntN(20) {
				text := fmt.Sprintf("%d.%d.%d.%s", life, burst, i, strings.Repeat("x", rng.IntN(300)))
				texts, inFlight = append(texts, text), append(inFlight, r.ProposeIn(r.Role().Term, []byte(text)))
			}
			proposed = append(proposed, texts...)
			for i, p := range inFlight {
				switch _, err := p.Wait(); {
				case err == nil:
					acknowledged = append(acknowledged, texts[i])
					met["acknowledged"]++
				case errors.Is(err, ErrOutcomeUnknown):
					met["unknown"]++
				}
			}
			if rng.IntN(4) == 0 && r.Err() == nil {
				at := r.Covered()
				m.checkpoint(at)
				if r.Truncate(at.Index) == nil {
					met["truncation"]++
				}
			}
		}
		if r.stop() != nil {
			met["fault"]++
		}
		if rng.IntN(2) == 0 {
			_ = r.Close()
		}
		if rng.IntN(3) == 0 {
			d.Kill()
		} else {
			d.PowerLoss(rng)
		}
		m = m.restarted()
	}
	r := startOn(t, d, m, nil)
	must.Do(t, r.Ready(t.Context()))
	found := m.texts()
	if !isSubsequence(acknowledged, found) {
		t.Errorf("%d were acknowledged, and not all of them are among the %d found, in order",
			len(acknowledged), len(found))
	}
	if !isSubsequence(found, proposed) {
		t.Errorf("the %d found are not among the %d proposed, in order", len(found), len(proposed))
	}
}

// isSubsequence reports whether part is a subsequence of whole.
func isSubsequence(part, whole []string) bool {
	for _, s := range whole {
		if len(part) > 0 && part[0] == s {
			part = part[1:]
		}
	}
	return len(part) == 0
}
