package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/server/admission"
)

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	// maxHeaderBytes has room for a page token in the URL of a GET.
	maxHeaderBytes = 32 << 10
	// maxConcurrentStreams of one connection.
	maxConcurrentStreams = 250
	// streamWindow is how much of a stream may lie unread. The window of a
	// connection has room for all of its streams, so that those which wait never keep
	// the others from being read: a proxy carries many callers on one connection.
	streamWindow     = 256 << 10
	connectionWindow = maxConcurrentStreams * streamWindow
	// pingAfter finds clients that are gone without a word.
	pingAfter = 30 * time.Second
	// lastMoment is for handlers whose connections were closed.
	lastMoment = 5 * time.Second
)

// Serve answers on a listener until ctx ends, or the ledger fails; then it
// drains for at most Options.DrainTimeout. It closes the
// listener. It returns nil after ctx has ended and everything was answered,
// the ledger's failure if there is one, and ErrNotLoopback or ErrNotEncrypted
// for a listener that the options do not allow.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	if err := s.checkListener(listener); err != nil {
		return errors.Join(err, listener.Close())
	}
	hs := s.httpServer()
	served := make(chan error, 1)
	// Ends when Shutdown or Close closes the listener; the receive below waits
	// for it.
	go func() { served <- s.accept(hs, s.admission.Listener(listener)) }()
	var err error
	select {
	case err = <-served: // the listener failed
		served <- nil
	case <-s.options.Ledger.Failed():
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.DrainTimeout)
	defer cancel()
	err = errors.Join(err, s.Drain(limited), hs.Shutdown(limited), s.options.Ledger.Err())
	// net/http does not know the connections that belong to one stream, and their
	// ends may still be on their way.
	_ = s.admission.AwaitRequests(limited)
	// What is still open has had its time.
	s.close()
	err = errors.Join(err, ignoreClosed(hs.Close()), ignoreClosed(<-served))
	// Close does not wait for the handlers, and the caller is about to close the
	// ledger under them. Their contexts have ended, so they are on their way out.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastMoment)
	defer cancel()
	return errors.Join(err, s.admission.AwaitRequests(last))
}

// Drain takes nothing new, and waits until what was accepted is answered:
// readiness turns false, new writes are refused with DRAINING, WriteStreams
// end once what they had sent is answered, Watches end. The server goes on
// answering reads. When ctx ends first, its error is returned. Serve calls it.
// Whatever happens, what each credential has stored is written down.
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

// isDraining tells whether new writes are refused.
func (s *Server) isDraining() bool { return s.draining.Err() != nil }

func (s *Server) httpServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(s.options.TLS == nil)
	protocols.SetHTTP2(s.options.TLS != nil)
	return &http.Server{
		TLSConfig:   s.options.TLS,
		Handler:     s.handler,
		ConnContext: admission.ConnContext,
		Protocols:   protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxConcurrentStreams,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connectionWindow,
			SendPingTimeout:               pingAfter,
		},
		// No timeout for a whole request or answer, because it would end streams;
		// package admission sets the deadlines of each request.
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
	}
}

// ignoreClosed drops the error that says that a server was closed on purpose.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
