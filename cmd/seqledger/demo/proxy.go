package demo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// maxCopies bounds the copies that are pending.
const maxCopies = 64

// proxy stands between the clients and the server and does to whole requests
// what networks do to them. It speaks cleartext HTTP/2 on both sides.
type proxy struct {
	address   string // where clients find it
	backend   string // host:port of the server
	transport *http.Transport
	server    *http.Server
	schedule  *schedule
	tally     *tally

	ctx    context.Context //nolint:containedctx // It bounds the copies, which outlive their requests.
	cancel context.CancelFunc
	copies sync.WaitGroup
	slots  chan struct{} // one for each pending copy
	served chan struct{} // closed when the server has ended
}

// startProxy listens on a free port of the loopback.
func startProxy(backend string, d *schedule, t *tally) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	p := &proxy{
		address: listener.Addr().String(), backend: backend, schedule: d, tally: t,
		transport: &http.Transport{Protocols: protocols, DisableCompression: true},
		slots:     make(chan struct{}, maxCopies), served: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.server = &http.Server{
		Handler: p, Protocols: protocols, ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), // broken connections are expected
	}
	// Ended by close, which waits for it.
	go func() {
		defer close(p.served)
		_ = p.server.Serve(listener)
	}()
	return p, nil
}

// close ends everything and waits for it.
func (p *proxy) close() {
	p.cancel()
	_ = p.server.Close()
	<-p.served
	p.copies.Wait()
	p.transport.CloseIdleConnections()
}

// settle waits for the pending copies, so that none arrives after the audit.
func (p *proxy) settle() { p.copies.Wait() }

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == seqledgerv1connect.LedgerServiceWriteStreamProcedure {
		newRelay(p).run(w, r)
		return
	}
	p.single(w, r)
}

// single relays a call that has one request and one answer.
func (p *proxy) single(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFrame))
	if err != nil {
		abort()
	}
	if r.URL.Path == seqledgerv1connect.LedgerServiceWriteProcedure {
		write := new(seqledgerv1.WriteRequest)
		if proto.Unmarshal(body, write) == nil {
			p.tally.sent(write)
		}
	}
	kind, wait := p.schedule.next()
	if !p.before(r.Context(), kind, wait) {
		abort()
	}
	top, answer, err := p.exchange(r.Context(), r, body)
	if err != nil {
		abort()
	}
	switch kind {
	case faultLoseAnswer:
		p.tally.add(func(c *Counts) { c.LostAnswers++ })
		abort()
	case faultTwice:
		p.copyLater(r, body, wait)
	}
	maps.Copy(w.Header(), top.header)
	w.WriteHeader(top.status)
	_, _ = w.Write(answer) // the client may be gone
}

// abort ends a request so that it looks like a broken connection to the client.
func abort() { panic(http.ErrAbortHandler) }

// before applies a fault to a request before the server gets it. It returns false if the
// request is lost.
func (p *proxy) before(ctx context.Context, kind fault, wait time.Duration) bool {
	switch kind {
	case faultLoseRequest:
		p.tally.add(func(c *Counts) { c.LostRequests++ })
		return false
	case faultDelay:
		p.tally.add(func(c *Counts) { c.Delayed++ })
		return pause(ctx, wait)
	}
	return true
}

// pause waits, and returns false if ctx ends first.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// head is what comes before the body of an answer.
type head struct {
	status int
	header http.Header
}

// forward is a client's request with another body, for the server.
func (p *proxy) forward(ctx context.Context, r *http.Request, body io.Reader) (*http.Request, error) {
	target := *r.URL
	target.Scheme, target.Host = "http", p.backend
	request, err := http.NewRequestWithContext(ctx, r.Method, target.String(), body)
	if err != nil {
		return nil, err
	}
	request.Header = r.Header.Clone()
	// Without compression, so that the proxy can read the answers.
	request.Header.Del("Accept-Encoding")
	request.Header.Del("Connect-Accept-Encoding")
	// The body's own length is the right one.
	request.Header.Del("Content-Length")
	return request, nil
}

// exchange sends a whole request and returns the whole answer.
func (p *proxy) exchange(ctx context.Context, r *http.Request, body []byte) (head, []byte, error) {
	request, err := p.forward(ctx, r, bytes.NewReader(body))
	if err != nil {
		return head{}, nil, err
	}
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return head{}, nil, err
	}
	answer, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return head{}, nil, err
	}
	p.count(response.Header.Get("Content-Type"), r.URL.Path, answer)
	return head{response.StatusCode, response.Header}, answer, nil
}

// count looks at an answer.
func (p *proxy) count(contentType, path string, answer []byte) {
	switch {
	case strings.HasPrefix(contentType, "application/connect+"):
		frames := bytes.NewReader(answer)
		for {
			frame, err := readFrame(frames)
			if err != nil {
				return
			}
			p.countFrame(frame)
		}
	case path == seqledgerv1connect.LedgerServiceWriteProcedure:
		write := new(seqledgerv1.WriteResponse)
		if proto.Unmarshal(answer, write) == nil {
			p.tally.answered(write.GetReceipt())
		}
	}
}

// countFrame looks at a frame of a write stream's answer and returns how many
// results it has.
func (p *proxy) countFrame(frame []byte) int {
	response := new(seqledgerv1.WriteStreamResponse)
	if decodeFrame(frame, response) != nil {
		return 0
	}
	for _, result := range response.GetResults() {
		p.tally.answered(result.GetReceipt())
	}
	return len(response.GetResults())
}

// copyLater sends a request a second time, some time after its answer arrived. If the copy came
// first, the client's own request would be the repeat. The copy's answer is dropped.
func (p *proxy) copyLater(r *http.Request, body []byte, wait time.Duration) {
	select {
	case p.slots <- struct{}{}:
	default:
		return // enough copies are pending
	}
	// Ends once the copy is answered, or with close; settle and close wait.
	p.copies.Go(func() {
		defer func() { <-p.slots }()
		if !pause(p.ctx, wait) {
			return
		}
		if _, _, err := p.exchange(p.ctx, r, body); err == nil {
			p.tally.add(func(c *Counts) { c.Twice++ })
		}
	})
}
