package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/proof"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// requestCounter counts requests by the last element of their path.
type requestCounter struct {
	next                 http.RoundTripper
	blocks, transactions atomic.Int32
}

func (c *requestCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/GetBlock"):
		c.blocks.Add(1)
	case strings.HasSuffix(r.URL.Path, "/GetTransaction"):
		c.transactions.Add(1)
	}
	return c.next.RoundTrip(r)
}

// TestLargeBlocksAreWhole to a Go client, which reads them in messages of less than 3 MiB:
// one write of four values, one of many operations, and a small one.
func TestLargeBlocksAreWhole(t *testing.T) {
	t.Parallel()
	s := serve(t)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	counter := &requestCounter{next: transport}
	c := must.Get(client.New(client.Options{Server: s.address, HTTPClient: &http.Client{Transport: counter}}))(t)
	t.Cleanup(func() { _ = c.Close() })
	var four, many []*seqledgerv1.Operation
	for i := range 4 {
		four = append(four, op.Set(fmt.Sprint("large/", i), []byte(strings.Repeat("v", 1<<20-64))))
	}
	for i := range 1_000 {
		many = append(many, op.Set(fmt.Sprintf("many/%03d", i), []byte(strings.Repeat("v", 4<<10-32))))
	}
	const blocks = 3
	for i, operations := range [blocks][]*seqledgerv1.Operation{four, many, {op.Append(nil)}} {
		must.Get(c.Write(t.Context(), &seqledgerv1.WriteRequest{
			Scope: provenScope, ClientId: "c", Sequence: uint64(i) + 1, Operations: operations,
		}))(t)
	}
	raw := seqledgerv1connect.NewLedgerServiceClient(&http.Client{Transport: transport}, "http://"+s.address)
	height := uint64(0)
	for watched, err := range c.Watch(t.Context(), &seqledgerv1.WatchRequest{Scope: provenScope}) {
		height++
		must.Do(t, err)
		request := &seqledgerv1.GetBlockRequest{Scope: provenScope, Height: height}
		want := must.Get(raw.GetBlock(t.Context(), connect.NewRequest(request)))(t)
		counter.blocks.Store(0)
		block, err := c.GetBlock(t.Context(), request)
		if err != nil || !proto.Equal(block, want.Msg.GetBlock()) || !proto.Equal(watched, want.Msg.GetBlock()) {
			t.Errorf("block %d is not what the server has: %v", height, err)
		}
		id := want.Msg.GetBlock().GetTransactions()[0].GetTxId()
		counter.transactions.Store(0)
		answer, err := c.GetTransaction(t.Context(), &seqledgerv1.GetTransactionRequest{TxId: id, IncludeProof: true})
		if err == nil {
			err = proof.VerifyTransaction(answer.GetTransaction(), answer.GetBlockHeader(), answer.GetProof())
		}
		if err != nil || !proto.Equal(answer.GetTransaction(), want.Msg.GetBlock().GetTransactions()[0]) {
			t.Errorf("the transaction of block %d: %v", height, err)
		}
		large := height < blocks
		if n, m := counter.blocks.Load(), counter.transactions.Load(); (n > 1) != large || (m > 1) != large {
			t.Errorf("block %d came in %d calls, and its transaction in %d", height, n, m)
		}
		if height == blocks {
			break
		}
	}
	for block, err := range c.Watch(t.Context(), &seqledgerv1.WatchRequest{
		Scope: provenScope, Content: seqledgerv1.BlockContent_BLOCK_CONTENT_HEADER,
	}) {
		if err != nil || len(block.GetTransactions()) != 0 {
			t.Errorf("want a header, got %d transactions, %v", len(block.GetTransactions()), err)
		}
		if height--; height == 0 || err != nil {
			break
		}
	}
}
