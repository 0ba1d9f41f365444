package message

import (
	"bytes"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestFrameEncodesLikeProto: a frame has the bytes that package proto gives the request with the same writes, whatever
// is in them, and no write takes more of it than is counted for it.
func TestFrameEncodesLikeProto(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, want, size := new(Frame), new(seqledgerv1.WriteStreamRequest), 0
		for range rapid.IntRange(0, 4).Draw(t, "writes") {
			m := new(seqledgerv1.WriteRequest)
			prototest.Message(t, m)
			m.IncludeProof = false                        // a Writer asks for none
			m.Namespace, m.Principal, m.Ttl = "", "", nil // nor for a keyed write
			m.Sequence = rapid.Uint64Min(1).Draw(t, "sequence")
			m.IdempotencyKey = "01234567-89ab-7cde-8f01-23456789abcd"
			m.Operations = slices.DeleteFunc(m.Operations, func(o *seqledgerv1.Operation) bool {
				_, ok := ReadOperation(o)
				return !ok
			})
			stream := must.Get(EncodeStream(m.Scope, m.ClientId))(t)
			operations := must.Get(EncodeOperations(m.Operations))(t)
			f.Writes = append(f.Writes, EncodedWrite{
				Stream: stream, Session: m.Session, Sequence: m.Sequence, Key: m.IdempotencyKey, Operations: operations,
			})
			want.Writes = append(want.Writes, m)
			size += len(stream) + len(operations) + WriteOverhead
		}
		before := []byte("before")
		got := must.Get(Codec{}.MarshalAppend(slices.Clone(before), f))(t)
		wanted := must.Get(proto.MarshalOptions{}.MarshalAppend(before, want))(t)
		if !bytes.Equal(got, wanted) {
			t.Fatalf("%v is %x, want %x", want, got, wanted)
		}
		if len(got)-len(before) > size+6*len(f.Writes) {
			t.Fatalf("%d bytes were counted, %d are sent", size, len(got)-len(before))
		}
	})
}

// TestDecodeOperationsTakesNothingElse: what is in a journal is sent unchanged, so it must not bring a number, a
// session or a scope of its own.
func TestDecodeOperationsTakesNothingElse(t *testing.T) {
	t.Parallel()
	operations := []*seqledgerv1.Operation{
		{Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: []byte("x")}}}}
	for name, m := range map[string]*seqledgerv1.WriteRequest{
		"sequence": {Operations: operations, Sequence: 7}, "session": {Operations: operations, Session: 7},
		"key": {Operations: operations, IdempotencyKey: "k"}, "client id": {Operations: operations, ClientId: "c"},
		"scope": {Operations: operations, Scope: &seqledgerv1.Scope{}},
		"proof": {Operations: operations, IncludeProof: true},
	} {
		if _, err := DecodeOperations(mustMarshal(t, m)); err == nil {
			t.Errorf("%s was taken for an operation", name)
		}
	}
	check.Equal(t, len(must.Get(DecodeOperations(mustMarshal(t,
		&seqledgerv1.WriteRequest{Operations: operations})))(t)), 1, "want the operation: got %v")
}

func mustMarshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data := must.Get(proto.Marshal(m))(t)
	return data
}
