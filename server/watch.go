package server

import (
	"context"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// watch sends the blocks of a scope until the client goes or the server
// drains. A block is one message: what a log entry of at most 512 KiB, or one
// write of at most 4 MiB, committed, and what a round of eviction removed with
// it. A client that does not read stops this loop and nothing else: blocks are read
// from the ledger one by one.
func (s *Server) watch(
	ctx context.Context, r *connect.Request[request[seqledgerv1.WatchRequest, *seqledgerv1.WatchRequest]],
	stream *connect.ServerStream[seqledgerv1.WatchResponse],
) error {
	controls := controlsOf(ctx)
	controls.whole()
	controls.release()
	m, err := r.Msg.get()
	if err != nil {
		return err
	}
	if err := s.authorize(ctx, r.Spec().Procedure, m); err != nil {
		return err
	}
	scope, err := requireScope(m.Scope)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.draining, func() { cancel(ledger.ErrDraining) })
	defer stop()
	defer s.untilCallerEnds(ctx, cancel)()
	// The headers go out at once, because the first block may be long in coming.
	if err := stream.Send(nil); err != nil {
		return err
	}
	sent := 0
	s.options.Logger.DebugContext(ctx, "watch opened")
	defer func() { s.options.Logger.DebugContext(ctx, "watch closed", "blocks", sent) }()
	for block, err := range s.options.Ledger.Watch(ctx, scope, m.FromHeight) {
		if err != nil {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err // also while there is much to send from storage
		}
		err := controls.send(func() error {
			return stream.Send(&seqledgerv1.WatchResponse{Block: renderBlock(&block)})
		})
		if err != nil {
			return err
		}
		sent++
	}
	return context.Cause(ctx)
}
