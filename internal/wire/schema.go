package wire

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// schema describes the valid binary encodings of a message. A message is checked against it before it is decoded,
// because decoding drops unknown fields, keeps the last of two, and may need far more memory than the encoding of many
// empty messages. Unknown fields are refused, because an unknown condition must not be dropped silently; fields that
// are given twice are refused, because the caller may mean the one that would be dropped.
//
// It is built from the descriptors once: reflection for every write would cost as much as decoding it.
type schema struct {
	fields [maxFieldNumber + 1]schemaField
	// limit bounds the elements of the one list that a message has, if any.
	limit int
}

// schemaField is a field of a message; the zero value is an unknown one.
type schemaField struct {
	descriptor protoreflect.FieldDescriptor // nil: unknown
	list       bool
	text       bool // must be UTF-8
	wire       protowire.Type
	// excludes has a bit for each field number that must not precede the field: its own, and the others of its oneof.
	excludes uint64
	message  *schema // nil: no message
}

// maxFieldNumber is the highest in any request.
const maxFieldNumber = 15

// schemas are those of all requests but a WriteBatch and the frames of a WriteStream, which are read write by write.
var schemas = func() map[protoreflect.FullName]*schema {
	all := make(map[protoreflect.FullName]*schema)
	for _, file := range []protoreflect.FileDescriptor{
		seqledgerv1.File_seqledger_v1_ledger_proto, seqledgerv1.File_seqledger_v1_admin_proto,
		seqledgerv1.File_seqledger_v1_idempotency_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if input := methods.Get(j).Input(); input != frameDescriptor && input != batchDescriptor {
					all[input.FullName()] = newSchema(input, machine.MaxOperations)
				}
			}
		}
	}
	return all
}()

var (
	// Both have the same fields.
	frameDescriptor = (*seqledgerv1.WriteStreamRequest)(nil).ProtoReflect().Descriptor()
	batchDescriptor = (*seqledgerv1.WriteBatchRequest)(nil).ProtoReflect().Descriptor()
	writeSchema     = schemas[(*seqledgerv1.WriteRequest)(nil).ProtoReflect().Descriptor().FullName()]
)

// newSchema panics for a message that schema cannot describe, so that a program with such a message does not start.
func newSchema(d protoreflect.MessageDescriptor, limit int) *schema {
	s := &schema{limit: limit}
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		f := schemaField{descriptor: field, list: field.IsList(), wire: wireType(field.Kind())}
		f.text = field.Kind() == protoreflect.StringKind
		if f.list && f.wire != protowire.BytesType {
			panic(fmt.Sprintf("wire: the schema knows no packed list, which %s may be", field.FullName()))
		}
		if !f.list {
			f.excludes = 1 << field.Number()
		}
		if choice := field.ContainingOneof(); choice != nil {
			for j := range choice.Fields().Len() {
				f.excludes |= 1 << choice.Fields().Get(j).Number()
			}
		}
		if field.Kind() == protoreflect.MessageKind {
			f.message = newSchema(field.Message(), limit)
		}
		s.fields[field.Number()] = f
	}
	return s
}

// wireType returns the wire type of a kind. No request has numbers of a fixed size.
func wireType(kind protoreflect.Kind) protowire.Type {
	switch kind {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.Uint64Kind, protoreflect.Uint32Kind, protoreflect.Int64Kind, protoreflect.Int32Kind,
		protoreflect.BoolKind, protoreflect.EnumKind:
		return protowire.VarintType
	}
	panic(fmt.Sprintf("wire: the schema knows no %s", kind))
}

// check returns the mistake in an encoding, nil for a valid one, and how many elements its lists have. Valid is an
// encoding that is whole and has only known fields, each once, with lists within their limit and text that is UTF-8.
// The generated decoder and proto.Unmarshal give the same result for it; any other encoding the generated decoder might
// accept.
//
// The path of a field is built only for a mistake, so that a valid encoding costs no memory.
func (s *schema) check(data []byte) (elements int, problem *machine.FieldError) {
	seen, own := uint64(0), 0
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return 0, &machine.FieldError{Problem: malformed}
		}
		if number > maxFieldNumber || s.fields[number].descriptor == nil {
			return 0, &machine.FieldError{Field: fmt.Sprint(number), Problem: "is an unknown field"}
		}
		f := &s.fields[number]
		if seen&f.excludes != 0 {
			return 0, &machine.FieldError{Field: f.name(), Problem: f.repeated(seen)}
		}
		if f.list && own == s.limit {
			return 0, &machine.FieldError{Field: f.name(), Problem: fmt.Sprintf("has more than %d elements", own)}
		}
		seen |= 1 << number
		within, size, problem := f.check(wire, data[n:])
		if problem != nil {
			at := f.name()
			if f.list {
				at = fmt.Sprintf("%s[%d]", at, own)
			}
			if problem.Field != "" { // inside the value
				at = join(at, problem.Field)
			}
			problem.Field = at
			return 0, problem
		}
		if elements += within; f.list {
			own++
		}
		data = data[n+size:]
	}
	return elements + own, nil
}

// malformed is the problem of bytes that are not protobuf at all.
const malformed = "is malformed protobuf"

// check checks the value that data begins with, and returns its size. The problem's field is relative to this one.
func (f *schemaField) check(wire protowire.Type, data []byte) (elements, size int, problem *machine.FieldError) {
	if wire != f.wire || wire != protowire.BytesType {
		if size = protowire.ConsumeFieldValue(f.descriptor.Number(), wire, data); size < 0 {
			return 0, 0, &machine.FieldError{Problem: malformed}
		}
		if wire != f.wire {
			return 0, 0, &machine.FieldError{Problem: "has the wrong wire type"}
		}
		return 0, size, nil
	}
	value, size := protowire.ConsumeBytes(data)
	switch {
	case size < 0:
		return 0, 0, &machine.FieldError{Problem: malformed}
	case f.text && !utf8.Valid(value):
		return 0, 0, &machine.FieldError{Problem: "is not UTF-8"}
	case f.message != nil:
		elements, problem = f.message.check(value)
	}
	return elements, size, problem
}

func (f *schemaField) name() string { return string(f.descriptor.Name()) }

// repeated says why the field must not follow those that were seen.
func (f *schemaField) repeated(seen uint64) string {
	if choice := f.descriptor.ContainingOneof(); choice != nil && seen&(1<<f.descriptor.Number()) == 0 {
		for i := range choice.Fields().Len() {
			if other := choice.Fields().Get(i); seen&(1<<other.Number()) != 0 {
				return fmt.Sprintf("is given although %s is, and only one of them is allowed", other.Name())
			}
		}
	}
	return "is given twice"
}
