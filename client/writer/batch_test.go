package writer_test

import (
	"errors"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// batchWrites are three writes of a stream. The ledger refuses the second for its number.
func batchWrites() []*seqledgerv1.WriteRequest {
	writes := []*seqledgerv1.WriteRequest{numbered(1), numbered(9), numbered(2)}
	for _, w := range writes[1:] {
		w.IdempotencyKey = ""
	}
	return writes
}

// A batch whose answer is lost is repeated as it was, and gets the same receipts. The refusal of a
// write is not final then: the first copy may have been executed otherwise.
func TestBatchRepeatsTheSameRequest(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	lose := true
	s.set(func(s *fakeServer) {
		s.onBatch = func(*seqledgerv1.WriteBatchResponse) error {
			if lose {
				lose = false
				return errLost
			}
			return nil
		}
	})
	for try, open := range []bool{true, false} { // without a lost answer the refusal is final
		results := c.WriteBatch(t.Context(), batchWrites())
		if len(results) != 3 {
			t.Fatal(results)
		}
		for _, i := range []int{0, 2} {
			if r := results[i]; r.Err != nil || !r.Receipt.GetReplayed() {
				t.Errorf("try %d: want the replayed receipt of the first copy of write %d, got %v", try, i, r)
			}
		}
		r := results[1]
		unknown, isUnknown := errors.AsType[*failure.OutcomeUnknownError](r.Err)
		if r.Receipt != nil || isUnknown != open || open && (unknown.Sequence != 9 || unknown.Refusal == nil) {
			t.Errorf("try %d: the refused write's error is %v, and that its outcome is unknown is %v", try, r.Err, open)
		}
		if !open && failure.CodeOf(r.Err) == 0 {
			t.Errorf("the refusal has no code: %v", r.Err)
		}
	}
	if len(s.batches) != 3 || !proto.Equal(s.batches[0], s.batches[1]) {
		t.Errorf("want two equal requests and another, got %v", s.batches)
	}
	check.Equal(t, len(s.ledger.history()), 2, "%d commits")
}

// A batch that was never sent is not executed, and one that the server turned away before it was
// decided is refused.
func TestBatchThatIsNotDecided(t *testing.T) {
	t.Parallel()
	address := freeport.Unreachable(t)
	unreachable := must.Get(client.New(client.Options{Server: address, MaxAttempts: 2}))(t)
	t.Cleanup(func() { _ = unreachable.Close() })
	for _, r := range unreachable.WriteBatch(t.Context(), batchWrites()) {
		check.Is(t, r.Err, failure.ErrNotExecuted, "never sent")
	}
	s, c := start(t)
	s.set(func(s *fakeServer) {
		s.onBatch = func(*seqledgerv1.WriteBatchResponse) error {
			return withDetail(connect.CodeInvalidArgument, &seqledgerv1.WriteError{Code: codeInvalid, Field: "writes"})
		}
	})
	for _, r := range c.WriteBatch(t.Context(), batchWrites()) {
		refusal, ok := errors.AsType[*failure.Error](r.Err)
		if !ok || refusal.Field != "writes" || errors.Is(r.Err, failure.ErrOutcomeUnknown) {
			t.Errorf("refused as a whole: %v", r.Err)
		}
	}
}

// An answer that does not fit the request says nothing about any write.
func TestBatchWithAnAnswerThatDoesNotFit(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	for name, change := range map[string]func(*seqledgerv1.WriteBatchResponse){
		"a result is missing": func(r *seqledgerv1.WriteBatchResponse) { r.Results = r.Results[1:] },
		"the results are empty": func(r *seqledgerv1.WriteBatchResponse) {
			for _, one := range r.Results {
				one.Result = nil
			}
		},
		"the receipts have no tx_id": func(r *seqledgerv1.WriteBatchResponse) {
			for i, one := range r.Results {
				one.Result = &seqledgerv1.WriteResult_Receipt{Receipt: &seqledgerv1.Receipt{
					Sequence: batchWrites()[i].GetSequence(),
				}}
			}
		},
	} {
		s.set(func(s *fakeServer) {
			s.onBatch = func(r *seqledgerv1.WriteBatchResponse) error { change(r); return nil }
		})
		for _, r := range c.WriteBatch(t.Context(), batchWrites()) {
			if !errors.Is(r.Err, failure.ErrOutcomeUnknown) || !errors.Is(r.Err, failure.ErrProtocol) ||
				r.Receipt != nil {
				t.Errorf("%s: %v", name, r)
			}
		}
	}
}
