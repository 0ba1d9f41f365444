package wire

import (
	"math"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
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
	if err := NewConverter("system:anonymous", request).Write(&got, request); err != nil {
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
	c := NewConverter("system:test", requests...)
	writes := make([]machine.Write, len(requests))
	for i, m := range requests {
		if err := c.Write(&writes[i], m); err != nil {
			t.Fatal(err)
		}
	}
	for i, m := range requests {
		var alone machine.Write
		if err := NewConverter("system:test", m).Write(&alone, m); err != nil || !reflect.DeepEqual(alone, writes[i]) {
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
			if NewConverter("system:test", m).Write(&w, m) != nil {
				continue
			}
			if err := w.Validate(); err != nil {
				t.Fatalf("%s: accepted, and invalid: %v", name, err)
			}
		}
	})
}
