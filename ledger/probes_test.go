package ledger

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// answeredFromState reports whether a write would be answered from the state as it is here.
func answeredFromState(t *testing.T, l *Ledger, w *machine.Write) bool {
	t.Helper()
	commands := must.Get(machine.Commands(w))(t)
	var receipts [1]*machine.Receipt
	found, err := l.findRetries(commands, receipts[:], new(engine.Buffer))
	if err != nil || found != (receipts[0] != nil) {
		t.Fatal(found, receipts[0], err)
	}
	return found
}

// openCold opens a ledger with a committed write of each client, none of whose records is in memory.
func openCold(t *testing.T, clients int) *Ledger {
	t.Helper()
	dir := t.TempDir()
	l := openTest(t, Options{Dir: dir})
	for i := range clients {
		must.Equal(t, must.Get(l.Write(t.Context(), testWrite(fmt.Sprint("client-", i), 1, 8)))(t).Code,
			machine.Committed)
	}
	must.Do(t, l.Close())
	return openTest(t, Options{Dir: dir})
}

// Without retries, a busy ledger stops probing the state. The log then answers a retry with the same receipt, and
// probing resumes.
func TestProbingStopsAfterMisses(t *testing.T) {
	t.Parallel()
	l := openCold(t, 3)
	retry := testWrite("client-0", 1, 8)
	first, err := l.Write(t.Context(), retry)
	if err != nil || first.Code != machine.Replayed {
		t.Fatal(first, err)
	}
	l.counters.queuedBytes.Store(1) // others have the log busy
	fresh := testWrite("client-1", 2, 8)
	for range maxMisses - 1 {
		if answeredFromState(t, l, fresh) {
			t.Fatal("a new write is a retry")
		}
	}
	if !answeredFromState(t, l, retry) { // from here on they are counted anew
		t.Fatal("the state is not probed before maxMisses misses")
	}
	for i := range maxMisses {
		if l.probes.exhausted() {
			t.Fatalf("probing stops after %d misses", i)
		}
		if answeredFromState(t, l, fresh) {
			t.Fatal("a new write is a retry")
		}
	}
	if answeredFromState(t, l, retry) {
		t.Error("a busy ledger probes the state after maxMisses misses")
	}
	before := l.Stats().Entries
	again, err := l.Write(t.Context(), retry)
	if err != nil || again.Code != machine.Replayed || !reflect.DeepEqual(again.Receipt, first.Receipt) {
		t.Errorf("the log answers %+v, %v, the state %+v", again, err, first)
	}
	check.Equal(t, l.Stats().Entries-before, 1, "the answer took %d entries")
	if !answeredFromState(t, l, testWrite("client-2", 1, 8)) {
		t.Error("after a retry in the log the state is not probed")
	}
}

// A retry that would have the log to itself, or that the queue might refuse, is probed for whatever earlier probes have
// found.
func TestIdleOrFullLedgerProbes(t *testing.T) {
	t.Parallel()
	l := openCold(t, 1)
	l.probes.misses.Store(maxMisses)
	retry := testWrite("client-0", 1, 8)
	for name, queued := range map[string]int64{"idle": 0, "half full": l.options.QueueBytes / 2} {
		l.counters.queuedBytes.Store(queued)
		if !answeredFromState(t, l, retry) {
			t.Errorf("%s: not probed for", name)
		}
		l.probes.misses.Store(maxMisses)
	}
	l.counters.queuedBytes.Store(1)
	if answeredFromState(t, l, retry) {
		t.Error("busy: probed for")
	}
	for name, change := range map[string]func(on bool){
		"draining":              l.draining.Store,
		"the state file behind": l.lacksRoom.Store,
	} {
		change(true)
		if !answeredFromState(t, l, retry) {
			t.Errorf("%s: not probed for", name)
		}
		change(false)
		l.probes.misses.Store(maxMisses)
	}
	l.counters.queuedBytes.Store(0)
}

func TestSharesLog(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		queued, limit int64
		writing       time.Duration
		want          bool
	}{
		"alone":                          {0, 64 << 20, 0, false},
		"beside one":                     {1, 64 << 20, hungWrite - 1, true},
		"after a write that hangs":       {1, 64 << 20, hungWrite, false},
		"room for the largest":           {32<<20 - maxSubmissionCost, 64 << 20, 0, true},
		"no room for the largest":        {32<<20 - maxSubmissionCost + 1, 64 << 20, 0, false},
		"the smallest queue has no such": {1, minQueueBytes, 0, false},
	} {
		check.Equal(t, sharesLog(test.queued, test.limit, test.writing), test.want, "%s: got %t", name)
	}
}
