package machine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

var errStorage = errors.New("the storage fails")

// faulty is a storage of which one call fails. What it had to give out by then was given out: a machine
// must not go on with it.
type faulty struct {
	*Memory

	calls int
	fails int // the number of the call, from 1; 0: none
}

func (f *faulty) fault() error {
	if f.calls++; f.calls == f.fails {
		return errStorage
	}
	return nil
}

func (f *faulty) Get(table Table, key []byte) ([]byte, error) {
	if err := f.fault(); err != nil {
		return nil, err
	}
	return f.Memory.Get(table, key)
}

func (f *faulty) Ascend(table Table, from []byte, visit func(key, value []byte) bool) error {
	err := f.fault()
	return errors.Join(f.Memory.Ascend(table, from, visit), err)
}

func (f *faulty) Put(table Table, key, value []byte) error {
	return errors.Join(f.Memory.Put(table, key, value), f.fault())
}

func (f *faulty) Delete(table Table, key []byte) error {
	return errors.Join(f.Memory.Delete(table, key), f.fault())
}

// busyHistory makes a history with commands of every kind, some of them in vain, and passes that remove what
// has expired. It returns the entries with the state before each.
func busyHistory(t testing.TB, random *rand.Rand, entries int) (log [][]byte, before []*Memory, last *fixture) {
	config := testConfig()
	config.EvictionInterval, config.EvictionLimit, config.ReceiptWindow, config.MaxStreams = 7, 4, 3, 6
	f := newFixture(t, config)
	b := &busy{fixture: f, random: random, sessions: map[string]uint64{}, tokens: map[KeyedID]*KeyedCommand{}}
	for range entries {
		f.now += []int64{0, 0, second, 40 * second, 200 * second}[random.IntN(5)]
		var commands [][]byte
		for range 1 + random.IntN(5) {
			commands = append(commands, b.command())
		}
		entry := AppendEntry(nil, f.now, commands...)
		log, before = append(log, entry), append(before, f.mem.Clone())
		out := must.Get(f.m.Apply(f.mem, entry))(t)
		b.note(out)
	}
	return log, before, f
}

type busy struct {
	*fixture
	random   *rand.Rand
	sessions map[string]uint64
	tokens   map[KeyedID]*KeyedCommand // the reservations that were asked for
	sent     []KeyedID                 // of the entry, by command; zero for others
	owned    map[KeyedID]uint64
	clients  []string // of the entry's OpenSessions, by command
}

func (b *busy) note(out []Outcome) {
	for i := range out {
		if id := b.sent[i]; id != (KeyedID{}) && out[i].Code == Keyed(keyed.Acquired) {
			if b.owned == nil {
				b.owned = map[KeyedID]uint64{}
			}
			b.owned[id] = out[i].Keyed.Record.Token
		}
		if client := b.clients[i]; client != "" && out[i].Code == Committed {
			b.sessions[client] = out[i].Session
		}
	}
	b.sent, b.clients = nil, nil
}

func (b *busy) command() []byte {
	id, client := KeyedID{}, ""
	var command []byte
	switch n := b.random.IntN(40); {
	case n < 18:
		command = AppendWrite(nil, b.write())
	case n < 21:
		client = fmt.Sprint("client-", b.random.IntN(4))
		command = AppendOpenSession(nil, &OpenSession{
			Scope: testScope, ClientID: client, Actor: "a", AttemptID: [16]byte{byte(b.random.IntN(30)), 1},
			ExpectedSession: b.sessions[client] * uint64(b.random.IntN(2)),
		})
	case n < 33:
		c := b.keyed()
		id, command = c.ID, AppendKeyed(nil, c)
	case n < 36:
		command = AppendKeyedWrite(nil, &KeyedWrite{
			ID: testKeyedID(byte(20 + b.random.IntN(4))), ClientID: "c", Actor: "a", TTL: 50 * second, MaxKeys: 8,
			Operations: b.operations(),
		})
	case n < 37:
		window := uint64(2 + b.random.IntN(3))
		command = AppendUpdateConfig(nil, &ConfigUpdate{ReceiptWindow: &window}, "a")
	case n < 38:
		command = AppendEpoch(nil, LedgerID(b.random.Uint64()), 0)
	default:
		command = AppendTick(nil)
	}
	b.sent, b.clients = append(b.sent, id), append(b.clients, client)
	return command
}

func (b *busy) write() *Write {
	w := &Write{Scope: testScope, ClientID: fmt.Sprint("client-", b.random.IntN(4)), Actor: "a"}
	if s, found, err := b.m.View(b.mem).Stream(w.Scope, w.ClientID); err != nil {
		b.Fatal(err)
	} else if found {
		w.Session = s.Session
		w.Sequence = s.Last
	}
	if w.Sequence += uint64(b.random.IntN(4)) / 2; w.Sequence == 0 { // a repeat, the next one or a gap
		w.Sequence = 1
	}
	if b.random.IntN(3) == 0 {
		w.Key = Key{UUID: [16]byte{byte(b.random.IntN(5)), 1}, Present: true}
	}
	w.Operations = b.operations()
	return w
}

func (b *busy) operations() (all []Operation) {
	for range 1 + b.random.IntN(3) {
		key := fmt.Append(nil, "entity-", b.random.IntN(5))
		op := Operation{Kind: OpSetEntity, Key: key, Value: []byte(strings.Repeat("v", 1+b.random.IntN(2)*200))}
		switch b.random.IntN(8) {
		case 0:
			op = Operation{Kind: OpDeleteEntity, Key: key}
		case 1:
			op = Operation{Kind: OpCreateRelationship, Key: key, Relation: []byte("r"), Subject: []byte("s")}
		case 2:
			op = Operation{Kind: OpDeleteRelationship, Key: key, Relation: []byte("r"), Subject: []byte("s")}
		case 3:
			op = Operation{Kind: OpAppend, Value: []byte("x")}
		case 4:
			op.ExpiresAt = b.now + int64(b.random.IntN(100))*second
		case 5:
			op.Condition = Condition{Kind: ConditionValueEquals, Value: op.Value}
		case 6:
			op.Condition = Condition{Kind: ConditionNotExists}
		}
		all = append(all, op)
	}
	return all
}

func (b *busy) keyed() *KeyedCommand {
	id := testKeyedID(byte(b.random.IntN(6)))
	reserved := b.tokens[id]
	if reserved == nil || b.random.IntN(3) == 0 {
		reserved = reserveKey(id, byte(b.random.IntN(200)), b.now)
		reserved.MaxKeys = 8
		b.tokens[id] = reserved
		return reserved
	}
	kinds := []keyed.Kind{keyed.Complete, keyed.Reject, keyed.Release, keyed.Heartbeat, keyed.Checkpoint, keyed.Purge}
	content := []byte(strings.Repeat("c", 1+b.random.IntN(2)*maxInlineAttachment))
	c := ownKey(kinds[b.random.IntN(len(kinds))], reserved, b.owned[id], content)
	c.Actor = "client:test"
	return c
}

// faultSeed is the seed of a test's history: another one each time, unless the environment names one.
func faultSeed(t *testing.T) uint64 {
	t.Helper()
	seed := must.Seed(t)
	return seed
}

// Whichever call of the storage fails while an entry is applied, Apply says so: no error is lost on its way.
func TestApplyReportsEveryStorageError(t *testing.T) {
	t.Parallel()
	seed := faultSeed(t)
	entries := 60
	if testing.Short() {
		entries = 25
	}
	log, before, _ := busyHistory(t, rand.New(rand.NewPCG(seed, 0)), entries)
	faults, evicted := 0, uint64(0)
	for i, entry := range log {
		whole := &faulty{Memory: before[i].Clone()}
		m := must.Get(Open(whole.Memory))(t)
		must.Get(m.Apply(whole, entry))(t)
		evicted += m.Evictions().Streams + m.Evictions().Entities + m.Evictions().Keys
		for n := 1; n <= whole.calls; n++ {
			broken := &faulty{Memory: before[i].Clone(), fails: n}
			m := must.Get(Open(broken.Memory))(t)
			if _, err := m.Apply(broken, entry); !errors.Is(err, errStorage) {
				t.Fatalf("entry %d: call %d of %d of the storage fails, and Apply says %v", i, n, whole.calls, err)
			}
			faults++
		}
	}
	if faults < 10*entries || evicted == 0 {
		t.Errorf("%d faults, %d records evicted: the test tested too little", faults, evicted)
	}
}

// Whichever call of the storage fails while something is read, the reader is told.
func TestReadsReportEveryStorageError(t *testing.T) {
	t.Parallel()
	seed := faultSeed(t)
	log, _, f := busyHistory(t, rand.New(rand.NewPCG(seed, 0)), 80)
	must.Equal(t, len(log), 80)
	set := &Write{Scope: testScope, ClientID: "reader", Actor: "a", Sequence: 1, Operations: []Operation{
		{Kind: OpSetEntity, Key: []byte("long"), Value: []byte(strings.Repeat("v", 500))},
		{Kind: OpCreateRelationship, Key: []byte("doc"), Relation: []byte("r"), Subject: []byte("s")},
	}}
	id := testKeyedID(99)
	reserve := reserveKey(id, 1, f.now)
	keyedWrite := &KeyedWrite{
		ID: testKeyedID(98), ClientID: "c", Actor: "a", TTL: second, MaxKeys: 99, Operations: set.Operations,
	}
	f.m.head.config.MaxStreams = 1_000
	out := f.entry(AppendWrite(nil, set), AppendKeyedWrite(nil, keyedWrite), AppendKeyed(nil, reserve))
	f.entry(AppendKeyed(nil, ownKey(keyed.Complete, reserve, out[2].Index, []byte(strings.Repeat("c", 2_000)))))
	f.entry(AppendKeyed(nil, reserveKey(testKeyedID(97), 1, f.now)))
	tx := NewTxID(f.m.head.ledgerID(), out[0].Index)
	hash, _ := HashOperations(nil, set.Operations)
	chain, err := f.view().Chain(testScope)
	if err != nil || out[0].Code != Committed || out[1].Code != Committed || out[2].Code != Keyed(keyed.Acquired) {
		t.Fatal(out[0].Code, out[1].Code, out[2].Code, err)
	}
	for name, read := range map[string]func(View, Blocks) error{
		"Stream":    func(v View, _ Blocks) error { _, _, err := v.Stream(testScope, "reader"); return err },
		"Due":       func(v View, _ Blocks) error { _, err := v.Due(f.now); return err },
		"Chain":     func(v View, _ Blocks) error { _, err := v.Chain(testScope); return err },
		"InWindow":  func(v View, _ Blocks) error { _, _, _, err := v.InWindow(nil, set); return err },
		"Replay":    func(v View, _ Blocks) error { _, _, err := v.Replay(set, hash); return err },
		"Receipts":  func(v View, _ Blocks) error { _, err := v.Receipts(testScope, "reader", 9); return err },
		"Entity":    func(v View, _ Blocks) error { _, err := v.Entity(testScope, "long"); return err },
		"EntityRef": func(v View, _ Blocks) error { _, err := v.EntityRef(testScope, "long"); return err },
		"Keyed": func(v View, _ Blocks) error {
			r, err := v.Keyed(&id, f.now)
			if err == nil {
				_, err = v.ReadAttachments(r)
			}
			return err
		},
		"Keys":        func(v View, _ Blocks) error { _, err := v.Keys(testScope, id.Principal); return err },
		"AnswerKeyed": func(v View, _ Blocks) error { _, _, err := v.AnswerKeyed(reserve, f.now); return err },
		"AnswerKeyedWrite": func(v View, _ Blocks) error {
			_, _, err := v.AnswerKeyedWrite(keyedWrite, hash, f.now)
			return err
		},
		"VisitKeyed": func(v View, _ Blocks) error {
			_, err := v.VisitKeyed(testScope, "", nil, nil, f.now, func([]byte, *KeyedRecord) bool { return true })
			return err
		},
		"VisitReservations": func(v View, _ Blocks) error { return v.VisitReservations(99, func([]byte, int64) {}) },
		"VisitKeyedStates": func(v View, _ Blocks) error {
			_, err := v.VisitKeyedStates(nil, 99, func([]byte, keyed.State) {})
			return err
		},
		"VisitStreams": func(v View, _ Blocks) error {
			_, err := v.VisitStreams(nil, nil, func([]byte, NamedStream) bool { return true })
			return err
		},
		"VisitEntities": func(v View, _ Blocks) error {
			_, err := v.VisitEntities(testScope, "", "", func(Entity) bool { return true })
			return err
		},
		"VisitRelationships": func(v View, _ Blocks) error {
			_, err := v.VisitRelationships(testScope, "", "", nil, func([]byte, Relationship) bool { return true })
			return err
		},
		"ReceiptAt":        func(_ View, b Blocks) error { _, err := b.ReceiptAt(out[0].Index); return err },
		"Transaction":      func(_ View, b Blocks) error { _, err := b.Transaction(tx); return err },
		"TransactionScope": func(_ View, b Blocks) error { _, err := b.TransactionScope(tx); return err },
		"Proof":            func(_ View, b Blocks) error { _, err := b.Proof(out[0].Index); return err },
		"BlockHeader":      func(_ View, b Blocks) error { _, err := b.BlockHeader(chain.again(), 2); return err },
		"BlockPart":        func(_ View, b Blocks) error { _, err := b.BlockPart(chain.again(), 2, 0, 99); return err },
		"LeafHashes": func(_ View, b Blocks) error {
			_, _, err := b.LeafHashes(chain.again(), 2, 0, 99)
			return err
		},
	} {
		whole := &faulty{Memory: f.mem}
		if err := read(f.m.View(whole), NewBlocks(whole, Horizon{})); err != nil || whole.calls == 0 {
			t.Errorf("%s: %d calls of the storage, %v", name, whole.calls, err)
		}
		for n := 1; n <= whole.calls; n++ {
			broken := &faulty{Memory: f.mem, fails: n}
			check.Is(t, read(f.m.View(broken), NewBlocks(broken, Horizon{})), errStorage,
				"%s: call %d of %d of the storage fails, and the reader is told", name, n, whole.calls)
		}
	}
}

// again is the chain without what it has found so far.
func (c *Chain) again() *Chain {
	fresh := *c
	fresh.way = nil
	return &fresh
}

// A row that another one leads to and that is gone stops the machine at the latest when it is needed: it is
// never taken for one that was never there.
func TestMissingRowsStopTheMachine(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]Table{
		"streams": TableStreams, "entities": TableEntities, "keyed records": TableKeyed,
		"counts of organizations": TableOrganizations, "counts of principals": TablePrincipals,
	} {
		config := testConfig()
		config.EvictionInterval = 1
		f := newFixture(t, config)
		f.entry(AppendWrite(nil, &Write{
			Scope: testScope, ClientID: "c", Actor: "a", Sequence: 1, Operations: []Operation{
				{Kind: OpSetEntity, Key: []byte("k"), Value: []byte("v"), ExpiresAt: f.now + second},
			},
		}), AppendKeyedWrite(nil, &KeyedWrite{
			ID: testKeyedID(1), ClientID: "c", Actor: "a", TTL: second, MaxKeys: 9,
			Operations: []Operation{{Kind: OpAppend, Value: []byte("x")}},
		}))
		f.mem.Clear(table)
		f.reopen()
		_, err := f.m.Apply(f.mem, AppendEntry(nil, f.now+1_000*second, AppendTick(nil)))
		check.Is(t, err, ErrCorrupt, "without its %s a pass says", name)
	}
	f := newFixture(t, testConfig())
	w := &Write{Scope: testScope, ClientID: "c", Actor: "a", Sequence: 1, Key: Key{UUID: [16]byte{1}, Present: true},
		Operations: []Operation{{Kind: OpSetEntity, Key: []byte("k"), Value: []byte(strings.Repeat("v", 500))}}}
	k := &KeyedWrite{ID: testKeyedID(1), ClientID: "c", Actor: "a", TTL: second, MaxKeys: 9, Operations: w.Operations}
	f.entry(AppendWrite(nil, w), AppendKeyedWrite(nil, k))
	f.mem.Clear(TableBlocks)
	byKey, changed := *w, *w
	byKey.Sequence = 2
	changed.Sequence = 2
	changed.Key, changed.Operations = Key{}, []Operation{{Kind: OpDeleteEntity, Key: []byte("k"),
		Condition: Condition{Kind: ConditionValueEquals, Value: w.Operations[0].Value}}}
	for name, command := range map[string][]byte{
		"a repeat": AppendWrite(nil, w), "a repeat by its key": AppendWrite(nil, &byKey),
		"a condition on a long value": AppendWrite(nil, &changed),
		"a repeat of a keyed write":   AppendKeyedWrite(nil, k),
	} {
		mem := f.mem.Clone()
		m := must.Get(Open(mem))(t)
		if out, err := m.Apply(mem, AppendEntry(nil, f.now, command)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("without its block, %s: %+v, %v", name, out, err)
		}
	}
}
