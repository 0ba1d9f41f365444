package machine

import (
	"bytes"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/internal/format"
)

// FuzzDecodeEntry: arbitrary bytes never panic, and what decodes has exactly
// one form.
func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte{})
	for _, seed := range goldenSeeds(f, "entry") {
		f.Add(seed)
	}
	f.Add(AppendEntry(nil, testStart, AppendEpoch(nil, 1, 0), []byte{}))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0x00, 0})
	f.Fuzz(func(t *testing.T, entry []byte) {
		header, commands, err := DecodeEntry(entry)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, format.ErrVersion) {
				t.Errorf("the error is %v, want ErrCorrupt or ErrVersion", err)
			}
			return
		}
		again := AppendEntryHeader(nil, header, len(commands))
		for _, c := range commands {
			again = AppendFramed(again, c)
		}
		if !bytes.Equal(again, entry) {
			t.Errorf("%x decodes, and encodes to %x", entry, again)
		}
	})
}

// preparedState has something in every table.
func preparedState(t testing.TB) *fixture {
	f := newFixture(t, testConfig())
	session := f.open("s", 1, 0, Committed).Session
	f.commit(inSession(appendWrite("s", 1, 1, "x"), session))
	f.commit(operations("c", 1, 1, set("k", "v"), setUntil("e", "v", f.now+1), relate("doc", "owner", "bob")))
	f.commit(appendWrite("c", 2, 2, "x"))
	f.one(AppendEpoch(nil, testLedger+1, 0))
	f.commit(appendWrite("c", 3, 3, "x"))
	return f
}

// FuzzApply: arbitrary commands on a prepared state never panic. They end in
// outcomes or an error, and the head of the state still loads.
func FuzzApply(f *testing.F) {
	f.Add(AppendWrite(nil, appendWrite("c", 4, 4, "x")), []byte{}, int64(0))
	f.Add(AppendWrite(nil, goldenWrite()), AppendWrite(nil, appendWrite("c", 3, 3, "x")), 200*second)
	f.Add(AppendOpenSession(nil, &OpenSession{Scope: testScope, ClientID: "c", Actor: "a"}), AppendEpoch(nil, 9, 0),
		int64(1))
	f.Add(AppendUpdateConfig(nil, &ConfigUpdate{EvictionInterval: new(uint64(1))}, "a"),
		AppendCreate(nil, 1, 77, DefaultConfig()), 200*second)
	f.Add(AppendWrite(nil, operations("c", 4, 0, remove("k"), unrelate("doc", "owner", "bob"),
		provided(remove("e"), mustExist))),
		AppendUpdateConfig(nil, &ConfigUpdate{EvictionInterval: new(uint64(1)), ReceiptWindow: new(uint64(1))}, "a"),
		int64(2))
	base := preparedState(f)
	f.Fuzz(func(t *testing.T, first, second []byte, later int64) {
		mem := base.mem.Clone()
		m := must.Get(Open(mem))(t)
		before := m.View(mem).Index()
		out, err := m.Apply(mem, AppendEntry(nil, base.now+max(0, min(later, 1<<60)), first, second))
		if err == nil && len(out) != 2 {
			t.Errorf("two commands have %d outcomes", len(out))
		}
		for _, o := range out {
			if o.Code == 0 || o.Code > InvalidArgument || o.Index <= before {
				t.Errorf("an outcome of code %v at index %d", o.Code, o.Index)
			}
		}
		again, openErr := Open(mem)
		must.Do(t, openErr, "the head does not load")
		if err == nil && (again.View(mem).Digest() != m.View(mem).Digest() ||
			again.View(mem).Index() != m.View(mem).Index()) {
			t.Error("the head that loads is not the one that was left")
		}
	})
}

// FuzzRecords: the decoders of everything that is stored never panic, and what
// they take encodes to the same bytes.
func FuzzRecords(f *testing.F) {
	base := preparedState(f)
	for table := range base.mem.tables {
		for key, value := range base.mem.tables[table].values {
			f.Add([]byte(key))
			f.Add(value)
		}
	}
	for _, kind := range []string{"record_", "head", "block_header", "transaction", "key_"} {
		for _, seed := range goldenSeeds(f, kind) {
			f.Add(seed)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		same := func(kind string, again []byte) {
			if !bytes.Equal(again, b) {
				t.Errorf("%s: %x decodes, and encodes to %x", kind, b, again)
			}
		}
		if h, err := decodeHead(b); err == nil && b[0] == headVersion {
			same("head", h.append(nil))
		}
		var s stream
		if err := s.decode(b); err == nil {
			same("stream", s.append(nil))
		}
		if e, err := decodeEntity(b); err == nil {
			same("entity", e.append(nil))
		}
		if x, err := storedOf(b, nil).decode(1); err == nil {
			same("transaction", x.Encode())
		}
		if e, err := decodeKeyed(b); err == nil {
			same("keyed record", e.append(nil))
		}
		if id, err := splitKeyedKey(b); err == nil && len(id.Principal) < 1<<16 {
			same("keyed key", id.TableKey())
		}
		d := decoder{rest: b}
		if header := d.header(); d.done("header") == nil {
			same("header", header.append(nil))
		}
		if r, err := splitRelationship(b); err == nil {
			same("relationship", appendRelationshipParts(nil, []byte(r.Resource), []byte(r.Relation),
				[]byte(r.Subject)))
		}
		if kind, at, key, err := splitExpiryKey(b); err == nil {
			same("expiry key", appendExpiryKey(nil, kind, at, key))
		}
		if scope, rest, err := splitScope(b); err == nil {
			same("scope", append(appendScopeKey(nil, scope), rest...))
		}
		for _, key := range []uint64{1, 2, 3} {
			record, err := openRecord(appendIndexKey(nil, key), b)
			if err != nil {
				continue
			}
			_ = record.count()
			_ = record.visitBlocks(func(_ place, block *blockRecord) bool { // must not panic, whatever it says
				_, err := block.leaves()
				return err == nil && block.visit(func(_ uint32, stored storedTransaction) bool {
					_, err := stored.decode(1)
					return err == nil
				}) == nil
			})
		}
	})
}

// FuzzDamagedState: a state of which one record holds arbitrary bytes gives
// errors or answers, never a panic.
func FuzzDamagedState(f *testing.F) {
	base := preparedState(f)
	f.Add(byte(TableStreams), uint(0), []byte{1, 2, 3})
	f.Add(byte(TableBlocks), uint(1), []byte{recordVersion, 1, 200})
	f.Add(byte(TableExpiry), uint(1), []byte{})
	for table := range base.mem.tables {
		for i, key := range base.mem.tables[table].keys {
			f.Add(byte(table), uint(i), base.mem.tables[table].values[key])
		}
	}
	f.Fuzz(func(t *testing.T, table byte, which uint, value []byte) {
		mem := base.mem.Clone()
		keys := mem.tables[int(table)%TableCount].keys
		if len(keys) == 0 || int(table)%TableCount == int(TableMeta) {
			return // the head is FuzzRecords' business
		}
		must.Do(t, mem.Put(Table(int(table)%TableCount), []byte(keys[which%uint(len(keys))]), value))
		m := must.Get(Open(mem))(t)
		// Errors are what this is about; that none of them is a panic is the test.
		_, _ = m.Audit(mem, func(Problem) {}, nil)
		v := m.View(mem)
		_, _ = v.Receipts(testScope, "c", 9)
		_, _ = v.Block(testScope, 1)
		_, _ = v.Proof(v.Index())
		_, _ = v.Entity(testScope, "k")
		_, _ = v.VisitEntities(testScope, "", "", func(Entity) bool { return true })
		_, _ = v.VisitRelationships(testScope, "", "", nil, func([]byte, Relationship) bool { return true })
		_, _ = v.VisitStreams(nil, nil, func([]byte, NamedStream) bool { return true })
		_, _ = m.Apply(mem, AppendEntry(nil, base.now+1_000*second,
			AppendWrite(nil, appendWrite("c", 3, 3, "x")),
			AppendWrite(nil, operations("c", 4, 4, set("k", "v"), relate("doc", "owner", "bob"))),
			AppendUpdateConfig(nil, &ConfigUpdate{EvictionInterval: new(uint64(1))}, "a"),
		))
	})
}

// FuzzParseUUID: no text panics, and what parses is spelled in one way but for
// the case.
func FuzzParseUUID(f *testing.F) {
	f.Add("01234567-89ab-cdef-0123-456789abcdef")
	f.Add("01234567-89AB-CDEF-0123-456789ABCDEF")
	f.Add("")
	f.Add("012345678-9ab-cdef-0123-456789abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := ParseUUID(text)
		if err == nil && FormatUUID(u) != string(bytes.ToLower([]byte(text))) {
			t.Errorf("%q parses to %s", text, FormatUUID(u))
		}
		if id, err := ParseTxID(text); err == nil && NewTxID(id.Parts()) != id {
			t.Errorf("%q parses to %s, whose parts make %s", text, id, NewTxID(id.Parts()))
		}
	})
}

// FuzzValidate: what Validate lets through is committed and read back as it
// was; what it refuses has a field.
func FuzzValidate(f *testing.F) {
	f.Add("acme", "", "c", "k", "v", byte(1), byte(0), int64(0))
	f.Add("acme", "v", "c 1", "k\x00", "", byte(2), byte(4), int64(-1))
	f.Add("a:/_.-9", "", "~", "é", "v", byte(3), byte(0), int64(1<<62))
	f.Add("", "\xff", "", "", "", byte(6), byte(9), int64(5))
	f.Fuzz(func(t *testing.T, organization, vault, client, key, value string, kind, condition byte, expiresAt int64) {
		w := operations(client, 1, 0, Operation{
			Kind: OperationKind(kind), Key: []byte(key), Relation: []byte(value), Subject: []byte(key),
			Value:     []byte(value),
			Condition: Condition{Kind: ConditionKind(condition), Value: []byte(value)}, ExpiresAt: expiresAt,
		})
		w.Scope = Scope{organization, vault}
		if err := w.Validate(); err != nil {
			if wrong, ok := errors.AsType[*FieldError](err); !ok || wrong.Field == "" ||
				!utf8.ValidString(err.Error()) {
				t.Errorf("the error is %v, want a *FieldError with a field, in UTF-8", err)
			}
			return
		}
		state := newFixture(t, testConfig())
		out := state.entry(AppendWrite(nil, w))[0]
		if out.Code != Committed {
			if condition < 2 || out.Code != KeyNotFound {
				t.Errorf("a valid write gave %v", out.Code)
			}
			return
		}
		x, err := state.view().Transaction(state.view().TxIDAt(out.Index))
		if err != nil || x.Scope != w.Scope || x.ClientID != client ||
			!bytes.Equal(appendOperations(nil, x.Operations), appendOperations(nil, w.Operations)) {
			t.Errorf("a valid write reads back as %+v, %v", x, err)
		}
		must.Do(t, readBack(state.mem, []HandedOut{{w, out.Receipt}}))
	})
}
