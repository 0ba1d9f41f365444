package wire

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Results builds the responses of one WriteStream. It reuses its memory for every response, because a message is
// already encoded when it is sent. The zero value is ready.
type Results struct {
	response seqledgerv1.WriteStreamResponse
	slots    []*resultSlot
	versions []seqledgerv1.OperationResult
	used     int // of versions
}

// resultSlot is the memory for one result.
type resultSlot struct {
	result  seqledgerv1.WriteResult
	receipt seqledgerv1.WriteResult_Receipt
	failure seqledgerv1.WriteResult_Error
	message seqledgerv1.Receipt
	time    timestamppb.Timestamp
}

// maxKeptVersions is the number of operations in one response above which its memory is released, so that a giant
// frame's memory is not kept for as long as the stream.
const maxKeptVersions = 1 << 14

// Reset begins the next response.
func (r *Results) Reset() {
	if len(r.versions) > maxKeptVersions {
		r.slots, r.versions, r.response.Results = nil, nil, nil
	}
	r.response.Results = r.response.Results[:0]
	r.used = 0
}

// Count returns how many results the response has.
func (r *Results) Count() int { return len(r.response.Results) }

// Response returns the response, which is valid until Reset.
func (r *Results) Response() *seqledgerv1.WriteStreamResponse { return &r.response }

func (r *Results) slot() *resultSlot {
	n := len(r.response.Results)
	if n == len(r.slots) {
		r.slots = append(r.slots, new(resultSlot))
	}
	slot := r.slots[n]
	r.response.Results = append(r.response.Results, &slot.result)
	return slot
}

// AddError appends the result of a write that failed.
func (r *Results) AddError(e *seqledgerv1.WriteError) {
	slot := r.slot()
	slot.failure.Error = e
	slot.result.Result = &slot.failure
}

// RefuseLast makes the last result that of a write that failed.
func (r *Results) RefuseLast(e *seqledgerv1.WriteError) {
	r.response.Results = r.response.Results[:len(r.response.Results)-1]
	r.AddError(e)
}

// AddReceipt appends the result of a committed write, and returns the receipt in it, which has no proof yet.
func (r *Results) AddReceipt(receipt *machine.Receipt) *seqledgerv1.Receipt {
	slot := r.slot()
	m := &slot.message
	fillReceipt(m, receipt)
	slot.time.Seconds = receipt.CommittedAt / 1e9
	slot.time.Nanos = int32(receipt.CommittedAt % 1e9)
	m.CommittedAt = &slot.time
	m.Results = r.operationResults(m.Results[:0], receipt.Versions)
	slot.receipt.Receipt = m
	slot.result.Result = &slot.receipt
	return m
}

func (r *Results) operationResults(dst []*seqledgerv1.OperationResult,
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
