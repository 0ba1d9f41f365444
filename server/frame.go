package server

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

const (
	// maxFrameWrites is how many writes one message of a WriteStream may carry.
	maxFrameWrites = 1_000
	// maxFrameOperations is how many operations those writes may have together. An empty
	// operation takes two bytes on the wire and some 250 decoded and converted, so without this
	// limit 4 MB could become 500.
	maxFrameOperations = 16_384
)

// frame is a message of a WriteStream: writes, and the errors of the invalid ones. An invalid
// write must not affect the others, so a frame that does not decode as a whole is decoded write
// by write.
type frame struct {
	writes []*seqledgerv1.WriteRequest
	// operations of all writes together.
	operations int
	bad        map[int]error // *machine.FieldErrors, by place; nil: none
	invalid    error         // about the whole frame: the stream cannot continue
}

func (f *frame) decodeBinary(data []byte) {
	if frameShape.fits(data) {
		m := new(seqledgerv1.WriteStreamRequest)
		if m.UnmarshalVT(data) == nil {
			*f = frame{writes: m.Writes, operations: countOperations(m.Writes)}
			f.limitOperations() // the shape knows their sum with the writes alone
			return
		}
	}
	parts, err := splitBinary(data)
	f.decodeEach(parts, err, func(data []byte, w *seqledgerv1.WriteRequest) error { return decodeBinary(data, w) })
}

func (f *frame) decodeJSON(data []byte) {
	problem, depth := boundJSON(data)
	if problem != nil && depth <= 2 { // about the frame or its list of writes, not inside a write
		*f = frame{invalid: problem}
		return
	}
	m := new(seqledgerv1.WriteStreamRequest)
	if problem == nil && protojson.Unmarshal(data, m) == nil {
		*f = frame{writes: m.Writes, operations: countOperations(m.Writes)}
		f.limit(len(m.Writes))
		f.limitOperations()
		return
	}
	parts, err := splitJSON(data)
	f.decodeEach(parts, err, func(data []byte, w *seqledgerv1.WriteRequest) error { return decodeJSON(data, w) })
}

func (f *frame) decodeEach(parts [][]byte, err error, decode func([]byte, *seqledgerv1.WriteRequest) error) {
	*f = frame{invalid: err}
	if f.limit(len(parts)); f.invalid != nil {
		return
	}
	f.bad = map[int]error{}
	for i, part := range parts {
		w := new(seqledgerv1.WriteRequest)
		if err := decode(part, w); err != nil {
			f.bad[i] = err
			w = new(seqledgerv1.WriteRequest) // what was decoded of it is invalid
		}
		f.writes = append(f.writes, w)
		f.operations += len(w.Operations)
		// Check after each write, because the rest must not be decoded at all.
		if f.limitOperations(); f.invalid != nil {
			return
		}
	}
}

// countOperations counts the operations of the writes.
func countOperations(writes []*seqledgerv1.WriteRequest) (n int) {
	for _, w := range writes {
		n += len(w.GetOperations())
	}
	return n
}

func (f *frame) limitOperations() {
	if f.invalid == nil && f.operations > maxFrameOperations {
		*f = frame{invalid: &machine.FieldError{
			Field: "writes", Problem: fmt.Sprintf("have more than %d operations together: send them in several messages",
				maxFrameOperations),
		}}
	}
}

func (f *frame) limit(writes int) {
	if f.invalid == nil && writes > maxFrameWrites {
		f.invalid = &machine.FieldError{
			Field: "writes", Problem: fmt.Sprintf("must be at most %d, are %d", maxFrameWrites, writes),
		}
	}
}
