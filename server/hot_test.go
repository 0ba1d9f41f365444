package server

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func mustMarshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// wrapped is an encoding as a field of another.
func wrapped(number protowire.Number, data ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(data, nil))
}

func number(field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), value)
}

// TestGivenTwice: of two occurrences protobuf keeps the last, or a mixture, and
// the caller may have meant the other.
func TestGivenTwice(t *testing.T) {
	t.Parallel()
	text := func(n protowire.Number, s string) []byte { return wrapped(n, []byte(s)) }
	notExists, mustExist := number(1, 1), number(2, 1)
	set := func(parts ...[]byte) []byte { return wrapped(6, wrapped(1, parts...)) }
	for name, test := range map[string]struct {
		data  []byte
		field string
	}{
		"sequence":         {append(number(4, 1), number(4, 2)...), "sequence"},
		"client":           {append(text(2, "a"), text(2, "b")...), "client_id"},
		"scope":            {append(wrapped(1, text(1, "a")), wrapped(1, text(2, "b"))...), "scope"},
		"organization":     {wrapped(1, text(1, "a"), text(1, "b")), "scope.organization"},
		"operation twice":  {wrapped(6, wrapped(5, text(1, "a")), wrapped(5, text(1, "b"))), "operations[0].append"},
		"two operations":   {wrapped(6, wrapped(5, text(1, "a")), wrapped(1, text(1, "b"))), "operations[0].set_entity"},
		"key":              {set(text(1, "a"), text(1, "b")), "operations[0].set_entity.key"},
		"two conditions":   {set(wrapped(3, notExists, mustExist)), "operations[0].set_entity.condition.must_exist"},
		"condition twice":  {set(wrapped(3, notExists, notExists)), "operations[0].set_entity.condition.not_exists"},
		"condition in two": {set(wrapped(3, notExists), wrapped(3, mustExist)), "operations[0].set_entity.condition"},
		"seconds":          {set(wrapped(4, number(1, 1), number(1, 2))), "operations[0].set_entity.expires_at.seconds"},
	} {
		err := decodeBinary(test.data, new(seqledgerv1.WriteRequest))
		field, ok := err.(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if !ok || field.Field != test.field || !strings.HasPrefix(field.Problem, "is given") {
			t.Errorf("%s: got %v, want the field %s", name, err, test.field)
		}
		f := new(frame)
		f.decodeBinary(append(wrapped(1), wrapped(1, test.data)...))
		if f.invalid != nil || len(f.bad) != 1 || f.bad[1] == nil {
			t.Errorf("%s: in a frame it must be that write's mistake: %v, %v", name, f.invalid, f.bad)
		}
	}
	// A list is given once for each element.
	m := new(seqledgerv1.WriteRequest)
	if err := decodeBinary(append(wrapped(6, wrapped(5)), wrapped(6, wrapped(5))...), m); err != nil ||
		len(m.Operations) != 2 {
		t.Error(m, err)
	}
}

// TestShapeAgreesWithTheWalk damages a write at random. The quick look and the
// slow walk must come to the same: otherwise a write would be accepted that the
// walk refuses.
func TestShapeAgreesWithTheWalk(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	whole := mustMarshal(t, everything())
	descriptor := (*seqledgerv1.WriteRequest)(nil).ProtoReflect().Descriptor()
	fitting := 0
	for range 50_000 {
		data := bytes.Clone(whole)
		for range 1 + random.IntN(2) {
			i := random.IntN(len(data))
			switch random.IntN(3) {
			case 0:
				data[i] = byte(random.Uint32())
			case 1:
				data = append(data[:i], data[i+1:]...)
			default:
				data = append(data[:i:i], append(bytes.Clone(data[i:min(len(data), i+random.IntN(12))]), data[i:]...)...)
			}
		}
		problem := explainBinary(descriptor, data, "")
		fits := writeShape.fits(data)
		if fits {
			fitting++
		}
		if fits != (problem == nil) {
			t.Fatalf("fits: %t, the walk says %v; seed %d: %x", fits, problem, seed, data)
		}
	}
	if fitting == 0 {
		t.Error("every sample is damaged: the test says little; seed", seed)
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

// TestLimitsComeBeforeDecoding: two bytes of an empty message take hundreds in memory, so
// messages beyond the limits must not be decoded.
func TestLimitsComeBeforeDecoding(t *testing.T) { //nolint:paralleltest // It measures what is allocated.
	const size = 2 << 20
	decodeWrite := func(decode func([]byte, proto.Message) error) func([]byte) error {
		return func(data []byte) error { return decode(data, new(seqledgerv1.WriteRequest)) }
	}
	decodeFrame := func(decode func(*frame, []byte)) func([]byte) error {
		return func(data []byte) error {
			var f frame
			decode(&f, data)
			return f.invalid
		}
	}
	elements := strings.Repeat("{},", size/3)
	for name, test := range map[string]struct {
		decode func([]byte) error
		data   []byte
		field  string
	}{
		"binary frame": {decodeFrame((*frame).decodeBinary), bytes.Repeat([]byte{0x0a, 0}, size/2), "writes"},
		"binary write": {decodeWrite(decodeBinary), bytes.Repeat([]byte{0x32, 0}, size/2), "operations"},
		"JSON frame":   {decodeFrame((*frame).decodeJSON), []byte(`{"writes":[` + elements + `{"x":1}]}`), "writes"},
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

// TestTooManyOperationsInAFrame: it is that write's mistake alone.
func TestTooManyOperationsInAFrame(t *testing.T) {
	t.Parallel()
	big := &seqledgerv1.WriteRequest{}
	for range machine.MaxOperations + 1 {
		big.Operations = append(big.Operations, &seqledgerv1.Operation{})
	}
	binary := mustMarshal(t, &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{everything(), big}})
	f := new(frame)
	f.decodeBinary(binary)
	g := decodeFrame(`{"writes":[{},{"operations":[` + strings.Repeat("{},", machine.MaxOperations) + `{}]}]}`)
	for name, f := range map[string]*frame{"binary": f, "json": g} {
		field, ok := f.bad[1].(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if f.invalid != nil || len(f.writes) != 2 || len(f.bad) != 1 || !ok || field.Field != "operations" {
			t.Errorf("%s: got %v, %v", name, f.invalid, f.bad)
		}
	}
}

func TestBoundJSON(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("0,", maxElements-1)
	for body, want := range map[string]string{ // "-": within bounds
		``: "-", `"`: "-", `"\`: "-", `]]}`: "-", `,,,`: "-", `{"a":[` + many + `0]}`: "-",
		`{"a":[` + many + `0,0]}`:                        "a",
		`{"a":[0,{"b\"]":[` + many + `0,0]}]}`:           `a[1].b\"]`,
		`{"` + "\xff" + `":[` + many + `0,0]}`:           "?",
		`{"a":"` + many + `0,0"}`:                        "-",
		`{"a":"\"","b":[` + many + `0,0]`:                "b",
		`{"x":` + strings.Repeat("[", maxDepth-1):        "-",
		`{"x":` + strings.Repeat("[", 1_000_000) + `0]}`: "x" + strings.Repeat("[0]", maxDepth-2),
	} {
		problem, _ := boundJSON([]byte(body))
		got := "-"
		if problem != nil {
			got = problem.Field
		}
		if got != want {
			t.Errorf("%.60s: got %v, want the field %q", body, problem, want)
		}
	}
}
