package server

import (
	"fmt"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// decoder is a request that decodes itself and stores its error. Connect would answer a codec's
// error itself, before any interceptor and without details. So these codecs do not fail; the
// handler finds the error in the request and refuses it like any other.
type decoder interface {
	decodeBinary(data []byte)
	decodeJSON(data []byte)
}

// request is a decoded message, or the error of decoding it.
type request[T any, P message[T]] struct {
	message P
	invalid error // a *machine.FieldError
}

// message is a pointer to a generated type.
type message[T any] interface {
	*T
	proto.Message
}

// get returns the message. An empty message may not have passed the codec: Connect skips those
// in streams.
func (r *request[T, P]) get() (P, error) {
	if r.message == nil {
		r.message = new(T)
	}
	return r.message, r.invalid
}

func (r *request[T, P]) decodeBinary(data []byte) {
	r.message = new(T)
	r.invalid = decodeBinary(data, r.message)
}

func (r *request[T, P]) decodeJSON(data []byte) {
	r.message = new(T)
	r.invalid = decodeJSON(data, r.message)
}

// codecs returns codecs that replace Connect's own, which silently drop unknown fields.
func codecs() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(binaryCodec{}),
		connect.WithCodec(jsonCodec{"json"}),
		connect.WithCodec(jsonCodec{"json; charset=utf-8"}),
	)
}

// generated is a message with a generated encoder. It gives the same bytes as package proto for
// this server's answers: text in UTF-8, and no oneof with a nil message. doc.go says why there
// are two encoders.
type generated interface {
	SizeVT() int
	MarshalToSizedBufferVT(dst []byte) (int, error)
}

// binaryCodec reads and writes protobuf.
type binaryCodec struct{}

func (binaryCodec) Name() string { return "proto" }

func (binaryCodec) Marshal(m any) ([]byte, error) {
	return binaryCodec{}.MarshalAppend(nil, m)
}

// MarshalAppend saves Connect a copy of the answer.
func (binaryCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	if g, ok := m.(generated); ok {
		size := g.SizeVT()
		dst = slices.Grow(dst, size)[:len(dst)+size]
		_, err := g.MarshalToSizedBufferVT(dst[len(dst)-size:])
		return dst, err
	}
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("server: %T is not a protobuf message", m)
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, p)
}

func (binaryCodec) Unmarshal(data []byte, m any) error {
	d, ok := m.(decoder)
	if !ok {
		return fmt.Errorf("server: %T is not a request", m)
	}
	d.decodeBinary(data)
	return nil
}

// jsonCodec reads and writes protobuf's JSON mapping.
type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (c jsonCodec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend saves Connect a copy of the answer.
func (jsonCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("server: %T is not a protobuf message", m)
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, p)
}

func (jsonCodec) Unmarshal(data []byte, m any) error {
	d, ok := m.(decoder)
	if !ok {
		return fmt.Errorf("server: %T is not a request", m)
	}
	d.decodeJSON(data)
	return nil
}
