package machine

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// drawWrite draws a write of which any part may be beyond a limit.
func drawWrite(t *rapid.T) *Write {
	longest := strings.Repeat("k", MaxKeyBytes)
	text := rapid.SampledFrom([]string{"", "a", "doc:1", "\xff", longest, longest + "k"})
	value := rapid.SampledFrom([][]byte{nil, []byte("v"), make([]byte, MaxValueBytes), make([]byte, MaxValueBytes+1)})
	if rapid.Bool().Draw(t, "all of it valid") { // or hardly any write would be
		return operations("c", rapid.Uint64Range(1, 9).Draw(t, "sequence"), rapid.Byte().Draw(t, "key"),
			set(longest, "v"), remove("x"))
	}
	w := &Write{
		Scope:    Scope{Organization: rapid.SampledFrom([]string{"acme", "acme", "", "a b"}).Draw(t, "organization")},
		ClientID: rapid.SampledFrom([]string{"c", "c", "", "\x7f"}).Draw(t, "client"), Actor: "user:1",
		Session: rapid.Uint64().Draw(t, "session"), Sequence: rapid.Uint64Range(0, 9).Draw(t, "sequence"),
		Key: Key{Present: rapid.Bool().Draw(t, "has key")},
	}
	for range rapid.IntRange(0, 6).Draw(t, "operations") {
		op := Operation{
			Kind: OperationKind(rapid.IntRange(0, 7).Draw(t, "kind")), Key: []byte(text.Draw(t, "key")),
			Relation: []byte(text.Draw(t, "relation")), Subject: []byte(text.Draw(t, "subject")),
			Value: value.Draw(t, "value"), ExpiresAt: rapid.Int64Range(-1, 9).Draw(t, "expires"),
		}
		op.Condition.Kind = ConditionKind(rapid.IntRange(0, 5).Draw(t, "condition"))
		op.Condition.Value = value.Draw(t, "compared")
		if rapid.Bool().Draw(t, "valid") { // or hardly any write would be
			op = Operation{Kind: OpSetEntity, Key: []byte("k"), Value: op.Value,
				Condition: Condition{Kind: ConditionValueEquals, Value: []byte("w")}}
		}
		w.Operations = append(w.Operations, op)
	}
	return w
}

// TestEncodeIsValidateAndAppend: the one pass refuses what Validate refuses, with the same error,
// and makes what AppendWrite makes, behind what is in its memory.
func TestEncodeIsValidateAndAppend(t *testing.T) {
	t.Parallel()
	valid := 0
	rapid.Check(t, func(t *rapid.T) {
		w := drawWrite(t)
		before := []byte("before")
		c, memory, err := w.Encode(before[:6:6])
		if want := w.Validate(); want != nil || err != nil {
			if err == nil || want == nil || err.Error() != want.Error() {
				t.Fatalf("%+v: Encode says %v, Validate %v", w, err, want)
			}
			if !bytes.Equal(memory, before) || c.Encoded() != nil {
				t.Fatalf("a refused write left %x and %x", memory, c.Encoded())
			}
			return
		}
		valid++
		want := AppendWrite(nil, w)
		if !bytes.Equal(c.Encoded(), want) || !bytes.Equal(memory, append(before, want...)) {
			t.Fatalf("%+v is %x in %x, want %x", w, c.Encoded(), memory, want)
		}
		hash, _ := HashOperations(nil, w.Operations)
		if c.RequestHash() != hash || c.Operations() != len(w.Operations) {
			t.Fatalf("%d operations with the hash %s, want %s", c.Operations(), c.RequestHash(), hash)
		}
		var decoded writeCommand
		d := decoder{rest: c.Encoded()[1:]}
		if decoded.decode(&d); d.bad || decoded.sequence != w.Sequence ||
			!bytes.Equal(decoded.encodedOperations, c.operations) {
			t.Fatalf("the log would not take %x", c.Encoded())
		}
	})
	if valid == 0 {
		t.Error("no drawn write was valid: the test says little")
	}
}

// TestCommandsInOneMemory: no command sees another's bytes, also where the memory had to grow.
func TestCommandsInOneMemory(t *testing.T) {
	t.Parallel()
	var writes []*Write
	for i := range 200 {
		w := operations("c", uint64(i)+1, byte(i), set("k", strings.Repeat("v", i)), remove("x"))
		writes = append(writes, w)
	}
	commands, err := Commands(writes...)
	must.Do(t, err)
	for i, w := range writes {
		if !bytes.Equal(commands[i].Encoded(), AppendWrite(nil, w)) || commands[i].Write().Sequence != w.Sequence {
			t.Fatalf("command %d is %x, want %x", i, commands[i].Encoded(), AppendWrite(nil, w))
		}
		if commands[i].Write().Operations != nil {
			t.Fatal("a command keeps the operations in memory")
		}
		if n := i + len("k") + len("x"); commands[i].OperationBytes() != n || commands[i].Comparisons() != 0 {
			t.Fatalf("command %d has %d bytes, want %d", i, commands[i].OperationBytes(), n)
		}
		_ = append(commands[i].Encoded(), 0xff) // must not reach the next one
	}
	if !bytes.Equal(commands[100].Encoded(), AppendWrite(nil, writes[100])) {
		t.Error("what was appended to a command changed the next one")
	}
	writes[7].Sequence = 0
	_, err = Commands(writes...)
	if field, ok := errors.AsType[*FieldError](err); !ok || field.Field != "sequence" ||
		!strings.HasPrefix(err.Error(), "writes[7]: ") {
		t.Error(err)
	}
}

// TestTextIsUTF8: the promise of a decoder is taken, and every other limit holds all the same.
func TestTextIsUTF8(t *testing.T) {
	t.Parallel()
	for _, checked := range []bool{false, true} {
		for _, op := range []Operation{
			set("\xff", "v"), remove("\xff"),
			relate("\xff", "r", "s"), relate("d", "\xff", "s"), unrelate("d", "r", "\xff"),
		} {
			e := Encoder{TextIsUTF8: checked}
			must.Do(t, e.Begin(nil, appendWrite("c", 1, 0, ""), 1))
			if err := e.Add(&op); (err == nil) != checked {
				t.Errorf("%+v with TextIsUTF8 %t: %v", op, checked, err)
			}
		}
		e := Encoder{TextIsUTF8: checked}
		must.Do(t, e.Begin(nil, appendWrite("c", 1, 0, ""), 1))
		long := set(strings.Repeat("k", MaxKeyBytes+1), "v")
		if err := e.Add(&long); err == nil {
			t.Error("a key that is too long was taken")
		}
	}
}

// TestACommandLacksNoOperation: a command whose count is wrong would stop every node.
func TestACommandLacksNoOperation(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a command without one of its operations was made")
		}
	}()
	var e Encoder
	must.Do(t, e.Begin(nil, appendWrite("c", 1, 0, ""), 2))
	op := set("k", "v")
	must.Do(t, e.Add(&op))
	_, _, _ = e.End()
}
