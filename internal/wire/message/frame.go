package message

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The fields of a WriteRequest that a Writer sends, and the one field of a WriteStreamRequest. frame_test.go compares
// them with the API.
const (
	fieldScope          protowire.Number = 1
	fieldClientID       protowire.Number = 2
	fieldSession        protowire.Number = 3
	fieldSequence       protowire.Number = 4
	fieldIdempotencyKey protowire.Number = 5
	fieldOperations     protowire.Number = 6
	fieldWrites         protowire.Number = 1
)

// Frame is a WriteStreamRequest whose writes are already encoded. Submit encodes the operations, and the journal and
// every copy that is sent have those bytes. Submit encodes so that the caller can reuse its buffers without changing a
// write that has its number and key.
type Frame struct{ Writes []EncodedWrite }

// EncodedWrite is one write of a frame. It is a copy of the Writer's data, so that a frame can be encoded without the
// multiplexer's mutex.
type EncodedWrite struct {
	Stream            []byte // see EncodeStream
	Session, Sequence uint64
	Key               string
	Operations        []byte // see EncodeOperations
}

// WriteOverhead bounds what a write takes in a frame in addition to its stream and its operations: session and sequence
// with 11 bytes each, a key of 36 characters with two more, and the length of the whole with five.
const WriteOverhead = 11 + 11 + 38 + 5

// EncodeStream encodes the scope and the client id, which all writes of a Writer share.
func EncodeStream(scope *seqledgerv1.Scope, clientID string) ([]byte, error) {
	return proto.Marshal(&seqledgerv1.WriteRequest{Scope: scope, ClientId: clientID})
}

// EncodeOperations encodes operations as the fields of a WriteRequest. They are neither hollow nor have text that is
// not UTF-8, so that the generated code writes what package proto would.
func EncodeOperations(operations []*seqledgerv1.Operation) ([]byte, error) {
	return (&seqledgerv1.WriteRequest{Operations: operations}).MarshalVT()
}

// append encodes the write as a field of a frame.
func (w *EncodedWrite) append(b []byte) []byte {
	size := len(w.Stream) + len(w.Operations)
	if w.Session != 0 {
		size += protowire.SizeTag(fieldSession) + protowire.SizeVarint(w.Session)
	}
	size += protowire.SizeTag(fieldSequence) + protowire.SizeVarint(w.Sequence)
	size += protowire.SizeTag(fieldIdempotencyKey) + protowire.SizeBytes(len(w.Key))
	b = protowire.AppendTag(b, fieldWrites, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = append(b, w.Stream...)
	if w.Session != 0 {
		b = protowire.AppendTag(b, fieldSession, protowire.VarintType)
		b = protowire.AppendVarint(b, w.Session)
	}
	b = protowire.AppendTag(b, fieldSequence, protowire.VarintType)
	b = protowire.AppendVarint(b, w.Sequence)
	b = protowire.AppendTag(b, fieldIdempotencyKey, protowire.BytesType)
	b = protowire.AppendString(b, w.Key)
	return append(b, w.Operations...)
}

// marshalAppend encodes the frame.
func (f *Frame) marshalAppend(b []byte) []byte {
	for i := range f.Writes {
		b = f.Writes[i].append(b)
	}
	return b
}

// DecodeOperations reads what EncodeOperations wrote.
func DecodeOperations(request []byte) ([]*seqledgerv1.Operation, error) {
	// Because a Writer sends the bytes of its journal unchanged, any other field would become part of the write.
	for rest := request; len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n >= 0 && (number != fieldOperations || kind != protowire.BytesType) {
			return nil, fmt.Errorf("unexpected field %d", number)
		}
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		rest = rest[n:]
	}
	var decoded seqledgerv1.WriteRequest
	if err := proto.Unmarshal(request, &decoded); err != nil {
		return nil, err
	}
	return decoded.GetOperations(), nil
}
