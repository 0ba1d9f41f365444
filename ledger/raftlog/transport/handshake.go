package transport

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"connectrpc.com/connect"
)

// Procedure is the path of a stream. Its version covers the handshake and the frames.
const Procedure = "/seqledger.raft.v1/Stream"

// Headers that both sides of a stream send.
const (
	headerLedger = "Seqledger-Ledger"
	headerFrom   = "Seqledger-From"
	headerTo     = "Seqledger-To"
)

// introduce sets the headers that identify this node and the node it addresses.
func (t *Transport) introduce(h http.Header, to uint64) {
	h.Set(headerLedger, t.o.Ledger)
	h.Set(headerFrom, strconv.FormatUint(t.o.ID, 10))
	h.Set(headerTo, strconv.FormatUint(to, 10))
}

// identify returns the id of the other side. It refuses the other side unless it is a node of this ledger that
// addresses this node.
func (t *Transport) identify(h http.Header) (from uint64, err error) {
	if ledger := h.Get(headerLedger); ledger != t.o.Ledger {
		return 0, refusef("node of ledger %q, and this is ledger %q", ledger, t.o.Ledger)
	}
	if to := h.Get(headerTo); to != strconv.FormatUint(t.o.ID, 10) {
		return 0, refusef("it looks for node %q, and this is node %d", to, t.o.ID)
	}
	from, err = strconv.ParseUint(h.Get(headerFrom), 10, 64)
	if err != nil || from == 0 || from == t.o.ID {
		return 0, refusef("it says that it is node %q", h.Get(headerFrom))
	}
	return from, nil
}

func refusef(format string, args ...any) error {
	return connect.NewError(connect.CodePermissionDenied, fmt.Errorf(format, args...))
}

// handler accepts the streams of other nodes.
func (t *Transport) handler() http.Handler {
	mux := http.NewServeMux()
	if t.o.Handler != nil {
		mux.Handle("/", t.o.Handler)
	}
	mux.Handle(Procedure, connect.NewBidiStreamHandler(Procedure, t.accept, options(), serverUncompressed))
	return t.guard(mux)
}

func (t *Transport) accept(ctx context.Context, s *connect.BidiStream[frame, frame]) error {
	if !t.begin() {
		return connect.NewError(connect.CodeUnavailable, errEnded)
	}
	defer t.loops.Done()
	from, err := t.identify(s.RequestHeader())
	if sender := Sender(ctx); err == nil && from != sender {
		err = refusef("node %d opens a stream of node %d", sender, from)
	}
	p := t.peer(from)
	if err == nil && p == nil {
		err = refusef("node %d is no member", from)
	}
	if err != nil {
		// Once, as in refused: a node that is refused asks again every second.
		if host, _, _ := net.SplitHostPort(s.Peer().Addr); t.told.add(host + " " + err.Error()) {
			t.o.Logger.Warn("a stream of the consensus was refused", "from", s.Peer().Addr, "error", err)
		}
		return err
	}
	t.introduce(s.ResponseHeader(), from)
	return p.run(ctx, s)
}

// connectTo opens a stream to a peer, checks the identity of the other side, and runs the stream.
func (t *Transport) connectTo(ctx context.Context, p *peer) error {
	scheme := "http://"
	if t.o.TLS != nil {
		scheme = "https://"
	}
	ctx, cancel := context.WithCancel(ctx)
	client := connect.NewClient[frame, frame](t.client, scheme+p.address+Procedure, options(),
		clientUncompressed)
	s := client.CallBidiStream(ctx)
	defer func() {
		cancel()
		// Otherwise the library waits for more of the request and does not notice the cancellation.
		_ = s.CloseRequest()
	}()
	t.introduce(s.RequestHeader(), p.id)
	t.identity().show(s.RequestHeader())
	// An empty frame sends the headers. The other side answers with one.
	if err := s.Send(new(frame)); err != nil {
		_, received := s.Receive() // says more than err
		return fmt.Errorf("%w: %w", err, received)
	}
	if _, err := s.Receive(); err != nil {
		return err
	}
	from, err := t.identify(s.ResponseHeader())
	if err == nil && from != p.id {
		err = refusef("node %d answers at the address of node %d", from, p.id)
	}
	if err != nil {
		return err
	}
	return p.run(ctx, clientStream{s})
}

// clientStream gives the client side of a stream the methods of the server side.
type clientStream struct {
	*connect.BidiStreamForClient[frame, frame]
}
