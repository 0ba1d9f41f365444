package wire

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// decodeFrame decodes a frame of a WriteStream in JSON.
func decodeFrame(body string) *Frame {
	f := new(Frame)
	f.decodeJSON([]byte(body))
	return f
}

// TestFrameInJSON: a mistake in one write is that write's; a mistake in the frame is the frame's, however lenient
// encoding/json would be about it.
func TestFrameInJSON(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct {
		invalid string // the field of the frame's error, "-" for none
		bad     []int
		writes  int
	}{
		`{}`:                          {"-", nil, 0},
		`{"writes":[]}`:               {"-", nil, 0},
		`{"writes":[{},{}]}`:          {"-", nil, 2},
		`{"writes":[{},{"x":1},{}]}`:  {"-", []int{1}, 3},
		`{"writes":[null,{"x":1}]}`:   {"-", []int{0, 1}, 2},
		`{"writes":[1,"a",[],{}]}`:    {"-", []int{0, 1, 2}, 4},
		`{"Writes":[{}]}`:             {"Writes", nil, 0},
		`{"WRITES":[{}]}`:             {"WRITES", nil, 0},
		`{"writes":[{}],"x":1}`:       {"x", nil, 0},
		`{"writes":[],"writes":[{}]}`: {"writes", nil, 0},
		`{"writes":{}}`:               {"writes", nil, 0},
		`{"writes":[{}]`:              {"", nil, 0},
		`{"writes":[{}]}{}`:           {"", nil, 0},
		`[]`:                          {"", nil, 0},
		`nonsense`:                    {"", nil, 0},
		``:                            {"", nil, 0},
	} {
		f := decodeFrame(body)
		field, refused := f.Invalid.(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if refused != (want.invalid != "-") || refused && field.Field != want.invalid {
			t.Errorf("%s: the frame's error is %v, want the field %q", body, f.Invalid, want.invalid)
			continue
		}
		if refused {
			continue
		}
		var bad []int
		for i := range f.Bad {
			bad = append(bad, i)
		}
		slices.Sort(bad)
		if len(f.Writes) != want.writes || !slices.Equal(bad, want.bad) {
			t.Errorf("%s: got %d writes, bad ones at %v; want %+v", body, len(f.Writes), bad, want)
		}
	}
}

// TestFrameInBinary is the same for the binary encoding: one damaged write between two whole ones.
func TestFrameInBinary(t *testing.T) {
	t.Parallel()
	whole := everything()
	damaged := everything()
	damaged.ClientId = "?"
	m := &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{whole, damaged, whole}}
	data := must.Get(proto.Marshal(m))(t)
	text := strings.Replace(string(data), "\x12\x01?", "\x12\x01\xff", 1) // field 2, one byte: not UTF-8
	if text == string(data) {
		t.Fatal("the sample has no client id to damage")
	}
	f := new(Frame)
	f.decodeBinary([]byte(text))
	if f.Invalid != nil || len(f.Writes) != 3 || len(f.Bad) != 1 {
		t.Fatal(f.Invalid, len(f.Writes), f.Bad)
	}
	field, ok := f.Bad[1].(*machine.FieldError) //nolint:errorlint // Not wrapped.
	if !ok || field.Field != "client_id" || field.Problem != "is not UTF-8" {
		t.Error(f.Bad[1])
	}
	for _, i := range []int{0, 2} {
		if !proto.Equal(f.Writes[i], whole) {
			t.Errorf("write %d came out as %v", i, f.Writes[i])
		}
	}
}

// framesOf returns a frame in both encodings.
func framesOf(t *testing.T, m *seqledgerv1.WriteStreamRequest) map[string]*Frame {
	t.Helper()
	text := must.Get(protojson.Marshal(m))(t)
	binary, inJSON := new(Frame), new(Frame)
	binary.decodeBinary(mustMarshal(t, m))
	inJSON.decodeJSON(text)
	return map[string]*Frame{"binary": binary, "json": inJSON}
}

// writeWith is a write with so many operations.
func writeWith(operations int) *seqledgerv1.WriteRequest {
	w := new(seqledgerv1.WriteRequest)
	for range operations {
		w.Operations = append(w.Operations, &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: []byte("x")}},
		})
	}
	return w
}

// TestOperationsOfAFrame: a message of a WriteStream has at most 16,384 operations, whatever its encoding and however
// many writes they are in.
func TestOperationsOfAFrame(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		last int // operations of the seventeenth write, behind 16 of 1,000
		ok   bool
	}{
		"at the limit": {384, true},
		"one over":     {385, false},
		"far over":     {1_000, false},
	} {
		m := new(seqledgerv1.WriteStreamRequest)
		for range 16 {
			m.Writes = append(m.Writes, writeWith(1_000))
		}
		m.Writes = append(m.Writes, writeWith(test.last))
		for encoding, f := range framesOf(t, m) {
			if (f.Invalid == nil) != test.ok {
				t.Errorf("%s in %s: %d operations: got %v", name, encoding, f.Operations, f.Invalid)
			}
		}
	}
}

// TestABadWriteLeavesItsNeighbours: what a frame is taken for must not depend on whether one of its writes is
// malformed.
func TestABadWriteLeavesItsNeighbours(t *testing.T) {
	t.Parallel()
	m := new(seqledgerv1.WriteStreamRequest)
	for range 17 {
		m.Writes = append(m.Writes, writeWith(1_000))
	}
	good, bad := new(Frame), new(Frame)
	data := mustMarshal(t, m)
	good.decodeBinary(data)
	bad.decodeBinary(append(data, wrapped(1, number(15, 1))...)) // and a write with an unknown field
	if (good.Invalid == nil) != (bad.Invalid == nil) {
		t.Errorf("without the bad write: %v; with it: %v", good.Invalid, bad.Invalid)
	}
}

// TestTooManyOperationsInAFrame: it is that write's mistake alone.
func TestTooManyOperationsInAFrame(t *testing.T) {
	t.Parallel()
	big := &seqledgerv1.WriteRequest{}
	for range machine.MaxOperations + 1 {
		big.Operations = append(big.Operations, &seqledgerv1.Operation{})
	}
	binary := mustMarshal(t, &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{everything(), big}})
	f := new(Frame)
	f.decodeBinary(binary)
	g := decodeFrame(`{"writes":[{},{"operations":[` + strings.Repeat("{},", machine.MaxOperations) + `{}]}]}`)
	for name, f := range map[string]*Frame{"binary": f, "json": g} {
		field, ok := f.Bad[1].(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if f.Invalid != nil || len(f.Writes) != 2 || len(f.Bad) != 1 || !ok || field.Field != "operations" {
			t.Errorf("%s: got %v, %v", name, f.Invalid, f.Bad)
		}
	}
}

// allocated returns how many bytes f allocates. No other test may run beside.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLimitsComeBeforeDecoding: two bytes of an empty message take hundreds in memory, so messages beyond the limits
// must not be decoded.
func TestLimitsComeBeforeDecoding(t *testing.T) { //nolint:paralleltest // It measures what is allocated.
	const size = 2 << 20
	decodeWrite := func(decode func([]byte, proto.Message) error) func([]byte) error {
		return func(data []byte) error { return decode(data, new(seqledgerv1.WriteRequest)) }
	}
	decodeFrame := func(decode func(*Frame, []byte)) func([]byte) error {
		return func(data []byte) error {
			var f Frame
			decode(&f, data)
			return f.Invalid
		}
	}
	elements := strings.Repeat("{},", size/3)
	for name, test := range map[string]struct {
		decode func([]byte) error
		data   []byte
		field  string
	}{
		"binary frame": {decodeFrame((*Frame).decodeBinary), bytes.Repeat([]byte{0x0a, 0}, size/2), "writes"},
		"binary write": {decodeWrite(decodeBinary), bytes.Repeat([]byte{0x32, 0}, size/2), "operations"},
		"JSON frame":   {decodeFrame((*Frame).decodeJSON), []byte(`{"writes":[` + elements + `{"x":1}]}`), "writes"},
		"JSON write":   {decodeWrite(decodeJSON), []byte(`{"operations":[` + elements + `{"x":1}]}`), "operations"},
		"JSON members": {decodeWrite(decodeJSON),
			[]byte(`{"scope":{` + strings.Repeat(`"a":0,`, size/6) + `"x":1}}`), "scope"},
	} {
		err := test.decode(test.data)
		field, ok := err.(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if !ok || field.Field != test.field || !strings.Contains(field.Problem, "more than 1000") {
			t.Errorf("%s: got %v, want the field %s and its limit", name, err, test.field)
		}
		if got := allocated(func() { _ = test.decode(test.data) }); got > size/2 {
			t.Errorf("%s: %d bytes allocated for an encoding of %d", name, got, size)
		}
	}
}

// TestGeneratedDecoder: every frame that proto.Marshal makes is valid, and both decoders read it alike.
func TestGeneratedDecoder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := new(seqledgerv1.WriteStreamRequest)
		prototest.Message(t, want)
		data := must.Get(proto.Marshal(want))(t)
		checkDecoders(t, data)
		var f Frame
		f.decodeBinary(data)
		if got := (&seqledgerv1.WriteStreamRequest{Writes: f.Writes}); f.Invalid != nil || f.Bad != nil ||
			!proto.Equal(got, want) {
			t.Fatalf("%v, %v: %v is read as %v", f.Invalid, f.Bad, want, got)
		}
	})
}

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// checkDecoders holds the two decoders against each other, for a valid frame: down to the commands, in which nil and
// empty must mean the same.
func checkDecoders(t tester, data []byte) {
	t.Helper()
	want, got := new(seqledgerv1.WriteStreamRequest), new(seqledgerv1.WriteStreamRequest)
	if err := proto.Unmarshal(data, want); err != nil {
		t.Fatalf("valid, but package proto refuses it: %v: %x", err, data)
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
			var e Encoder
			var command machine.Command
			command, errs[j] = e.Encode(m, "system:test")
			commands[j] = command.Encoded()
		}
		if (errs[0] == nil) != (errs[1] == nil) || errs[0] != nil && errs[0].Error() != errs[1].Error() {
			t.Fatalf("package proto's write gives %v, that of the generated decoder %v: %x", errs[0], errs[1], data)
		}
		if !bytes.Equal(commands[0], commands[1]) {
			t.Fatalf("the decoders give different commands: %x", data)
		}
	}
}

// FuzzGeneratedDecoder feeds arbitrary bytes. What is valid both decoders take, with the same outcome. All else is
// refused before the more lenient one is asked.
func FuzzGeneratedDecoder(f *testing.F) {
	f.Add(mustMarshal(f, &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{everything(), {}}}))
	f.Add([]byte("\x0a\x04\x12\x02a\xff"))                                            // not UTF-8
	f.Add([]byte("\x8a\x00\x84\x00\xa0\x00\x85\x00"))                                 // numbers longer than need be
	f.Add([]byte("\x0a\x0b\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))             // the largest sequence
	f.Add([]byte("\x0a\x0b\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))             // and one that is too large
	f.Add([]byte("\x0a\x10\x32\x0e\x0a\x0c\x22\x0a\x10\xff\xff\xff\xff\x7f"))         // too large for nanoseconds
	f.Add([]byte("\x0a\x06\x32\x04\x2a\x02\x0a\x00\x0a\x06\x32\x04\x0a\x02\x12\x00")) // empty payload, empty value
	f.Fuzz(func(t *testing.T, data []byte) {
		var fr Frame
		if fr.decodeBinary(data); fr.Invalid == nil && len(fr.Bad) == 0 {
			checkDecoders(t, data)
		}
	})
}

// TestGeneratedEncoder: answers have the bytes that package proto would give them, whatever the buffer holds before.
func TestGeneratedEncoder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		for _, m := range []proto.Message{new(seqledgerv1.WriteStreamResponse), new(seqledgerv1.WriteResponse)} {
			if _, ok := m.(generated); !ok {
				t.Fatalf("%T goes the slow way", m)
			}
			prototest.Message(t, m)
			before := make([]byte, rapid.IntRange(0, 9).Draw(t, "before"), 9+rapid.IntRange(0, 200).Draw(t, "room"))
			want := must.Get(proto.MarshalOptions{}.MarshalAppend(slices.Clone(before), m))(t)
			if got, err := (BinaryCodec{}).MarshalAppend(before, m); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%v: %v is %x, want %x", err, m, got, want)
			}
		}
	})
}

// FuzzFrame is FuzzWriteRequest for the messages of a WriteStream. Whatever the neighbours are, each write has an
// answer of its own.
func FuzzFrame(f *testing.F) {
	m := &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{everything(), {}, everything()}}
	binary := must.Get(proto.Marshal(m))(f)
	f.Add(binary)
	f.Add(append(binary, binary[:40]...))
	f.Add([]byte(`{"writes":[{"x":1},{},{"sequence":"1"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, decode := range map[string]func(*Frame, []byte){
			"binary": (*Frame).decodeBinary, "json": (*Frame).decodeJSON,
		} {
			var fr Frame
			decode(&fr, data)
			if fr.Invalid != nil {
				continue
			}
			for i, m := range fr.Writes {
				if fr.Bad[i] == nil {
					checkCommand(t, name, m)
				} else if err := fr.Bad[i]; !utf8.ValidString(err.Error()) {
					t.Fatalf("%s: %q is no answer", name, err)
				}
			}
		}
	})
}

// TestCodecsKeepTheError: a codec never fails, because Connect would answer that itself; the request has the error for
// its handler.
func TestCodecsKeepTheError(t *testing.T) {
	t.Parallel()
	type request = Request[seqledgerv1.GetEntityRequest, *seqledgerv1.GetEntityRequest]
	want := &seqledgerv1.GetEntityRequest{Key: "k"}
	for _, codec := range []struct {
		name string
		Codec
		valid, invalid string
	}{
		{"proto", BinaryCodec{}, "\x12\x01k", "\x12\x01\xff"},
		{"json", JSONCodec{"json"}, `{"key":"k"}`, `{"key":1}`},
		{"json; charset=utf-8", JSONCodec{"json; charset=utf-8"}, `{"key":"k"}`, `{"key":"k"`},
	} {
		if codec.Name() != codec.name {
			t.Errorf("%s has the name %s", codec.name, codec.Name())
		}
		var r request
		if m, err := r.Get(); err != nil || m == nil {
			t.Errorf("%s: an empty message that skips the codec: %v, %v", codec.name, m, err)
		}
		must.Do(t, codec.Unmarshal([]byte(codec.valid), &r))
		if m, err := r.Get(); err != nil || !proto.Equal(m, want) {
			t.Errorf("%s: got %v, %v", codec.name, m, err)
		}
		must.Do(t, codec.Unmarshal([]byte(codec.invalid), &r), "%s fails by itself", codec.name)
		if _, err := r.Get(); err == nil {
			t.Errorf("%s: %q was taken", codec.name, codec.invalid)
		}
		if codec.Unmarshal(nil, want) == nil {
			t.Errorf("%s decodes past the checks of a request", codec.name)
		}
		if _, err := codec.Marshal("text"); err == nil {
			t.Errorf("%s encodes what is no message", codec.name)
		}
		for _, m := range []proto.Message{new(seqledgerv1.GetStatusResponse), new(seqledgerv1.WriteResponse)} {
			if _, err := codec.Marshal(m); err != nil {
				t.Errorf("%s: %T: %v", codec.name, m, err)
			}
		}
	}
}

// Codec is the part of Connect's interface that matters here.
type Codec interface {
	Name() string
	Marshal(any) ([]byte, error)
	Unmarshal([]byte, any) error
}

// TestTooManyWritesBehindABadOne: the scan of the JSON stops at the first mistake, and the writes behind it count all
// the same.
func TestTooManyWritesBehindABadOne(t *testing.T) {
	t.Parallel()
	bad := `{"operations":[` + strings.Repeat("{},", machine.MaxOperations) + `{}]}`
	for writes, want := range map[int]string{MaxFrameWrites: "-", MaxFrameWrites + 1: "writes"} {
		f := decodeFrame(`{"writes":[` + bad + strings.Repeat(",{}", writes-1) + `]}`)
		got := "-"
		if problem, ok := f.Invalid.(*machine.FieldError); ok { //nolint:errorlint // Not wrapped.
			got = problem.Field
		}
		if got != want || want == "-" && (len(f.Writes) != writes || len(f.Bad) != 1) {
			t.Errorf("%d writes: got %v with %d writes", writes, f.Invalid, len(f.Writes))
		}
	}
}
