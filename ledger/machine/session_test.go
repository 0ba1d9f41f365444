package machine

import (
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The rules of OpenSession, in their order.
func TestOpenSessionRules(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	first := f.open("c", 1, 0, Committed)
	if first.Session != first.Index || first.CreatedIndex != first.Index || first.PreviousSession != 0 ||
		first.Last != 0 {
		t.Errorf("the session of a new stream: %+v, want the command's index", first)
	}
	f.commit(inSession(appendWrite("c", 1, 1, "x"), first.Session))
	second := f.open("c", 2, first.Session, Committed) // the expected one
	if second.Session != second.Index || second.PreviousSession != first.Session ||
		second.CreatedIndex != first.Index ||
		second.Stream.Last != 1 {
		t.Errorf("the second session: %+v, want the command's index, and last as it was", second)
	}
	for _, test := range []struct {
		name     string
		attempt  byte
		expected uint64
		want     Code
	}{
		{"an attempt that is behind another", 1, 0, SessionFenced},
		{"the same, though it expects the current session", 1, second.Session, SessionFenced},
		{"another session than the expected one", 9, first.Session, SessionFenced},
		{"a session that was never handed out", 9, 1_000_000, SessionFenced},
		{"the current attempt", 2, 0, Committed},
		{"the current attempt, whatever it expects", 2, first.Session, Committed},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := f.open("c", test.attempt, test.expected, test.want)
			if out.Code == Committed && out.PreviousSession != first.Session {
				t.Errorf("the repeat says that it fenced %d, the first answer said %d", out.PreviousSession,
					first.Session)
			}
			if out.Session != second.Session {
				t.Errorf("the session is %d, want %d still", out.Session, second.Session)
			}
		})
	}
	f.open("nobody", 1, first.Session, SessionExpired)
	if _, found := f.stream("nobody"); found {
		t.Error("a refused OpenSession has created a stream")
	}
	f.commit(appendWrite("plain", 1, 1, "x"))
	f.open("plain", 1, 5, SessionFenced) // its session is another: none
	taken := f.open("plain", 1, 0, Committed)
	if taken.Stream.Last != 1 || taken.CreatedIndex == taken.Session {
		t.Errorf("a session for a stream that has none: %+v, want the same life and last", taken)
	}
	f.refuse(appendWrite("plain", 2, 2, "x"), SessionRequired)
}

// A repeated attempt gets its session again, unchanged but for last_seen.
func TestOpenSessionAttemptRepeated(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	first := f.open("c", 1, 0, Committed)
	before, _ := f.stream("c")
	f.now += 7
	again := f.open("c", 1, 0, Committed)
	after, _ := f.stream("c")
	before.LastSeen = f.now
	if again.Session != first.Session || after != before || again.Stream != after {
		t.Errorf("repeated: %+v and %+v, want %+v", again, after, before)
	}
	f.now += 7
	f.open("c", 3, 12345, SessionFenced)
	if s, _ := f.stream("c"); s != before {
		t.Error("a refused OpenSession has refreshed last_seen")
	}
}

// The stream's last eight attempts are remembered, the current one among them:
// the ninth last is forgotten and taken for a new one.
func TestOpenSessionRemembersEightAttempts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	for attempt := byte(1); attempt <= 9; attempt++ {
		f.open("c", attempt, 0, Committed)
	}
	for attempt := byte(2); attempt <= 8; attempt++ {
		f.open("c", attempt, 0, SessionFenced)
	}
	f.open("c", 9, 0, Committed)
	current, _ := f.stream("c")
	if out := f.open("c", 1, 0, Committed); out.Session <= current.Session {
		t.Errorf("the forgotten attempt got session %d, want a new one", out.Session)
	}
}

// Invariant 7: once a session is opened, no write of an older one commits,
// whatever it asks for, also within one log entry.
func TestInvariant7OlderSessionsAreFenced(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	old := f.open("c", 1, 0, Committed).Session
	attempt := AppendOpenSession(nil, &OpenSession{Scope: testScope, ClientID: "c", Actor: "a", AttemptID: [16]byte{2}})
	out := f.entry(
		AppendWrite(nil, inSession(appendWrite("c", 1, 1, "x"), old)),
		attempt,
		AppendWrite(nil, inSession(appendWrite("c", 2, 2, "x"), old)),
		AppendWrite(nil, inSession(appendWrite("c", 1, 1, "x"), old)), // not even a retry is answered
	)
	for i, want := range []Code{Committed, Committed, SessionFenced, SessionFenced} {
		check.Equal(t, out[i].Code, want, "command %d gave %v", i)
	}
	session := out[1].Session
	f.refuse(appendWrite("c", 2, 2, "x"), SessionRequired)
	// The new session gets the receipt of what the old one committed.
	replay := f.refuse(inSession(appendWrite("c", 1, 1, "x"), session), Replayed)
	sameReceipt(t, "under the new session", replay.Receipt, out[0].Receipt)
	f.commit(inSession(appendWrite("c", 2, 2, "x"), session))
}

// A restored ledger begins with an EPOCH: the index is raised far, old sessions expire, old ids stay resolvable.
func TestEpoch(t *testing.T) {
	t.Parallel()
	const restored = LedgerID(0xfeed)
	f := newFixture(t, testConfig())
	session := f.open("c", 1, 0, Committed).Session
	old := f.commit(inSession(appendWrite("c", 1, 1, "x"), session)).Receipt
	plain := f.commit(appendWrite("plain", 1, 1, "x")).Receipt
	out := f.one(AppendEpoch(nil, restored, 0))
	const start = 1<<32 + 1<<40 + 0xfeed
	if out.Code != Committed || out.Index != start || f.view().Index() != start {
		t.Errorf("the epoch is at %d, the ledger at %d, want %d", out.Index, f.view().Index(), start)
	}
	f.reopen()
	check.Equal(t, f.view().LedgerID(), restored, "new transactions bear %s")
	// Every older session: the current one, those before it, those never given.
	for _, s := range []uint64{session, session - 1, session + 1, 1<<32 - 1} {
		f.refuse(inSession(appendWrite("c", 2, 2, "y"), s), SessionExpired)
	}
	f.refuse(inSession(appendWrite("c", 1, 1, "x"), session), SessionExpired)
	f.refuse(appendWrite("c", 2, 2, "y"), SessionRequired)
	f.open("c", 1, 0, SessionExpired)       // the attempt of the session that has expired
	f.open("c", 2, session, SessionExpired) // expects what has expired
	state, found := f.stream("c")
	if !found || !f.view().SessionExpired(state, true, session) || f.view().SessionExpired(state, true, 0) {
		t.Error("the client's state does not say that its session has expired")
	}
	fresh := f.open("c", 3, 0, Committed)
	if fresh.Session <= start || fresh.Stream.Last != 1 {
		t.Errorf("the new session is %+v, want one above the start of the epoch that goes on after 1", fresh)
	}
	next := f.commit(inSession(appendWrite("c", 2, 2, "y"), fresh.Session)).Receipt
	if next.LedgerID != restored || next.Index != fresh.Index+1 {
		t.Errorf("the first write after the epoch has ledger id %s, index %d", next.LedgerID, next.Index)
	}
	sameReceipt(t, "an old receipt", f.refuse(inSession(appendWrite("c", 1, 1, "x"), fresh.Session),
		Replayed).Receipt, old)
	sameReceipt(t, "an old receipt without a session", f.refuse(appendWrite("plain", 1, 1, "x"),
		Replayed).Receipt, plain)

	// Ids of both epochs are found, under their own ledger id alone.
	for _, r := range []Receipt{old, plain, next} {
		id := f.view().TxIDAt(r.Index)
		check.Equal(t, id, NewTxID(r.LedgerID, r.Index), "index %d has the id %s", r.Index)
		if x, err := f.view().Transaction(id); err != nil || x.Index != r.Index || x.LedgerID != r.LedgerID {
			t.Errorf("transaction %s is %+v, %v", id, x, err)
		}
	}
	if _, err := f.view().Transaction(NewTxID(restored, old.Index)); err == nil {
		t.Error("an old transaction is found under the new ledger id")
	}
	check.Equal(t, f.one(AppendEpoch(nil, restored+1, 0)).Index, start&^(1<<32-1)+1<<32+1<<40+0xfeee,
		"the second epoch is at %d")
	must.Do(t, readBack(f.mem, nil))
}

// The first command creates the ledger; nothing goes before it and it does not
// come twice.
func TestCreate(t *testing.T) {
	t.Parallel()
	mem := NewMemory()
	m, err := Open(mem)
	if err != nil || m.View(mem).Created() {
		t.Fatalf("an empty state is created: %v", err)
	}
	if _, err := m.Apply(mem, AppendEntry(nil, 1, AppendWrite(nil, appendWrite("c", 1, 0, "x")))); err == nil {
		t.Error("a write was applied before the ledger was created")
	}
	f := newFixture(t, testConfig())
	out := f.one(AppendCreate(nil, 7, 77, DefaultConfig()))
	if out.Code != InvalidArgument || out.Field == nil || f.view().LedgerID() != testLedger {
		t.Errorf("a second creation gave %v and ledger id %s", out.Code, f.view().LedgerID())
	}
	check.Equal(t, f.view().Config(), testConfig(), "a second creation has changed the configuration: %v")
}

// Ledger time never runs backwards, whatever a leader stamps.
func TestTimeNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.now += 10
	f.commit(appendWrite("c", 1, 0, "x"))
	latest := f.now
	f.now -= 5
	if out := f.commit(appendWrite("c", 2, 0, "x")); out.Receipt.CommittedAt != latest || f.view().Time() != latest {
		t.Errorf("committed at %d, ledger time %d, want %d", out.Receipt.CommittedAt, f.view().Time(), latest)
	}
}
