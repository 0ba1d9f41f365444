package server

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// maxFrameWrites is how many writes one message of a WriteStream may carry.
const maxFrameWrites = 1_000

// frame is a message of a WriteStream: writes, and what is wrong with some of
// them. A bad write must not take its neighbours with it, so a frame that does
// not decode as a whole is decoded write by write.
type frame struct {
	writes  []*seqledgerv1.WriteRequest
	bad     map[int]error // *machine.FieldErrors, by place; nil: none
	invalid error         // about the whole: the stream cannot go on
}

func (f *frame) decodeBinary(data []byte) {
	if frameShape.fits(data) {
		m := new(seqledgerv1.WriteStreamRequest)
		if proto.Unmarshal(data, m) == nil {
			*f = frame{writes: m.Writes}
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
		*f = frame{writes: m.Writes}
		f.limit(len(m.Writes))
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
		}
		f.writes = append(f.writes, w)
	}
}

func (f *frame) limit(writes int) {
	if f.invalid == nil && writes > maxFrameWrites {
		f.invalid = &machine.FieldError{
			Field: "writes", Problem: fmt.Sprintf("must be at most %d, are %d", maxFrameWrites, writes),
		}
	}
}
