package client

import (
	"context"
	"errors"
	"net"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/direct"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// writeStream is one WriteStream, whatever carries it. One goroutine sends and
// one receives.
type writeStream interface {
	Send(next *frame) error
	Receive() (*seqledgerv1.WriteStreamResponse, error)
	CloseRequest() error
	CloseResponse() error
}

var _ writeStream = (*connect.BidiStreamForClient[frame, seqledgerv1.WriteStreamResponse])(nil)

// dedicatedStream is a WriteStream with a connection to itself.
type dedicatedStream struct {
	stream *direct.Stream
}

// Send implements writeStream.
func (d dedicatedStream) Send(next *frame) error { return d.stream.Send(next) }

// Receive implements writeStream.
func (d dedicatedStream) Receive() (*seqledgerv1.WriteStreamResponse, error) {
	response := new(seqledgerv1.WriteStreamResponse)
	return response, d.stream.Receive(response)
}

// CloseRequest implements writeStream. Nothing is in flight any more, or all of it
// is given up: so both directions end.
func (d dedicatedStream) CloseRequest() error { return d.stream.Close() }

// CloseResponse implements writeStream.
func (d dedicatedStream) CloseResponse() error { return nil }

// open opens a stream: one with a connection to itself, else an ordinary one. What
// answers and does not give its connection away may be a server that speaks
// HTTP/2 alone or something before it; and if it is a refusal of the call, the
// ordinary way brings it with all that belongs to it.
func (h *mux) open(ctx context.Context) (writeStream, error) {
	if h.dedicated != nil {
		stream, err := h.dedicated(ctx)
		switch dial, isDial := errors.AsType[*net.OpError](err); {
		case err == nil:
			return dedicatedStream{stream}, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case isDial && dial.Op == "dial":
			return nil, errorFromConnect(connect.NewError(connect.CodeUnavailable, err))
		}
	}
	return h.shared(ctx), nil
}
