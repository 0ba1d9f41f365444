package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func mustMarshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data := must.Get(proto.Marshal(m))(t)
	return data
}

// wrapped is an encoding as a field of another.
func wrapped(number protowire.Number, data ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), bytes.Join(data, nil))
}

func number(field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), value)
}

// reference is a second implementation of a schema's check, by reflection. It returns the first field that is unknown,
// of the wrong type, given twice, too long a list or not UTF-8, or where the encoding breaks; nil when there is none.
func reference(d protoreflect.MessageDescriptor, data []byte, path string) *machine.FieldError {
	seen := map[protowire.Number]int{} // how often
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return &machine.FieldError{Field: path, Problem: "is malformed protobuf"}
		}
		field := d.Fields().ByNumber(number)
		if field == nil {
			return &machine.FieldError{Field: join(path, fmt.Sprint(number)), Problem: "is an unknown field"}
		}
		at := join(path, string(field.Name()))
		if problem := referenceRepeat(field, seen); problem != "" {
			return &machine.FieldError{Field: at, Problem: problem}
		}
		if field.IsList() {
			at = fmt.Sprintf("%s[%d]", at, seen[number])
		}
		seen[number]++
		size := protowire.ConsumeFieldValue(number, wire, data[n:])
		if size < 0 {
			return &machine.FieldError{Field: at, Problem: "is malformed protobuf"}
		}
		if wire != wireType(field.Kind()) {
			return &machine.FieldError{Field: at, Problem: "has the wrong wire type"}
		}
		if problem := referenceValue(field, data[n:n+size], at); problem != nil {
			return problem
		}
		data = data[n+size:]
	}
	return nil
}

// referenceRepeat returns why a field must not follow those that were seen, or "".
func referenceRepeat(field protoreflect.FieldDescriptor, seen map[protowire.Number]int) string {
	switch n := seen[field.Number()]; {
	case field.IsList() && n == machine.MaxOperations: // no request has another list
		return fmt.Sprintf("has more than %d elements", n)
	case field.IsList():
		return ""
	case n > 0:
		return "is given twice"
	}
	if choice := field.ContainingOneof(); choice != nil {
		for i := range choice.Fields().Len() {
			if other := choice.Fields().Get(i); seen[other.Number()] > 0 {
				return fmt.Sprintf("is given although %s is, and only one of them is allowed", other.Name())
			}
		}
	}
	return ""
}

func referenceValue(field protoreflect.FieldDescriptor, data []byte, at string) *machine.FieldError {
	switch field.Kind() {
	case protoreflect.StringKind:
		if text, _ := protowire.ConsumeBytes(data); !utf8.Valid(text) {
			return &machine.FieldError{Field: at, Problem: "is not UTF-8"}
		}
	case protoreflect.MessageKind:
		inner, _ := protowire.ConsumeBytes(data)
		return reference(field.Message(), inner, at)
	}
	return nil
}

// TestGivenTwice: of two occurrences protobuf keeps the last, or a mixture, and the caller may have meant the other.
func TestGivenTwice(t *testing.T) {
	t.Parallel()
	text := func(n protowire.Number, s string) []byte { return wrapped(n, []byte(s)) }
	notExists, mustExist := number(1, 1), number(2, 1)
	set := func(parts ...[]byte) []byte { return wrapped(6, wrapped(1, parts...)) }
	for name, test := range map[string]struct {
		data  []byte
		field string
	}{
		"sequence":        {append(number(4, 1), number(4, 2)...), "sequence"},
		"client":          {append(text(2, "a"), text(2, "b")...), "client_id"},
		"scope":           {append(wrapped(1, text(1, "a")), wrapped(1, text(2, "b"))...), "scope"},
		"organization":    {wrapped(1, text(1, "a"), text(1, "b")), "scope.organization"},
		"operation twice": {wrapped(6, wrapped(5, text(1, "a")), wrapped(5, text(1, "b"))), "operations[0].append"},
		"two operations": {wrapped(6, wrapped(5, text(1, "a")), wrapped(1, text(1, "b"))),
			"operations[0].set_entity"},
		"key":              {set(text(1, "a"), text(1, "b")), "operations[0].set_entity.key"},
		"two conditions":   {set(wrapped(3, notExists, mustExist)), "operations[0].set_entity.condition.must_exist"},
		"condition twice":  {set(wrapped(3, notExists, notExists)), "operations[0].set_entity.condition.not_exists"},
		"condition in two": {set(wrapped(3, notExists), wrapped(3, mustExist)), "operations[0].set_entity.condition"},
		"seconds": {set(wrapped(4, number(1, 1), number(1, 2))),
			"operations[0].set_entity.expires_at.seconds"},
	} {
		err := decodeBinary(test.data, new(seqledgerv1.WriteRequest))
		field, ok := err.(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if !ok || field.Field != test.field || !strings.HasPrefix(field.Problem, "is given") {
			t.Errorf("%s: got %v, want the field %s", name, err, test.field)
		}
		f := new(Frame)
		f.decodeBinary(append(wrapped(1), wrapped(1, test.data)...))
		if f.Invalid != nil || len(f.Bad) != 1 || f.Bad[1] == nil {
			t.Errorf("%s: in a frame it must be that write's mistake: %v, %v", name, f.Invalid, f.Bad)
		}
	}
	// A list is given once for each element.
	m := new(seqledgerv1.WriteRequest)
	if err := decodeBinary(append(wrapped(6, wrapped(5)), wrapped(6, wrapped(5))...), m); err != nil ||
		len(m.Operations) != 2 {
		t.Error(m, err)
	}
}

// sameProblem compares two problems, of which either may be nil.
func sameProblem(a, b *machine.FieldError) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// TestSchemaAgreesWithReflection damages a write at random. The schema and the reference must find the same mistake, in
// the same words.
func TestSchemaAgreesWithReflection(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	whole := mustMarshal(t, everything())
	descriptor := (*seqledgerv1.WriteRequest)(nil).ProtoReflect().Descriptor()
	valid := 0
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
				again := bytes.Clone(data[i:min(len(data), i+random.IntN(12))])
				data = append(data[:i:i], append(again, data[i:]...)...)
			}
		}
		_, problem := writeSchema.check(data)
		if problem == nil {
			valid++
		}
		if want := reference(descriptor, data, ""); !sameProblem(problem, want) {
			t.Fatalf("the schema says %v, the reference %v; seed %d: %x", problem, want, seed, data)
		}
	}
	if valid == 0 {
		t.Error("every sample is damaged: the test says little; seed", seed)
	}
}

// visitMessages calls visit for a message and every message in it.
func visitMessages(m protoreflect.Message, visit func(protoreflect.Message)) {
	visit(m)
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				visitMessages(value.List().Get(i).Message(), visit)
			}
		case field.Message() != nil:
			visitMessages(value.Message(), visit)
		}
		return true
	})
}

// TestUnknownFieldAtAnyDepth hides an unknown field in each message of a write in turn: the schema must find it at any
// depth.
func TestUnknownFieldAtAnyDepth(t *testing.T) {
	t.Parallel()
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	total := 0
	visitMessages(everything().ProtoReflect(), func(protoreflect.Message) { total++ })
	if total < 20 {
		t.Fatal("the sample has too few messages:", total)
	}
	for hide := range total {
		request, at := everything(), 0
		visitMessages(request.ProtoReflect(), func(m protoreflect.Message) {
			if at == hide {
				m.SetUnknown(unknown)
			}
			at++
		})
		data, err := proto.Marshal(request)
		must.Do(t, err)
		err = decodeBinary(data, new(seqledgerv1.WriteRequest))
		field, ok := err.(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if !ok || field.Problem != "is an unknown field" || !bytes.HasSuffix([]byte(field.Field), []byte("99")) {
			t.Errorf("message %d: got %v", hide, err)
		}
	}
	must.Do(t, decodeBinary(mustMarshal(t, everything()), new(seqledgerv1.WriteRequest)),
		"nothing was hidden, and something was found")
}

// spoiledWrite is a write with one text that is not UTF-8.
type spoiledWrite struct {
	data []byte
	want machine.FieldError // what the reference finds
}

// spoiledWrites spoils every text of a write in turn. Package proto refuses each of them.
func spoiledWrites(t *testing.T) (spoiled []spoiledWrite) {
	t.Helper()
	whole := func() *seqledgerv1.WriteRequest {
		m := everything()
		m.Operations = append(m.Operations, &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_ExpireEntity{ExpireEntity: &seqledgerv1.ExpireEntity{Key: "k"}},
		})
		m.Namespace, m.Principal = "jobs", "user:1"
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
		data := must.Get(m.MarshalVT())(t) // package proto would not
		if err := proto.Unmarshal(data, new(seqledgerv1.WriteRequest)); err == nil {
			t.Fatalf("%s: package proto takes it: the test says nothing", name)
		}
		want := reference(m.ProtoReflect().Descriptor(), data, "")
		if want == nil || want.Problem != "is not UTF-8" || protoreflect.FullName(want.Field).Name() != name {
			t.Fatalf("%s: the reference finds %v", name, want)
		}
		spoiled = append(spoiled, spoiledWrite{data, *want})
	}
	return spoiled
}

// TestTextThatIsNotUTF8: the generated decoder would take it; it has to be refused with the same field, code and
// message as if package proto had read it, and before anything is converted. TestMalformedWritesChangeNothing is the
// same from outside.
func TestTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	for _, spoiled := range spoiledWrites(t) {
		name := spoiled.want.Field
		var f Frame
		f.decodeBinary(slices.Concat(wrapped(1, mustMarshal(t, everything())), wrapped(1, spoiled.data)))
		for how, got := range map[string]error{
			"alone": decodeBinary(spoiled.data, new(seqledgerv1.WriteRequest)), "in a frame": f.Bad[1],
		} {
			field, ok := got.(*machine.FieldError) //nolint:errorlint // Not wrapped.
			if !ok || *field != spoiled.want {
				t.Errorf("%s: %v, want %v", how, got, spoiled.want)
				continue
			}
		}
		if f.Invalid != nil || len(f.Bad) != 1 || !proto.Equal(f.Writes[0], everything()) {
			t.Errorf("%s: its neighbour must not notice: %v, %v", name, f.Invalid, f.Bad)
			continue
		}
		check.Equal(t, f.Writes[1].String(), "", "%s: something of the write is left: %s", name)
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

// allRequests are the messages that clients send. TestAllRequests finds one that is missing.
var allRequests = []proto.Message{
	(*seqledgerv1.WriteRequest)(nil), (*seqledgerv1.OpenSessionRequest)(nil), (*seqledgerv1.GetClientStateRequest)(nil),
	(*seqledgerv1.GetEntityRequest)(nil), (*seqledgerv1.ListEntitiesRequest)(nil),
	(*seqledgerv1.ListRelationshipsRequest)(nil),
	(*seqledgerv1.GetTransactionRequest)(nil), (*seqledgerv1.GetBlockRequest)(nil),
	(*seqledgerv1.GetReceiptRequest)(nil),
	(*seqledgerv1.ListBlocksRequest)(nil),
	(*seqledgerv1.WatchRequest)(nil), (*seqledgerv1.GetStatusRequest)(nil), (*seqledgerv1.ListClientsRequest)(nil),
	(*seqledgerv1.UpdateConfigRequest)(nil), (*seqledgerv1.BackupRequest)(nil),
	(*seqledgerv1.GetClusterRequest)(nil), (*seqledgerv1.ChangeClusterRequest)(nil),
	(*seqledgerv1.ListRefusalsRequest)(nil), (*seqledgerv1.ArchivePointRequest)(nil),
	(*seqledgerv1.ReserveRequest)(nil), (*seqledgerv1.CompleteRequest)(nil), (*seqledgerv1.RejectRequest)(nil),
	(*seqledgerv1.ReleaseRequest)(nil), (*seqledgerv1.HeartbeatRequest)(nil), (*seqledgerv1.CheckpointRequest)(nil),
	(*seqledgerv1.GetRecordRequest)(nil), (*seqledgerv1.ListRecordsRequest)(nil),
	(*seqledgerv1.PurgeRecordRequest)(nil),
	(*seqledgerv1.ResolveRecordRequest)(nil),
}

// A request that is new in the API must be fuzzed like the others.
func TestAllRequests(t *testing.T) {
	t.Parallel()
	known := make(map[string]bool)
	for _, m := range allRequests {
		known[string(m.ProtoReflect().Descriptor().FullName())] = true
	}
	// FuzzFrame and FuzzSchema have the first; the second is decoded as the first, whose fields it has.
	known["seqledger.v1.WriteStreamRequest"], known["seqledger.v1.WriteBatchRequest"] = true, true
	for service, file := range map[protoreflect.Name]protoreflect.FileDescriptor{
		"LedgerService":      seqledgerv1.File_seqledger_v1_ledger_proto,
		"AdminService":       seqledgerv1.File_seqledger_v1_admin_proto,
		"IdempotencyService": seqledgerv1.File_seqledger_v1_idempotency_proto,
	} {
		methods := file.Services().ByName(service).Methods()
		for i := range methods.Len() {
			if name := string(methods.Get(i).Input().FullName()); !known[name] {
				t.Errorf("%s is not in allRequests", name)
			}
		}
	}
}

// A WriteBatchRequest is decoded as a frame, so both must have the same fields.
func TestABatchIsAFrame(t *testing.T) {
	t.Parallel()
	frame, batch := frameDescriptor.Fields(), batchDescriptor.Fields()
	if frame.Len() != 1 || batch.Len() != 1 {
		t.Fatal(frame.Len(), batch.Len(), "fields")
	}
	a, b := frame.Get(0), batch.Get(0)
	if a.Name() != b.Name() || a.Number() != b.Number() || a.Message() != b.Message() || !b.IsList() {
		t.Error(a, b)
	}
}

// FuzzRequests: a request of any kind that one of the two encodings can say is taken in the other one, too, and means
// the same. What is refused is so with a mistake that can be sent in an answer.
func FuzzRequests(f *testing.F) {
	write := must.Get(proto.Marshal(everything()))(f)
	f.Add(uint8(0), write)
	for i, text := range []string{
		`{"scope":{"organization":"a"},"clientId":"c","attemptId":"AAAAAAAAAAAAAAAAAAAAAA==","expected_session":"7"}`,
		`{"scope":{"organization":"a","vault":"v"},"client_id":"c","includeReceipts":true}`,
		`{"scope":{},"key":"\u00e9"}`, `{"pageSize":10,"pageToken":"AQ"}`, `{"resource":"r","relation":"l"}`,
		`{"txId":"x","includeProof":true}`, `{"height":"18446744073709551615"}`, `{"fromHeight":1,"pageSize":-1}`,
		`{"fromIndex":"1"}`, `{}`, `{"scope":null}`, `{"clientTtl":"1.5s","evictionLimit":"3"}`, `{"x":1}`,
	} {
		f.Add(uint8(i+1), []byte(text))
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		kind := allRequests[int(which)%len(allRequests)].ProtoReflect().Type()
		for name, decode := range decoders {
			m := kind.New().Interface()
			if err := decode(data, m); err != nil {
				field, ok := errors.AsType[*machine.FieldError](err)
				if !ok || !utf8.ValidString(field.Error()) ||
					strings.ContainsRune(field.Problem, utf8.RuneError) && !bytes.ContainsRune(data, utf8.RuneError) {
					t.Errorf("%s: %T %q is no answer", name, err, err)
				}
				continue
			}
			binary, err := proto.Marshal(m)
			must.Do(t, err, "%s", name)
			again := kind.New().Interface()
			if err := decodeBinary(binary, again); err != nil || !proto.Equal(m, again) {
				t.Errorf("%s: %v is written and read as %v, %v", name, m, again, err)
			}
			text, err := protojson.Marshal(m)
			if err != nil {
				continue // a time that JSON has no text for
			}
			again = kind.New().Interface()
			if err := decodeJSON(text, again); err != nil || !proto.Equal(m, again) {
				t.Errorf("%s: %v is in JSON %s, which reads as %v, %v", name, m, text, again, err)
			}
		}
	})
}

// FuzzSchema: the check of any request finds what the reference finds, in the same words, and a frame is taken as its
// writes are one by one.
func FuzzSchema(f *testing.F) {
	some := &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{everything(), {}, {ClientId: "c"}}}
	for _, m := range []proto.Message{everything(), some, &seqledgerv1.WriteStreamRequest{}} {
		data := must.Get(proto.Marshal(m))(f)
		f.Add(data)
		f.Add(append(data, 0x10, 1))
	}
	f.Add([]byte{0x0a, 0x80, 0x00})       // a length that is longer than it needs to be
	f.Add([]byte{0x12, 1, 'a', 0x12, 0})  // client_id twice
	f.Add([]byte{0x32, 2, 0x0b, 0x0c})    // a group
	f.Add([]byte{0x8a, 0x80, 0x00, 0x00}) // a tag that is longer than it needs to be
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range allRequests {
			d := m.ProtoReflect().Descriptor()
			_, problem := schemas[d.FullName()].check(data)
			if want := reference(d, data, ""); !sameProblem(problem, want) {
				t.Errorf("a %s of %x: the schema says %v, the reference %v", d.Name(), data, problem, want)
			}
			if decodes := proto.Unmarshal(data, m.ProtoReflect().New().Interface()) == nil; problem == nil && !decodes {
				t.Errorf("a %s of %x is valid, and package proto refuses it", d.Name(), data)
			}
		}
		var fr Frame
		if fr.decodeBinary(data); fr.Invalid != nil {
			return
		}
		operations := 0
		for i, rest := 0, data; len(rest) > 0; i++ {
			write, size, problem := nextWrite(rest, i)
			if problem != nil {
				t.Fatalf("the frame %x was taken, with %v", data, problem)
			}
			m := new(seqledgerv1.WriteRequest)
			err := decodeBinary(write, m)
			if (err == nil) != (fr.Bad[i] == nil) || err == nil && !proto.Equal(m, fr.Writes[i]) {
				t.Errorf("write %d of %x is %v and %v in the frame, %v and %v alone",
					i, data, fr.Writes[i], fr.Bad[i], m, err)
			}
			n := len(fr.Writes[i].Operations)
			if operations, rest = operations+n, rest[size:]; err != nil && n > 0 {
				t.Error("operations of an invalid write are left:", fr.Writes[i])
			}
		}
		if operations != fr.Operations {
			t.Errorf("%d operations were counted, there are %d", fr.Operations, operations)
		}
	})
}
