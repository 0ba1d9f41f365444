package machine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/rapidtest"
	. "github.com/seqledger/seqledger/ledger/machine"
)

// history makes random commands, so chosen that every rule is within reach,
// and compares what the machine says with the model, command by command.
type history struct {
	*rapid.T
	mem      *Memory
	m        *Machine
	model    *ledgermodel.Model
	now      int64
	header   EntryHeader // of the next entry, but for its time
	log      []Logged
	writes   []*Write // everything that was ever sent, to be sent again
	keyed    []*KeyedCommand
	jobs     []*KeyedWrite
	receipts []HandedOut
	dropped  uint64 // the horizon up to which blocks have been dropped
	crowded  int    // clients that came once
}

var (
	propertyScopes  = []Scope{{Organization: "acme"}, {Organization: "acme", Vault: "v"}, {Organization: "other"}}
	propertyClients = []string{"a", "b", "c"}
	propertyKeys    = []string{"k", "k1", "k2", "l"}
)

// longValue is one that stays in its block.
var longValue = strings.Repeat("v", LongestValueInRecord+1)

const (
	second     = int64(1_000_000_000)
	testLedger = LedgerID(0x0123456789abcdef)
	testStart  = 1_000_000 * second
)

// propertyKey returns a key for each n, and none for 0.
func propertyKey(n byte) Key { return Key{UUID: [16]byte{n}, Present: n != 0} }

func pick[V any](t *rapid.T, what string, from ...V) V { return rapid.SampledFrom(from).Draw(t, what) }

func newHistory(t *rapid.T) *history {
	config := Config{
		EvictionInterval: pick[uint64](t, "interval", 1, 2, 5, 9), ClientTTL: pick[int64](t, "ttl", 2, 10, 30) * second,
		EvictionLimit: pick[uint64](t, "limit", 1, 2, 3, 50), ReceiptWindow: pick[uint64](t, "window", 1, 2, 3, 5),
		MaxStreams:   pick[uint64](t, "max streams", 2, 4, 50),
		RetainBlocks: pick[int64](t, "retain", 0, 1, 3, 20) * second,
	}
	h := &history{T: t, mem: NewMemory(), model: ledgermodel.NewModel(), now: testStart}
	h.reopen()
	h.model.Begin(h.now)
	create := ledgermodel.Create{ID: testLedger, Config: config}
	h.model.Apply(create)
	h.apply(ledgermodel.Encode(create))
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
	h.log = append(h.log, Logged{Time: h.now, Commands: commands})
	h.header.UnixNanos = h.now
	entry := AppendEntryHeader(nil, h.header, len(commands))
	for _, c := range commands {
		entry = AppendFramed(entry, c)
	}
	if rapid.Bool().Draw(h.T, "in flight") { // the next entry was proposed before this one was applied
		h.header = h.m.Header()
	}
	out, err := h.m.Apply(h.mem, entry)
	if err != nil {
		h.Fatalf("applying an entry: %v", err)
	}
	return out
}

// step applies one log entry.
func (h *history) step() {
	h.now = max(0, h.now+pick[int64](h.T, "seconds", 0, 0, 0, 0, 1, 1, 2, 5, 9, 40, -3)*second+
		pick[int64](h.T, "nanos", 0, 0, 1))
	draw := h.command
	n := rapid.IntRange(1, 7).Draw(h.T, "commands")
	switch crowd := rapid.IntRange(0, 14).Draw(h.T, "crowd"); {
	case crowd == 0:
		draw, n = h.crowd, 12
	case crowd == 1 && h.model.Backlog:
		draw, n = h.flood, 6
	}
	h.entry(n, draw)
}

// entry applies an entry of n commands, each of which is drawn when the model has decided the one before.
func (h *history) entry(n int, draw func() any) (sent []any, out []Outcome) {
	h.model.Begin(h.now)
	var commands [][]byte
	var want []Outcome
	next := h.now
	for range n {
		command := draw()
		commands, sent = append(commands, ledgermodel.Encode(command)), append(sent, command)
		want = append(want, h.model.Apply(command))
		if epoch, ok := command.(ledgermodel.Epoch); ok && epoch.Time != 0 {
			next = epoch.Time
			break // the next entry bears another time
		}
	}
	out = h.apply(commands...)
	h.log[len(h.log)-1].SetsTime = next != h.now
	h.now = next
	for i, got := range out {
		if difference := ledgermodel.Differ(&got, &want[i]); difference != "" {
			text, _ := json.Marshal(sent[i])
			h.Fatalf("%T %s:\n%s", sent[i], text, difference)
		}
		if w, ok := sent[i].(*Write); ok && (got.Code == Committed || got.Code == Replayed) {
			h.receipts = append(h.receipts, HandedOut{Write: w, Receipt: got.Receipt})
		}
	}
	v := h.m.View(h.mem)
	if v.Index() != h.model.Index || v.Time() != h.model.Time || v.Config() != h.model.Config ||
		v.Streams() != uint64(len(h.model.Streams)) {
		h.Fatalf("after the entry: index %d, time %d, %d streams, %+v\nwant index %d, time %d, %d streams, %+v",
			v.Index(), v.Time(), v.Streams(), v.Config(),
			h.model.Index, h.model.Time, len(h.model.Streams), h.model.Config)
	}
	must.Equal(h, v.Retained().Horizon.Index(), h.model.Horizon, "after the entry: the horizon is %d")
	if h.model.Horizon > h.dropped && rapid.IntRange(0, 2).Draw(h.T, "drop") == 0 {
		h.dropped = h.model.Horizon
		ledgermodel.Drop(h.mem, h.m)
		h.model.Fired["history dropped"]++
	}
	if rapid.IntRange(0, 4).Draw(h.T, "restart") == 0 {
		h.reopen()
	}
	return sent, out
}

// crowd makes a write of a client that comes once, with entities that expire: more streams and entities than a pass
// takes behind one that has left some.
func (h *history) crowd() any {
	h.crowded++
	w := &Write{
		Scope: propertyScopes[0], ClientID: fmt.Sprint("of a crowd ", h.crowded), Actor: "client:1", Sequence: 1,
		Operations: []Operation{
			{Kind: OpSetEntity, Key: fmt.Append(nil, "crowd", h.crowded%24), ExpiresAt: h.model.Time + second},
			{Kind: OpSetEntity, Key: fmt.Append(nil, "crowd", (h.crowded+12)%24), ExpiresAt: h.model.Time + second},
		},
	}
	h.writes = append(h.writes, w)
	return w
}

// flood makes a write that adds 1,000 entries to the expiry index, and takes nearly as many from it. Five of them make
// a pass due, if the one before has left something.
func (h *history) flood() any {
	h.crowded++
	w := &Write{
		Scope: propertyScopes[0], ClientID: fmt.Sprint("of a flood ", h.crowded), Actor: "client:1", Sequence: 1,
	}
	end := h.model.Time + second + int64(h.crowded)*MaxOperations
	for i := range int64(MaxOperations) {
		w.Operations = append(w.Operations, Operation{Kind: OpSetEntity, Key: []byte("flood"), ExpiresAt: end + i})
	}
	return w
}

func (h *history) command() any {
	switch n := rapid.IntRange(0, 118).Draw(h.T, "kind"); {
	case n < 78:
		w := h.write()
		h.writes = append(h.writes, w)
		return w
	case n < 93:
		return h.openSession()
	case n < 97:
		return h.update()
	case n < 98:
		return ledgermodel.Tick{}
	case n < 100:
		return h.epoch()
	default:
		return h.keyedCommand()
	}
}

func (h *history) epoch() ledgermodel.Epoch {
	c := ledgermodel.Epoch{ID: testLedger + LedgerID(h.model.Epochs())}
	if rapid.Bool().Draw(h.T, "sets the time") {
		c.Time = max(1, h.now+pick[int64](h.T, "time", -100, -20, -5, -1, 0, 1, 50)*second)
	}
	return c
}

// near draws a number close to another one, which is where decisions change.
func near(t *rapid.T, what string, n uint64) uint64 {
	return n + pick[uint64](t, what, 0, 0, 0, 1, ^uint64(0), ^uint64(1), 2)
}

func (h *history) write() *Write {
	w := &Write{
		Scope: pick(h.T, "scope", propertyScopes...), ClientID: pick(h.T, "client", propertyClients...),
		Actor: pick(h.T, "actor", "client:1", "user:2"), Key: propertyKey(rapid.ByteRange(0, 5).Draw(h.T, "key")),
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
			again.Session = h.model.Stream(again.Scope, again.ClientID).Session
		}
		return &again
	}
	s := h.model.Stream(w.Scope, w.ClientID)
	w.Session, w.Sequence = s.Session, s.Last+1
	if rapid.IntRange(0, 9).Draw(h.T, "odd sequence") < 4 {
		w.Sequence = pick(h.T, "sequence", max(1, near(h.T, "near last", s.Last)), 1, s.Last+2, 1<<64-1, 1<<64-2)
	}
	if rapid.IntRange(0, 9).Draw(h.T, "odd session") < 2 {
		w.Session = pick[uint64](h.T, "session", 0, near(h.T, "near session", s.Session), h.model.Index, 1)
	}
	w.Operations = h.operations(w.Scope)
	return w
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
				op.ExpiresAt = h.model.Time + rapid.Int64Range(-1, 6).Draw(h.T, "lifetime")*second
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
		e, there := h.model.Entities[ledgermodel.Name{Scope: scope, ID: key}]
		if there && !h.model.Expired(e) {
			keys = append(keys, key, key, key)
		}
	}
	return keys
}

func (h *history) condition(scope Scope, key []byte) (c Condition) {
	if rapid.IntRange(0, 2).Draw(h.T, "unconditional") == 0 {
		return c
	}
	e := h.model.Entities[ledgermodel.Name{Scope: scope, ID: string(key)}]
	c.Kind = ConditionKind(rapid.IntRange(1, 4).Draw(h.T, "condition"))
	switch c.Kind {
	case ConditionVersion:
		c.Version = near(h.T, "version", e.Version)
	case ConditionValueEquals:
		c.Value = []byte(pick(h.T, "expected value", e.Value, "1", longValue, "none has it"))
	}
	return c
}

func (h *history) openSession() *OpenSession {
	o := &OpenSession{
		Scope: pick(h.T, "scope", propertyScopes...), ClientID: pick(h.T, "client", propertyClients...),
		Actor: "client:1",
	}
	s := h.model.Stream(o.Scope, o.ClientID)
	o.AttemptID = [16]byte{rapid.Byte().Draw(h.T, "attempt")}
	if len(s.Attempts) > 0 && rapid.IntRange(0, 2).Draw(h.T, "attempt again") == 0 {
		o.AttemptID = pick(h.T, "attempt", s.Attempts...)
	}
	o.ExpectedSession = pick[uint64](h.T, "expected", 0, 0, s.Session, near(h.T, "near session", s.Session))
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
	u.RetainBytes = number("retain bytes", 0, 0, 1<<20, 1)
	if retain := number("retain", 0, 1, 3, 20); retain != nil {
		u.RetainBlocks = new(int64(*retain) * second)
	}
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
		"update config: COMMITTED", "update config: INVALID_ARGUMENT",
		"epoch: COMMITTED", "tick: COMMITTED", "time set back", "stream brought back",
		"pass after a backlog", "share of a pass", "mark", "horizon moved", "history dropped",
		"pass for what was added", "keyed write: COMMITTED", "keyed write: REPLAYED",
		"key removed",
	}
	for code := Committed; code <= TooManyStreams; code++ {
		rules = append(rules, "write: "+code.String())
	}
	for _, code := range []Code{Committed, SessionExpired, SessionFenced, TooManyStreams} {
		rules = append(rules, "open session: "+code.String())
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
	rapidtest.CheckUntil(t, func() string {
		for _, rule := range rulesThatMustFire() {
			if fired[rule] == 0 && commands > 5_000 { // a shorter run (-rapid.checks) may miss one
				return fmt.Sprintf("%q has not happened in %d commands", rule, commands)
			}
		}
		return ""
	}, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(10, 60).Draw(t, "entries") {
			h.step()
		}
		for rule, n := range h.model.Fired {
			fired[rule] += n
		}
		for _, entry := range h.log {
			commands += len(entry.Commands)
		}
		h.compareState()
		h.checkAudits()
		h.checkOtherGroupings()
		h.checkReplayAddsNothing()
	})
	t.Logf("%d commands, shares %d", commands, fired["share of a pass"])
}

// compareState compares entities, relationships and streams with the model's.
func (h *history) compareState() {
	v := h.m.View(h.mem)
	got, want := map[string]string{}, map[string]string{}
	for name, e := range h.model.Entities {
		if !h.model.Expired(e) {
			want[fmt.Sprint("entity ", name)] = fmt.Sprint(e.Value, e.Version, e.ExpiresAt)
		}
	}
	for r := range h.model.Related {
		want[fmt.Sprint("relationship ", r)] = "there"
	}
	for name, s := range h.model.Streams {
		want[fmt.Sprint("stream ", name)] = fmt.Sprint(StreamState{s.CreatedIndex, s.Session, s.Last, s.LastSeen})
	}
	for _, scope := range propertyScopes {
		must.Get(v.VisitEntities(scope, "", "", func(e Entity) bool {
			got[fmt.Sprint("entity ", ledgermodel.Name{Scope: scope, ID: e.Key})] = fmt.Sprint(string(e.Value),
				e.Version, e.ExpiresAt)
			return true
		}))(h)
		must.Get(v.VisitRelationships(scope, "", "", nil, func(_ []byte, r Relationship) bool {
			got[fmt.Sprint("relationship ", ledgermodel.Relation{Scope: scope, Resource: r.Resource,
				Relation: r.Relation, Subject: r.Subject})] = "there"
			return true
		}))(h)
	}
	h.compareKeys()
	must.Get(v.VisitStreams(nil, nil, func(_ []byte, s NamedStream) bool {
		got[fmt.Sprint("stream ", ledgermodel.Name{Scope: s.Scope, ID: s.ClientID})] = fmt.Sprint(s.StreamState)
		return true
	}))(h)
	for _, from := range []map[string]string{got, want} {
		for k := range from {
			must.Equal(h, got[k], want[k], "%s is %q", k)
		}
	}
}

// checkAudits runs the tests' own audit and the package's.
func (h *history) checkAudits() {
	must.Do(h, ReadBack(h.mem, h.receipts), "reading back")
	if n := h.mem.Len(TableEntities); n != len(h.model.Entities) {
		h.Fatalf("there are %d entity records, want %d: expired ones leave in a round", n, len(h.model.Entities))
	}
	for _, x := range h.model.Transactions {
		found, err := h.m.View(h.mem).Transaction(NewTxID(x.Receipt.LedgerID, x.Receipt.Index))
		if x.Receipt.Index < h.model.Horizon {
			if gone, ok := errors.AsType[*GoneError](err); !ok || gone.Horizon != h.model.Horizon {
				h.Fatalf("transaction %d lies before the horizon, %d: %v", x.Receipt.Index, h.model.Horizon, err)
			}
			continue
		}
		if err != nil || found.ClientID != x.Stream.ID || found.CreatedIndex != x.Created ||
			found.Scope != x.Stream.Scope ||
			!slices.Equal(found.Versions, x.Receipt.Versions) && x.Write != nil {
			h.Fatalf("transaction %d is %+v, %v, want %+v", x.Receipt.Index, found, err, x)
		}
	}
	must.Get(h.m.Audit(h.mem, func(p Problem) {
		h.Errorf("the audit of a sound state reports %s: %s", p.Where,
			p.What)
	}, nil))(h)
}

// checkOtherGroupings is invariant 8: the same log without restarts gives the
// same state to the last byte; the same commands with the same times in other
// entries give the same but for the blocks.
func (h *history) checkOtherGroupings() {
	digest := h.m.View(h.mem).Digest()
	for name, entries := range map[string][]Logged{
		"as it was": h.log, "one by one": SplitLog(h.log), "in larger groups": MergeLog(h.log),
	} {
		mem, m := ReplayLog(h, entries)
		must.Equal(h, m.View(mem).Digest(), digest, "invariant 8: applied %s, the digest is %s", name)
		want := h.mem.Clone()
		// What was dropped, and carried, is a matter of each node.
		ledgermodel.Drop(want, h.m)
		ledgermodel.Drop(mem, m)
		want.Clear(TableCarried)
		mem.Clear(TableCarried)
		if name != "as it was" {
			for _, table := range []Table{TableBlocks, TableScopes} {
				want.Clear(table)
				mem.Clear(table)
			}
			must.Do(h, want.ClearLeaves())
			must.Do(h, mem.ClearLeaves())
		}
		if table, key, differ := mem.Difference(want); differ {
			h.Fatalf("invariant 8: applied %s, the state differs at key %x of table %d", name, key, table)
		}
	}
}

// checkReplayAddsNothing is invariant 6. Requests without a session are held
// to it as long as their stream has not been evicted.
func (h *history) checkReplayAddsNothing() {
	for _, x := range h.receipts {
		if x.Receipt.Sequence != x.Write.Sequence {
			continue // answered by its key under rule 6: it is another request that was committed
		}
		s := h.model.Stream(x.Write.Scope, x.Write.ClientID)
		if x.Write.Session == 0 && h.model.Transactions[x.Receipt.Index].Created != s.CreatedIndex {
			continue
		}
		// A copy of the state, since a round in between could evict the stream.
		mem := h.mem.Clone()
		m := must.Get(Open(mem))(h)
		out, err := m.Apply(mem, AppendEntry(nil, h.now, AppendWrite(nil, x.Write)))
		if err != nil || out[0].Code == Committed {
			h.Fatalf("invariant 6: a committed request ran again: %+v %+v %v", x.Write, out, err)
		}
	}
}
