package wire

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// everything is a write with every operation and condition, and every field set.
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
				Key: "d",
				Condition: &seqledgerv1.Condition{
					Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: []byte("e")}},
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
	var e Encoder
	got := must.Get(e.Encode(request, "system:anonymous"))(t)
	if !bytes.Equal(got.Encoded(), machine.AppendWrite(nil, &want)) {
		t.Errorf("got  %x\nwant %x, of %+v", got.Encoded(), machine.AppendWrite(nil, &want), want)
	}
	if hash, _ := machine.HashOperations(nil, want.Operations); got.RequestHash() != hash {
		t.Errorf("the request hash is %s, want %s", got.RequestHash(), hash)
	}
	head := want
	head.Operations = nil
	if !reflect.DeepEqual(*got.Write(), head) {
		t.Errorf("got  %+v\nwant %+v", *got.Write(), head)
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
	var e Encoder
	for range 2 { // the second time in the memory of the first
		e.Reset()
		commands := make([]machine.Command, len(requests))
		for i, m := range requests {
			commands[i] = must.Get(e.Encode(m, "system:test"))(t)
		}
		for i, m := range requests {
			var alone Encoder
			want, err := alone.Encode(m, "system:test")
			if err != nil || !reflect.DeepEqual(commands[i], want) {
				t.Errorf("write %d differs from itself converted alone: %v", i, err)
			}
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

// FuzzWriteRequest feeds arbitrary bytes: nothing panics, and what is accepted is valid.
func FuzzWriteRequest(f *testing.F) {
	binary := must.Get(proto.Marshal(everything()))(f)
	text := must.Get(protojson.Marshal(everything()))(f)
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
			checkCommand(t, name, m)
		}
	})
}

// convertSlowly is a second implementation of Encoder.Encode, in as many passes as it takes.
func convertSlowly(m *seqledgerv1.WriteRequest) (*machine.Write, error) {
	if m.Scope == nil {
		return nil, errors.New("no scope")
	}
	w := &machine.Write{
		Scope: machine.Scope{Organization: m.Scope.Organization, Vault: m.Scope.Vault}, ClientID: m.ClientId,
		Actor: "system:test", Session: m.Session, Sequence: m.Sequence,
	}
	if m.IdempotencyKey != "" {
		uuid, err := machine.ParseUUID(m.IdempotencyKey)
		if err != nil {
			return nil, err
		}
		w.Key = machine.Key{Present: true, UUID: uuid}
	}
	for _, o := range m.Operations {
		read, ok := message.ReadOperation(o)
		if !ok {
			return nil, errors.New("hollow")
		}
		op := machine.Operation{
			Kind: machine.OperationKind(read.Kind), Key: []byte(read.Key), Relation: []byte(read.Relation),
			Subject: []byte(read.Subject), Value: read.Value,
		}
		var problem *machine.FieldError
		if op.Condition, problem = condition(read.Condition, ""); problem != nil {
			return nil, problem
		}
		if read.ExpiresAt != nil {
			if op.ExpiresAt, problem = nanoseconds(read.ExpiresAt, ""); problem != nil {
				return nil, problem
			}
		}
		w.Operations = append(w.Operations, op)
	}
	return w, w.Validate()
}

// checkCommand encodes a decoded write, and holds the one pass against several.
func checkCommand(t testing.TB, name string, m *seqledgerv1.WriteRequest) {
	t.Helper()
	var e Encoder
	must.Get(e.Encode(everything(), "system:before"))(t)
	command, err := e.Encode(m, "system:test")
	w, slowErr := convertSlowly(m)
	if (err == nil) != (slowErr == nil) {
		t.Fatalf("%s: one pass says %v, several say %v", name, err, slowErr)
	}
	if err != nil {
		_, ok := err.(*machine.FieldError) //nolint:errorlint // Not wrapped.
		if !ok || !utf8.ValidString(err.Error()) {
			t.Fatalf("%s: %T %q is no answer", name, err, err)
		}
		return
	}
	hash, _ := machine.HashOperations(nil, w.Operations)
	if !bytes.Equal(command.Encoded(), machine.AppendWrite(nil, w)) || command.RequestHash() != hash {
		t.Fatalf("%s: %v is %x with the hash %s in one pass, %x with %s in several", name, m, command.Encoded(),
			command.RequestHash(), machine.AppendWrite(nil, w), hash)
	}
	comparisons, size := 0, 0
	for i := range w.Operations {
		op := &w.Operations[i]
		if op.Condition.Kind == machine.ConditionValueEquals {
			comparisons++
		}
		size += len(op.Key) + len(op.Relation) + len(op.Subject) + len(op.Value) + len(op.Condition.Value)
		if back := renderOperation(op); !proto.Equal(back, m.Operations[i]) {
			t.Fatalf("%s: operation %v is read back as %v", name, m.Operations[i], back)
		}
	}
	if command.Operations() != len(w.Operations) || command.Comparisons() != comparisons ||
		command.OperationBytes() != size {
		t.Fatalf("%s: %d operations, %d comparisons and %d bytes are counted in %v", name, command.Operations(),
			command.Comparisons(), command.OperationBytes(), m)
	}
}

// TestEncodeNamesTheField: each mistake in a write is refused with the path of its field.
func TestEncodeNamesTheField(t *testing.T) {
	t.Parallel()
	operation := func(op message.Operation) func(*seqledgerv1.WriteRequest) {
		return func(m *seqledgerv1.WriteRequest) { m.Operations[1] = op.Message() }
	}
	set := func(c *seqledgerv1.Condition) func(*seqledgerv1.WriteRequest) {
		return operation(message.Operation{Kind: message.SetEntity, Key: "k", Condition: c})
	}
	remove := func(c *seqledgerv1.Condition) func(*seqledgerv1.WriteRequest) {
		return operation(message.Operation{Kind: message.DeleteEntity, Key: "k", Condition: c})
	}
	long := make([]byte, machine.MaxValueBytes+1)
	for field, change := range map[string]func(*seqledgerv1.WriteRequest){
		"scope":              func(m *seqledgerv1.WriteRequest) { m.Scope = nil },
		"scope.organization": func(m *seqledgerv1.WriteRequest) { m.Scope.Organization = "" },
		"scope.vault":        func(m *seqledgerv1.WriteRequest) { m.Scope.Vault = "ä" },
		"client_id":          func(m *seqledgerv1.WriteRequest) { m.ClientId = "\n" },
		"sequence":           func(m *seqledgerv1.WriteRequest) { m.Sequence = 0 },
		"idempotency_key":    func(m *seqledgerv1.WriteRequest) { m.IdempotencyKey = "k" },
		"operations": func(m *seqledgerv1.WriteRequest) {
			m.Operations = make([]*seqledgerv1.Operation, machine.MaxOperations+1)
		},
		"operations[1]":                  operation(message.Operation{}),
		"operations[1].expire_entity":    operation(message.Operation{Kind: message.ExpireEntity, Key: "k"}),
		"operations[1].set_entity.key":   operation(message.Operation{Kind: message.SetEntity}),
		"operations[1].set_entity.value": operation(message.Operation{Kind: message.SetEntity, Key: "k", Value: long}),
		"operations[1].set_entity.expires_at": operation(message.Operation{Kind: message.SetEntity, Key: "k",
			ExpiresAt: new(timestamppb.Timestamp)}),
		"operations[1].set_entity.condition": set(new(seqledgerv1.Condition)),
		"operations[1].set_entity.condition.not_exists": set(&seqledgerv1.Condition{
			Condition: new(seqledgerv1.Condition_NotExists)}),
		"operations[1].set_entity.condition.value_equals": set(&seqledgerv1.Condition{
			Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: long}}),
		"operations[1].delete_entity.key":       operation(message.Operation{Kind: message.DeleteEntity}),
		"operations[1].delete_entity.condition": remove(new(seqledgerv1.Condition)),
		"operations[1].delete_entity.condition.must_exist": remove(&seqledgerv1.Condition{
			Condition: new(seqledgerv1.Condition_MustExist)}),
		"operations[1].append.payload":               operation(message.Operation{Kind: message.Append, Value: long}),
		"operations[1].create_relationship.resource": operation(message.Operation{Kind: message.CreateRelationship}),
		"operations[1].create_relationship.relation": operation(message.Operation{
			Kind: message.CreateRelationship, Key: "r"}),
		"operations[1].delete_relationship.subject": operation(message.Operation{
			Kind: message.DeleteRelationship, Key: "r", Relation: "l"}),
	} {
		m := everything()
		change(m)
		var e Encoder
		_, err := e.Encode(m, "system:test")
		if problem, ok := err.(*machine.FieldError); !ok || problem.Field != field { //nolint:errorlint // Not wrapped.
			t.Errorf("got %v, want the field %s", err, field)
		}
		// What was encoded of it is not in the way of the next one.
		whole := everything()
		c := must.Get(e.Encode(whole, "system:test"))(t)
		check.Equal(t, c.Operations(), len(whole.Operations), "behind a mistake in %s: %d operations", field)
	}
}

// TestAGiantCommandIsNotKept: memory of an encoder that is reused must not stay large.
func TestAGiantCommandIsNotKept(t *testing.T) {
	t.Parallel()
	var e Encoder
	m := everything()
	must.Get(e.Encode(m, "system:test"))(t)
	if e.Reset(); cap(e.memory) == 0 {
		t.Error("the memory of a small command is used once alone")
	}
	payload := message.Operation{Kind: message.Append, Value: make([]byte, 2*maxKeptMemory)}
	m.Operations = append(m.Operations, payload.Message())
	must.Get(e.Encode(m, "system:test"))(t)
	if e.Reset(); cap(e.memory) != 0 {
		t.Errorf("%d bytes are kept", cap(e.memory))
	}
}

// TestOpenSessionAndConfig: the other commands name their fields, too.
func TestOpenSessionAndConfig(t *testing.T) {
	t.Parallel()
	scope := &seqledgerv1.Scope{Organization: "acme"}
	attempt := []byte("0123456789abcdef")
	for field, m := range map[string]*seqledgerv1.OpenSessionRequest{
		"attempt_id":         {Scope: scope, ClientId: "c", AttemptId: attempt[:15]},
		"scope":              {ClientId: "c", AttemptId: attempt},
		"scope.organization": {Scope: new(seqledgerv1.Scope), ClientId: "c", AttemptId: attempt},
		"client_id":          {Scope: scope, AttemptId: attempt},
	} {
		_, err := OpenSession(m, "system:test")
		if problem, ok := err.(*machine.FieldError); !ok || problem.Field != field { //nolint:errorlint // Not wrapped.
			t.Errorf("got %v, want the field %s", err, field)
		}
	}
	o, err := OpenSession(&seqledgerv1.OpenSessionRequest{
		Scope: scope, ClientId: "c", AttemptId: attempt, ExpectedSession: 7}, "system:test")
	if err != nil || o.ExpectedSession != 7 || string(o.AttemptID[:]) != string(attempt) || o.Actor != "system:test" {
		t.Error(o, err)
	}
	set := func(text string) (*machine.ConfigUpdate, error) {
		m := new(seqledgerv1.UpdateConfigRequest)
		if err := decodeJSON([]byte(text), m); err != nil {
			return nil, err
		}
		return ConfigUpdate(m)
	}
	for text, field := range map[string]string{
		`{"clientTtl":"0.9s"}`: "client_ttl", `{"clientTtl":"9223372037s"}`: "client_ttl",
		`{"evictionInterval":"0"}`: "eviction_interval", `{"evictionLimit":"100001"}`: "eviction_limit",
		`{"receiptWindow":"1025"}`: "receipt_window", `{"maxStreams":"0"}`: "max_streams",
	} {
		_, err := set(text)
		if problem, ok := err.(*machine.FieldError); !ok || problem.Field != field { //nolint:errorlint // Not wrapped.
			t.Errorf("%s: got %v, want the field %s", text, err, field)
		}
	}
	u, err := set(`{"clientTtl":"1.5s","receiptWindow":"1"}`)
	if err != nil || *u.ClientTTL != 1_500_000_000 || *u.ReceiptWindow != 1 || u.EvictionInterval != nil ||
		u.EvictionLimit != nil || u.MaxStreams != nil {
		t.Errorf("%+v, %v", u, err)
	}
}
