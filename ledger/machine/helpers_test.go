package machine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

const (
	second       = int64(1_000_000_000)
	testLedger   = LedgerID(0x0123456789abcdef)
	testStart    = 1_000_000 * second
	testInterval = 1_000_000 // so rare that a test meets a round only when it wants one
)

var testScope = Scope{Organization: "acme"}

// testConfig has small limits, so that every one of them is within reach of a
// short test.
func testConfig() Config {
	return Config{
		EvictionInterval: testInterval, ClientTTL: 100 * second, EvictionLimit: 100, ReceiptWindow: 4, MaxStreams: 100,
	}
}

// fixture is a machine on a state in memory, with a clock that stands still
// until a test moves it.
type fixture struct {
	testing.TB
	mem *Memory
	m   *Machine
	now int64
}

func newFixture(t testing.TB, config Config) *fixture {
	t.Helper()
	f := &fixture{TB: t, mem: NewMemory(), now: testStart}
	f.reopen()
	if out := f.entry(AppendCreate(nil, testLedger, 77, config)); out[0].Code != Committed || out[0].Index != 1 {
		t.Fatalf("creating the ledger gave %v at index %d, want COMMITTED at 1", out[0].Code, out[0].Index)
	}
	return f
}

// reopen is a restart: everything that is not in the state is forgotten.
func (f *fixture) reopen() {
	f.Helper()
	m, err := Open(f.mem)
	if err != nil {
		f.Fatalf("opening the state: %v", err)
	}
	f.m = m
}

// entry applies commands as one log entry.
func (f *fixture) entry(commands ...[]byte) []Outcome {
	f.Helper()
	out, err := f.m.Apply(f.mem, AppendEntry(nil, f.now, commands...))
	if err != nil {
		f.Fatalf("applying an entry: %v", err)
	}
	if len(out) != len(commands) {
		f.Fatalf("%d commands have %d outcomes", len(commands), len(out))
	}
	return out
}

// one applies a command as an entry of its own. Whatever the command is, a
// refusal or a replay must leave the state as it was (invariant 4).
func (f *fixture) one(command []byte) Outcome {
	f.Helper()
	before, head, passes := f.mem.Clone(), f.m.head, f.m.evictions.Rounds
	out := f.entry(command)[0]
	if out.Code != Committed && f.m.evictions.Rounds == passes {
		f.sameApartFromHead(before)
		if h := f.m.head; h.streams != head.streams || h.config != head.config || len(h.epochs) != len(head.epochs) {
			f.Errorf("%v changed the head beyond index, time and digest", out.Code)
		}
	}
	return out
}

func (f *fixture) sameApartFromHead(before *Memory) {
	f.Helper()
	after := f.mem.Clone()
	for _, m := range []*Memory{before, after} {
		must.Do(f, m.Delete(TableMeta, headKey))
	}
	if table, key, differ := before.Difference(after); differ {
		f.Errorf("what must change nothing changed key %x of table %d", key, table)
	}
}

// write applies a write. The shortcut, which answers retries from the state without the
// log, must have given the same answer just before.
func (f *fixture) write(w *Write) Outcome {
	f.Helper()
	answer, answered := shortcut(f, f.view(), w)
	out := f.one(AppendWrite(nil, w))
	checkShortcut(f, w, out, answer, answered)
	return out
}

// shortcut is the answer from the state alone, if there is one.
func shortcut(t testing.TB, v View, w *Write) (r Receipt, answered bool) {
	t.Helper()
	_, _, inWindow, err := v.InWindow(nil, w)
	must.Do(t, err)
	if !inWindow {
		return r, false
	}
	hash, _ := HashOperations(nil, w.Operations)
	r, answered, err = v.Replay(w, hash)
	must.Do(t, err)
	return r, answered
}

func checkShortcut(t testing.TB, w *Write, out Outcome, answer Receipt, answered bool) {
	t.Helper()
	// A retry under another sequence (rule 6) is the log's business alone.
	if !answered && out.Code == Replayed && out.Receipt.Sequence == w.Sequence {
		t.Errorf("the log answers sequence %d with its receipt, the state does not", w.Sequence)
	}
	if answered {
		check.Equal(t, out.Code, Replayed, "the state answers a retry with a receipt, the log with %v")
		sameReceipt(t, "the answer from the state", answer, out.Receipt)
		if !answer.Replayed {
			t.Error("an answer from the state is not marked as a replay")
		}
	}
}

// commit is write for a write that must succeed.
func (f *fixture) commit(w *Write) Outcome {
	f.Helper()
	out := f.write(w)
	must.Equal(f, out.Code, Committed, "write %s/%s sequence %d gave %v", w.Scope, w.ClientID, w.Sequence)
	return out
}

// refuse is write for a write that must have the code.
func (f *fixture) refuse(w *Write, want Code) Outcome {
	f.Helper()
	out := f.write(w)
	check.Equal(f, out.Code, want, "write %s/%s session %d sequence %d gave %v", w.Scope, w.ClientID, w.Session,
		w.Sequence)
	return out
}

// open opens a session, which must have the code.
func (f *fixture) open(client string, attempt byte, expected uint64, want Code) Outcome {
	f.Helper()
	out := f.one(AppendOpenSession(nil, &OpenSession{
		Scope: testScope, ClientID: client, Actor: "client:test", AttemptID: [16]byte{attempt},
		ExpectedSession: expected,
	}))
	check.Equal(f, out.Code, want, "OpenSession(%s, attempt %d, expected %d) gave %v", client, attempt, expected)
	return out
}

func (f *fixture) configure(u ConfigUpdate) Outcome {
	f.Helper()
	return f.one(AppendUpdateConfig(nil, &u, "system:test"))
}

// round makes an eviction pass follow the next command, by way of the interval,
// which counts as soon as it is changed.
func (f *fixture) round() {
	f.Helper()
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(1))})
	f.configure(ConfigUpdate{EvictionInterval: new(uint64(testInterval))})
}

func (f *fixture) view() View { return f.m.View(f.mem) }

// stream returns where a client of the test scope stands.
func (f *fixture) stream(client string) (StreamState, bool) {
	f.Helper()
	s, found, err := f.view().Stream(testScope, client)
	if err != nil {
		f.Fatal(err)
	}
	return s, found
}

// entity returns an entity of the test scope as a read shows it.
func (f *fixture) entity(key string) (Entity, bool) {
	f.Helper()
	e, err := f.view().Entity(testScope, key)
	//nolint:errorlint // It is returned bare, and a wrapped one would be a surprise.
	if err != nil && err != ErrNotFound {
		f.Fatal(err)
	}
	return e, err == nil
}

// append writes what a client appends, with a key unless that is 0.
func appendWrite(client string, sequence uint64, idempotencyKey byte, payload string) *Write {
	return operations(client, sequence, idempotencyKey, Operation{Kind: OpAppend, Value: []byte(payload)})
}

func operations(client string, sequence uint64, idempotencyKey byte, ops ...Operation) *Write {
	return &Write{
		Scope: testScope, ClientID: client, Actor: "client:test", Sequence: sequence, Key: testKey(idempotencyKey),
		Operations: ops,
	}
}

func inSession(w *Write, session uint64) *Write {
	w.Session = session
	return w
}

// testKey returns a key for each n, and none for 0.
func testKey(n byte) Key {
	if n == 0 {
		return Key{}
	}
	return Key{UUID: [16]byte{n}, Present: true}
}

// longValue is one that stays in its block.
var longValue = strings.Repeat("v", maxValueInRecord+1)

func set(key, value string) Operation {
	return Operation{Kind: OpSetEntity, Key: []byte(key), Value: []byte(value)}
}

func setUntil(key, value string, expiresAt int64) Operation {
	op := set(key, value)
	op.ExpiresAt = expiresAt
	return op
}

func remove(key string) Operation { return Operation{Kind: OpDeleteEntity, Key: []byte(key)} }

func provided(op Operation, c Condition) Operation {
	op.Condition = c
	return op
}

func relate(resource, relation, subject string) Operation {
	return Operation{
		Kind: OpCreateRelationship, Key: []byte(resource), Relation: []byte(relation), Subject: []byte(subject),
	}
}

func unrelate(resource, relation, subject string) Operation {
	op := relate(resource, relation, subject)
	op.Kind = OpDeleteRelationship
	return op
}

// sameReceipt compares all fields but Replayed.
func sameReceipt(t testing.TB, what string, got, want Receipt) {
	t.Helper()
	got.Replayed, want.Replayed = false, false
	versions := slices.Equal(got.Versions, want.Versions)
	got.Versions, want.Versions = nil, nil
	if !versions || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: the receipt is\n%+v, want\n%+v (versions equal: %v)", what, got, want, versions)
	}
}

// Block is what one log entry committed in one scope.
type Block struct {
	Header       BlockHeader
	Transactions []Transaction
}

// Block returns the block of a height, or ErrNotFound.
func (v View) Block(scope Scope, height uint64) (Block, error) {
	c, err := v.Chain(scope)
	if err != nil {
		return Block{}, err
	}
	part, err := v.BlockPart(c, height, 0, 1<<62)
	return Block{part.Header, part.Transactions}, err
}

// headerAt returns the header of the block of a height, or ErrNotFound.
func (v View) headerAt(scope Scope, height uint64) (BlockHeader, error) {
	c, err := v.Chain(scope)
	if err != nil {
		return BlockHeader{}, err
	}
	return v.BlockHeader(c, height)
}
