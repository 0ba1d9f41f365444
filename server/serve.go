package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/internal/listen"
	"github.com/seqledger/seqledger/server/admission"
)

const (
	// maxHeaderBytes is enough for a page token in the URL of a GET.
	maxHeaderBytes = 32 << 10
	// maxConcurrentStreams bounds the HTTP/2 streams of one connection.
	maxConcurrentStreams = 250
	// streamWindow bounds the unread bytes of a stream. The window of a connection fits those of all its streams, so
	// that waiting streams never block the others: a proxy carries many callers on one connection.
	streamWindow     = 256 << 10
	connectionWindow = maxConcurrentStreams * streamWindow
	// pingAfter detects clients that have vanished.
	pingAfter = 30 * time.Second
	// lastMoment bounds the wait for handlers whose connections were closed.
	lastMoment = 5 * time.Second
)

// Serve answers on a listener until ctx ends, or the ledger fails; then it drains for at most Options.DrainTimeout. It
// closes the listener. It returns nil after ctx has ended and everything was answered, the ledger's failure if there is
// one, and ErrNotLoopback or ErrNotEncrypted for a listener that the options do not allow.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	if err := s.checkListener(listener); err != nil {
		return errors.Join(err, listener.Close())
	}
	hs := s.httpServer()
	served := make(chan error, 1)
	// Ends when Shutdown or Close closes the listener; the receive below waits for it.
	go func() { served <- s.accept(hs, s.admission.Listener(listener)) }()
	var err error
	select {
	case err = <-served: // the listener failed
		// Put back, so that the receive below does not wait for a second value.
		served <- nil
	case <-s.options.Ledger.Failed():
	case <-ctx.Done():
	}
	// Not ended by ctx, whose end is why the server drains, and must not cut the drain short.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.DrainTimeout)
	defer cancel()
	err = errors.Join(err, s.Drain(limited), hs.Shutdown(limited), s.options.Ledger.Err())
	// net/http does not track upgraded connections, and their last messages may not be sent yet.
	_ = s.admission.AwaitRequests(limited)
	// Close what is still open after the timeout.
	s.close()
	err = errors.Join(err, ignoreClosed(hs.Close()), ignoreClosed(<-served))
	// Close does not wait for the handlers, but the caller closes the ledger next. Because their contexts have ended,
	// they return soon.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastMoment)
	defer cancel()
	return errors.Join(err, s.admission.AwaitRequests(last))
}

// Drain refuses new writes and waits until the accepted ones are answered: readiness turns false, new writes are
// refused with DRAINING, WriteStreams end once their writes are answered, Watches end. The server still answers reads.
// If ctx ends first, Drain returns its error. Serve calls Drain. In every case Drain saves what each credential has
// stored.
func (s *Server) Drain(ctx context.Context) error {
	s.startDrain()
	return errors.Join(s.drain(ctx), s.admission.Close())
}

func (s *Server) drain(ctx context.Context) error {
	// After a failure there is nothing left to wait for in the ledger.
	if s.options.Ledger.Err() == nil {
		if err := s.options.Ledger.Drain(ctx); err != nil {
			return err
		}
	}
	if err := s.admission.AwaitStreams(ctx); err != nil {
		return fmt.Errorf("drain of the streams: %w", err)
	}
	// What the ledger has decided is counted a moment later.
	if err := s.admission.AwaitDecisions(ctx); err != nil {
		return fmt.Errorf("drain of the writes: %w", err)
	}
	return nil
}

// isDraining reports whether new writes are refused.
func (s *Server) isDraining() bool { return s.draining.Err() != nil }

func (s *Server) httpServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(s.options.TLS == nil)
	protocols.SetHTTP2(s.options.TLS != nil)
	// There is no timeout for a whole request or answer, because it would end streams. Package admission sets the
	// deadlines of each request.
	hs := listen.Server(s.handler, maxHeaderBytes, s.options.Logger)
	hs.TLSConfig = s.options.TLS.Clone() // nil stays nil; net/http adds its protocols
	hs.ConnContext, hs.Protocols = admission.ConnContext, protocols
	hs.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams:          maxConcurrentStreams,
		MaxReceiveBufferPerStream:     streamWindow,
		MaxReceiveBufferPerConnection: connectionWindow,
		SendPingTimeout:               pingAfter,
	}
	return hs
}

// ignoreClosed drops http.ErrServerClosed, because the server was closed on purpose.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Reasons of Serve to refuse a listener that other machines can reach.
var (
	// ErrNotLoopback: callers on other machines would not be authenticated.
	ErrNotLoopback = errors.New("the listener's address is not loopback, and there is no authentication")
	// ErrNotEncrypted: credentials would cross the network in clear.
	ErrNotEncrypted = errors.New("the listener's address is not loopback, and there is no TLS")
)

// checkListener refuses a listener that the options do not allow.
func (s *Server) checkListener(l net.Listener) error {
	if loopbackListener(l) || s.options.Insecure {
		return nil
	}
	if s.options.Auth == nil {
		return fmt.Errorf("%w: %s", ErrNotLoopback, l.Addr())
	}
	if s.options.TLS == nil {
		return fmt.Errorf("%w: %s", ErrNotEncrypted, l.Addr())
	}
	return nil
}

// accept serves the listener's connections.
func (s *Server) accept(hs *http.Server, l net.Listener) error {
	if s.options.TLS == nil {
		return hs.Serve(l)
	}
	return hs.ServeTLS(l, "", "") // the certificate is in the configuration
}
