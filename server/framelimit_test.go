package server

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// framesOf returns a frame in both encodings.
func framesOf(t *testing.T, m *seqledgerv1.WriteStreamRequest) map[string]*frame {
	t.Helper()
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	binary, inJSON := new(frame), new(frame)
	binary.decodeBinary(mustMarshal(t, m))
	inJSON.decodeJSON(text)
	return map[string]*frame{"binary": binary, "json": inJSON}
}

// writeWith is a write with so many operations.
func writeWith(operations int) *seqledgerv1.WriteRequest {
	w := new(seqledgerv1.WriteRequest)
	for range operations {
		w.Operations = append(w.Operations, &seqledgerv1.Operation{
			Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{Payload: []byte("x")}},
		})
	}
	return w
}

// TestOperationsOfAFrame: a message of a WriteStream has at most 16,384
// operations, whatever its encoding and however many writes they are in.
func TestOperationsOfAFrame(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		last int // operations of the seventeenth write, behind 16 of 1,000
		ok   bool
	}{
		"at the limit": {384, true},
		"one over":     {385, false},
		"far over":     {1_000, false},
	} {
		m := new(seqledgerv1.WriteStreamRequest)
		for range 16 {
			m.Writes = append(m.Writes, writeWith(1_000))
		}
		m.Writes = append(m.Writes, writeWith(test.last))
		for encoding, f := range framesOf(t, m) {
			if (f.invalid == nil) != test.ok {
				t.Errorf("%s in %s: %d operations: got %v", name, encoding, f.operations, f.invalid)
			}
		}
	}
}

// TestABadWriteLeavesItsNeighbours: what a frame is taken for must not
// depend on whether one of its writes is malformed.
func TestABadWriteLeavesItsNeighbours(t *testing.T) {
	t.Parallel()
	m := new(seqledgerv1.WriteStreamRequest)
	for range 17 {
		m.Writes = append(m.Writes, writeWith(1_000))
	}
	good, bad := new(frame), new(frame)
	data := mustMarshal(t, m)
	good.decodeBinary(data)
	bad.decodeBinary(append(data, wrapped(1, number(15, 1))...)) // and a write with an unknown field
	if (good.invalid == nil) != (bad.invalid == nil) {
		t.Errorf("without the bad write: %v; with it: %v", good.invalid, bad.invalid)
	}
}
