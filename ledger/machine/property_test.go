package machine

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// logged is one log entry of a random history.
type logged struct {
	time     int64
	commands [][]byte
	setsTime bool // the last command is an epoch that sets ledger time
}

// history makes random commands, so chosen that every rule is within reach,
// and compares what the machine says with the model, command by command.
type history struct {
	*rapid.T
	mem      *Memory
	m        *Machine
	model    *model
	now      int64
	check    Check // of the next entry
	log      []logged
	writes   []*Write // everything that was ever sent, to be sent again
	receipts []handedOut
}

var (
	propertyScopes  = []Scope{{"acme", ""}, {"acme", "v"}, {"other", ""}}
	propertyClients = []string{"a", "b", "c"}
	propertyKeys    = []string{"k", "k1", "k2", "l"}
)

func pick[V any](t *rapid.T, what string, from ...V) V { return rapid.SampledFrom(from).Draw(t, what) }

func newHistory(t *rapid.T) *history {
	config := Config{
		EvictionInterval: pick[uint64](t, "interval", 1, 2, 5, 9), ClientTTL: pick[int64](t, "ttl", 2, 10, 30) * second,
		EvictionLimit: pick[uint64](t, "limit", 1, 2, 3, 50), ReceiptWindow: pick[uint64](t, "window", 1, 2, 3, 5),
		MaxStreams: pick[uint64](t, "max streams", 2, 4, 50),
	}
	h := &history{T: t, mem: NewMemory(), model: newModel(testLedger, config), now: testStart}
	h.reopen()
	h.model.beginEntry(h.now)
	h.apply(AppendCreate(nil, testLedger, 77, config))
	return h
}

func (h *history) reopen() {
	m, err := Open(h.mem)
	if err != nil {
		h.Fatalf("opening the state: %v", err)
	}
	h.m = m
}

func (h *history) apply(commands ...[]byte) []Outcome {
	h.log = append(h.log, logged{time: h.now, commands: commands})
	entry := AppendEntryHeader(nil, EntryHeader{h.now, h.check}, len(commands))
	for _, c := range commands {
		entry = AppendFramed(entry, c)
	}
	if rapid.Bool().Draw(h.T, "in flight") { // the next entry was proposed before this one was applied
		h.check = h.m.Check()
	}
	out, err := h.m.Apply(h.mem, entry)
	if err != nil {
		h.Fatalf("applying an entry: %v", err)
	}
	return out
}

// step applies one log entry.
func (h *history) step() {
	h.now = max(0, h.now+pick[int64](h.T, "seconds", 0, 0, 0, 0, 1, 1, 2, 5, 9, 40, -3)*second+pick[int64](h.T, "nanos", 0, 0, 1))
	h.model.beginEntry(h.now)
	var commands [][]byte
	var sent []any
	var want []Outcome
	next := h.now
	for range rapid.IntRange(1, 7).Draw(h.T, "commands") {
		command, encoded := h.command()
		commands, sent = append(commands, encoded), append(sent, command)
		want = append(want, h.model.apply(command))
		if epoch, ok := command.(modelNewEpoch); ok && epoch.time != 0 {
			next = epoch.time
			break // the next entry bears another time
		}
	}
	out := h.apply(commands...)
	h.log[len(h.log)-1].setsTime = next != h.now
	h.now = next
	for i, got := range out {
		if difference := differ(got, want[i]); difference != "" {
			text, _ := json.Marshal(sent[i])
			h.Fatalf("%T %s:\n gave %s", sent[i], text, difference)
		}
		if w, ok := sent[i].(*Write); ok && (got.Code == Committed || got.Code == Replayed) {
			h.receipts = append(h.receipts, handedOut{w, got.Receipt})
		}
	}
	v := h.m.View(h.mem)
	if v.Index() != h.model.index || v.Time() != h.model.time || v.Config() != h.model.config ||
		v.Streams() != uint64(len(h.model.streams)) {
		h.Fatalf("after the entry: index %d, time %d, %d streams, %+v\nwant index %d, time %d, %d streams, %+v",
			v.Index(), v.Time(), v.Streams(), v.Config(),
			h.model.index, h.model.time, len(h.model.streams), h.model.config)
	}
	if rapid.IntRange(0, 4).Draw(h.T, "restart") == 0 {
		h.reopen()
	}
}

func (h *history) command() (any, []byte) {
	switch n := rapid.IntRange(0, 99).Draw(h.T, "kind"); {
	case n < 78:
		w := h.write()
		h.writes = append(h.writes, w)
		return w, AppendWrite(nil, w)
	case n < 93:
		o := h.openSession()
		return o, AppendOpenSession(nil, o)
	case n < 97:
		u := h.update()
		return u, AppendUpdateConfig(nil, u, "system:test")
	case n < 98:
		return modelTick{}, AppendTick(nil)
	default:
		c := modelNewEpoch{id: testLedger + LedgerID(len(h.model.epochs))}
		if rapid.Bool().Draw(h.T, "sets the time") {
			c.time = max(1, h.now+pick[int64](h.T, "time", -100, -20, -5, -1, 0, 1, 50)*second)
		}
		return c, AppendEpoch(nil, c.id, c.time)
	}
}

// near draws a number close to another one, which is where decisions change.
func near(t *rapid.T, what string, n uint64) uint64 {
	return n + pick[uint64](t, what, 0, 0, 0, 1, ^uint64(0), ^uint64(1), 2)
}

func (h *history) write() *Write {
	w := &Write{
		Scope: pick(h.T, "scope", propertyScopes...), ClientID: pick(h.T, "client", propertyClients...),
		Actor: pick(h.T, "actor", "client:1", "user:2"), Key: testKey(rapid.ByteRange(0, 5).Draw(h.T, "key")),
	}
	if len(h.writes) > 0 && rapid.IntRange(0, 9).Draw(h.T, "again") < 4 {
		// A retry: exactly as it was, or with one thing changed.
		recent := h.writes[max(0, len(h.writes)-20):]
		again := *recent[rapid.IntRange(0, len(recent)-1).Draw(h.T, "which")]
		switch rapid.IntRange(0, 5).Draw(h.T, "changed") {
		case 0:
			again.Key = w.Key
		case 1:
			again.Sequence = max(1, near(h.T, "sequence", again.Sequence))
		case 2:
			again.Operations = h.operations(again.Scope)
		case 3:
			again.Session = h.model.stream(again.Scope, again.ClientID).session
		}
		return &again
	}
	s := h.model.stream(w.Scope, w.ClientID)
	w.Session, w.Sequence = s.session, s.last+1
	if rapid.IntRange(0, 9).Draw(h.T, "odd sequence") < 4 {
		w.Sequence = pick(h.T, "sequence", max(1, near(h.T, "near last", s.last)), 1, s.last+2, 1<<64-1, 1<<64-2)
	}
	if rapid.IntRange(0, 9).Draw(h.T, "odd session") < 2 {
		w.Session = pick[uint64](h.T, "session", 0, near(h.T, "near session", s.session), h.model.index, 1)
	}
	w.Operations = h.operations(w.Scope)
	return w
}

// stream returns a copy of a stream, empty when it is not there.
func (m *model) stream(scope Scope, client string) modelStream {
	if s := m.streams[modelName{scope, client}]; s != nil {
		return *s
	}
	return modelStream{}
}

func (h *history) operations(scope Scope) (ops []Operation) {
	for range pick(h.T, "operations", 1, 1, 1, 2, 3) {
		op := Operation{Kind: OperationKind(rapid.IntRange(1, 5).Draw(h.T, "operation"))}
		if op.Kind == OpAppend {
			op.Value = []byte(pick(h.T, "payload", "x", "y"))
			ops = append(ops, op)
			continue
		}
		op.Key = []byte(pick(h.T, "entity", h.likelyKeys(scope)...))
		switch op.Kind {
		case OpSetEntity:
			op.Value = []byte(pick(h.T, "value", "", "1", longValue, longValue+"2"))
			if rapid.Bool().Draw(h.T, "expires") {
				op.ExpiresAt = h.model.time + rapid.Int64Range(-1, 6).Draw(h.T, "lifetime")*second
			}
			op.Condition = h.condition(scope, op.Key)
		case OpDeleteEntity:
			op.Condition = h.condition(scope, op.Key)
		default:
			op.Relation, op.Subject = []byte("r"), []byte(pick(h.T, "subject", "s", "t"))
		}
		ops = append(ops, op)
	}
	return ops
}

// likelyKeys are all keys, and those that are there three times more: what is
// absent fails most conditions in the same way.
func (h *history) likelyKeys(scope Scope) []string {
	keys := slices.Clone(propertyKeys)
	for _, key := range propertyKeys {
		e, there := h.model.entities[modelName{scope, key}]
		if there && !h.model.expired(e) {
			keys = append(keys, key, key, key)
		}
	}
	return keys
}

func (h *history) condition(scope Scope, key []byte) (c Condition) {
	if rapid.IntRange(0, 2).Draw(h.T, "unconditional") == 0 {
		return c
	}
	e := h.model.entities[modelName{scope, string(key)}]
	c.Kind = ConditionKind(rapid.IntRange(1, 4).Draw(h.T, "condition"))
	switch c.Kind {
	case ConditionVersion:
		c.Version = near(h.T, "version", e.version)
	case ConditionValueEquals:
		c.Value = []byte(pick(h.T, "expected value", e.value, "1", longValue, "none has it"))
	}
	return c
}

func (h *history) openSession() *OpenSession {
	o := &OpenSession{
		Scope: pick(h.T, "scope", propertyScopes...), ClientID: pick(h.T, "client", propertyClients...), Actor: "client:1",
	}
	s := h.model.stream(o.Scope, o.ClientID)
	o.AttemptID = [16]byte{rapid.Byte().Draw(h.T, "attempt")}
	if len(s.attempts) > 0 && rapid.IntRange(0, 2).Draw(h.T, "attempt again") == 0 {
		o.AttemptID = pick(h.T, "attempt", s.attempts...)
	}
	o.ExpectedSession = pick[uint64](h.T, "expected", 0, 0, s.session, near(h.T, "near session", s.session))
	return o
}

func (h *history) update() *ConfigUpdate {
	u := &ConfigUpdate{}
	number := func(name string, from ...uint64) *uint64 {
		if rapid.IntRange(0, 2).Draw(h.T, "change "+name) != 0 {
			return nil
		}
		return new(pick(h.T, name, from...))
	}
	u.EvictionInterval = number("interval", 1, 2, 5, 9, 9, 9, 0)
	u.EvictionLimit = number("limit", 1, 2, 5, 50, 50, 100_001)
	u.ReceiptWindow = number("window", 1, 2, 3, 5, 5, 1_025)
	u.MaxStreams = number("max streams", 1, 3, 9, 9, 9, 0)
	if ttl := number("ttl", 1, 5, 20, 30, 0); ttl != nil {
		u.ClientTTL = new(int64(*ttl) * second)
	}
	return u
}

// rulesThatMustFire is what a run has to meet, or else it has tested less than
// it says.
func rulesThatMustFire() []string {
	rules := []string{
		"rule 4: REPLAYED", "rule 4: IDEMPOTENCY_KEY_REUSED", "rule 4: SEQUENCE_REUSED",
		"rule 6: REPLAYED", "rule 6: IDEMPOTENCY_KEY_REUSED",
		"stream evicted", "stream put back", "limit left something", "entities expired",
		"*machine.ConfigUpdate: COMMITTED", "*machine.ConfigUpdate: INVALID_ARGUMENT",
		"machine.modelNewEpoch: COMMITTED", "machine.modelTick: COMMITTED", "time set back", "stream brought back",
		"pass after a backlog",
	}
	for code := Committed; code <= TooManyStreams; code++ {
		rules = append(rules, "*machine.Write: "+code.String())
	}
	for _, code := range []Code{Committed, SessionExpired, SessionFenced, TooManyStreams} {
		rules = append(rules, "*machine.OpenSession: "+code.String())
	}
	return rules
}

// TestInvariant8Model drives machine and model with the same random commands, and then
// looks at the history from every side. On a failure rapid prints the one line
// that repeats it.
func TestInvariant8Model(t *testing.T) {
	t.Parallel()
	fired := map[string]int{}
	commands := 0
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(10, 60).Draw(t, "entries") {
			h.step()
		}
		for rule, n := range h.model.fired {
			fired[rule] += n
		}
		for _, entry := range h.log {
			commands += len(entry.commands)
		}
		h.compareState()
		h.checkAudits()
		h.checkOtherGroupings()
		h.checkReplayAddsNothing()
	})
	t.Logf("%d commands", commands)
	if t.Failed() {
		return
	}
	for _, rule := range rulesThatMustFire() {
		if fired[rule] == 0 && commands > 5_000 { // a shorter run (-rapid.checks) may miss one
			t.Errorf("%q has not happened in %d commands: the generator is too tame", rule, commands)
		}
	}
}

// compareState compares entities, relationships and streams with the model's.
func (h *history) compareState() {
	v := h.m.View(h.mem)
	got, want := map[string]string{}, map[string]string{}
	for name, e := range h.model.entities {
		if !h.model.expired(e) {
			want[fmt.Sprint("entity ", name)] = fmt.Sprint(e)
		}
	}
	for r := range h.model.related {
		want[fmt.Sprint("relationship ", r)] = "there"
	}
	for name, s := range h.model.streams {
		want[fmt.Sprint("stream ", name)] = fmt.Sprint(StreamState{s.created, s.session, s.last, s.lastSeen})
	}
	for _, scope := range propertyScopes {
		_, err := v.VisitEntities(scope, "", "", func(e Entity) bool {
			got[fmt.Sprint("entity ", modelName{scope, e.Key})] = fmt.Sprint(modelEntity{string(e.Value), e.Version, e.ExpiresAt})
			return true
		})
		if err != nil {
			h.Fatal(err)
		}
		err = v.VisitRelationships(scope, "", "", nil, func(_ []byte, r Relationship) bool {
			got[fmt.Sprint("relationship ", modelRelation{scope, r.Resource, r.Relation, r.Subject})] = "there"
			return true
		})
		if err != nil {
			h.Fatal(err)
		}
	}
	err := v.VisitStreams(nil, nil, func(_ []byte, s NamedStream) bool {
		got[fmt.Sprint("stream ", modelName{s.Scope, s.ClientID})] = fmt.Sprint(s.StreamState)
		return true
	})
	if err != nil {
		h.Fatal(err)
	}
	for _, from := range []map[string]string{got, want} {
		for k := range from {
			if got[k] != want[k] {
				h.Fatalf("%s is %q, want %q", k, got[k], want[k])
			}
		}
	}
}

// checkAudits runs the tests' own audit and the package's.
func (h *history) checkAudits() {
	if err := readBack(h.mem, h.receipts); err != nil {
		h.Fatalf("reading back: %v", err)
	}
	if n := len(h.mem.tables[TableEntities].keys); n != len(h.model.entities) {
		h.Fatalf("there are %d entity records, want %d: expired ones leave in a round", n, len(h.model.entities))
	}
	for _, x := range h.model.history {
		found, err := h.m.View(h.mem).Transaction(NewTxID(x.receipt.LedgerID, x.receipt.Index))
		if err != nil || found.ClientID != x.client || found.CreatedIndex != x.created || found.Scope != x.scope ||
			!slices.Equal(found.Versions, x.receipt.Versions) && x.receipt.Actor != actorGC {
			h.Fatalf("transaction %d is %+v, %v, want %+v", x.receipt.Index, found, err, x)
		}
	}
	_, err := h.m.Audit(h.mem, func(p Problem) { h.Errorf("the audit of a sound state reports %s: %s", p.Where, p.What) }, nil)
	if err != nil {
		h.Fatal(err)
	}
}

// checkOtherGroupings is invariant 8: the same log without restarts gives the
// same state to the last byte; the same commands with the same times in other
// entries give the same but for the blocks.
func (h *history) checkOtherGroupings() {
	digest := h.m.View(h.mem).Digest()
	for name, entries := range map[string][]logged{
		"as it was": h.log, "one by one": split(h.log), "in larger groups": merge(h.log),
	} {
		mem, m := replayLog(h, entries)
		if got := m.View(mem).Digest(); got != digest {
			h.Fatalf("invariant 8: applied %s, the digest is %s, want %s", name, got, digest)
		}
		want := h.mem.Clone()
		if name != "as it was" {
			for _, table := range []Table{TableBlocks, TableHeights, TableScopes} {
				want.tables[table], mem.tables[table] = memoryTable{}, memoryTable{}
			}
		}
		if table, key, differ := mem.Difference(want); differ {
			h.Fatalf("invariant 8: applied %s, the state differs at key %x of table %d", name, key, table)
		}
	}
}

func replayLog(h *history, entries []logged) (*Memory, *Machine) {
	mem := NewMemory()
	m, err := Open(mem)
	if err != nil {
		h.Fatal(err)
	}
	for _, e := range entries {
		if _, err := m.Apply(mem, AppendEntry(nil, e.time, e.commands...)); err != nil {
			h.Fatal(err)
		}
	}
	return mem, m
}

func split(entries []logged) (out []logged) {
	for _, e := range entries {
		for _, c := range e.commands {
			out = append(out, logged{time: e.time, commands: [][]byte{c}})
		}
	}
	return out
}

// merge joins neighbours with the same time.
func merge(entries []logged) (out []logged) {
	for _, e := range entries {
		if n := len(out) - 1; n >= 0 && out[n].time == e.time && !out[n].setsTime {
			out[n].commands = append(slices.Clone(out[n].commands), e.commands...)
			out[n].setsTime = e.setsTime
			continue
		}
		out = append(out, e)
	}
	return out
}

// checkReplayAddsNothing is invariant 6. Requests without a session are held
// to it as long as their stream has not been evicted.
func (h *history) checkReplayAddsNothing() {
	for _, x := range h.receipts {
		if x.receipt.Sequence != x.write.Sequence {
			continue // answered by its key under rule 6: it is another request that was committed
		}
		s := h.model.stream(x.write.Scope, x.write.ClientID)
		found, err := h.m.View(h.mem).Transaction(NewTxID(x.receipt.LedgerID, x.receipt.Index))
		if err != nil {
			h.Fatal(err)
		}
		if x.write.Session == 0 && found.CreatedIndex != s.created {
			continue
		}
		// A copy of the state, since a round in between could evict the stream.
		mem := h.mem.Clone()
		m, err := Open(mem)
		if err != nil {
			h.Fatal(err)
		}
		out, err := m.Apply(mem, AppendEntry(nil, h.now, AppendWrite(nil, x.write)))
		if err != nil || out[0].Code == Committed {
			h.Fatalf("invariant 6: a committed request ran again: %+v %+v %v", x.write, out, err)
		}
	}
}
