package machine

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A number has one encoding: a longer spelling of a shorter one is refused.
func TestUvarintHasOneForm(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		bytes []byte
		want  uint64
		ok    bool
	}{
		{[]byte{0}, 0, true},
		{[]byte{0x7f}, 127, true},
		{[]byte{0x80, 1}, 128, true},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, math.MaxUint64, true},
		{[]byte{0x80, 0}, 0, false},
		{[]byte{0xff, 0}, 0, false},
		{[]byte{0x80, 0x80, 0}, 0, false},
		{[]byte{0x80}, 0, false},
		{nil, 0, false},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2}, 0, false},
		{bytes.Repeat([]byte{0x80}, 11), 0, false},
	} {
		d := decoder{rest: test.bytes}
		if got := d.uvarint(); d.bad == test.ok || got != test.want && test.ok {
			t.Errorf("%x decodes to %d, bad %v, want %d, %v", test.bytes, got, d.bad, test.want, !test.ok)
		}
	}
}

// The first defect sticks and names what was being read.
func TestDecoderStopsAtTheFirstDefect(t *testing.T) {
	t.Parallel()
	d := decoder{rest: []byte{5, 'a', 'b', 1, 2, 3}}
	if d.take(99) != nil || !d.bad || d.uint64() != 0 || d.uint32() != 0 || d.octet() != 0 || d.hash() != (Hash{}) {
		t.Error("a decoder goes on after a defect")
	}
	if err := d.done("thing"); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "thing") {
		t.Errorf("the error is %v, want ErrCorrupt about the thing", err)
	}
	left := decoder{rest: []byte{1}}
	if err := left.done("thing"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("bytes that are left over: %v, want ErrCorrupt", err)
	}
}

// A transaction id is a UUIDv8 that gives back what it was made of.
func TestTxID(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ledger, index := LedgerID(rapid.Uint64().Draw(t, "ledger")), rapid.Uint64Range(0, maxLedgerIndex).Draw(t,
			"index")
		id := NewTxID(ledger, index)
		if l, i := id.Parts(); l != ledger || i != index {
			t.Fatalf("%s is made of %s and %d, it says %s and %d", id, ledger, index, l, i)
		}
		if text := id.String(); len(text) != 36 || text[14] != '8' || !strings.ContainsRune("89ab", rune(text[19])) {
			t.Fatalf("%s is no UUIDv8 of RFC 9562", text)
		}
		for _, text := range []string{id.String(), strings.ToUpper(id.String())} {
			must.Equal(t, must.Get(ParseTxID(text))(t), id, "%s parses to %s", text)
		}
	})
	for _, text := range []string{
		"", "x", "123e4567-e89b-42d3-a456-426614174000", "123e4567-e89b-82d3-c456-426614174000",
		"123e4567e89b82d3a456426614174000", strings.Repeat("é", 1_000),
	} {
		_, err := ParseTxID(text)
		wrong, ok := errors.AsType[*FieldError](err)
		if !ok || wrong.Field != "tx_id" || len(err.Error()) > 300 {
			t.Errorf("%.40q: %v, want a short *FieldError about tx_id", text, err)
		}
	}
}

func TestParseUUID(t *testing.T) {
	t.Parallel()
	const text = "01234567-89ab-cdef-0123-456789abcdef"
	u, err := ParseUUID(text)
	if err != nil || FormatUUID(u) != text || u[0] != 1 || u[15] != 0xef {
		t.Errorf("%s parses to %x, %v", text, u, err)
	}
	check.Equal(t, must.Get(ParseUUID(strings.ToUpper(text)))(t), u, "in upper case it is %x")
	for i := range text { // any one character replaced
		for _, c := range "g- " {
			if broken := text[:i] + string(c) + text[i+1:]; broken != text {
				refuseUUID(t, broken)
			}
		}
	}
	for _, broken := range []string{
		text[1:], text + "0", "{" + text + "}", strings.ReplaceAll(text, "-", ""), " " + text[1:],
		strings.Repeat("-", 36),
		"--234567-89ab-cdef-0123-456789abcdef", // two hyphens too many: it must not stand for a shorter id
		"01234567-89ab-cdef-0123-456789abcd--",
	} {
		refuseUUID(t, broken)
	}
}

// refuseUUID expects an error: a key from outside must bring nothing down, and
// two texts must never stand for one key.
func refuseUUID(t *testing.T, text string) {
	t.Helper()
	defer func() {
		if problem := recover(); problem != nil {
			t.Errorf("ParseUUID(%q) panics: %v", text, problem)
		}
	}()
	if u, err := ParseUUID(text); err == nil {
		t.Errorf("%q is taken for the UUID %x", text, u)
	}
}

// The request hash covers the operations, all of them, and nothing else.
func TestRequestHashCoversOperationsAlone(t *testing.T) {
	t.Parallel()
	seen := map[RequestHash]string{}
	var scratch []byte
	for _, ops := range [][]Operation{
		{set("k", "v")}, {set("k", "w")}, {set("kv", "")}, {set("l", "v")}, {setUntil("k", "v", 1)},
		{setUntil("k", "v", 2)},
		{provided(set("k", "v"), notExists)}, {provided(set("k", "v"), mustExist)},
		{provided(set("k", "v"), version(0))},
		{provided(set("k", "v"), version(1))}, {provided(set("k", "v"), valueEquals(""))},
		{provided(set("k", "v"), valueEquals("x"))},
		{remove("k")}, {provided(remove("k"), mustExist)}, {relate("a", "b", "c")}, {unrelate("a", "b", "c")},
		{relate("ab", "", "c")},
		{relate("a", "bc", "")}, {{Kind: OpAppend, Value: []byte("k")}}, {{Kind: OpAppend}},
		{{Kind: OpExpireEntity, Key: []byte("k")}},
		{remove("k"), remove("k")}, {set("k", "v"), set("l", "v")}, {set("l", "v"), set("k", "v")},
	} {
		var hash RequestHash
		hash, scratch = HashOperations(scratch, ops)
		if other, clash := seen[hash]; clash {
			t.Errorf("%v and %s have one hash", ops, other)
		}
		seen[hash] = fmt.Sprint(ops)
		if again, _ := HashOperations(nil, ops); again != hash {
			t.Errorf("%v has two hashes", ops)
		}
	}
	f := newFixture(t, testConfig())
	a := f.commit(appendWrite("a", 1, 1, "x")).Receipt.RequestHash
	b := appendWrite("b", 1, 0, "x")
	b.Actor, b.Scope.Vault = "user:other", "v"
	check.Equal(t, f.commit(b).Receipt.RequestHash, a, "the request hash depends on more than the operations: %v")
}

// What is read back encodes to the same bytes.
func TestTransactionRoundTrip(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	session := f.open("c", 1, 0, Committed).Session
	w := inSession(operations("c", 1, 5,
		provided(setUntil("k", "v", f.now+5), notExists), remove("x"), relate("a", "b", "c"), unrelate("a", "b", "d"),
		Operation{Kind: OpAppend, Value: []byte("payload")}), session)
	id := f.view().TxIDAt(f.commit(w).Index)
	x, err := f.view().Transaction(id)
	if err != nil || x.ID() != id {
		t.Fatalf("%+v, %v", x, err)
	}
	if got, want := appendOperations(nil, x.Operations), appendOperations(nil, w.Operations); !bytes.Equal(got, want) {
		t.Errorf("the operations are %x, want %x", got, want)
	}
	block, err := f.view().Block(testScope, x.BlockHeight)
	if err != nil || block.Header.TxRoot != LeafHash(x.Leaf()) {
		t.Errorf("the root of a block of one is %s, %v, want the leaf hash", block.Header.TxRoot, err)
	}
}

// An unknown command stops the node: it was written by a newer version.
func TestUnknownCommandsStop(t *testing.T) {
	t.Parallel()
	expire := operations("c", 1, 0, Operation{Kind: OpExpireEntity, Key: []byte("k")})
	zero := appendWrite("c", 0, 0, "x")
	for name, command := range map[string][]byte{
		"empty": {}, "kind 0": {0}, "a kind to come": {200, 1, 2},
		"a write cut short":            AppendWrite(nil, appendWrite("c", 1, 1, "x"))[:20],
		"a write with a byte too many": append(AppendWrite(nil, appendWrite("c", 1, 1, "x")), 0),
		"an expire_entity in the log":  AppendWrite(nil, expire), "sequence 0": AppendWrite(nil, zero),
		"no operations":  AppendWrite(nil, operations("c", 1, 0)),
		"session cut":    AppendOpenSession(nil, &OpenSession{Scope: testScope, ClientID: "c"})[:9],
		"update cut":     AppendUpdateConfig(nil, &ConfigUpdate{}, "a")[:3],
		"update flagged": {byte(commandUpdateConfig), 0, 2, 0, 0, 0, 0},
		"epoch cut":      AppendEpoch(nil, 1, 0)[:4],
	} {
		f := newFixture(t, testConfig())
		if _, err := f.m.Apply(f.mem, AppendEntry(nil, f.now, command)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

// Codes print as the API names them.
func TestCodeNames(t *testing.T) {
	t.Parallel()
	for code, want := range map[Code]string{
		Committed: "COMMITTED", SequenceGap: "SEQUENCE_GAP", IdempotencyKeyReused: "IDEMPOTENCY_KEY_REUSED",
		TooManyStreams: "TOO_MANY_STREAMS", InvalidArgument: "INVALID_ARGUMENT", 0: "CODE_0", 99: "CODE_99",
	} {
		check.Equal(t, code.String(), want, "code %d is %q", uint8(code))
	}
}
