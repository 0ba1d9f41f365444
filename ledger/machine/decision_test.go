package machine

import (
	"math"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// prepared has the stream "c" at sequence 6 with a window of 4: sequences 3–6
// with the keys 3–6 and the payloads "p1"…"p6".
func prepared(t *testing.T) (f *fixture, receipts []Receipt) {
	f = newFixture(t, testConfig())
	receipts = make([]Receipt, 7)
	for i := byte(1); i <= 6; i++ {
		receipts[i] = f.commit(appendWrite("c", uint64(i), i, "p"+string('0'+i))).Receipt
	}
	return f, receipts
}

// Rules 1–3 are about the session alone and come before everything else.
func TestRules1To3Sessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	first := f.open("c", 1, 0, Committed).Session
	f.commit(inSession(appendWrite("c", 1, 1, "x"), first))
	current := f.open("c", 2, 0, Committed).Session
	f.commit(appendWrite("plain", 1, 1, "x"))

	for _, test := range []struct {
		name     string
		client   string
		session  uint64
		sequence uint64
		want     Code
	}{
		{"rule 1: no stream", "nobody", current, 1, SessionExpired},
		{"rule 1: session above the stream's", "c", current + 1, 2, SessionExpired},
		{"rule 1: the highest session", "c", math.MaxUint64, 2, SessionExpired},
		{"rule 1: a stream without a session", "plain", 1, 2, SessionExpired},
		{"rule 2: session below the stream's", "c", first, 2, SessionFenced},
		{"rule 2: below by one", "c", current - 1, 2, SessionFenced},
		{"rule 2 before rule 4: its own committed write", "c", first, 1, SessionFenced},
		{"rule 2 before rule 8", "c", first, 99, SessionFenced},
		{"rule 3: no session where there is one", "c", 0, 2, SessionRequired},
		{"rule 3 before rule 4", "c", 0, 1, SessionRequired},
		{"rule 3 before rule 7", "c", 0, math.MaxUint64, SessionRequired},
		{"no session and no stream is a new stream", "fresh", 0, 1, Committed},
		{"no session where there is none", "plain", 0, 2, Committed},
		{"the current session", "c", current, 2, Committed},
	} {
		out := f.refuse(inSession(appendWrite(test.client, test.sequence, 9, "y"), test.session), test.want)
		if test.client == "c" && out.Session != current {
			t.Errorf("%s: the outcome names session %d, want %d", test.name, out.Session, current)
		}
	}
}

// Rule 4 decides by key and hash; an empty key on either side leaves it to the
// hash.
func TestRule4ReceiptInWindow(t *testing.T) {
	t.Parallel()
	f, receipts := prepared(t)
	f.commit(appendWrite("c", 7, 0, "p7")) // without a key; the window is now 4–7
	for _, test := range []struct {
		name     string
		sequence uint64
		key      byte
		payload  string
		want     Code
	}{
		{"last, same key, same hash", 6, 6, "p6", Replayed},
		{"oldest in the window", 4, 4, "p4", Replayed},
		{"first that is out of the window", 3, 3, "p3", AlreadyCommitted},
		{"same key, other hash", 6, 6, "other", IdempotencyKeyReused},
		{"other key, same hash", 6, 99, "p6", SequenceReused},
		{"other key, other hash", 6, 99, "other", SequenceReused},
		{"another sequence's key, other hash", 6, 5, "other", SequenceReused},
		{"another sequence's key and hash", 6, 5, "p5", SequenceReused},
		{"key empty in the request, same hash", 6, 0, "p6", Replayed},
		{"key empty in the request, other hash", 6, 0, "other", SequenceReused},
		{"key empty in the receipt, same hash", 7, 99, "p7", Replayed},
		{"key empty in the receipt, other hash", 7, 99, "other", SequenceReused},
		{"key empty on both sides, same hash", 7, 0, "p7", Replayed},
		{"key empty on both sides, other hash", 7, 0, "other", SequenceReused},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := f.refuse(appendWrite("c", test.sequence, test.key, test.payload), test.want)
			if out.CommittedSequence != test.sequence || out.Last != 7 {
				t.Errorf("the outcome names sequence %d and last %d, want %d and 7", out.CommittedSequence, out.Last,
					test.sequence)
			}
			if test.want == Replayed {
				if !out.Receipt.Replayed || out.Receipt.Index == out.Index {
					t.Errorf("the receipt is not marked as the original one: %+v", out.Receipt)
				}
				if test.sequence < 7 {
					sameReceipt(t, test.name, out.Receipt, receipts[test.sequence])
				}
			} else if out.Receipt.Index != 0 {
				t.Errorf("a refusal hands out a receipt: %+v", out.Receipt)
			}
		})
	}
}

// The nil UUID is a key like any other: present and equal to itself alone.
func TestRule4NilUUIDIsAKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	w := appendWrite("c", 1, 0, "x")
	w.Key.Present = true
	f.commit(w)
	other := *appendWrite("c", 1, 0, "y")
	other.Key.Present = true
	f.refuse(&other, IdempotencyKeyReused)
	f.refuse(appendWrite("c", 1, 8, "x"), SequenceReused)
}

// Rule 5 does not look at key or payload: there is nothing left to compare.
func TestRule5ReceiptOutOfWindow(t *testing.T) {
	t.Parallel()
	f, _ := prepared(t)
	f.refuse(appendWrite("c", 2, 2, "p2"), AlreadyCommitted)
	f.refuse(appendWrite("c", 2, 2, "other"), AlreadyCommitted)
	f.refuse(appendWrite("c", 1, 0, "p1"), AlreadyCommitted)
	// Rule 5 comes before rule 6: key 6 is in the window, under sequence 6.
	f.refuse(appendWrite("c", 1, 6, "p6"), AlreadyCommitted)
}

// Rule 6 finds the key anywhere in the window, and nowhere else.
func TestRule6KeyUnderAnotherSequence(t *testing.T) {
	t.Parallel()
	f, receipts := prepared(t)
	for _, test := range []struct {
		name      string
		sequence  uint64
		key       byte
		payload   string
		want      Code
		committed uint64
	}{
		{"same hash at last+1", 7, 6, "p6", Replayed, 6},
		{"same hash, oldest in the window", 7, 3, "p3", Replayed, 3},
		{"other hash", 7, 6, "other", IdempotencyKeyReused, 6},
		{"other hash, oldest in the window", 7, 3, "other", IdempotencyKeyReused, 3},
		{"before rule 8: far ahead, same hash", 99, 5, "p5", Replayed, 5},
		{"before rule 8: far ahead, other hash", 99, 5, "other", IdempotencyKeyReused, 5},
		{"before rule 7: same hash", math.MaxUint64, 5, "p5", Replayed, 5},
		{"before rule 7: other hash", math.MaxUint64, 5, "other", IdempotencyKeyReused, 5},
		{"an empty key is never found", 9, 0, "p6", SequenceGap, 0},
		{"a key that left the window is new", 9, 2, "p2", SequenceGap, 0},
		{"same hash under another key is new", 9, 88, "p6", SequenceGap, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := f.refuse(appendWrite("c", test.sequence, test.key, test.payload), test.want)
			check.Equal(t, out.CommittedSequence, test.committed, "the outcome names sequence %d")
			if test.want == Replayed {
				sameReceipt(t, test.name, out.Receipt, receipts[test.committed])
			}
		})
	}
	// The documented end of the window: the write runs, once more.
	f.commit(appendWrite("c", 7, 2, "p2"))
}

// Keys are told apart in full, though the window keeps a short fingerprint of each.
func TestRule6KeysWithEqualMarks(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	keyFingerprint := f.m.head.fingerprint
	seen := map[uint32]Key{}
	var a, b Key
	for i := uint32(0); ; i++ { // a birthday: some 2^16 keys are enough for 31 bits
		k := Key{UUID: [16]byte{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)}, Present: true}
		if other, clash := seen[keyFingerprint(k)]; clash {
			a, b = other, k
			break
		}
		seen[keyFingerprint(k)] = k
	}
	first, second, third := appendWrite("c", 1, 0, "a"), appendWrite("c", 2, 0, "b"), appendWrite("c", 3, 0, "a")
	first.Key, second.Key, third.Key = a, b, a
	f.commit(first)
	f.commit(second) // not a replay of the first, nor its key reused
	check.Equal(t, f.refuse(third, Replayed).CommittedSequence, 1,
		"the key was found under sequence %d, want 1: behind a newer key with the same fingerprint")
}

// Rules 7 and 8 at their edges. The stream is put near the end of its numbers
// by hand, since no test can write that many.
func TestRules7And8ExhaustionAndGaps(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.refuse(appendWrite("new", 2, 0, "x"), SequenceGap)
	f.refuse(appendWrite("new", math.MaxUint64-1, 0, "x"), SequenceGap)
	f.refuse(appendWrite("new", math.MaxUint64, 0, "x"), SequenceExhausted) // 7 before 8
	f.commit(appendWrite("c", 1, 0, "x"))
	f.refuse(appendWrite("c", 3, 0, "x"), SequenceGap) // last+2
	f.commit(appendWrite("c", 2, 0, "x"))              // last+1

	key := append(appendScopeKey(nil, testScope), "c"...)
	record, _ := f.mem.Get(TableStreams, key)
	var s stream
	must.Do(t, s.decode(record))
	s.last, s.window = math.MaxUint64-3, window{}
	must.Do(t, f.mem.Put(TableStreams, key, s.append(nil)))
	f.refuse(appendWrite("c", math.MaxUint64-1, 0, "x"), SequenceGap)
	f.commit(appendWrite("c", math.MaxUint64-2, 0, "x"))
	f.refuse(appendWrite("c", math.MaxUint64, 0, "x"), SequenceExhausted)
	last := f.commit(appendWrite("c", math.MaxUint64-1, 7, "end")) // 2^64 − 2 is the last one there is
	check.Equal(t, last.Last, math.MaxUint64-1, "last is %d, want 2^64 - 2")
	f.refuse(appendWrite("c", math.MaxUint64, 0, "x"), SequenceExhausted)
	f.refuse(appendWrite("c", math.MaxUint64, 7, "end"), Replayed) // rule 6 before rule 7
	f.refuse(appendWrite("c", math.MaxUint64-1, 7, "end"), Replayed)
}

// A smaller window holds at once, for streams that have not been written since
// as well, and both for receipts (rules 4 and 5) and for keys (rule 6).
func TestWindowShrunkByUpdateConfig(t *testing.T) {
	t.Parallel()
	f, receipts := prepared(t)
	f.configure(ConfigUpdate{ReceiptWindow: new(uint64(2))})
	sameReceipt(t, "oldest that stays", f.refuse(appendWrite("c", 5, 5, "p5"), Replayed).Receipt, receipts[5])
	f.refuse(appendWrite("c", 4, 4, "p4"), AlreadyCommitted)
	f.refuse(appendWrite("c", 9, 5, "p5"), Replayed)
	f.refuse(appendWrite("c", 9, 4, "p4"), SequenceGap)
	if got, _ := f.view().Receipts(testScope, "c", 10); len(got) != 2 || got[0].Sequence != 6 || got[1].Sequence != 5 {
		t.Errorf("a window of 2 shows the receipts %+v, want those of 6 and 5", got)
	}
	for _, sequence := range []uint64{4, 5, 6, 7} {
		_, created, ok, err := f.view().InWindow(nil, appendWrite("c", sequence, 0, ""))
		if want := sequence == 5 || sequence == 6; err != nil || ok != want || created != receipts[1].Index {
			t.Errorf("whether sequence %d is in the window: %v, %v, want %v", sequence, ok, err, want)
		}
	}
	// In the same entry the window counts from the very next command.
	out := f.entry(
		AppendUpdateConfig(nil, &ConfigUpdate{ReceiptWindow: new(uint64(1))}, "system:test"),
		AppendWrite(nil, appendWrite("c", 5, 5, "p5")),
		AppendWrite(nil, appendWrite("c", 7, 4, "p4")), // key 4 is out: a new write
		AppendWrite(nil, appendWrite("c", 6, 6, "p6")),
	)
	for i, want := range []Code{Committed, AlreadyCommitted, Committed, AlreadyCommitted} {
		check.Equal(t, out[i].Code, want, "command %d gave %v", i)
	}
	// What a write has pushed out of the smaller window stays out of a larger one.
	f.configure(ConfigUpdate{ReceiptWindow: new(uint64(4))})
	f.refuse(appendWrite("c", 6, 6, "p6"), AlreadyCommitted)
	f.commit(appendWrite("c", 8, 8, "p8"))
	f.refuse(appendWrite("c", 7, 4, "p4"), Replayed)
}

// Two identical requests in flight at once are no special case: both are
// decided in log order, be it within one log entry.
func TestRetriesWithinOneEntry(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	first, second := AppendWrite(nil, appendWrite("c", 1, 1, "x")), AppendWrite(nil, appendWrite("c", 2, 2, "y"))
	clash := AppendWrite(nil, appendWrite("c", 2, 2, "z"))
	again := AppendWrite(nil, appendWrite("c", 3, 1, "x"))
	out := f.entry(first, first, second, clash, second, first, again)
	for i, want := range []Code{Committed, Replayed, Committed, IdempotencyKeyReused, Replayed, Replayed, Replayed} {
		check.Equal(t, out[i].Code, want, "command %d gave %v", i)
	}
	sameReceipt(t, "retry right behind its write", out[1].Receipt, out[0].Receipt)
	sameReceipt(t, "retry behind another write", out[4].Receipt, out[2].Receipt)
	sameReceipt(t, "the key under another sequence", out[6].Receipt, out[0].Receipt)
	sameReceipt(t, "retry in a later entry", f.refuse(appendWrite("c", 2, 2, "y"), Replayed).Receipt, out[2].Receipt)
	f.reopen()
	sameReceipt(t, "retry after a restart", f.refuse(appendWrite("c", 1, 1, "x"), Replayed).Receipt, out[0].Receipt)
}

// Rule 9 counts the streams of the organization: its vaults' too, and no other
// organization's.
func TestRule9TooManyStreams(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.MaxStreams = 2
	f := newFixture(t, config)
	in := func(scope Scope, client string, sequence uint64) *Write {
		w := appendWrite(client, sequence, 0, "x")
		w.Scope = scope
		return w
	}
	vault, other := Scope{"acme", "v"}, Scope{"other", ""}
	f.commit(in(testScope, "a", 1))
	f.commit(in(vault, "a", 1)) // the same client id, another stream
	f.refuse(in(testScope, "b", 1), TooManyStreams)
	f.refuse(in(vault, "b", 1), TooManyStreams)
	f.refuse(in(testScope, "b", 2), SequenceGap) // rule 8 before rule 9
	f.open("b", 1, 0, TooManyStreams)
	f.open("b", 1, 77, SessionExpired) // the expected session comes first
	f.commit(in(testScope, "a", 2))    // who has a stream writes on
	f.open("a", 1, 0, Committed)
	f.commit(in(other, "b", 1))

	// Rule 9 before rule 10.
	bad := operations("b", 1, 0, provided(remove("k"), Condition{Kind: ConditionMustExist}))
	f.refuse(bad, TooManyStreams)
	f.configure(ConfigUpdate{MaxStreams: new(uint64(3))})
	f.refuse(bad, KeyNotFound)
	f.commit(in(testScope, "b", 1))
	f.refuse(in(testScope, "c", 1), TooManyStreams)
	check.Equal(t, f.view().Streams(), 4, "the ledger counts %d streams")

	// An evicted stream makes room.
	f.now += config.ClientTTL + 1
	f.round()
	f.commit(in(testScope, "c", 1))
	check.Equal(t, f.view().Streams(), 1, "the ledger counts %d streams")
}

// Rule 11: what a committed write leaves behind, and what its receipt says.
func TestRule11Commit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.now += 5
	session := f.open("c", 1, 0, Committed).Session
	w := inSession(operations("c", 1, 3, set("k", "v"), relate("doc", "owner", "bob")), session)
	out := f.commit(w)
	hash, _ := HashOperations(nil, w.Operations)
	want := Receipt{
		LedgerID: testLedger, Sequence: 1, Session: session, Index: 3, BlockHeight: 1, Position: 0,
		CommittedAt: f.now, Actor: "client:test", RequestHash: hash, Key: testKey(3), Versions: []uint64{3, 3},
	}
	sameReceipt(t, "the commit", out.Receipt, want)
	if out.Receipt.Replayed || out.Index != 3 || out.CreatedIndex != 2 || out.Last != 1 {
		t.Errorf("the outcome is %+v", out)
	}
	s, _ := f.stream("c")
	check.Equal(t, s, StreamState{CreatedIndex: 2, Session: session, Last: 1, LastSeen: f.now}, "the stream is %+v")
	x, err := f.view().Transaction(NewTxID(testLedger, 3))
	if err != nil || x.ClientID != "c" || x.Sequence != 1 || x.Session != session || x.CreatedIndex != 2 ||
		x.Key != w.Key || x.RequestHash != hash || x.Actor != w.Actor || x.Scope != testScope ||
		len(x.Operations) != 2 {
		t.Errorf("the transaction is %+v, %v", x, err)
	}
}

// An organization and its vaults never share a sequence, nor do client ids.
func TestScopesAreIndependent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	for _, scope := range []Scope{{"a", ""}, {"a", "b"}, {"ab", ""}, {"a", "bc"}, {"ab", "c"}} {
		for _, client := range []string{"c", "bc"} {
			w := appendWrite(client, 1, 1, "x")
			w.Scope = scope
			if out := f.commit(w); out.Receipt.Sequence != 1 || out.Last != 1 {
				t.Errorf("%s/%s does not begin at 1: %+v", scope, client, out)
			}
		}
	}
}
