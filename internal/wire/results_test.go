package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// receiptOf is the receipt of a write with so many operations.
func receiptOf(n uint64, versions int) *machine.Receipt {
	r := &machine.Receipt{
		Sequence: n, Index: n, CommittedAt: int64(n)*1e9 + 7, Actor: "system:test", Replayed: n%2 == 0,
	}
	for range versions {
		r.Versions = append(r.Versions, n)
	}
	return r
}

// TestResultsMemoryIsClean: a response reuses the memory of the previous one, and must not show any of it.
func TestResultsMemoryIsClean(t *testing.T) {
	t.Parallel()
	gap := &seqledgerv1.WriteError{LastCommittedSequence: 4}
	var used Results
	for round, answers := range [][]any{ // a receipt, or an error
		{receiptOf(1, 3), gap, receiptOf(2, 100)},
		{gap, receiptOf(3, 1)},
		{receiptOf(4, 0), receiptOf(5, 500), receiptOf(6, 1), gap},
		{receiptOf(7, maxKeptVersions+1)},
		{receiptOf(8, 1)}, // in new memory
	} {
		var fresh Results
		for _, r := range []*Results{&used, &fresh} {
			r.Reset()
			for _, answer := range answers {
				if receipt, ok := answer.(*machine.Receipt); ok {
					if m := r.AddReceipt(receipt); m.Proof != nil || m.BlockHeader != nil {
						t.Errorf("round %d: the receipt has another's proof: %v", round, m)
					} else if r == &used {
						continue
					}
					continue
				}
				r.AddError(answer.(*seqledgerv1.WriteError))
			}
		}
		if used.Count() != len(answers) || !proto.Equal(used.Response(), fresh.Response()) {
			t.Errorf("round %d: got %v, want %v", round, used.Response(), fresh.Response())
		}
		for i, answer := range answers {
			receipt, ok := answer.(*machine.Receipt)
			got := used.Response().Results[i].GetReceipt()
			if ok && !proto.Equal(got, RenderReceipt(receipt)) || !ok && used.Response().Results[i].GetError() != gap {
				t.Errorf("round %d, result %d: got %v", round, i, used.Response().Results[i])
			}
			if got != nil { // what the next round must not show
				got.BlockHeader, got.Proof = new(seqledgerv1.BlockHeader), new(seqledgerv1.MerkleProof)
			}
		}
	}
}

// TestRefuseLast: a committed write whose proof cannot be read has an error in its place alone.
func TestRefuseLast(t *testing.T) {
	t.Parallel()
	unknown := &seqledgerv1.WriteError{Message: "the proof could not be read"}
	var r Results
	r.AddReceipt(receiptOf(1, 1))
	r.AddReceipt(receiptOf(2, 1))
	r.RefuseLast(unknown)
	r.AddReceipt(receiptOf(3, 1))
	got := r.Response().Results
	if r.Count() != 3 || got[0].GetReceipt().GetSequence() != 1 || got[1].GetError() != unknown ||
		got[2].GetReceipt().GetSequence() != 3 {
		t.Error(got)
	}
}

// TestResultsMemoryIsGivenBack: the memory of a giant response is not kept for as long as its stream.
func TestResultsMemoryIsGivenBack(t *testing.T) {
	t.Parallel()
	var r Results
	r.Reset()
	r.AddReceipt(receiptOf(1, maxKeptVersions+1))
	if len(r.versions) <= maxKeptVersions {
		t.Fatal("the sample is too small")
	}
	if r.Reset(); r.slots != nil || r.versions != nil {
		t.Error("a giant response must not be kept")
	}
}
