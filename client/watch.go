package client

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Watch yields the blocks of a scope in order and without a hole, from
// request.from_height (0 means 1) on, until ctx ends or the caller breaks off. Each
// block follows from the one before: its previous_hash is checked, and its own hash.
//
// Blocks are whole, whatever their size: large ones come in parts and are joined. So
// BLOCK_CONTENT_PARTS changes nothing. Parts that do not belong together are an
// [ErrProtocol]. With BLOCK_CONTENT_HEADER the blocks have no transactions, and are
// checked the same way.
//
// A broken connection is opened again at the next height, for as long as ctx lasts and
// Options.MaxAttempts allows without a block between them; then the last error is
// yielded and the sequence ends. When the ledger has another chain than the one whose
// blocks were yielded, or a shorter one, as after a restore from a backup, the error is
// [ErrOtherLedger]: go back to the last block that both have.
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
				failures, w.renewal = 0, tokenRenewal{}
			}
			if err := w.goOn(ctx, failures, err); err != nil {
				yield(nil, fmt.Errorf("watch at height %d: %w", w.next, err))
				return
			}
		}
	}
}

// watch is where a Watch stands.
type watch struct {
	client  *Client
	request *seqledgerv1.WatchRequest
	next    uint64 // height
	// last is the hash of the block before, nil before the first.
	last []byte
	// endpoint and token are those of the last attempt, which began at began.
	endpoint *endpoint
	token    string
	began    time.Time
	renewal  tokenRenewal
}

func newWatch(c *Client, request *seqledgerv1.WatchRequest) *watch {
	w := &watch{client: c, request: new(seqledgerv1.WatchRequest), next: max(1, request.GetFromHeight())}
	proto.Merge(w.request, request)
	if readsParts(request.GetContent()) {
		w.request.Content = seqledgerv1.BlockContent_BLOCK_CONTENT_PARTS
	}
	return w
}

// once yields blocks from one connection. Nil means that the caller broke off.
func (w *watch) once(ctx context.Context, yield func(*seqledgerv1.Block, error) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.client.ctx, cancel)()
	w.began = time.Now()
	if err := w.checkChain(ctx); err != nil {
		return err
	}
	w.endpoint = w.client.endpoints.use()
	a := new(attempt)
	w.request.FromHeight = w.next
	message := connect.NewRequest(w.request)
	var err error
	if w.token, err = w.client.options.authorize(ctx, message.Header()); err != nil {
		return err
	}
	stream, err := w.endpoint.ledger.Watch(withAttempt(ctx, a), message)
	if err != nil {
		return errorFromCall(err, a)
	}
	// Cancelling first ends the stream at once; closing alone would wait for
	// the server to finish a stream that has no end.
	defer func() { cancel(); _ = stream.Close() }()
	// A block of which the connection brings only the beginning is read again.
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
		return errorFromCall(err, a)
	}
	// A watch has no end of its own, so a clean one is a server going away.
	return errorFromConnect(connect.NewError(connect.CodeUnavailable, fmt.Errorf("the server ended the watch")))
}

// follow takes the next block.
func (w *watch) follow(block *seqledgerv1.Block) error {
	header := block.GetHeader()
	if header.GetHeight() != w.next {
		return protocolError("block %d where %d was due", header.GetHeight(), w.next)
	}
	hash, err := BlockHash(header)
	if err != nil {
		return fmt.Errorf("%w: block %d: %w", ErrProtocol, w.next, err)
	}
	if !bytes.Equal(hash, block.GetHash()) {
		return protocolError("block %d has the hash %x by its header, and says %x", w.next, hash, block.GetHash())
	}
	if w.last != nil && !bytes.Equal(header.GetPreviousHash(), w.last) {
		return fmt.Errorf("%w: block %d follows from %x, and block %d had the hash %x",
			ErrOtherLedger, w.next, header.GetPreviousHash(), w.next-1, w.last)
	}
	w.next, w.last = w.next+1, hash
	return nil
}

// checkChain finds out, before a watch goes on over another connection, whether the
// ledger still has the last block that was yielded. A chain that is shorter now would
// otherwise be noticed only when it has grown again.
func (w *watch) checkChain(ctx context.Context) error {
	if w.last == nil {
		return nil
	}
	page, err := call(ctx, w.client, rpcListBlocks, &seqledgerv1.ListBlocksRequest{
		Scope: w.request.GetScope(), FromHeight: w.next - 1, PageSize: 1,
	}, nil)
	if err != nil {
		return err
	}
	if len(page.GetBlocks()) == 0 || !bytes.Equal(page.GetBlocks()[0].GetHash(), w.last) {
		return fmt.Errorf("%w: it does not have block %d with the hash %x, which was yielded before the connection broke",
			ErrOtherLedger, w.next-1, w.last)
	}
	return nil
}

// goOn waits before the connection is opened again. An error ends the watch.
func (w *watch) goOn(ctx context.Context, failures int, err error) error {
	last, ok := err.(*Error) //nolint:errorlint // One that is wrapped was repeated already.
	limit := w.client.options.MaxAttempts
	if !ok || limit > 0 && failures+1 >= limit || ctx.Err() != nil {
		return err
	}
	if time.Since(w.began) >= tokenPatience {
		// The token was taken, and has ended since. A quiet scope may outlast many.
		w.renewal = tokenRenewal{}
	}
	// Once blocks have come, an answer that is not in Connect's form is of something
	// between, and passes.
	between := !last.wire && w.last != nil
	if !between && !last.worthRetrying() && !w.renewal.allows(ctx, &w.client.options, w.token, last) {
		return err
	}
	return w.client.pause(ctx, w.endpoint, failures, last)
}
