package prototest

import "google.golang.org/protobuf/proto"

// Codec encodes and decodes every message by package proto, for streams whose
// codec is not what is tested.
type Codec struct{}

// MarshalAppend appends the encoding of m, which is a proto.Message.
func (Codec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(dst, m.(proto.Message)) //nolint:forcetypeassert // A test panics as it should.
}

// Unmarshal decodes into m, which is a proto.Message.
func (Codec) Unmarshal(data []byte, m any) error {
	return proto.Unmarshal(data, m.(proto.Message)) //nolint:forcetypeassert // As above.
}
