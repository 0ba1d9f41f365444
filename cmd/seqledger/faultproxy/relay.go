package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"sync"
	"time"
)

// upstream is a stream from the proxy to the server. It may outlive the client's stream.
type upstream struct {
	cancel context.CancelFunc
	feed   *io.PipeWriter
	ended  chan struct{} // closed once the server has ended the stream
	err    error         // the reason, after ended; nil means a normal end
}

// sink receives the server's answers on a stream.
type sink interface {
	head(response *http.Response) error
	message(envelope []byte) error
	trailer(response *http.Response)
}

// connect opens a stream like that of r, whose answers go to a sink; nil drops them.
func (p *Proxy) connect(r *http.Request, to sink) (*upstream, error) {
	ctx, cancel := context.WithCancel(p.ctx)
	body, feed := io.Pipe()
	request, err := p.forward(ctx, r, body)
	if err != nil {
		cancel()
		return nil, err
	}
	u := &upstream{cancel: cancel, feed: feed, ended: make(chan struct{})}
	p.open.Add(1)
	// Ends when the server has answered, or with close or the proxy; the proxy waits for it.
	go func() {
		defer p.open.Done()
		u.err = p.answers(r, request, to)
		_ = body.CloseWithError(errors.Join(u.err, errCut)) // a message that is being sent now must not wait forever
		close(u.ended)
	}()
	return u, nil
}

// answers passes the server's messages to a sink.
func (p *Proxy) answers(r, request *http.Request, to sink) error {
	response, err := p.streams.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // read only
	if to != nil {
		if err := to.head(response); err != nil {
			return err
		}
	}
	for {
		envelope, err := ReadEnvelope(response.Body)
		if err == nil && envelope[0] == 0 {
			p.answered(r, envelope[HeaderBytes:])
		}
		switch {
		case errors.Is(err, io.EOF):
			if to != nil {
				to.trailer(response)
			}
			return nil
		case err != nil:
			return err
		case to != nil:
			if err := to.message(envelope); err != nil {
				return err
			}
		}
	}
}

// finish sends a last message and waits until the server has answered everything.
func (u *upstream) finish(envelope []byte) error {
	defer u.close()
	if _, err := u.feed.Write(envelope); err != nil {
		return err
	}
	_ = u.feed.Close() // never fails
	<-u.ended
	return u.err
}

// close ends the stream, even if messages are in flight.
func (u *upstream) close() {
	_ = u.feed.CloseWithError(errCut) // never fails
	u.cancel()
	<-u.ended
}

// stream is a client's stream through the proxy.
type stream struct {
	proxy *Proxy
	r     *http.Request

	mu sync.Mutex
	w  http.ResponseWriter // nil when the client gets no more answers
	// unanswered is the number of writes that the server has not answered yet.
	unanswered int
	copies     []laterCopy
}

// laterCopy is a copy of a message, which must not reach the server before the message itself.
type laterCopy struct {
	after int // writes that must be answered first
	send  func(context.Context) error
}

// serveStream relays a stream until it ends or breaks on either side.
func (p *Proxy) serveStream(w http.ResponseWriter, r *http.Request) {
	s := &stream{proxy: p, r: r, w: w}
	up, err := p.connect(r, s)
	if err != nil {
		Abort()
	}
	requested := make(chan error, 1)
	// Ends with the request's body, which is ended below and waited for there.
	go func() { requested <- s.requests(up) }()
	select {
	case err = <-requested:
		if err == nil { // the client sends no more, and the server answers what it has received
			<-up.ended
			err = up.err
		}
	case <-up.ended:
		err = up.err
		// A time in the past, so that the read of the request's body ends, and requests with it.
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))
		if e := <-requested; errors.Is(e, errCut) {
			err = e
		}
	}
	s.mute()
	if !errors.Is(err, errHeld) {
		up.close()
	}
	s.results(math.MaxInt) // what has no answer yet gets none
	if err != nil {
		Abort()
	}
}

// errHeld cuts the client's side of a stream and leaves the server's side open.
var errHeld = fmt.Errorf("%w, and its last message is held", errCut)

// requests passes the client's messages to the server. It returns nil at their end.
func (s *stream) requests(up *upstream) error {
	for {
		envelope, err := ReadEnvelope(s.r.Body)
		if errors.Is(err, io.EOF) || err == nil && envelope[0]&2 != 0 {
			return up.feed.Close()
		}
		if err != nil {
			return err
		}
		m := newMessage(s.r, envelope[0]&1 != 0, envelope[HeaderBytes:])
		f := s.proxy.decide(m)
		call(f.Before)
		s.sends(len(m.Writes))
		switch f.Kind {
		case Drop, Answer:
			return errCut
		case Hold:
			s.mute()
			s.proxy.keep(func(context.Context) error { return up.finish(envelope) })
			return errHeld
		case Lose, Mangle:
			s.mute()
			err := up.finish(envelope)
			call(f.After)
			return errors.Join(err, errCut)
		case Twice:
			s.copy(func(context.Context) error {
				again, err := s.proxy.connect(s.r, nil)
				if err != nil {
					return err
				}
				return again.finish(envelope)
			})
		}
		if _, err := up.feed.Write(envelope); err != nil {
			return err
		}
	}
}

func (s *stream) sends(writes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unanswered += writes
}

// copy keeps a copy of the message with the last writes once these are answered.
func (s *stream) copy(send func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies = append(s.copies, laterCopy{s.unanswered, send})
}

// results notes that n writes have been answered, or never will be.
func (s *stream) results(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unanswered = max(0, s.unanswered-n)
	for i := range s.copies {
		s.copies[i].after -= n
	}
	for len(s.copies) > 0 && s.copies[0].after <= 0 {
		s.proxy.keep(s.copies[0].send)
		s.copies = s.copies[1:]
	}
}

// mute withholds the remaining answers from the client.
func (s *stream) mute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w = nil
}

func (s *stream) head(response *http.Response) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return nil
	}
	maps.Copy(s.w.Header(), response.Header)
	s.w.WriteHeader(response.StatusCode)
	return http.NewResponseController(s.w).Flush()
}

func (s *stream) message(envelope []byte) error {
	s.results(resultsOf(s.r, envelope[0]&1 != 0, envelope[HeaderBytes:]))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return nil
	}
	if _, err := s.w.Write(envelope); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

func (s *stream) trailer(response *http.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return
	}
	for name, values := range response.Trailer {
		s.w.Header()[http.TrailerPrefix+name] = values
	}
}
