package writer_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/writer"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

var seedFlag = flag.Uint64("client.seed", 0, "seed of the property test; 0 draws some")

// dice is a random source for concurrent use.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// TestExactlyOnceUnderFaults throws every fault at several Writers and audits
// the ledger afterwards: what was acknowledged is there once and in order, what
// was reported as not executed is not there and cannot come any more, although
// copies of it were kept back and run at the worst moment.
func TestExactlyOnceUnderFaults(t *testing.T) {
	t.Parallel()
	withSeeds(t, underFaults)
}

// withSeeds runs a test with some seeds, of which the first are drawn.
func withSeeds(t *testing.T, test func(*testing.T, *dice)) {
	t.Helper()
	seeds := []uint64{rand.Uint64(), rand.Uint64(), 1, 2, 3, 4}
	if testing.Short() {
		seeds = seeds[:2]
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			defer func() {
				if t.Failed() {
					t.Logf("repeat with: go test ./client/writer -run %s -client.seed=%d", t.Name(), seed)
				}
			}()
			test(t, &dice{rng: rand.New(rand.NewPCG(seed, 7))})
		})
	}
}

// faults draws what happens to each write. Copies that are under way land, and conditions change, at any moment between
// two decisions.
func (d *dice) faults(s *fakeServer) func(*seqledgerv1.WriteRequest) fault {
	return func(*seqledgerv1.WriteRequest) fault {
		if d.n(4) == 0 {
			s.releaseGhost(d.n)
		}
		if d.n(6) == 0 {
			s.ledger.toggle(fmt.Sprint("contended-", d.n(2)))
		}
		if d.n(12) == 0 {
			return fault(1 + d.n(int(faultQueueFull)))
		}
		return faultNone
	}
}

// outcome is what an application was told about one write.
type outcome struct {
	receipt *seqledgerv1.Receipt
	err     error
}

func underFaults(t *testing.T, d *dice) {
	s, c := start(t)
	s.ledger.setWindow(8)
	s.set(func(s *fakeServer) {
		s.onWrite = d.faults(s)
		s.afterOpen = func(*seqledgerv1.OpenSessionRequest) error {
			if d.n(4) == 0 {
				return connect.NewError(connect.CodeUnavailable, errors.New("answer lost"))
			}
			return nil
		}
	})
	const writers, writes = 3, 150
	told := make([]map[string]outcome, writers)
	var group sync.WaitGroup
	for i := range writers {
		w := newWriter(t, c, fmt.Sprint("w", i))
		told[i] = make(map[string]outcome)
		// Ends after its writes; the test waits for it.
		group.Go(func() { application(t, w, d, writes, told[i]) })
	}
	group.Wait()
	// Every copy that is still under way arrives now: none may do anything.
	for s.releaseGhost(d.n) {
	}
	for i := range writers {
		audit(t, s.ledger.history(), streamName(org, fmt.Sprint("w", i)), told[i])
	}
}

// application submits in bursts, some of it with conditions that fail, resumes
// after refusals and notes what it was told.
func application(t *testing.T, w *writer.Writer, d *dice, writes int, told map[string]outcome) {
	for n := 0; n < writes; {
		burst := make(map[string]*writer.Pending)
		for range 1 + d.n(12) {
			id := fmt.Sprint("write-", n)
			n++
			operations := []*seqledgerv1.Operation{payload(id)}
			if d.n(5) == 0 {
				operations = append(operations, create(fmt.Sprint("contended-", d.n(2))))
			}
			p, err := w.Submit(t.Context(), operations...)
			if err != nil {
				told[id] = outcome{err: err}
				continue
			}
			burst[id] = p
		}
		for id, p := range burst {
			receipt, err := p.Wait(t.Context())
			told[id] = outcome{receipt, err}
		}
		if err := w.Resume(t.Context()); err != nil {
			t.Errorf("a Writer must survive every fault of this test, but ended: %v", err)
			return
		}
	}
}

// audit compares what an application was told with what the ledger holds.
func audit(t *testing.T, history []committed, stream string, told map[string]outcome) {
	t.Helper()
	found := make(map[string]uint64)
	var last uint64
	for _, commit := range history {
		if commit.stream != stream {
			continue
		}
		if last++; commit.sequence != last {
			t.Errorf("%s: sequence %d committed where %d was due", stream, commit.sequence, last)
		}
		id := string(commit.operations[0].GetAppend().GetPayload())
		if before, twice := found[id]; twice {
			t.Errorf("%s: %s committed as %d and again as %d", stream, id, before, commit.sequence)
		}
		found[id] = commit.sequence
	}
	acknowledged := 0
	for id, o := range told {
		sequence, there := found[id]
		switch {
		case o.err == nil:
			acknowledged++
			if sequence != o.receipt.GetSequence() {
				t.Errorf("%s: %s acknowledged as %d, found as %d", stream, id, o.receipt.GetSequence(), sequence)
			}
			if writer.ReceiptGone(o.receipt) {
				t.Errorf("%s: receipt of %s is gone although the window never shrank", stream, id)
			}
		case !errors.Is(o.err, failure.ErrNotExecuted):
			t.Errorf("%s: %s must be settled, but: %v", stream, id, o.err)
		case there:
			t.Errorf("%s: %s reported as not executed (%v), found as %d", stream, id, o.err, sequence)
		}
	}
	if acknowledged != len(found) {
		t.Errorf("%s: %d writes acknowledged, %d committed", stream, acknowledged, len(found))
	}
	if acknowledged == 0 || acknowledged == len(told) {
		t.Errorf("%s: %d of %d writes committed: the test must see commits and refusals", stream, acknowledged,
			len(told))
	}
}
