package demo

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// maxCopies bounds the copies that are pending.
const maxCopies = 64

// proxy stands between the clients and the server and does to whole requests
// what networks do to them. It speaks cleartext HTTP/2 on both sides.
type proxy struct {
	front     *faultproxy.Front
	address   string // where clients find it
	backend   string // host:port of the server
	transport *http.Transport
	schedule  *schedule
	tally     *tally

	ctx    context.Context //nolint:containedctx // It bounds the copies, which outlive their requests.
	cancel context.CancelFunc
	copies sync.WaitGroup
	slots  chan struct{} // one for each pending copy
}

// startProxy listens on a free port of the loopback.
func startProxy(backend string, d *schedule, t *tally) (*proxy, error) {
	p := &proxy{
		backend: backend, schedule: d, tally: t, transport: faultproxy.NewTransport(faultproxy.Protocols(false, true)),
		slots: make(chan struct{}, maxCopies),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	var err error
	if p.front, err = faultproxy.Listen(p, faultproxy.Protocols(false, true)); err != nil {
		p.cancel()
		return nil, err
	}
	p.address = p.front.Address
	return p, nil
}

// close ends everything and waits for it.
func (p *proxy) close() {
	p.cancel()
	p.front.Close()
	p.copies.Wait()
	p.transport.CloseIdleConnections()
}

// settle waits for the pending copies, so that none arrives after the audit.
func (p *proxy) settle() { p.copies.Wait() }

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == seqledgerv1connect.LedgerServiceWriteStreamProcedure {
		newRelay(p).run(w, r)
		return
	}
	p.single(w, r)
}

// single relays a call that has one request and one answer.
func (p *proxy) single(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, faultproxy.MaxMessageBytes))
	if err != nil {
		faultproxy.Abort()
	}
	if r.URL.Path == seqledgerv1connect.LedgerServiceWriteProcedure {
		write := new(seqledgerv1.WriteRequest)
		if proto.Unmarshal(body, write) == nil {
			p.tally.sent(write)
		}
	}
	kind, wait := p.schedule.next()
	if !p.before(r.Context(), kind, wait) {
		faultproxy.Abort()
	}
	answer, err := p.exchange(r.Context(), r, body)
	if err != nil {
		faultproxy.Abort()
	}
	switch kind {
	case faultLoseAnswer:
		p.tally.add(func(c *Counts) { c.LostAnswers++ })
		faultproxy.Abort()
	case faultTwice:
		p.copyLater(r, body, wait)
	}
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Body) // the client may be gone
}

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

// forward is a client's request with another body, for the server.
func (p *proxy) forward(ctx context.Context, r *http.Request, body io.Reader) (*http.Request, error) {
	request, err := faultproxy.Forward(ctx, r, p.backend, body)
	if err != nil {
		return nil, err
	}
	// Without compression, so that the proxy can read the answers.
	request.Header.Del("Accept-Encoding")
	request.Header.Del("Connect-Accept-Encoding")
	return request, nil
}

// exchange sends a whole request and returns the whole answer.
func (p *proxy) exchange(ctx context.Context, r *http.Request, body []byte) (faultproxy.Reply, error) {
	request, err := p.forward(ctx, r, bytes.NewReader(body))
	if err != nil {
		return faultproxy.Reply{}, err
	}
	answer, err := faultproxy.Send(p.transport, request)
	if err != nil {
		return faultproxy.Reply{}, err
	}
	p.count(answer.Header.Get("Content-Type"), r.URL.Path, answer.Body)
	return answer, nil
}

// count looks at an answer.
func (p *proxy) count(contentType, path string, answer []byte) {
	switch {
	case strings.HasPrefix(contentType, "application/connect+"):
		frames := bytes.NewReader(answer)
		for {
			frame, err := faultproxy.ReadEnvelope(frames)
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
		if _, err := p.exchange(p.ctx, r, body); err == nil {
			p.tally.add(func(c *Counts) { c.Twice++ })
		}
	})
}
