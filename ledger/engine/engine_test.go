package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// An entry takes commands up to its bounds, the first one in any case, and
// nothing overtakes a command that did not fit.
func TestEntryBounds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		limit int
		sizes []int
		work  []int // none: 1 each
		takes int
	}{
		{"as many as allowed", 2, []int{1, 1, 1}, nil, 2},
		{"a first one of any size", 9, []int{MaxEntryBytes + 1, 1}, nil, 1},
		{"up to the last byte", 9, []int{MaxEntryBytes - 1, 1, 1}, nil, 2},
		{"no small one overtakes", 9, []int{MaxEntryBytes - 1, 2, 1}, nil, 1},
		{"none", 0, []int{1}, nil, 0},
		{"up to the last unit of work", 9, []int{1, 1, 1}, []int{1, MaxEntryWork - 1, 1}, 2},
		{"a first one of any work", 9, []int{1, 1}, []int{MaxEntryWork + 1, 1}, 1},
	} {
		entry, taken, bytes := NewEntry(test.limit), 0, 0
		for _, size := range test.sizes {
			work := 1
			if len(test.work) > 0 {
				work = test.work[taken]
			}
			if entry.Take(size, work) {
				taken++
				bytes += size
			}
		}
		if taken != test.takes || entry.Commands != taken || entry.Bytes != bytes || !entry.Full() &&
			taken < len(test.sizes) {
			t.Errorf("%s: took %d, %+v, want %d", test.name, taken, entry, test.takes)
		}
	}
}

// A write costs one unit for each operation, and more for those that cost the applier more.
func TestWork(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		operation machine.Operation
		want      int
	}{
		{machine.Operation{Kind: machine.OpAppend}, 1},
		{machine.Operation{Kind: machine.OpSetEntity, Key: []byte("k"), ExpiresAt: 1}, 2},
		{machine.Operation{Condition: machine.Condition{Kind: machine.ConditionMustExist}}, 1},
		{machine.Operation{Condition: machine.Condition{Kind: machine.ConditionValueEquals}}, 8},
		{machine.Operation{
			Kind: machine.OpDeleteEntity, Key: []byte("k"),
			Condition: machine.Condition{Kind: machine.ConditionValueEquals},
		}, 8},
		{machine.Operation{ExpiresAt: 1, Condition: machine.Condition{Kind: machine.ConditionValueEquals}}, 9},
	} {
		if got := Work([]machine.Operation{test.operation, {Kind: machine.OpAppend}}); got != test.want+1 {
			t.Errorf("%+v costs %d, want %d", test.operation, got-1, test.want)
		}
		if test.operation.Kind == 0 {
			continue // no valid write
		}
		w := &machine.Write{
			Scope: machine.Scope{Organization: "acme"}, ClientID: "c", Actor: "a", Sequence: 1,
			Operations: []machine.Operation{test.operation},
		}
		if c, _, err := w.Encode(nil); err != nil || CommandWork(&c) != test.want {
			t.Errorf("%+v encoded costs %d, want %d (%v)", test.operation, CommandWork(&c), test.want, err)
		}
	}
}

// A term begins with the later of wall clock and ledger time. A wall clock that
// cannot be right is refused, one that is hard to believe must be accepted, and
// one that is behind is ignored.
func TestTermBase(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	before := func(d time.Duration) int64 { return at.Add(-d).UnixNano() }
	for _, test := range []struct {
		name    string
		last    int64
		longest time.Duration
		wall    time.Time
		accept  bool
		want    int64
		ok      bool
	}{
		{"a new ledger", 0, 0, at, false, at.UnixNano(), true},
		{"a clock behind", at.UnixNano() + 1, 0, at, false, at.UnixNano() + 1, true},
		{"a clock that says nothing", 7, 0, at.AddDate(-400, 0, 0), false, 7, true},
		{"a clock beyond the end of times", 7, 0, at.AddDate(175, 0, 0), true, 0, false},
		{"thirty days", before(30 * day), 0, at, false, at.UnixNano(), true},
		{"thirty days and a bit", before(30*day + 1), 0, at, false, 0, false},
		{"the same, accepted", before(30*day + 1), 0, at, true, at.UnixNano(), true},
		{"no longer than the longest pause", before(90 * day), 90 * day, at, false, at.UnixNano(), true},
		{"longer than the longest pause", before(90*day + 1), 90 * day, at, false, 0, false},
	} {
		got, err := TermBase(test.last, test.longest, test.wall, test.accept)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("%s: %d, %v, want %d", test.name, got, err, test.want)
		}
	}
}

// The clock of a term is the median of the largest group that agrees, if that is a majority of all voters.
func TestAgreedClock(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, test := range []struct {
		name   string
		clocks []time.Duration
		voters int
		want   time.Duration
		ok     bool
	}{
		{"none", nil, 1, 0, false},
		{"a sole voter", []time.Duration{0}, 1, 0, true},
		{"two that agree", []time.Duration{0, 10 * s}, 2, 0, true},
		{"two that do not", []time.Duration{0, 10*s + 1}, 2, 0, false},
		{"one of three", []time.Duration{0}, 3, 0, false},
		{"two of three, and one is silent", []time.Duration{7 * s, 0}, 3, 0, true},
		{"three of three", []time.Duration{0, 9 * s, 4 * s}, 3, 4 * s, true},
		{"one of three is years ahead", []time.Duration{1e17, 0, 4 * s}, 3, 0, true},
		{"the first of three is years ahead", []time.Duration{0, -1e17, 4*s - 1e17}, 3, -1e17, true},
		{"three that are apart", []time.Duration{0, 20 * s, 40 * s}, 3, 0, false},
		{"of two groups the earlier", []time.Duration{0, 8 * s, 16 * s}, 3, 0, true},
		{"of two groups the larger", []time.Duration{0, 8 * s, 15 * s, 16 * s, 17 * s}, 5, 15 * s, true},
		{"half of four", []time.Duration{0, 1, 1e17, 1e17}, 4, 0, false},
	} {
		if got, ok := AgreedClock(test.clocks, test.voters); got != test.want || ok != test.ok {
			t.Errorf("%s: %v, %v, want %v, %v", test.name, got, ok, test.want, test.ok)
		}
	}
}

type mapReceipts map[ReceiptName]*machine.Receipt

func (m mapReceipts) Get(name ReceiptName) *machine.Receipt    { return m[name] }
func (m mapReceipts) Put(name ReceiptName, r *machine.Receipt) { m[name] = r }

// A retry is answered with the first receipt, from the blocks and then from the
// cache; everything else is left to the log, whatever the cache holds.
func TestRetry(t *testing.T) {
	t.Parallel()
	mem := machine.NewMemory()
	m := must.Get(machine.Open(mem))(t)
	write := machine.Write{
		Scope: machine.Scope{Organization: "acme"}, ClientID: "c", Actor: "a", Sequence: 1,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("x")}},
	}
	entry := machine.AppendEntry(nil, 1, machine.AppendCreate(nil, 1, 1, machine.DefaultConfig()),
		machine.AppendWrite(nil, &write))
	must.Get(m.Apply(mem, entry))(t)
	receipts := mapReceipts{}
	retry := func(change func(w *machine.Write)) *machine.Receipt {
		w := write
		change(&w)
		c, _, err := w.Encode(nil)
		must.Do(t, err)
		r := must.Get(Retry(m.View(mem), &c, receipts, new(Buffer)))(t)
		return r
	}
	// The cache is asked for retries alone, and never decides what is one.
	receipts[ReceiptName{CreatedIndex: 2, Sequence: 2}] = &machine.Receipt{Sequence: 2}
	if r := retry(func(w *machine.Write) { w.Sequence = 2 }); r != nil {
		t.Errorf("a new write is answered from the cache with %+v", r)
	}
	clear(receipts)
	for _, what := range []string{"blocks", "cache"} {
		if r := retry(func(*machine.Write) {}); r == nil || r.Index != 2 || !r.Replayed || len(receipts) != 1 {
			t.Errorf("from the %s: %+v with %d in the cache", what, r, len(receipts))
		}
	}
	for name, change := range map[string]func(w *machine.Write){
		"another payload":  func(w *machine.Write) { w.Operations = []machine.Operation{{Kind: machine.OpAppend}} },
		"another sequence": func(w *machine.Write) { w.Sequence = 2 },
		"another session":  func(w *machine.Write) { w.Session = 1 },
		"another client":   func(w *machine.Write) { w.ClientID = "d" },
	} {
		if r := retry(change); r != nil {
			t.Errorf("%s: answered with %+v, the log must decide", name, r)
		}
	}
}

// The passes between the commands of an entry stay within bounds, whatever the
// configuration is, and one command always fits.
func TestEntryCommands(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		interval, limit uint64
		want            int
	}{
		{1_000, 2_000, 1_000}, {1, 1, 8}, {1, 100_000, 1}, {10, 2_000, 10}, {1_000_000, 100_000, MaxEntryCommands},
	} {
		c := machine.Config{EvictionInterval: test.interval, EvictionLimit: test.limit}
		check.Equal(t, EntryCommands(c), test.want, "interval %d limit %d: %d commands", test.interval, test.limit)
	}
	for interval := uint64(1); interval <= 1_000_000; interval *= 10 {
		for limit := uint64(1); limit <= 100_000; limit *= 10 {
			n := EntryCommands(machine.Config{EvictionInterval: interval, EvictionLimit: limit})
			passes := (uint64(n) + interval - 1) / interval
			pass := min(limit*machine.BacklogFactor, machine.MaxPassWork)
			if n < 1 || n > MaxEntryCommands || passes > maxEntryPasses || passes > 1 &&
				passes*pass > maxEntryPassWork {
				t.Errorf("interval %d limit %d: %d commands have passes of %d units", interval, limit, n, passes*pass)
			}
		}
	}
}

// An operator must see both times to tell which clock is wrong.
func TestClockErrorTellsBothTimes(t *testing.T) {
	t.Parallel()
	last := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	_, err := TermBase(last.UnixNano(), 0, last.AddDate(0, 0, 45), false)
	found, ok := errors.AsType[*ClockError](err)
	if !ok || !found.Ledger.Equal(last) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{"2026-02-16", "45 days", "2026-01-02"} {
		check.Contains(t, err.Error(), want)
	}
}
