package message

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// kinds are the operations of the API, one of each kind, with contents in all fields.
func kinds(t testing.TB) map[protoreflect.Name]*seqledgerv1.Operation {
	t.Helper()
	all := make(map[protoreflect.Name]*seqledgerv1.Operation)
	choices := (*seqledgerv1.Operation)(nil).ProtoReflect().Descriptor().Oneofs().ByName("operation").Fields()
	for i := range choices.Len() {
		choice := choices.Get(i)
		m := new(seqledgerv1.Operation)
		contents := m.ProtoReflect().Mutable(choice).Message()
		for j := range choice.Message().Fields().Len() {
			switch field := choice.Message().Fields().Get(j); field.Kind() {
			case protoreflect.StringKind:
				contents.Set(field, protoreflect.ValueOfString(string(field.Name())))
			case protoreflect.BytesKind:
				contents.Set(field, protoreflect.ValueOfBytes([]byte(field.Name())))
			}
		}
		all[choice.Name()] = m
	}
	if len(all) < 6 {
		t.Fatalf("the API has %d kinds of operations", len(all))
	}
	return all
}

// TestEveryKindIsKnown: an operation that is new in the API must have a Kind and canonical bytes of its own, and its
// contents must not be lost.
func TestEveryKindIsKnown(t *testing.T) {
	t.Parallel()
	numbers, encodings := make(map[Kind]protoreflect.Name), make(map[string]protoreflect.Name)
	for name, m := range kinds(t) {
		op, ok := ReadOperation(m)
		if !ok || op.Kind == 0 || numbers[op.Kind] != "" {
			t.Errorf("operation.go: %s has the kind %d, which %q has", name, op.Kind, numbers[op.Kind])
		}
		numbers[op.Kind] = name
		if !proto.Equal(op.Message(), m) {
			t.Errorf("operation.go: %v is read and built as %v", m, op.Message())
		}
		encoded := must.Get(appendOperation(nil, m))(t)
		check.Equal(t, encodings[string(encoded)], "", "canonical.go: %s has the encoding %x", name)
		encodings[string(encoded)] = name
		for _, text := range []string{op.Key, op.Relation, op.Subject, string(op.Value)} {
			check.Contains(t, string(encoded), text, "canonical.go: the encoding of %s", name)
		}
	}
}

// TestReadAndBuild: what is read of any operation builds the same one again.
func TestReadAndBuild(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := new(seqledgerv1.Operation)
		prototest.Message(t, m)
		op, ok := ReadOperation(m)
		if built := op.Message(); !ok || !proto.Equal(built, m) {
			t.Fatalf("%v is read and built as %v, %v", m, built, ok)
		}
		if !op.IsUTF8() {
			t.Fatalf("%v has only text in UTF-8", m)
		}
		prototest.Texts(m, func(_ protoreflect.FieldDescriptor, replace func(string)) {
			replace("a\xff")
			if op, ok := ReadOperation(m); !ok || op.IsUTF8() {
				t.Fatalf("%v has text that is not UTF-8", m)
			}
			replace("a")
		})
	})
}

// TestHollowOperations: nil pointers at every depth are reported, because the generated encoder would leave out what
// they stand for.
func TestHollowOperations(t *testing.T) {
	t.Parallel()
	for name, m := range kinds(t) {
		reflected := m.ProtoReflect()
		choice := reflected.Descriptor().Fields().ByName(name)
		if condition := choice.Message().Fields().ByName("condition"); condition != nil {
			for _, c := range []*seqledgerv1.Condition{
				{Condition: (*seqledgerv1.Condition_NotExists)(nil)},
				{Condition: (*seqledgerv1.Condition_MustExist)(nil)},
				{Condition: (*seqledgerv1.Condition_Version)(nil)},
				{Condition: (*seqledgerv1.Condition_ValueEquals)(nil)},
			} {
				op, _ := ReadOperation(m)
				op.Condition = c
				if _, ok := ReadOperation(op.Message()); ok {
					t.Errorf("%s: the hollow condition %T was taken", name, c.GetCondition())
				}
			}
			op, _ := ReadOperation(m)
			op.Condition = new(seqledgerv1.Condition)
			if _, ok := ReadOperation(op.Message()); !ok {
				t.Errorf("%s: a condition of no kind is not hollow", name)
			}
		}
	}
	for _, m := range []*seqledgerv1.Operation{
		{Operation: &seqledgerv1.Operation_SetEntity{}}, {Operation: (*seqledgerv1.Operation_SetEntity)(nil)},
		{Operation: &seqledgerv1.Operation_DeleteEntity{}}, {Operation: (*seqledgerv1.Operation_DeleteEntity)(nil)},
		{Operation: &seqledgerv1.Operation_CreateRelationship{}},
		{Operation: (*seqledgerv1.Operation_CreateRelationship)(nil)},
		{Operation: &seqledgerv1.Operation_DeleteRelationship{}},
		{Operation: (*seqledgerv1.Operation_DeleteRelationship)(nil)},
		{Operation: &seqledgerv1.Operation_Append{}}, {Operation: (*seqledgerv1.Operation_Append)(nil)},
		{Operation: &seqledgerv1.Operation_ExpireEntity{}}, {Operation: (*seqledgerv1.Operation_ExpireEntity)(nil)},
	} {
		if op, ok := ReadOperation(m); ok {
			t.Errorf("%T: the hollow operation was read as %v", m.GetOperation(), op)
		}
		if _, err := appendOperation(nil, m); !errors.Is(err, errUnknownKind) {
			t.Errorf("%T has a canonical encoding: %v", m.GetOperation(), err)
		}
	}
	if op, ok := ReadOperation(new(seqledgerv1.Operation)); !ok || op.Kind != 0 {
		t.Error("an operation of no kind is not hollow:", op, ok)
	}
}
