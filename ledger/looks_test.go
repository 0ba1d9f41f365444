package ledger

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/seqledger/seqledger/ledger/internal/decide"
	"github.com/seqledger/seqledger/ledger/machine"
)

// answeredFromState reports whether a write would be answered from the state as it is here.
func answeredFromState(t *testing.T, l *Ledger, w *machine.Write) bool {
	t.Helper()
	commands, err := machine.Commands(w)
	if err != nil {
		t.Fatal(err)
	}
	var receipts [1]*machine.Receipt
	found, err := l.findRetries(commands, receipts[:], new(decide.Buffer))
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
		if out, err := l.Write(t.Context(), testWrite(fmt.Sprint("client-", i), 1, 8)); err != nil ||
			out.Code != machine.Committed {
			t.Fatal(out, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return openTest(t, Options{Dir: dir})
}

// Where nobody repeats writes, a busy ledger stops looking for retries in the state file: the log answers those, with
// the same receipt, and the looks begin again.
func TestLooksInVainEnd(t *testing.T) {
	t.Parallel()
	l := openCold(t, 3)
	retry := testWrite("client-0", 1, 8)
	first, err := l.Write(t.Context(), retry)
	if err != nil || first.Code != machine.Replayed {
		t.Fatal(first, err)
	}
	l.counters.queuedBytes.Add(1) // others have the log busy
	fresh := testWrite("client-1", 2, 8)
	for range vainLooks - 1 {
		if answeredFromState(t, l, fresh) {
			t.Fatal("a new write is a retry")
		}
	}
	if !answeredFromState(t, l, retry) { // from here on they are counted anew
		t.Fatal("a retry is not looked for before looks were in vain")
	}
	for i := range vainLooks {
		if l.looks.inVain() {
			t.Fatalf("%d looks are in vain already", i)
		}
		if answeredFromState(t, l, fresh) {
			t.Fatal("a new write is a retry")
		}
	}
	if answeredFromState(t, l, retry) {
		t.Error("a busy ledger looks for a retry in the state file, in vain so often")
	}
	// What is in memory is looked at as before.
	if out, err := l.Write(t.Context(), fresh); err != nil || out.Code != machine.Committed {
		t.Fatal(out, err)
	}
	if !answeredFromState(t, l, fresh) {
		t.Error("a retry is not found in memory")
	}
	before := l.Stats().Entries
	again, err := l.Write(t.Context(), retry)
	if err != nil || again.Code != machine.Replayed || !reflect.DeepEqual(again.Receipt, first.Receipt) {
		t.Errorf("the log answers %+v, %v, the state %+v", again, err, first)
	}
	if entries := l.Stats().Entries - before; entries != 1 {
		t.Errorf("the answer took %d entries", entries)
	}
	if !answeredFromState(t, l, testWrite("client-2", 1, 8)) {
		t.Error("after a retry in the log no other is looked for")
	}
}

// A retry that would have the log to itself is looked for whatever looks before it have found, and so is one that the
// queue might refuse.
func TestRetriesOfAnIdleOrFullLedgerAreLookedFor(t *testing.T) {
	t.Parallel()
	l := openCold(t, 1)
	l.looks.vain.Store(vainLooks)
	retry := testWrite("client-0", 1, 8)
	for name, queued := range map[string]int64{"idle": 0, "half full": l.options.QueueBytes / 2} {
		l.counters.queuedBytes.Store(queued)
		if !answeredFromState(t, l, retry) {
			t.Errorf("%s: not looked for", name)
		}
		l.looks.vain.Store(vainLooks)
	}
	l.counters.queuedBytes.Store(1)
	if answeredFromState(t, l, retry) {
		t.Error("busy: looked for")
	}
	l.draining.Store(true)
	if !answeredFromState(t, l, retry) {
		t.Error("draining: not looked for")
	}
	l.draining.Store(false)
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
		"behind a write that hangs":      {1, 64 << 20, hungWrite, false},
		"room for the largest":           {32<<20 - maxSubmissionCost, 64 << 20, 0, true},
		"no room for the largest":        {32<<20 - maxSubmissionCost + 1, 64 << 20, 0, false},
		"the smallest queue has no such": {1, minQueueBytes, 0, false},
	} {
		if got := sharesLog(test.queued, test.limit, test.writing); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
