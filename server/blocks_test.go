package server_test

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// gRPC clients take messages of 4 MiB unless they are told otherwise. What the server sends is below 3 MiB where it can
// be.
const (
	grpcDefault = 4 << 20
	largestPart = 3 << 20
)

// largeBlocks commits blocks that a usual gRPC client cannot read whole: one write of four values, one of many
// operations with a few others beside it, and a small one.
func (h *harness) largeBlocks(t *testing.T) {
	t.Helper()
	var four, many []*seqledgerv1.Operation
	for i := range 4 {
		four = append(four, setOp(fmt.Sprint("large/", i), strings.Repeat("v", 1<<20-64)))
	}
	for i := range 1_000 {
		many = append(many, setOp(fmt.Sprintf("many/%03d", i), strings.Repeat("v", 4<<10-32)))
	}
	h.mustWrite(t, writeOf("a", 1, four...))
	h.mustWrite(t, writeOf("a", 2, many...))
	h.mustWrite(t, writeOf("a", 3, appendOp("x")))
}

// whole joins the parts of a block.
func whole(t *testing.T, parts []*seqledgerv1.Block) *seqledgerv1.Block {
	t.Helper()
	all := &seqledgerv1.Block{Header: parts[0].Header, Hash: parts[0].Hash}
	for i, part := range parts {
		if size := proto.Size(part); size > largestPart {
			t.Errorf("part %d has %d bytes", i, size)
		}
		if !proto.Equal(part.Header, all.Header) || (part.Next == nil) != (i == len(parts)-1) {
			t.Fatalf("part %d of %d: next %v, header %v", i, len(parts), part.Next, part.Header)
		}
		for _, x := range part.Transactions {
			if x.FirstOperation == 0 {
				all.Transactions = append(all.Transactions, x)
				continue
			}
			last := all.Transactions[len(all.Transactions)-1]
			if last.TxId != x.TxId || int(x.FirstOperation) != len(last.Operations) {
				t.Fatalf("%s goes on at %d behind %s, %d", x.TxId, x.FirstOperation, last.TxId, len(last.Operations))
			}
			last.Operations = append(last.Operations, x.Operations...)
		}
	}
	return all
}

// TestParts: what does not fit in a message comes in parts, which are together what is asked for whole.
func TestParts(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.largeBlocks(t)
	grpc := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url,
		connect.WithGRPC(), connect.WithReadMaxBytes(grpcDefault))
	h.blocksInParts(t, grpc)
	h.watchInParts(t, grpc)
	h.transactionsInParts(t, grpc)
}

func (h *harness) blocksInParts(t *testing.T, grpc seqledgerv1connect.LedgerServiceClient) {
	t.Helper()
	for height := uint64(1); height <= 3; height++ {
		want, err := h.client.GetBlock(within(t),
			connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: scope(), Height: height}))
		if err != nil || want.Msg.Block.Next != nil {
			t.Fatal(err)
		}
		var parts []*seqledgerv1.Block
		for next, more := (*seqledgerv1.BlockPosition)(nil), true; more; more = next != nil {
			part := must.Get(grpc.GetBlock(within(t), connect.NewRequest(&seqledgerv1.GetBlockRequest{
				Scope: scope(), Height: height, Content: seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS, Start: next,
			})))(t)
			parts, next = append(parts, part.Msg.Block), part.Msg.Block.Next
		}
		if got := whole(t, parts); !proto.Equal(got, want.Msg.Block) || (len(parts) == 1) != (height == 3) {
			t.Errorf("block %d in %d parts is another one", height, len(parts))
		}
		header, err := grpc.GetBlock(within(t), connect.NewRequest(&seqledgerv1.GetBlockRequest{
			Scope: scope(), Height: height, Content: seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER,
		}))
		if err != nil || !proto.Equal(header.Msg.Block.Header, want.Msg.Block.Header) ||
			len(header.Msg.Block.Transactions) != 0 ||
			string(header.Msg.Block.Hash) != string(want.Msg.Block.Hash) {
			t.Errorf("the header of block %d: %v, %v", height, header, err)
		}
	}
}

func (h *harness) watchInParts(t *testing.T, grpc seqledgerv1connect.LedgerServiceClient) {
	t.Helper()
	for content, check := range map[seqledgerv1.BlockContent]func(got []*seqledgerv1.Block,
		want *seqledgerv1.Block) bool{
		seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS: func(got []*seqledgerv1.Block, want *seqledgerv1.Block) bool {
			return proto.Equal(whole(t, got), want)
		},
		seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER: func(got []*seqledgerv1.Block, want *seqledgerv1.Block) bool {
			return len(got) == 1 && len(got[0].Transactions) == 0 && proto.Equal(got[0].Header, want.Header)
		},
	} {
		stream := must.Get(grpc.Watch(within(t), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope(),
			Content: content})))(t)
		for height := uint64(1); height <= 3; height++ {
			var got []*seqledgerv1.Block
			for len(got) == 0 || got[len(got)-1].Next != nil {
				if !stream.Receive() {
					t.Fatal(stream.Err())
				}
				got = append(got, stream.Msg().Block)
			}
			want := must.Get(h.client.GetBlock(within(t),
				connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: scope(), Height: height})))(t)
			if !check(got, want.Msg.Block) {
				t.Errorf("%s: block %d came in %d messages and is another one", content, height, len(got))
			}
		}
		_ = stream.Close()
	}
}

func (h *harness) transactionsInParts(t *testing.T, grpc seqledgerv1connect.LedgerServiceClient) {
	t.Helper()
	for height := uint64(1); height <= 3; height++ {
		block := must.Get(h.client.GetBlock(within(t),
			connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: scope(), Height: height})))(t)
		want := block.Msg.Block.Transactions[0]
		old, err := h.client.GetTransaction(within(t),
			connect.NewRequest(&seqledgerv1.GetTransactionRequest{TxId: want.TxId}))
		if err != nil || !proto.Equal(old.Msg.Transaction, want) || old.Msg.NextOperation != 0 {
			t.Errorf("without parts the transaction must be whole: %v", err)
		}
		var got *seqledgerv1.Transaction
		parts := 0
		for next, more := uint32(0), true; more; more, parts = next != 0, parts+1 {
			part := must.Get(grpc.GetTransaction(within(t), connect.NewRequest(&seqledgerv1.GetTransactionRequest{
				TxId: want.TxId, Parts: true, FirstOperation: next, IncludeProof: true,
			})))(t)
			if size := proto.Size(part.Msg); size > largestPart || part.Msg.Proof == nil ||
				part.Msg.Transaction.FirstOperation != next {
				t.Errorf("a part of %d bytes at %d, proof %v", size, next, part.Msg.Proof)
			}
			if next == 0 {
				got = part.Msg.Transaction
			} else {
				got.Operations = append(got.Operations, part.Msg.Transaction.Operations...)
			}
			next = part.Msg.NextOperation
		}
		if !proto.Equal(got, want) || (parts == 1) != (height == 3) {
			t.Errorf("the transaction of block %d in %d parts is another one", height, parts)
		}
	}
}

// Receipts that do not fit in a message come in several, newest first.
func TestReceiptsInParts(t *testing.T) {
	t.Parallel()
	h := start(t)
	request := connect.NewRequest(&seqledgerv1.UpdateConfigRequest{
		ReceiptWindowSet: &seqledgerv1.UpdateConfigRequest_ReceiptWindow{ReceiptWindow: 300},
	})
	must.Get(h.admin.UpdateConfig(within(t), request))(t)
	operations := make([]*seqledgerv1.Operation, 1_000)
	for i := range operations {
		operations[i] = appendOp("")
	}
	const writes = 250
	stream := h.client.WriteStream(within(t))
	for sequence := range uint64(writes) {
		must.Do(t, stream.Send(frameOf(writeOf("wide", sequence+1, operations...))))
	}
	receive(t, stream, writes)
	end(t, stream)
	grpc := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url,
		connect.WithGRPC(), connect.WithReadMaxBytes(grpcDefault))
	expected := uint64(writes)
	calls := 0
	for below, more := uint64(0), true; more; more, calls = below != 0, calls+1 {
		answer := must.Get(grpc.GetClientState(within(t), connect.NewRequest(&seqledgerv1.GetClientStateRequest{
			Scope: scope(), ClientId: "wide", IncludeReceipts: true, ReceiptsBelow: below,
		})))(t)
		state := answer.Msg.State
		if size := proto.Size(answer.Msg); size > largestPart || state.LastCommittedSequence != writes ||
			len(state.LastRequestHash) != 32 {
			t.Errorf("an answer of %d bytes: last %d", size, state.LastCommittedSequence)
		}
		for _, r := range state.Receipts {
			if r.Sequence != expected || len(r.Results) != len(operations) {
				t.Fatalf("got the receipt of %d with %d results, want %d", r.Sequence, len(r.Results), expected)
			}
			expected--
		}
		below = state.NextReceiptsBelow
	}
	if expected != 0 || calls < 2 {
		t.Errorf("%d receipts are missing after %d calls", expected, calls)
	}
}

// What does not fit together, or is behind the end, is refused and names the field.
func TestPartsThatAreNotThere(t *testing.T) {
	t.Parallel()
	h := start(t)
	receipt := h.mustWrite(t, writeOf("c", 1, appendOp("x"), appendOp("y")))
	const parts = seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS
	block := func(content seqledgerv1.BlockContent, at *seqledgerv1.BlockPosition) error {
		return call(t, h.client.GetBlock,
			&seqledgerv1.GetBlockRequest{Scope: scope(), Height: 1, Content: content, Start: at})
	}
	for name, test := range map[string]struct {
		err   error
		field string
	}{
		"unknown content":       {block(9, nil), "content"},
		"start without parts":   {block(0, &seqledgerv1.BlockPosition{}), "start"},
		"behind the last":       {block(parts, &seqledgerv1.BlockPosition{Transaction: 1}), "start"},
		"far behind":            {block(parts, &seqledgerv1.BlockPosition{Transaction: 1 << 31}), "start"},
		"behind the operations": {block(parts, &seqledgerv1.BlockPosition{Operation: 2}), "start"},
		"operation, no parts": {
			call(t, h.client.GetTransaction, &seqledgerv1.GetTransactionRequest{TxId: receipt.TxId, FirstOperation: 1}),
			"first_operation"},
		"operation behind": {
			call(t, h.client.GetTransaction,
				&seqledgerv1.GetTransactionRequest{TxId: receipt.TxId, Parts: true, FirstOperation: 2}),
			"first_operation"},
		"receipts, not asked": {
			call(t, h.client.GetClientState,
				&seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: "c", ReceiptsBelow: 1}), "receipts_below"},
	} {
		if e := mustRefuse(t, test.err, connect.CodeInvalidArgument,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT); e.Field != test.field {
			t.Errorf("%s: names %q in %q, want %s", name, e.Field, e.Message, test.field)
		}
	}
	for at, want := range map[*seqledgerv1.BlockPosition]int{{}: 2, {Operation: 1}: 1} {
		part, err := h.client.GetBlock(within(t),
			connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: scope(), Height: 1, Content: parts, Start: at}))
		if err != nil || len(part.Msg.Block.Transactions[0].Operations) != want {
			t.Errorf("from %v: %v, %v", at, part, err)
		}
	}
	watch, err := h.client.Watch(within(t), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope(), Content: 9}))
	if err == nil {
		watch.Receive()
		err = watch.Err()
		_ = watch.Close()
	}
	mustRefuse(t, err, connect.CodeInvalidArgument, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)
}

// Every page is smaller than what a usual gRPC client takes, with all that is around the values.
func TestPagesAreSmall(t *testing.T) {
	t.Parallel()
	h := start(t)
	long := strings.Repeat("k", 1_000)
	for i := range 4 {
		var ops []*seqledgerv1.Operation
		for j := range 1_000 {
			key := fmt.Sprintf("%s%04d", long, i*1_000+j)
			if i%2 == 0 {
				ops = append(ops, setOp(key, strings.Repeat("v", 3_000)))
			} else {
				ops = append(ops, relateOp(key, long, long))
			}
		}
		h.mustWrite(t, writeOf("c", uint64(i+1), ops...))
	}
	grpc := seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url,
		connect.WithGRPC(), connect.WithReadMaxBytes(largestPart))
	entities := pages(t, 0, func(token string) ([]*seqledgerv1.Entity, string, error) {
		m, err := grpc.ListEntities(within(t),
			connect.NewRequest(&seqledgerv1.ListEntitiesRequest{Scope: scope(), PageSize: 1_000, PageToken: token}))
		if err != nil {
			return nil, "", err
		}
		return m.Msg.Entities, m.Msg.NextPageToken, nil
	})
	relationships := pages(t, 1_000, func(token string) ([]*seqledgerv1.Relationship, string, error) {
		m, err := grpc.ListRelationships(within(t),
			connect.NewRequest(&seqledgerv1.ListRelationshipsRequest{Scope: scope(), PageSize: 1_000,
				PageToken: token}))
		if err != nil {
			return nil, "", err
		}
		return m.Msg.Relationships, m.Msg.NextPageToken, nil
	})
	if len(entities) != 2_000 || len(relationships) != 2_000 {
		t.Errorf("%d entities, %d relationships, want 2,000 of each", len(entities), len(relationships))
	}
}
