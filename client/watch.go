package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	"github.com/seqledger/seqledger/client/proof"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Watch yields the blocks of a scope in order and without gaps, from request.from_height (0 means 1) on, until ctx ends
// or the caller stops. It checks each block's hash, and that its previous_hash is the hash of the block before.
//
// Blocks are whole, whatever their size: large ones come in parts and are joined. BLOCK_CONTENT_PARTS therefore has no
// effect. Parts that do not belong together are an [failure.ErrProtocol]. With BLOCK_CONTENT_HEADER the blocks have no
// transactions, and are checked the same way.
//
// Watch reconnects at the next height after a broken connection, until ctx ends or Options.MaxAttempts attempts in a
// row bring no block; then it yields the last error and ends. If the ledger's chain differs from the blocks that were
// yielded, or is shorter, as after a restore from a backup, the error is [failure.ErrOtherLedger]: go back to the last
// block that both have.
func (c *Client) Watch(ctx context.Context, request *seqledgerv1.WatchRequest) iter.Seq2[*seqledgerv1.Block, error] {
	return func(yield func(*seqledgerv1.Block, error) bool) {
		w := newWatch(c, request)
		for failures := 0; ; failures++ {
			from := w.next
			err := w.once(ctx, yield)
			if err == nil {
				return
			}
			if w.next > from {
				failures, w.renewal = 0, rpc.TokenRenewal{}
			}
			if err := w.goOn(ctx, failures, err); err != nil {
				yield(nil, fmt.Errorf("watch at height %d: %w", w.next, err))
				return
			}
		}
	}
}

// watch is the state of a Watch.
type watch struct {
	client  *rpc.Client
	request *seqledgerv1.WatchRequest
	next    uint64 // height
	// last is the hash of the block before, nil before the first.
	last []byte
	// endpoint and token are those of the last attempt, which began at began.
	endpoint *rpc.Endpoint
	token    string
	began    time.Time
	renewal  rpc.TokenRenewal
}

func newWatch(c *Client, request *seqledgerv1.WatchRequest) *watch {
	w := &watch{client: c.core, request: new(seqledgerv1.WatchRequest), next: max(1, request.GetFromHeight())}
	proto.Merge(w.request, request)
	if readsParts(request.GetContent()) {
		w.request.Content = seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS
	}
	return w
}

// once yields blocks from one connection. A nil error means that the caller stopped.
func (w *watch) once(ctx context.Context, yield func(*seqledgerv1.Block, error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.client.Context(), cancel)()
	w.began = time.Now()
	if err := w.checkChain(ctx); err != nil {
		return err
	}
	w.endpoint = w.client.Endpoint()
	a := new(rpc.Attempt)
	w.request.FromHeight = w.next
	message := connect.NewRequest(w.request)
	var err error
	if w.token, err = w.client.Options.Authorize(ctx, message.Header()); err != nil {
		return err
	}
	stream, err := w.endpoint.Watch(rpc.WithAttempt(ctx, a), message)
	if err != nil {
		return rpc.FromCall(err, a)
	}
	// Cancel first, because that ends the stream at once; closing alone would wait for
	// the server to finish a stream that has no end.
	defer func() { cancel(); _ = stream.Close() }()
	// A block that arrives incomplete is read again from its start.
	joiner := new(blockJoiner)
	for stream.Receive() {
		block := stream.Msg().GetBlock()
		if readsParts(w.request.GetContent()) {
			if block, err = joiner.add(block); err != nil {
				return err
			}
			if block == nil {
				continue
			}
		}
		if err := w.follow(block); err != nil {
			return err
		}
		if !yield(block, nil) {
			return nil
		}
	}
	if err := stream.Err(); err != nil {
		return rpc.FromCall(err, a)
	}
	// A watch never ends without a reason, so a clean end means that the server is shutting down.
	return failure.FromConnect(connect.NewError(connect.CodeUnavailable, errors.New("the server ended the watch")), 0)
}

// follow takes the next block.
func (w *watch) follow(block *seqledgerv1.Block) error {
	header := block.GetHeader()
	if header.GetHeight() != w.next {
		return rpc.ProtocolError("got block %d, want block %d", header.GetHeight(), w.next)
	}
	hash, err := proof.BlockHash(header)
	if err != nil {
		return fmt.Errorf("%w: block %d: %w", failure.ErrProtocol, w.next, err)
	}
	if !bytes.Equal(hash, block.GetHash()) {
		return rpc.ProtocolError("block %d: its header hashes to %x, its hash field says %x", w.next, hash,
			block.GetHash())
	}
	if w.last != nil && !bytes.Equal(header.GetPreviousHash(), w.last) {
		return fmt.Errorf("%w: block %d follows from %x, and block %d had the hash %x",
			failure.ErrOtherLedger, w.next, header.GetPreviousHash(), w.next-1, w.last)
	}
	w.next, w.last = w.next+1, hash
	return nil
}

// checkChain checks, before a watch continues on another connection, that the ledger still has the last block that was
// yielded. Otherwise a shorter chain would be noticed only when it has grown again.
func (w *watch) checkChain(ctx context.Context) error {
	if w.last == nil {
		return nil
	}
	page, err := rpc.Call(ctx, w.client, (*rpc.Endpoint).ListBlocks, &seqledgerv1.ListBlocksRequest{
		Scope: w.request.GetScope(), FromHeight: w.next - 1, PageSize: 1,
	}, nil)
	if err != nil {
		return err
	}
	if len(page.GetBlocks()) == 0 || !bytes.Equal(page.GetBlocks()[0].GetHash(), w.last) {
		return fmt.Errorf("%w: it does not have block %d with the hash %x, which was yielded before the connection "+
			"broke", failure.ErrOtherLedger, w.next-1, w.last)
	}
	return nil
}

// goOn waits before the next connection. An error ends the watch.
func (w *watch) goOn(ctx context.Context, failures int, err error) error {
	last, ok := err.(*failure.Error) //nolint:errorlint // A wrapped error was already retried.
	limit := w.client.Options.MaxAttempts
	if !ok || limit > 0 && failures+1 >= limit || ctx.Err() != nil {
		return err
	}
	if time.Since(w.began) >= rpc.TokenPatience {
		// The server had accepted the token, which has expired since. A quiet scope may outlast many tokens.
		w.renewal = rpc.TokenRenewal{}
	}
	// Once blocks have arrived, an answer that is not in Connect's form comes from an intermediary and is temporary.
	between := !last.IsWire() && w.last != nil
	if !between && !last.IsTemporary() && !w.renewal.Allows(ctx, &w.client.Options, w.token, last) {
		return err
	}
	return w.client.Pause(ctx, w.endpoint, failures, last)
}
