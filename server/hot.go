package server

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// shape describes the valid binary encodings of a message. Writes are checked against it before
// they are decoded, because decoding drops unknown fields, keeps the last of two, and may need
// far more memory than the encoding of many empty messages. It is built from the descriptors
// once: reflection for every write would cost as much as decoding it.
type shape struct {
	fields [maxFieldNumber + 1]fieldShape
	// limit bounds the elements of the one list that a message has, if any.
	limit int
	// total bounds the elements of that list and of the lists within it together; 0: only their
	// own limits apply.
	total int
}

// fieldShape is a field of a message; the zero value is an unknown one.
type fieldShape struct {
	known bool
	list  bool
	text  bool // must be UTF-8
	wire  protowire.Type
	// excludes has a bit for each field number that must not precede the field: its own, and
	// the others of its oneof.
	excludes uint64
	inner    *shape // nil: no message
}

// maxFieldNumber is the highest in any write.
const maxFieldNumber = 15

var (
	writeShape = shapeOf((*seqledgerv1.WriteRequest)(nil).ProtoReflect().Descriptor(), machine.MaxOperations)
	frameShape = &shape{limit: maxFrameWrites, total: maxFrameWrites + maxFrameOperations,
		fields: [maxFieldNumber + 1]fieldShape{
			writesField: {known: true, list: true, wire: protowire.BytesType, inner: writeShape},
		}}
)

// shapeOf panics for a message that shape cannot describe, so a program with such a message
// does not start.
func shapeOf(d protoreflect.MessageDescriptor, limit int) *shape {
	s := &shape{limit: limit}
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		f := fieldShape{known: true, list: field.IsList(), wire: wireType(field.Kind())}
		f.text = field.Kind() == protoreflect.StringKind
		if !f.list {
			f.excludes = 1 << field.Number()
		}
		if choice := field.ContainingOneof(); choice != nil {
			for j := range choice.Fields().Len() {
				f.excludes |= 1 << choice.Fields().Get(j).Number()
			}
		}
		if field.Kind() == protoreflect.MessageKind {
			f.inner = shapeOf(field.Message(), limit)
		}
		s.fields[field.Number()] = f
	}
	return s
}

// fits reports whether an encoding is whole and has only known fields, each once, with lists
// within their limit and text that is UTF-8. For such an encoding the generated decoder and
// proto.Unmarshal give the same result; otherwise the generated decoder would accept more, such
// as text that is not UTF-8. explainBinary finds what is wrong with an encoding that does not
// fit.
func (s *shape) fits(data []byte) bool {
	_, ok := s.count(data)
	return ok
}

// count is fits, and returns how many elements the lists have together.
func (s *shape) count(data []byte) (total int, ok bool) {
	seen, elements := uint64(0), 0
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 || number > maxFieldNumber {
			return 0, false
		}
		f := &s.fields[number]
		if !f.known || wire != f.wire || seen&f.excludes != 0 {
			return 0, false
		}
		seen |= 1 << number
		if f.list {
			if elements++; elements > s.limit {
				return 0, false
			}
		}
		data = data[n:]
		if wire != protowire.BytesType {
			n = protowire.ConsumeFieldValue(number, wire, data)
		} else {
			var inner []byte
			inner, n = protowire.ConsumeBytes(data)
			if n >= 0 && f.text && !utf8.Valid(inner) {
				return 0, false
			}
			if n >= 0 && f.inner != nil {
				within, ok := f.inner.count(inner)
				if total += within; !ok || s.total > 0 && elements+total > s.total {
					return 0, false
				}
			}
		}
		if n < 0 {
			return 0, false
		}
		data = data[n:]
	}
	return elements + total, true
}
