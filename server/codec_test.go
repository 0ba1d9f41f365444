package server

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/prototest"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestGeneratedDecoder: every frame that proto.Marshal makes fits the shape, and
// both decoders read it alike.
func TestGeneratedDecoder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := new(seqledgerv1.WriteStreamRequest)
		prototest.Message(t, want)
		data, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if !frameShape.fits(data) {
			t.Fatalf("does not fit: %v", want)
		}
		checkDecoders(t, data)
		var f frame
		f.decodeBinary(data)
		if got := (&seqledgerv1.WriteStreamRequest{Writes: f.writes}); f.invalid != nil || f.bad != nil ||
			!proto.Equal(got, want) {
			t.Fatalf("%v, %v: %v is read as %v", f.invalid, f.bad, want, got)
		}
	})
}

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// checkDecoders holds the two decoders against each other, for a frame that fits
// the shape: down to the commands, in which nil and empty must mean the same.
func checkDecoders(t tester, data []byte) {
	t.Helper()
	want, got := new(seqledgerv1.WriteStreamRequest), new(seqledgerv1.WriteStreamRequest)
	if err := proto.Unmarshal(data, want); err != nil {
		t.Fatalf("fits, but package proto refuses it: %v: %x", err, data)
	}
	if err := got.UnmarshalVT(data); err != nil {
		t.Fatalf("package proto takes it, the generated decoder does not: %v: %x", err, data)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("package proto reads %v, the generated decoder %v: %x", want, got, data)
	}
	for i := range want.Writes {
		var commands [2][]byte
		var errs [2]error
		for j, m := range []*seqledgerv1.WriteRequest{want.Writes[i], got.Writes[i]} {
			var w machine.Write
			if errs[j] = newConverter("system:test", m).write(&w, m); errs[j] == nil {
				commands[j] = machine.AppendWrite(nil, &w)
			}
		}
		if (errs[0] == nil) != (errs[1] == nil) || errs[0] != nil && errs[0].Error() != errs[1].Error() {
			t.Fatalf("package proto's write gives %v, that of the generated decoder %v: %x", errs[0], errs[1], data)
		}
		if !bytes.Equal(commands[0], commands[1]) {
			t.Fatalf("the decoders give different commands: %x", data)
		}
	}
}

// FuzzGeneratedDecoder feeds arbitrary bytes. What fits the shape both decoders
// take, with the same outcome; what does not fit is refused, whatever they would
// say: so the more lenient one is never asked.
func FuzzGeneratedDecoder(f *testing.F) {
	f.Add(mustMarshal(f, &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{everything(), {}}}))
	f.Add([]byte("\x0a\x04\x12\x02a\xff"))                                            // not UTF-8
	f.Add([]byte("\x8a\x00\x84\x00\xa0\x00\x85\x00"))                                 // numbers longer than need be
	f.Add([]byte("\x0a\x0b\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))             // the largest sequence
	f.Add([]byte("\x0a\x0b\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))             // and one that is too large
	f.Add([]byte("\x0a\x10\x32\x0e\x0a\x0c\x22\x0a\x10\xff\xff\xff\xff\x7f"))         // too large for nanoseconds
	f.Add([]byte("\x0a\x06\x32\x04\x2a\x02\x0a\x00\x0a\x06\x32\x04\x0a\x02\x12\x00")) // empty payload, empty value
	f.Fuzz(func(t *testing.T, data []byte) {
		if frameShape.fits(data) {
			checkDecoders(t, data)
			return
		}
		var fr frame
		fr.decodeBinary(data)
		if fr.invalid == nil && len(fr.bad) == 0 {
			t.Fatalf("does not fit, and nothing is wrong with it: %x", data)
		}
	})
}

// spoiledWrite is a write with one text that is not UTF-8.
type spoiledWrite struct {
	data []byte
	want machine.FieldError // what the walk finds
}

// spoiledWrites spoils every text of a write in turn. Package proto refuses each
// of them.
func spoiledWrites(t *testing.T) (spoiled []spoiledWrite) {
	t.Helper()
	whole := func() *seqledgerv1.WriteRequest {
		m := everything()
		m.Operations = append(m.Operations, &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_ExpireEntity{ExpireEntity: &seqledgerv1.ExpireEntity{Key: "k"}},
		})
		return m
	}
	total := 0
	names := map[protoreflect.FullName]bool{}
	prototest.Texts(whole(), func(field protoreflect.FieldDescriptor, _ func(string)) {
		total++
		names[field.FullName()] = true
	})
	if len(names) != countTexts((*seqledgerv1.WriteRequest)(nil).ProtoReflect().Descriptor()) {
		t.Fatal("the sample has not every text field, only", names)
	}
	for spoil := range total {
		m, at, name := whole(), 0, protoreflect.Name("")
		prototest.Texts(m, func(field protoreflect.FieldDescriptor, replace func(string)) {
			if at == spoil {
				replace("a\xffb")
				name = field.Name()
			}
			at++
		})
		data, err := m.MarshalVT() // package proto would not
		if err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(data, new(seqledgerv1.WriteRequest)); err == nil {
			t.Fatalf("%s: package proto takes it: the test says nothing", name)
		}
		want := explainBinary(m.ProtoReflect().Descriptor(), data, "")
		if want == nil || want.Problem != "is not UTF-8" || protoreflect.FullName(want.Field).Name() != name {
			t.Fatalf("%s: the walk finds %v", name, want)
		}
		spoiled = append(spoiled, spoiledWrite{data, *want})
	}
	return spoiled
}

// TestTextThatIsNotUTF8: the generated decoder would take it; it has to be
// refused with the same field, code and message as if package proto had read it,
// and before anything is converted. TestMalformedBinaryWritesChangeNothing is the
// same from outside.
func TestTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	for _, spoiled := range spoiledWrites(t) {
		name := spoiled.want.Field
		var f frame
		f.decodeBinary(slices.Concat(wrapped(1, mustMarshal(t, everything())), wrapped(1, spoiled.data)))
		for how, got := range map[string]error{
			"alone": decodeBinary(spoiled.data, new(seqledgerv1.WriteRequest)), "in a frame": f.bad[1],
		} {
			field, ok := got.(*machine.FieldError) //nolint:errorlint // Not wrapped.
			if !ok || *field != spoiled.want {
				t.Errorf("%s: %v, want %v", how, got, spoiled.want)
				continue
			}
			e, _ := writeError(got)
			if e.Code != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT || e.Field != name {
				t.Errorf("%s: %s is refused with %v", how, name, e)
			}
		}
		if f.invalid != nil || len(f.bad) != 1 || !proto.Equal(f.writes[0], everything()) {
			t.Errorf("%s: its neighbour must not notice: %v, %v", name, f.invalid, f.bad)
			continue
		}
		if text := f.writes[1].String(); text != "" {
			t.Errorf("%s: something of the write is left: %s", name, text)
		}
	}
}

// countTexts returns how many text fields a message and those in it have.
func countTexts(d protoreflect.MessageDescriptor) int {
	seen, n := map[protoreflect.FullName]bool{}, 0
	var count func(protoreflect.MessageDescriptor)
	count = func(d protoreflect.MessageDescriptor) {
		if seen[d.FullName()] {
			return
		}
		seen[d.FullName()] = true
		for i := range d.Fields().Len() {
			field := d.Fields().Get(i)
			if field.Kind() == protoreflect.StringKind {
				n++
			}
			if field.Message() != nil {
				count(field.Message())
			}
		}
	}
	count(d)
	return n
}

// TestGeneratedEncoder: answers have the bytes that package proto would give
// them, whatever the buffer holds before.
func TestGeneratedEncoder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		for _, m := range []proto.Message{new(seqledgerv1.WriteStreamResponse), new(seqledgerv1.WriteResponse)} {
			if _, ok := m.(generated); !ok {
				t.Fatalf("%T goes the slow way", m)
			}
			prototest.Message(t, m)
			before := make([]byte, rapid.IntRange(0, 9).Draw(t, "before"), 9+rapid.IntRange(0, 200).Draw(t, "room"))
			want, err := proto.MarshalOptions{}.MarshalAppend(slices.Clone(before), m)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := (binaryCodec{}).MarshalAppend(before, m); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%v: %v is %x, want %x", err, m, got, want)
			}
		}
	})
}
