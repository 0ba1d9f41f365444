package server_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/client/proof"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// goneDetail fails unless an error is out_of_range and says from where on there is something.
func goneDetail(t *testing.T, what string, err error) *seqledgerv1.Gone {
	t.Helper()
	failed, ok := errors.AsType[*connect.Error](err)
	if !ok || failed.Code() != connect.CodeOutOfRange || len(failed.Details()) != 1 {
		t.Fatalf("%s: %v, want out_of_range with a detail", what, err)
	}
	detail, err := failed.Details()[0].Value()
	gone, ok := detail.(*seqledgerv1.Gone)
	if err != nil || !ok || gone.Horizon == 0 {
		t.Fatalf("%s: %v, %v, want Gone", what, detail, err)
	}
	return gone
}

// retainMebibyte makes the ledger keep one mebibyte.
func (h *harness) retainMebibyte(t *testing.T) {
	t.Helper()
	must.Get(h.admin.UpdateConfig(t.Context(), connect.NewRequest(&seqledgerv1.UpdateConfigRequest{
		EvictionIntervalSet: &seqledgerv1.UpdateConfigRequest_EvictionInterval{EvictionInterval: 1},
		RetainBlocks:        durationpb.New(0),
		RetainBytesSet:      &seqledgerv1.UpdateConfigRequest_RetainBytes{RetainBytes: 1 << 20},
	})))(t)
}

// What retention has dropped is answered with out_of_range and where the history begins, by every read; the status says
// it, too.
func TestReadsBeforeTheHorizon(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.retainMebibyte(t)
	payload := strings.Repeat("x", 200_000)
	var receipts []*seqledgerv1.Receipt
	for i := range uint64(12) {
		receipts = append(receipts, h.mustWrite(t, writeOf("c", i+1, appendOp(payload), setOp("k", payload[:i+100]))))
	}
	first := receipts[0]
	_, err := h.client.GetTransaction(t.Context(),
		connect.NewRequest(&seqledgerv1.GetTransactionRequest{TxId: first.TxId}))
	if gone := goneDetail(t, "GetTransaction", err); gone.FirstHeight != 0 || gone.Horizon <= first.Index {
		t.Error(gone)
	}
	_, err = h.client.GetBlock(t.Context(), connect.NewRequest(&seqledgerv1.GetBlockRequest{
		Scope: scope(), Height: first.BlockHeight,
	}))
	gone := goneDetail(t, "GetBlock", err)
	_, err = h.client.ListBlocks(t.Context(), connect.NewRequest(&seqledgerv1.ListBlocksRequest{Scope: scope()}))
	if also := goneDetail(t, "ListBlocks", err); also.FirstHeight != gone.FirstHeight {
		t.Error(also, gone)
	}
	watch := must.Get(h.client.Watch(t.Context(), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope()})))(t)
	for watch.Receive() && watch.Msg().GetBlock() == nil { // the first message has none
	}
	goneDetail(t, "Watch", watch.Err())
	must.Do(t, check.Err(h.client.GetBlock(t.Context(), connect.NewRequest(&seqledgerv1.GetBlockRequest{
		Scope: scope(), Height: gone.FirstHeight,
	}))), "the first block that is kept")
	state := h.clientState(t, &seqledgerv1.GetClientStateRequest{ClientId: "c", IncludeReceipts: true})
	if n := len(state.Receipts); n == 0 || n >= len(receipts) || state.LastCommittedSequence != 12 {
		t.Errorf("%d receipts are left of %d", n, len(receipts))
	}
	_, err = h.client.Write(t.Context(),
		connect.NewRequest(writeOf("c", 1, appendOp(payload), setOp("k", payload[:100]))))
	mustRefuse(t, err, connect.CodeAlreadyExists, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_ALREADY_COMMITTED)
	status := must.Get(h.admin.GetStatus(t.Context(), connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
	if r := status.Msg.Status.Retention; r.Horizon != gone.Horizon || r.Bytes < 1<<20 || r.Bytes > 2<<20 ||
		r.GoneUntil == nil || status.Msg.Status.Config.RetainBytes != 1<<20 {
		t.Error(r, status.Msg.Status.Config)
	}
}

// A proof that was made before the horizon holds afterwards, and the headers that a reader has, or an archive, lead
// from its block to the blocks that are kept.
func TestProofsFromBeforeTheHorizon(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.retainMebibyte(t)
	payload := strings.Repeat("x", 200_000)
	var headers []*seqledgerv1.BlockHeader // from height 1 on
	write := func() *seqledgerv1.Receipt {
		t.Helper()
		m := writeOf("c", uint64(len(headers)+1), appendOp(payload))
		m.IncludeProof = true
		r := h.mustWrite(t, m)
		headers = append(headers, r.BlockHeader)
		return r
	}
	first := write()
	get := &seqledgerv1.GetTransactionRequest{TxId: first.TxId, IncludeProof: true}
	held, err := h.client.GetTransaction(t.Context(), connect.NewRequest(get))
	must.Do(t, err)
	for range 11 {
		write()
	}
	_, err = h.client.GetBlock(t.Context(), connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: scope(), Height: 1}))
	kept := goneDetail(t, "GetBlock", err).FirstHeight
	if err := proof.VerifyTransaction(held.Msg.Transaction, headers[0], held.Msg.Proof); err != nil || kept < 3 {
		t.Fatalf("the proof of a transaction from before height %d: %v", kept, err)
	}
	var previous []byte
	for i, header := range headers {
		if height := uint64(i + 1); height >= kept {
			block, err := h.client.GetBlock(t.Context(),
				connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: scope(), Height: height}))
			if err != nil || !proto.Equal(block.Msg.Block.Header, header) {
				t.Fatalf("block %d, which is kept, has another header: %v", height, err)
			}
		}
		if i > 0 && !bytes.Equal(header.PreviousHash, previous) {
			t.Errorf("block %d does not follow the one before it", i+1)
		}
		previous = must.Get(proof.BlockHash(header))(t)
	}
	held.Msg.Transaction.Sequence++
	if err := proof.VerifyTransaction(held.Msg.Transaction, headers[0], held.Msg.Proof); err == nil {
		t.Error("the proof holds for another transaction")
	}
}
