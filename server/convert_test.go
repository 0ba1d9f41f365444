package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// everything is a write with every operation and condition, and every field
// set.
func everything() *seqledgerv1.WriteRequest {
	at := &timestamppb.Timestamp{Seconds: 4_000_000_000, Nanos: 5}
	set := func(c *seqledgerv1.Condition) *seqledgerv1.Operation {
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{
			Key: "k", Value: []byte("v"), Condition: c, ExpiresAt: at,
		}}}
	}
	return &seqledgerv1.WriteRequest{
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}, ClientId: "c", Session: 4, Sequence: 5,
		IdempotencyKey: "00112233-4455-6677-8899-AABBCCDDEEFF", IncludeProof: true,
		Operations: []*seqledgerv1.Operation{
			set(&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}}),
			set(&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}),
			set(&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: 6}}),
			{Operation: &seqledgerv1.Operation_DeleteEntity{DeleteEntity: &seqledgerv1.DeleteEntity{
				Key:       "d",
				Condition: &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: []byte("e")}},
			}}},
			{Operation: &seqledgerv1.Operation_CreateRelationship{CreateRelationship: &seqledgerv1.CreateRelationship{
				Resource: "r", Relation: "l", Subject: "s",
			}}},
			{Operation: &seqledgerv1.Operation_DeleteRelationship{DeleteRelationship: &seqledgerv1.DeleteRelationship{
				Resource: "r", Relation: "l", Subject: "s",
			}}},
			{Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: []byte("p")}}},
		},
	}
}

func TestConvertEverything(t *testing.T) {
	t.Parallel()
	const at = 4_000_000_000_000_000_005
	set := func(c machine.Condition) machine.Operation {
		return machine.Operation{
			Kind: machine.OpSetEntity, Key: []byte("k"), Value: []byte("v"), Condition: c, ExpiresAt: at,
		}
	}
	want := machine.Write{
		Scope: machine.Scope{Organization: "acme", Vault: "main"}, ClientID: "c", Actor: "system:anonymous",
		Session: 4, Sequence: 5,
		Key: machine.Key{Present: true, UUID: [16]byte{
			0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
		}},
		Operations: []machine.Operation{
			set(machine.Condition{Kind: machine.ConditionNotExists}),
			set(machine.Condition{Kind: machine.ConditionMustExist}),
			set(machine.Condition{Kind: machine.ConditionVersion, Version: 6}),
			{Kind: machine.OpDeleteEntity, Key: []byte("d"),
				Condition: machine.Condition{Kind: machine.ConditionValueEquals, Value: []byte("e")}},
			{Kind: machine.OpCreateRelationship, Key: []byte("r"), Relation: []byte("l"), Subject: []byte("s")},
			{Kind: machine.OpDeleteRelationship, Key: []byte("r"), Relation: []byte("l"), Subject: []byte("s")},
			{Kind: machine.OpAppend, Value: []byte("p")},
		},
	}
	request := everything()
	var got machine.Write
	if err := newConverter("system:anonymous", request).write(&got, request); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// Reading back must say what was asked for.
	for i := range want.Operations {
		if back := renderOperation(&want.Operations[i]); !proto.Equal(back, request.Operations[i]) {
			t.Errorf("operation %d: %v is read back as %v", i, request.Operations[i], back)
		}
	}
}

// TestConvertManyIntoOneMemory guards against one write seeing another's keys.
func TestConvertManyIntoOneMemory(t *testing.T) {
	t.Parallel()
	var requests []*seqledgerv1.WriteRequest
	for i := range 50 {
		m := everything()
		m.Operations = m.Operations[i%7:]
		requests = append(requests, m)
	}
	c := newConverter("system:test", requests...)
	writes := make([]machine.Write, len(requests))
	for i, m := range requests {
		if err := c.write(&writes[i], m); err != nil {
			t.Fatal(err)
		}
	}
	for i, m := range requests {
		var alone machine.Write
		if err := newConverter("system:test", m).write(&alone, m); err != nil || !reflect.DeepEqual(alone, writes[i]) {
			t.Errorf("write %d differs from itself converted alone: %v", i, err)
		}
	}
}

func TestExpiresAtAtItsLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		time *timestamppb.Timestamp
		want int64 // 0: refused
	}{
		{&timestamppb.Timestamp{}, 0},
		{&timestamppb.Timestamp{Nanos: 1}, 1},
		{&timestamppb.Timestamp{Seconds: -1, Nanos: 999_999_999}, 0},
		{&timestamppb.Timestamp{Seconds: 1, Nanos: -1}, 0},
		{&timestamppb.Timestamp{Seconds: 1, Nanos: 1_000_000_000}, 0},
		{&timestamppb.Timestamp{Seconds: 9_223_372_036, Nanos: 854_775_807}, math.MaxInt64},
		{&timestamppb.Timestamp{Seconds: 9_223_372_036, Nanos: 854_775_808}, 0},
		{&timestamppb.Timestamp{Seconds: 9_223_372_037}, 0},
		{&timestamppb.Timestamp{Seconds: math.MaxInt64}, 0},
	} {
		got, err := nanoseconds(c.time, "f")
		if got != c.want || (err == nil) != (c.want != 0) || err != nil && err.Field != "f" {
			t.Errorf("%v: got %d, %v; want %d", c.time, got, err, c.want)
		}
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

// TestUnknownFieldAtAnyDepth hides an unknown field in each message of a write
// in turn: the hand-written check must find what the walk finds.
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
		if err != nil {
			t.Fatal(err)
		}
		err = decodeBinary(data, new(seqledgerv1.WriteRequest))
		field, ok := err.(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if !ok || field.Problem != "is an unknown field" || !bytes.HasSuffix([]byte(field.Field), []byte("99")) {
			t.Errorf("message %d: got %v", hide, err)
		}
	}
	if err := decodeBinary(mustMarshal(t, everything()), new(seqledgerv1.WriteRequest)); err != nil {
		t.Error("nothing was hidden, and something was found:", err)
	}
}

// decoders reads a write in both encodings.
var decoders = map[string]func([]byte, proto.Message) error{"binary": decodeBinary, "json": decodeJSON}

// FuzzWriteRequest feeds arbitrary bytes: nothing panics, and what is accepted
// is valid.
func FuzzWriteRequest(f *testing.F) {
	binary, err := proto.Marshal(everything())
	if err != nil {
		f.Fatal(err)
	}
	text, err := protojson.Marshal(everything())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(binary)
	f.Add(text)
	f.Add([]byte(`{"scope":{"organization":"a"},"clientId":"c","sequence":1,"operations":[{"append":{}}]}`))
	f.Add([]byte(`{"operations":[{"setEntity":{"condition":{}}},null,{}],"x":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, decode := range decoders {
			m := new(seqledgerv1.WriteRequest)
			if err := decode(data, m); err != nil {
				if _, ok := err.(*machine.FieldError); !ok { //nolint:errorlint // Not wrapped.
					t.Fatalf("%s: %T is not a field error", name, err)
				}
				continue
			}
			var w machine.Write
			if newConverter("system:test", m).write(&w, m) != nil {
				continue
			}
			if err := w.Validate(); err != nil {
				t.Fatalf("%s: accepted, and invalid: %v", name, err)
			}
		}
	})
}

// FuzzFrame is FuzzWriteRequest for the messages of a WriteStream. Whatever the
// neighbours are, each write has an answer of its own.
func FuzzFrame(f *testing.F) {
	m := &seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{everything(), {}, everything()}}
	binary, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(binary)
	f.Add(append(binary, binary[:40]...))
	f.Add([]byte(`{"writes":[{"x":1},{},{"sequence":"1"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, decode := range map[string]func(*frame, []byte){
			"binary": (*frame).decodeBinary, "json": (*frame).decodeJSON,
		} {
			var fr frame
			decode(&fr, data)
			if fr.invalid != nil {
				continue
			}
			b := &batch{size: len(fr.writes)}
			writes := b.convert(&fr, newAuthorizationCache(anonymous))
			if len(writes)+len(b.invalid) != len(fr.writes) {
				t.Fatalf("%s: %d writes, %d valid, %d invalid", name, len(fr.writes), len(writes), len(b.invalid))
			}
			for _, w := range writes {
				if err := w.Validate(); err != nil {
					t.Fatalf("%s: accepted, and invalid: %v", name, err)
				}
			}
			for _, refused := range b.invalid {
				// The encoder of answers does not look.
				if _, err := proto.Marshal(refused.err); err != nil {
					t.Fatalf("%s: the refusal cannot be encoded: %v", name, err)
				}
			}
		}
	})
}

// BenchmarkConvert measures what the server does to a write beside the ledger:
// decode a frame, convert it, and encode its results. One op is one write.
func BenchmarkConvert(b *testing.B) {
	const writes = 100
	m := new(seqledgerv1.WriteStreamRequest)
	for i := range writes {
		m.Writes = append(m.Writes, &seqledgerv1.WriteRequest{
			Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}, ClientId: "client-1", Sequence: uint64(i) + 1,
			IdempotencyKey: fmt.Sprintf("00000000-0000-4000-8000-%012x", i),
			Operations: []*seqledgerv1.Operation{{Operation: &seqledgerv1.Operation_SetEntity{
				SetEntity: &seqledgerv1.SetEntity{Key: "account/1", Value: make([]byte, 128)},
			}}},
		})
	}
	data, err := proto.Marshal(m)
	if err != nil {
		b.Fatal(err)
	}
	outcomes := make([]machine.Outcome, writes)
	for i := range outcomes {
		outcomes[i] = machine.Outcome{Code: machine.Committed, Receipt: machine.Receipt{
			Sequence: 1, Index: 1, CommittedAt: 1e18, Actor: anonymous.Actor(), Versions: []uint64{1},
		}}
	}
	s := newTestServer(b, Options{Logger: slog.New(slog.DiscardHandler)})
	var answers results
	var encoded []byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += writes {
		var f frame
		f.decodeBinary(data)
		batch := &batch{size: writes}
		if len(batch.convert(&f, newAuthorizationCache(anonymous))) != writes {
			b.Fatal("a write is invalid")
		}
		batch.outcomes = outcomes
		answers.reset()
		answers.add(b.Context(), s, admission.Party{}, batch)
		if encoded, err = (binaryCodec{}).MarshalAppend(encoded[:0], &answers.response); err != nil {
			b.Fatal(err)
		}
	}
}
