package server

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// maxResults is the number of results after which no further frame joins a response.
const maxResults = maxFrameWrites

// results builds the responses of one stream. It reuses its memory for every response, because
// a message is already encoded when Send returns.
type results struct {
	response seqledgerv1.WriteStreamResponse
	slots    []*resultSlot
	versions []seqledgerv1.OperationResult
	used     int // of versions
	tally    tally
	// tree is the tree of the last proof's block in this response, cached because the writes of
	// a frame are in few blocks.
	tree       *machine.BlockTree
	treeScope  machine.Scope
	treeHeight uint64
}

// tally counts what a stream has answered.
type tally struct{ committed, replayed, refused uint64 }

// resultSlot is the memory for one result.
type resultSlot struct {
	result  seqledgerv1.WriteResult
	receipt seqledgerv1.WriteResult_Receipt
	failure seqledgerv1.WriteResult_Error
	message seqledgerv1.Receipt
	time    timestamppb.Timestamp
}

// maxKeptVersions is the number of operations in one response above which its memory is
// released, so that a giant frame's memory is not kept for as long as the stream.
const maxKeptVersions = 1 << 14

// reset begins the next response.
func (r *results) reset() {
	if len(r.versions) > maxKeptVersions {
		r.slots, r.versions, r.response.Results = nil, nil, nil
	}
	r.response.Results = r.response.Results[:0]
	r.used, r.tree = 0, nil
}

func (r *results) count() int { return len(r.response.Results) }

// add appends the results of a settled batch, in the order of its writes. Committed bytes are
// added to the party's account.
func (r *results) add(ctx context.Context, s *Server, p admission.Party, b *batch) {
	if b.refused == nil {
		s.stored(p, b)
	}
	invalid, valid := b.invalid, 0
	for i := range b.size {
		switch {
		case len(invalid) > 0 && invalid[0].place == i:
			r.addError(s, invalid[0].err)
			invalid = invalid[1:]
		case b.refused != nil && (b.outcomes == nil || b.outcomes[valid].Code == 0):
			r.addError(s, b.refused)
			valid++
		default:
			r.addOutcome(ctx, s, &b.outcomes[valid], &b.writes[valid])
			valid++
		}
	}
}

func (r *results) slot() *resultSlot {
	n := len(r.response.Results)
	if n == len(r.slots) {
		r.slots = append(r.slots, new(resultSlot))
	}
	slot := r.slots[n]
	r.response.Results = append(r.response.Results, &slot.result)
	return slot
}

func (r *results) addError(s *Server, e *seqledgerv1.WriteError) {
	r.refuse(s, r.slot(), e)
}

// refuse makes a slot the answer to a write that failed.
func (r *results) refuse(s *Server, slot *resultSlot, e *seqledgerv1.WriteError) {
	s.metrics.refusal(methodWriteStream, e.Code)
	r.tally.refused++
	slot.failure.Error = e
	slot.result.Result = &slot.failure
}

// addOutcome appends the result of a write.
func (r *results) addOutcome(ctx context.Context, s *Server, out *machine.Outcome, w *batchWrite) {
	if e := refusal(out, w.sequence); e != nil {
		r.addError(s, e)
		return
	}
	slot := r.slot()
	m := &slot.message
	fillReceipt(m, &out.Receipt)
	slot.time.Seconds = out.Receipt.CommittedAt / 1e9
	slot.time.Nanos = int32(out.Receipt.CommittedAt % 1e9)
	m.CommittedAt = &slot.time
	m.Results = r.operationResults(m.Results[:0], out.Receipt.Versions)
	slot.receipt.Receipt = m
	slot.result.Result = &slot.receipt
	if w.proofOf != nil {
		if err := r.addProof(ctx, s, m, *w.proofOf); err != nil {
			r.refuse(s, slot, s.writeErrorOf(ctx, err))
			return
		}
	}
	s.metrics.success(methodWriteStream, out.Code)
	if out.Code == machine.Replayed {
		r.tally.replayed++
	} else {
		r.tally.committed++
	}
}

// addProof adds the proof of a committed write. See Server.addProof.
func (r *results) addProof(ctx context.Context, s *Server, m *seqledgerv1.Receipt, scope machine.Scope) error {
	if r.tree == nil || r.treeScope != scope || r.treeHeight != m.BlockHeight {
		tree, err := s.blockTree(ctx, scope, m.BlockHeight)
		if err != nil {
			return err
		}
		r.tree, r.treeScope, r.treeHeight = tree, scope, m.BlockHeight
	}
	return setProof(m, r.tree)
}

func (r *results) operationResults(dst []*seqledgerv1.OperationResult,
	versions []uint64) []*seqledgerv1.OperationResult {
	if r.used+len(versions) > len(r.versions) {
		// Earlier results keep the memory alive that they point to.
		r.versions = make([]seqledgerv1.OperationResult, max(2*len(r.versions), len(versions), 64))
		r.used = 0
	}
	for _, version := range versions {
		result := &r.versions[r.used]
		r.used++
		result.Version = version
		dst = append(dst, result)
	}
	return dst
}
