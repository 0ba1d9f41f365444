package prototest

import "google.golang.org/protobuf/proto"

// Codec encodes and decodes every message with package proto, for tests in which the codec does not matter.
type Codec struct{}

// MarshalAppend appends the encoding of m, which is a proto.Message.
func (Codec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(dst, m.(proto.Message)) //nolint:forcetypeassert // A test may panic.
}

// Unmarshal decodes into m, which is a proto.Message.
func (Codec) Unmarshal(data []byte, m any) error {
	return proto.Unmarshal(data, m.(proto.Message)) //nolint:forcetypeassert // As above.
}
