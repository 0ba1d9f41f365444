package prototest

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"
)

// maxElements is how many elements a drawn list has at most.
const maxElements = 3

// Message sets fields of m at random, to values of every length and size that the wire format distinguishes. Text is
// always UTF-8. A message inside another may be empty and is never nil.
func Message(t *rapid.T, m proto.Message) { fill(t, m.ProtoReflect()) }

func fill(t *rapid.T, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch choice := field.ContainingOneof(); {
		case choice != nil && choice.Fields().Get(0) != field: // drawn with the first
		case choice != nil:
			if n := rapid.IntRange(0, choice.Fields().Len()).Draw(t, string(choice.Name())); n > 0 {
				chosen := choice.Fields().Get(n - 1)
				m.Set(chosen, value(t, chosen, m.NewField(chosen)))
			}
		case !rapid.Bool().Draw(t, "has "+string(field.Name())):
		case field.IsList():
			fillList(t, field, m.Mutable(field).List())
		default:
			m.Set(field, value(t, field, m.NewField(field)))
		}
	}
}

func fillList(t *rapid.T, field protoreflect.FieldDescriptor, list protoreflect.List) {
	for range rapid.IntRange(1, maxElements).Draw(t, "elements") {
		empty := protoreflect.Value{}
		if field.Message() != nil {
			empty = list.NewElement()
		}
		list.Append(value(t, field, empty))
	}
}

// value draws one value; empty is the message to fill.
func value(t *rapid.T, field protoreflect.FieldDescriptor, empty protoreflect.Value) protoreflect.Value {
	name := string(field.Name())
	switch field.Kind() {
	case protoreflect.MessageKind:
		fill(t, empty.Message())
		return empty
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, name))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, name))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, name))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32().Draw(t, name)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, name))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, name))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, name))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, name))
	}
	t.Fatalf("prototest knows no %v, which %s is", field.Kind(), field.FullName())
	panic("not reached")
}

// Texts calls visit for each text field in m and in the messages in it that is set, with a function that replaces the
// text. A test can so corrupt every text in turn.
func Texts(m proto.Message, visit func(field protoreflect.FieldDescriptor, replace func(text string))) {
	texts(m.ProtoReflect(), visit)
}

func texts(m protoreflect.Message, visit func(protoreflect.FieldDescriptor, func(string))) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case !m.Has(field):
		case field.Kind() == protoreflect.StringKind:
			visit(field, func(text string) { m.Set(field, protoreflect.ValueOfString(text)) })
		case field.IsList() && field.Message() != nil:
			for j := range m.Get(field).List().Len() {
				texts(m.Get(field).List().Get(j).Message(), visit)
			}
		case field.Message() != nil:
			texts(m.Get(field).Message(), visit)
		}
	}
}
