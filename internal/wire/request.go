package wire

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// decoder is a request that decodes itself and stores its error. Connect would answer a codec's error itself, before
// any interceptor and without details. So these codecs do not fail; the handler finds the error in the request and
// refuses it like any other.
type decoder interface {
	decodeBinary(data []byte)
	decodeJSON(data []byte)
	later(data []byte, decode func([]byte))
}

// LargeMessage is the size in bytes above which a message is decoded only when its handler asks for it: codecs have no
// context, and large messages are decoded in turn.
const LargeMessage = 64 << 10

// Large is a large message until it is decoded.
type Large struct {
	data   []byte
	decode func([]byte) // nil: it is decoded, or was not large
}

func (l *Large) later(data []byte, decode func([]byte)) { l.data, l.decode = bytes.Clone(data), decode }

// Pending reports whether the message is still to be decoded.
func (l *Large) Pending() bool { return l.decode != nil }

// Decode decodes the message unless that was done.
func (l *Large) Decode() {
	if data, decode := l.data, l.decode; decode != nil {
		*l = Large{}
		decode(data)
	}
}

// Request is a decoded message, or the error of decoding it.
type Request[T any, P Message[T]] struct {
	Large

	message P
	invalid error // a *machine.FieldError
}

// Message is a pointer to a generated type.
type Message[T any] interface {
	*T
	proto.Message
}

// Get returns the message, and decodes it if that was not done. An empty message may not have passed the codec: Connect
// skips those in streams. The error is a *machine.FieldError.
func (r *Request[T, P]) Get() (P, error) {
	r.Decode()
	if r.message == nil {
		r.message = new(T)
	}
	return r.message, r.invalid
}

func (r *Request[T, P]) decodeBinary(data []byte) {
	r.message = new(T)
	r.invalid = decodeBinary(data, r.message)
}

func (r *Request[T, P]) decodeJSON(data []byte) {
	r.message = new(T)
	r.invalid = decodeJSON(data, r.message)
}

// generated is a message with a generated encoder. It gives the same bytes as package proto for the answers of a
// server: text in UTF-8, and no oneof with a nil message.
type generated interface {
	SizeVT() int
	MarshalToSizedBufferVT(dst []byte) (int, error)
}

// BinaryCodec reads requests and writes answers in protobuf. It and JSONCodec implement Connect's Codec, and replace
// Connect's own, which silently drop unknown fields.
type BinaryCodec struct{}

// Name implements connect.Codec.
func (BinaryCodec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (BinaryCodec) Marshal(m any) ([]byte, error) {
	return BinaryCodec{}.MarshalAppend(nil, m)
}

// MarshalAppend saves Connect a copy of the answer.
func (BinaryCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	if g, ok := m.(generated); ok {
		size := g.SizeVT()
		dst = slices.Grow(dst, size)[:len(dst)+size]
		_, err := g.MarshalToSizedBufferVT(dst[len(dst)-size:])
		return dst, err
	}
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("wire: %T is not a protobuf message", m)
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, p)
}

// Unmarshal implements connect.Codec.
func (BinaryCodec) Unmarshal(data []byte, m any) error {
	return unmarshal(data, m, decoder.decodeBinary)
}

// unmarshal decodes a request, or keeps it for its handler if it is large.
func unmarshal(data []byte, m any, decode func(decoder, []byte)) error {
	d, ok := m.(decoder)
	if !ok {
		return fmt.Errorf("wire: %T is not a request", m)
	}
	if len(data) > LargeMessage {
		d.later(data, func(data []byte) { decode(d, data) })
	} else {
		decode(d, data)
	}
	return nil
}

// JSONCodec reads requests and writes answers in protobuf's JSON mapping. CodecName is "json", or that with a parameter
// of the content type.
type JSONCodec struct{ CodecName string }

// Name implements connect.Codec.
func (c JSONCodec) Name() string { return c.CodecName }

// Marshal implements connect.Codec.
func (c JSONCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend saves Connect a copy of the answer.
func (JSONCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("wire: %T is not a protobuf message", m)
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, p)
}

// Unmarshal implements connect.Codec.
func (JSONCodec) Unmarshal(data []byte, m any) error {
	return unmarshal(data, m, decoder.decodeJSON)
}

// decodeBinary reads a protobuf message. The error is a *machine.FieldError.
func decodeBinary(data []byte, m proto.Message) error {
	if w, ok := m.(*seqledgerv1.WriteRequest); ok { // the hot path: nothing by reflection
		if _, problem := writeSchema.check(data); problem != nil {
			return problem
		}
		if w.UnmarshalVT(data) != nil {
			return notDecoded(m)
		}
		return nil
	}
	if _, problem := schemas[m.ProtoReflect().Descriptor().FullName()].check(data); problem != nil {
		return problem
	}
	if proto.Unmarshal(data, m) != nil {
		return notDecoded(m)
	}
	return nil
}

// notDecoded is the error of a decoder that refuses what the schema has found valid, which no encoding is known to
// bring about.
func notDecoded(m proto.Message) *machine.FieldError {
	return &machine.FieldError{
		Problem: fmt.Sprint("is not the binary encoding of ", m.ProtoReflect().Descriptor().FullName())}
}

const (
	// MaxFrameWrites is how many writes one message of a WriteStream may carry.
	MaxFrameWrites = 1_000
	// MaxFrameOperations is how many operations those writes may have together. Because an empty operation takes two
	// bytes on the wire and some 250 decoded and converted, without this limit 4 MB could become 500.
	MaxFrameOperations = 16_384
)

// Frame is a message of a WriteStream, or a WriteBatch: writes, and the errors of the invalid ones. An invalid write
// must not affect the others, so each has a separate error. The fields of a large frame are empty until Decode.
type Frame struct {
	Large

	Writes []*seqledgerv1.WriteRequest
	// Operations of all valid writes together.
	Operations int
	Bad        map[int]error // *machine.FieldErrors, by place; nil: none
	Invalid    error         // about the whole frame, a *machine.FieldError: nothing of it can be decided
}

// decodeBinary checks the writes one by one, and decodes them all at once if none is invalid.
func (f *Frame) decodeBinary(data []byte) {
	*f = Frame{}
	for n, rest := 0, data; len(rest) > 0; n++ {
		write, size, problem := nextWrite(rest, n)
		if problem != nil {
			*f = Frame{Invalid: problem}
			return
		}
		operations, problem := writeSchema.check(write)
		if problem != nil {
			f.refuse(n, problem)
		}
		if f.addOperations(operations); f.Invalid != nil {
			return // before any of them is decoded
		}
		rest = rest[size:]
	}
	if f.Bad == nil {
		m := new(seqledgerv1.WriteStreamRequest)
		if m.UnmarshalVT(data) != nil {
			f.Invalid = notDecoded(m)
			return
		}
		f.Writes = m.Writes
		return
	}
	for n := 0; len(data) > 0; n++ {
		write, size, _ := nextWrite(data, n)
		m := new(seqledgerv1.WriteRequest)
		if f.Bad[n] == nil && m.UnmarshalVT(write) != nil {
			f.refuse(n, notDecoded(m))
			m.Reset() // what was decoded of it is invalid
		}
		f.Writes = append(f.Writes, m)
		data = data[size:]
	}
}

// writesField is the number of WriteStreamRequest.writes.
const writesField protowire.Number = 1

// nextWrite returns the encoded write that the rest of a frame begins with, and its size there; n writes precede it.
func nextWrite(rest []byte, n int) (write []byte, size int, problem *machine.FieldError) {
	number, wire, tag := protowire.ConsumeTag(rest)
	switch {
	case tag < 0:
		return nil, 0, &machine.FieldError{Problem: malformed}
	case number != writesField || wire != protowire.BytesType:
		return nil, 0, &machine.FieldError{Field: fmt.Sprint(number), Problem: "is an unknown field"}
	case n == MaxFrameWrites:
		return nil, 0, &machine.FieldError{Field: "writes", Problem: fmt.Sprintf("has more than %d elements", n)}
	}
	write, length := protowire.ConsumeBytes(rest[tag:])
	if length < 0 {
		return nil, 0, &machine.FieldError{Field: fmt.Sprintf("writes[%d]", n), Problem: malformed}
	}
	return write, tag + length, nil
}

func (f *Frame) decodeJSON(data []byte) {
	*f = Frame{}
	problem, depth := jsonLimits(data)
	if problem != nil && depth <= 2 { // about the frame or its list of writes, not inside a write
		f.Invalid = problem
		return
	}
	m := new(seqledgerv1.WriteStreamRequest)
	if problem == nil && protojson.Unmarshal(data, m) == nil {
		for _, w := range m.Writes {
			f.addOperations(len(w.Operations))
		}
		if f.Invalid == nil {
			f.Writes = m.Writes
		}
		return
	}
	writes, problem := splitJSON(data)
	if problem != nil {
		f.Invalid = problem
		return
	}
	explain := maxExplained // of all writes together
	for n, write := range writes {
		m := new(seqledgerv1.WriteRequest)
		if err := decodeJSONPart(write, m, &explain); err != nil {
			f.refuse(n, err)
			m = new(seqledgerv1.WriteRequest) // what was decoded of it is invalid
		}
		f.Writes = append(f.Writes, m)
		// After each write, because the rest must not be decoded at all.
		if f.addOperations(len(m.Operations)); f.Invalid != nil {
			return
		}
	}
}

func (f *Frame) refuse(n int, err error) {
	if f.Bad == nil {
		f.Bad = make(map[int]error)
	}
	f.Bad[n] = err
}

// addOperations counts the operations of one more write, and refuses the frame once it has too many.
func (f *Frame) addOperations(n int) {
	if f.Operations += n; f.Invalid == nil && f.Operations > MaxFrameOperations {
		*f = Frame{Invalid: &machine.FieldError{
			Field: "writes", Problem: fmt.Sprintf(
				"have more than %d operations together: send them in several messages", MaxFrameOperations),
		}}
	}
}
