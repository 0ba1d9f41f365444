package machine

import (
	"errors"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// checkField expects no error for an empty field, and else one that names it.
func checkField(t *testing.T, name string, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("%s: %v, want no error", name, err)
		}
		return
	}
	wrong, ok := errors.AsType[*FieldError](err)
	if !ok || wrong.Field != field || wrong.Problem == "" {
		t.Errorf("%s: %v, want a *FieldError about %s", name, err, field)
	}
}

// Every limit of a write, at its boundary and one over, and the path of the
// field that the error names.
func TestWriteLimits(t *testing.T) {
	t.Parallel()
	text := strings.Repeat
	for _, test := range []struct {
		name  string
		edit  func(w *Write)
		field string
	}{
		{"as it is", func(*Write) {}, ""},
		{"organization 128", func(w *Write) { w.Scope.Organization = text("o", 128) }, ""},
		{"organization 129", func(w *Write) { w.Scope.Organization = text("o", 129) }, "scope.organization"},
		{"organization empty", func(w *Write) { w.Scope.Organization = "" }, "scope.organization"},
		{"organization empty with a vault", func(w *Write) { w.Scope = Scope{"", "v"} }, "scope.organization"},
		{"organization of all characters", func(w *Write) { w.Scope.Organization = "azAZ09:/_.-" }, ""},
		{"organization with a space", func(w *Write) { w.Scope.Organization = "a b" }, "scope.organization"},
		{"organization with a comma", func(w *Write) { w.Scope.Organization = "a,b" }, "scope.organization"},
		{"organization with a semicolon", func(w *Write) { w.Scope.Organization = "a;b" }, "scope.organization"},
		{"organization with an at sign", func(w *Write) { w.Scope.Organization = "a@b" }, "scope.organization"},
		{"organization with a bracket", func(w *Write) { w.Scope.Organization = "a[b" }, "scope.organization"},
		{"organization with a backtick", func(w *Write) { w.Scope.Organization = "a`b" }, "scope.organization"},
		{"organization with a brace", func(w *Write) { w.Scope.Organization = "a{b" }, "scope.organization"},
		{"organization with a NUL", func(w *Write) { w.Scope.Organization = "a\x00" }, "scope.organization"},
		{"organization with an umlaut", func(w *Write) { w.Scope.Organization = "ä" }, "scope.organization"},
		{"vault 128", func(w *Write) { w.Scope.Vault = text("v", 128) }, ""},
		{"vault 129", func(w *Write) { w.Scope.Vault = text("v", 129) }, "scope.vault"},
		{"vault with a space", func(w *Write) { w.Scope.Vault = "a b" }, "scope.vault"},
		{"client_id 256", func(w *Write) { w.ClientID = text("c", 256) }, ""},
		{"client_id 257", func(w *Write) { w.ClientID = text("c", 257) }, "client_id"},
		{"client_id empty", func(w *Write) { w.ClientID = "" }, "client_id"},
		{"client_id first and last printable", func(w *Write) { w.ClientID = " ~" }, ""},
		{"client_id with a control character", func(w *Write) { w.ClientID = "a\x1f" }, "client_id"},
		{"client_id with DEL", func(w *Write) { w.ClientID = "a\x7f" }, "client_id"},
		{"client_id beyond ASCII", func(w *Write) { w.ClientID = "é" }, "client_id"},
		{"actor 512", func(w *Write) { w.Actor = text("a", 512) }, ""},
		{"actor 513", func(w *Write) { w.Actor = text("a", 513) }, "actor"},
		{"actor empty", func(w *Write) { w.Actor = "" }, "actor"},
		{"sequence 0", func(w *Write) { w.Sequence = 0 }, "sequence"},
		{"sequence 2^64 - 1", func(w *Write) { w.Sequence = 1<<64 - 1 }, ""}, // the machine refuses it: rule 7
		{"no operations", func(w *Write) { w.Operations = nil }, "operations"},
		{"1,000 operations", func(w *Write) { w.Operations = repeat(remove("k"), 1_000) }, ""},
		{"1,001 operations", func(w *Write) { w.Operations = repeat(remove("k"), 1_001) }, "operations"},
		{"4 MiB", func(w *Write) {
			w.Operations = repeat(Operation{Kind: OpAppend, Value: make([]byte, 1<<20)},
				4)
		}, ""},
		{"4 MiB and a byte", func(w *Write) {
			w.Operations = append(repeat(Operation{Kind: OpAppend, Value: make([]byte, 1<<20)}, 4),
				Operation{Kind: OpAppend, Value: []byte("x")})
		}, "operations"},
		{"4 MiB with the expected value", func(w *Write) {
			w.Operations = repeat(provided(set("k", text("v", 1<<20-1)), valueEquals(text("v", 1<<20))), 3)
		}, "operations"},
	} {
		w := appendWrite("c", 1, 1, "x")
		test.edit(w)
		checkField(t, test.name, w.Validate(), test.field)
	}
}

func repeat(op Operation, n int) (ops []Operation) {
	for range n {
		ops = append(ops, op)
	}
	return ops
}

// The limits of operations; the path says which operation it is, here the
// second one.
func TestOperationLimits(t *testing.T) {
	t.Parallel()
	long, mega := strings.Repeat("k", 1_024), strings.Repeat("v", 1<<20)
	for _, test := range []struct {
		name  string
		op    Operation
		field string
	}{
		{"set key 1,024", set(long, "v"), ""},
		{"set key 1,025", set(long+"k", "v"), ".set_entity.key"},
		{"set key empty", set("", "v"), ".set_entity.key"},
		{"set key not UTF-8", set("\xff", "v"), ".set_entity.key"},
		{"set key of any UTF-8", set("\x00é", "v"), ""},
		{"set value empty", set("k", ""), ""},
		{"set value 1 MiB", set("k", mega), ""},
		{"set value 1 MiB + 1", set("k", mega+"v"), ".set_entity.value"},
		{"set expires_at 0", setUntil("k", "v", 0), ""},
		{"set expires_at negative", setUntil("k", "v", -1), ".set_entity.expires_at"},
		{"set with each condition", provided(set("k", "v"), notExists), ""},
		{"set with an unknown condition", provided(set("k", "v"), Condition{Kind: 5}), ".set_entity.condition"},
		{"set with value_equals of 1 MiB", provided(set("k", "v"), valueEquals(mega)), ""},
		{"set with value_equals of 1 MiB + 1", provided(set("k", "v"), valueEquals(mega+"v")),
			".set_entity.condition.value_equals"},
		{"delete key 1,024", remove(long), ""},
		{"delete key 1,025", remove(long + "k"), ".delete_entity.key"},
		{"delete key empty", remove(""), ".delete_entity.key"},
		{"delete with an unknown condition", provided(remove("k"), Condition{Kind: 99}), ".delete_entity.condition"},
		{"delete with value_equals too long", provided(remove("k"), valueEquals(mega+"v")),
			".delete_entity.condition.value_equals"},
		{"relationship parts 1,024", relate(long, long, long), ""},
		{"resource 1,025", relate(long+"k", "r", "s"), ".create_relationship.resource"},
		{"relation 1,025", relate("r", long+"k", "s"), ".create_relationship.relation"},
		{"subject 1,025", relate("r", "r", long+"k"), ".create_relationship.subject"},
		{"resource empty", relate("", "r", "s"), ".create_relationship.resource"},
		{"relation empty", relate("r", "", "s"), ".create_relationship.relation"},
		{"subject not UTF-8", relate("r", "r", "\xc0"), ".create_relationship.subject"},
		{"delete resource empty", unrelate("", "r", "s"), ".delete_relationship.resource"},
		{"delete relation 1,025", unrelate("r", long+"k", "s"), ".delete_relationship.relation"},
		{"delete subject empty", unrelate("r", "r", ""), ".delete_relationship.subject"},
		{"payload empty", Operation{Kind: OpAppend}, ""},
		{"payload 1 MiB", Operation{Kind: OpAppend, Value: []byte(mega)}, ""},
		{"payload 1 MiB + 1", Operation{Kind: OpAppend, Value: []byte(mega + "v")}, ".append.payload"},
		{"expire_entity", Operation{Kind: OpExpireEntity, Key: []byte("k")}, ".expire_entity"},
	} {
		w := operations("c", 1, 1, set("fine", "v"), test.op)
		field := test.field
		if field != "" {
			field = "operations[1]" + field
		}
		checkField(t, test.name, w.Validate(), field)
	}
	for _, kind := range []OperationKind{0, 7, 255} {
		w := operations("c", 1, 1, Operation{Kind: kind, Key: []byte("k")})
		checkField(t, "an operation that is not set", w.Validate(), "operations[0]")
	}
}

func TestOpenSessionLimits(t *testing.T) {
	t.Parallel()
	o := OpenSession{Scope: testScope, ClientID: "c", Actor: "a", AttemptID: [16]byte{1}}
	checkField(t, "as it is", o.Validate(), "")
	bad := o
	bad.Scope.Organization = ""
	checkField(t, "no organization", bad.Validate(), "scope.organization")
	bad = o
	bad.ClientID = strings.Repeat("c", 257)
	checkField(t, "client_id 257", bad.Validate(), "client_id")
	bad = o
	bad.Actor = ""
	checkField(t, "no actor", bad.Validate(), "actor")
}

// The limits of the configuration, as the state machine checks them: at the
// boundary and one over, by Validate and by UpdateConfig through the log.
func TestConfigLimits(t *testing.T) {
	t.Parallel()
	must.Do(t, DefaultConfig().Validate(), "the default is out of range")
	want := Config{1_000, 24 * 3600 * second, 2_000, 64, 10_000_000, 0, 0}
	check.Equal(t, DefaultConfig(), want, "the default is %+v")
	for _, test := range []struct {
		name   string
		update ConfigUpdate
		field  string
	}{
		{"nothing", ConfigUpdate{}, ""},
		{"interval 0", ConfigUpdate{EvictionInterval: new(uint64(0))}, "eviction_interval"},
		{"interval 1", ConfigUpdate{EvictionInterval: new(uint64(1))}, ""},
		{"interval 10^6", ConfigUpdate{EvictionInterval: new(uint64(1_000_000))}, ""},
		{"interval 10^6 + 1", ConfigUpdate{EvictionInterval: new(uint64(1_000_001))}, "eviction_interval"},
		{"ttl just below 1 s", ConfigUpdate{ClientTTL: new(second - 1)}, "client_ttl"},
		{"ttl 1 s", ConfigUpdate{ClientTTL: new(second)}, ""},
		{"ttl negative", ConfigUpdate{ClientTTL: new(int64(-1))}, "client_ttl"},
		{"ttl as long as can be", ConfigUpdate{ClientTTL: new(int64(1<<63 - 1))}, ""},
		{"limit 0", ConfigUpdate{EvictionLimit: new(uint64(0))}, "eviction_limit"},
		{"limit 1", ConfigUpdate{EvictionLimit: new(uint64(1))}, ""},
		{"limit 10^5", ConfigUpdate{EvictionLimit: new(uint64(100_000))}, ""},
		{"limit 10^5 + 1", ConfigUpdate{EvictionLimit: new(uint64(100_001))}, "eviction_limit"},
		{"window 0", ConfigUpdate{ReceiptWindow: new(uint64(0))}, "receipt_window"},
		{"window 1", ConfigUpdate{ReceiptWindow: new(uint64(1))}, ""},
		{"window 1,024", ConfigUpdate{ReceiptWindow: new(uint64(1_024))}, ""},
		{"window 1,025", ConfigUpdate{ReceiptWindow: new(uint64(1_025))}, "receipt_window"},
		{"max_streams 0", ConfigUpdate{MaxStreams: new(uint64(0))}, "max_streams"},
		{"max_streams 1", ConfigUpdate{MaxStreams: new(uint64(1))}, ""},
		{"one good, one bad", ConfigUpdate{ReceiptWindow: new(uint64(9)), MaxStreams: new(uint64(0))}, "max_streams"},
	} {
		f := newFixture(t, testConfig())
		out := f.configure(test.update)
		var err error
		if out.Field != nil {
			err = out.Field
		}
		checkField(t, test.name, err, test.field)
		wanted, code := testConfig().with(&test.update), Committed
		if test.field != "" {
			wanted, code = testConfig(), InvalidArgument // none of it holds, not even the good half
		}
		f.reopen()
		if out.Code != code || out.Config != wanted || f.view().Config() != wanted {
			t.Errorf("%s: %v, configuration %+v, want %v and %+v", test.name, out.Code, f.view().Config(), code, wanted)
		}
		if full := testConfig().with(&test.update); (full.Validate() == nil) != (test.field == "") {
			t.Errorf("%s: Validate says %v", test.name, full.Validate())
		}
	}
}

// The largest window is kept in full and no more: a stream's record is bounded
// however long it writes.
func TestLargestWindow(t *testing.T) {
	t.Parallel()
	config := testConfig()
	config.ReceiptWindow = 1_024
	f := newFixture(t, config)
	var commands [][]byte
	for i := range uint64(1_030) {
		commands = append(commands, AppendWrite(nil, appendWrite("c", i+1, 0, "x")))
	}
	f.entry(commands...)
	f.refuse(appendWrite("c", 7, 0, "x"), Replayed)
	f.refuse(appendWrite("c", 6, 0, "x"), AlreadyCommitted)
	key := append(appendScopeKey(nil, testScope), "c"...)
	if n := len(f.mem.tables[TableStreams].values[string(key)]); n > 1_024*14+100 {
		t.Errorf("the stream's record has %d bytes", n)
	}
}
