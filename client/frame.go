package client

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The fields of a WriteRequest that a Writer sends, and the one field of a
// WriteStreamRequest. frame_test.go compares them with the API.
const (
	fieldScope          protowire.Number = 1
	fieldClientID       protowire.Number = 2
	fieldSession        protowire.Number = 3
	fieldSequence       protowire.Number = 4
	fieldIdempotencyKey protowire.Number = 5
	fieldOperations     protowire.Number = 6
	fieldWrites         protowire.Number = 1
)

// frame is a WriteStreamRequest whose writes are already encoded. Submit encodes the
// operations, and the journal and every copy that is sent have those bytes. The caller can
// therefore reuse its buffers without changing a write that has its number and key.
type frame struct{ writes []encodedWrite }

// encodedWrite is one write of a frame. It is a copy of the Writer's data, so a frame can be
// encoded without the multiplexer's mutex.
type encodedWrite struct {
	stream            []byte // see encodeStream
	session, sequence uint64
	key               string
	operations        []byte // see encodeOperations
}

// writeOverhead bounds what a write takes in a frame besides its stream and its
// operations: session and sequence with 11 bytes each, a key of 36 characters
// with two more, and the length of the whole with five.
const writeOverhead = 11 + 11 + 38 + 5

// encodeStream encodes the scope and the client id, which all writes of a Writer
// share.
func encodeStream(scope *seqledgerv1.Scope, clientID string) ([]byte, error) {
	b, err := proto.Marshal(&seqledgerv1.WriteRequest{Scope: scope, ClientId: clientID})
	if err != nil {
		return nil, fmt.Errorf("client: WriterOptions: Scope or ClientID: %w", err)
	}
	return b, nil
}

// encodeOperations encodes operations as the fields of a WriteRequest. They are
// neither hollow nor have text that is not UTF-8, so that the generated code
// writes what package proto would.
func encodeOperations(operations []*seqledgerv1.Operation) ([]byte, error) {
	return (&seqledgerv1.WriteRequest{Operations: operations}).MarshalVT()
}

// append encodes the write as a field of a frame.
func (w *encodedWrite) append(b []byte) []byte {
	size := len(w.stream) + len(w.operations)
	if w.session != 0 {
		size += protowire.SizeTag(fieldSession) + protowire.SizeVarint(w.session)
	}
	size += protowire.SizeTag(fieldSequence) + protowire.SizeVarint(w.sequence)
	size += protowire.SizeTag(fieldIdempotencyKey) + protowire.SizeBytes(len(w.key))
	b = protowire.AppendTag(b, fieldWrites, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = append(b, w.stream...)
	if w.session != 0 {
		b = protowire.AppendTag(b, fieldSession, protowire.VarintType)
		b = protowire.AppendVarint(b, w.session)
	}
	b = protowire.AppendTag(b, fieldSequence, protowire.VarintType)
	b = protowire.AppendVarint(b, w.sequence)
	b = protowire.AppendTag(b, fieldIdempotencyKey, protowire.BytesType)
	b = protowire.AppendString(b, w.key)
	return append(b, w.operations...)
}

// marshalAppend encodes the frame.
func (f *frame) marshalAppend(b []byte) []byte {
	for i := range f.writes {
		b = f.writes[i].append(b)
	}
	return b
}

// DecodeOperations reads the Request of an entry of a journal.
func DecodeOperations(request []byte) ([]*seqledgerv1.Operation, error) {
	// A Writer sends the journal's bytes unchanged, so any other field would become part of the
	// write.
	for rest := request; len(rest) > 0; {
		number, kind, n := protowire.ConsumeField(rest)
		if n >= 0 && (number != fieldOperations || kind != protowire.BytesType) {
			return nil, fmt.Errorf("client: the operations of a journalled write: unexpected field %d", number)
		}
		if n < 0 {
			return nil, fmt.Errorf("client: the operations of a journalled write: %w", protowire.ParseError(n))
		}
		rest = rest[n:]
	}
	var decoded seqledgerv1.WriteRequest
	if err := proto.Unmarshal(request, &decoded); err != nil {
		return nil, fmt.Errorf("client: the operations of a journalled write: %w", err)
	}
	return decoded.GetOperations(), nil
}
