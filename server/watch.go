package server

import (
	"context"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// watch sends the blocks of a scope until the client disconnects or the server drains. A message is a block, or a part
// of one: see blockReader. A client that does not read stops only this loop: blocks are read from the ledger one by
// one, and unread messages count against the client's own share.
func (s *Server) watch(
	ctx context.Context, r *connect.Request[wire.Request[seqledgerv1.WatchRequest, *seqledgerv1.WatchRequest]],
	stream *connect.ServerStream[seqledgerv1.WatchResponse],
) error {
	controls := admission.StreamControlsOf(ctx)
	controls.Whole()
	controls.Release()
	m, err := r.Msg.Get()
	if err != nil {
		return err
	}
	if err := s.authorize(ctx, r.Spec().Procedure, m); err != nil {
		return err
	}
	reader, err := s.newBlockReader(ctx, m.Scope, m.Content)
	if err != nil {
		return err
	}
	reader.chainOf = s.options.Ledger.StoredChain // which has what Watch has found
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.draining, func() { cancel(ledger.ErrDraining) })
	defer stop()
	defer s.untilCallerEnds(ctx, cancel)()
	s.untilCutOff(ctx, cancel)
	// Send the headers at once, because the first block may take long.
	if err := stream.Send(nil); err != nil {
		return err
	}
	w := &watcher{blockReader: reader, stream: stream, controls: controls}
	s.options.Logger.DebugContext(ctx, "watch opened")
	defer func() { s.options.Logger.DebugContext(ctx, "watch closed", "messages", w.sent) }()
	for header, err := range s.options.Ledger.Watch(ctx, reader.chain.Scope, m.FromHeight) {
		if err == nil {
			err = w.send(ctx, header.Height)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// watcher sends blocks to one stream.
type watcher struct {
	*blockReader

	stream   *connect.ServerStream[seqledgerv1.WatchResponse]
	controls *admission.StreamControls
	sent     int // messages
}

// send sends a block, in as many messages as it takes.
func (w *watcher) send(ctx context.Context, height uint64) error {
	for start := (*seqledgerv1.BlockPosition)(nil); ; {
		block, release, err := w.next(ctx, height, start)
		if err != nil {
			return err
		}
		err = w.controls.Send(func() error { return w.stream.Send(&seqledgerv1.WatchResponse{Block: block}) })
		release()
		if err != nil {
			return err
		}
		w.sent++
		if start = block.Next; start == nil {
			return nil
		}
	}
}

// next reads a message, and charges it until release is called. It holds no message while it waits for that: it
// reads it again, because blocks never change.
func (w *watcher) next(
	ctx context.Context, height uint64, start *seqledgerv1.BlockPosition,
) (block *seqledgerv1.Block, release func(), err error) {
	s := w.server
	release = func() {}
	for charged := 0; ; {
		done, err := s.admission.Read(ctx, w.party, true)
		if err != nil {
			release()
			return nil, nil, err
		}
		block, err = w.read(ctx, height, start)
		done()
		// Check also while there are many stored blocks to send, and after a wait.
		if ended := s.caller(ctx).Check(); ended != nil {
			err = ended
		} else if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			release()
			return nil, nil, err
		}
		size := sizeOf(block)
		if size <= charged {
			return block, release, nil
		}
		release()
		if now, ok := s.admission.TryAnswer(w.party, size); ok {
			return block, now, nil
		}
		if release, err = s.admission.AwaitAnswer(ctx, w.party, size); err != nil {
			return nil, nil, err
		}
		charged = size
	}
}
