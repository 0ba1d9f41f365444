package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	"github.com/seqledger/seqledger/internal/upgrade"
)

// kind is what the proxy does with a message: a call, or a message of a stream.
type kind int

const (
	pass   kind = iota
	drop        // the server does not receive it, and the client's connection breaks
	lose        // the server answers, and the client's connection breaks without the answer
	hold        // the client's connection breaks, and the server receives it on release
	twice       // passes, and the server receives a copy on release
	answer      // the proxy answers with a status; a stream is cut
	mangle      // the server answers, and the client gets the first half of the answer; a stream is cut
)

// fault is what happens to a message.
type fault struct {
	kind   kind
	status int // for answer
	// before is called before the server receives the message, after once the server has answered and before the client
	// gets the answer; both may be nil.
	before, after func()
}

// kindNames are the names of the kinds in a trail.
var kindNames = [...]string{
	pass: "pass", drop: "drop", lose: "lose", hold: "hold", twice: "twice", answer: "answer", mangle: "mangle",
}

func (f fault) String() string {
	if f.kind == answer {
		return fmt.Sprint(kindNames[f.kind], " ", f.status)
	}
	return kindNames[f.kind]
}

// errCut means that the proxy has deliberately broken a connection.
var errCut = errors.New("the connection is cut")

// proxy stands between the client and the server. It speaks HTTP/1.1, cleartext HTTP/2 and WebSocket with the client.
type proxy struct {
	front   *faultproxy.Front
	address string // where the client connects
	backend string // host:port of the server
	unary   *http.Transport
	streams *http.Transport
	ctx     context.Context //nolint:containedctx // It bounds the copies, which outlive their requests.
	cancel  context.CancelFunc
	open    sync.WaitGroup // the streams to the server, some of which outlive their requests
	copies  *copies

	mu sync.Mutex
	// plan decides about each message; its calls do not overlap.
	plan func(procedure string) fault
	// held holds the messages that wait for release.
	held  []func(ctx context.Context) error
	seen  map[string]int // messages by procedure
	trail *trail         // trail of the case; nil records nothing
}

// startProxy listens on a free loopback port.
func startProxy(backend string) (*proxy, error) {
	p := &proxy{
		backend: backend,
		unary:   faultproxy.NewTransport(faultproxy.Protocols(true, false)),
		streams: faultproxy.NewTransport(faultproxy.Protocols(false, true)),
		seen:    make(map[string]int),
		copies:  newCopies(),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	stream := http.HandlerFunc(p.serveStream)
	upgraded := upgrade.Handler(upgrade.Options{
		Closed: p.ctx, MaxMessageBytes: faultproxy.MaxMessageBytes, PingEvery: 5 * time.Second}, stream)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case upgrade.IsRequested(r):
			upgraded.ServeHTTP(w, r)
		case isStream(r.Header.Get("Content-Type")):
			stream.ServeHTTP(w, r)
		default:
			p.serveCall(w, r)
		}
	})
	var err error
	if p.front, err = faultproxy.Listen(handler, faultproxy.Protocols(true, true)); err != nil {
		p.cancel()
		return nil, err
	}
	p.address = p.front.Address
	return p, nil
}

// isStream reports whether a request's body has envelopes: a Connect stream, or gRPC.
func isStream(contentType string) bool {
	return strings.HasPrefix(contentType, "application/connect+") ||
		strings.HasPrefix(contentType, "application/grpc")
}

// close stops everything and waits for it.
func (p *proxy) close() {
	p.cancel()
	p.front.Close()
	p.open.Wait()
	p.unary.CloseIdleConnections()
	p.streams.CloseIdleConnections()
}

// setPlan decides what happens to messages from now on; nil lets all pass.
func (p *proxy) setPlan(plan func(procedure string) fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
}

// noteOn records messages in a trail from now on.
func (p *proxy) noteOn(t *trail) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trail = t
}

// decide counts a message and returns its fault.
func (p *proxy) decide(r *http.Request) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	procedure := path.Base(r.URL.Path)
	p.seen[procedure]++
	var f fault
	if p.plan != nil {
		f = p.plan(procedure)
	}
	p.trail.note("%s %s: %s", r.Proto, procedure, f)
	return f
}

// writes returns how many messages with writes the proxy has seen.
func (p *proxy) writes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen["Write"] + p.seen["WriteBatch"] + p.seen["WriteStream"]
}

// isWrite reports whether the messages of a procedure contain writes.
func isWrite(procedure string) bool {
	return procedure == "Write" || procedure == "WriteBatch" || procedure == "WriteStream"
}

// keep holds a message until release.
func (p *proxy) keep(send func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, send)
}

// release sends the held messages to the server, in order, waits for the answers, and returns their number.
func (p *proxy) release(ctx context.Context) (int, error) {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	for _, send := range held {
		if err := send(ctx); err != nil {
			return len(held), err
		}
	}
	return len(held), nil
}

func call(f func()) {
	if f != nil {
		f()
	}
}

// serveCall relays a call with one request and one answer.
func (p *proxy) serveCall(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, faultproxy.MaxMessageBytes))
	if err != nil {
		faultproxy.Abort()
	}
	p.copies.noteCall(r, body)
	f := p.decide(r)
	call(f.before)
	again := func(ctx context.Context) error {
		_, err := p.exchange(ctx, r, body)
		return err
	}
	switch f.kind {
	case drop:
		faultproxy.Abort()
	case hold:
		p.keep(again)
		faultproxy.Abort()
	case answer:
		http.Error(w, "<html>not the ledger</html>", f.status)
		return
	}
	got, err := p.exchange(r.Context(), r, body)
	if err != nil {
		faultproxy.Abort()
	}
	call(f.after)
	if f.kind == twice {
		p.keep(again)
	}
	if f.kind == lose {
		faultproxy.Abort()
	}
	maps.Copy(w.Header(), got.Header)
	w.WriteHeader(got.Status)
	if f.kind == mangle {
		_, _ = w.Write(got.Body[:len(got.Body)/2])
		_ = http.NewResponseController(w).Flush()
		faultproxy.Abort()
	}
	_, _ = w.Write(got.Body) // the client may have disconnected
}

// exchange sends a whole call and returns the whole answer.
func (p *proxy) exchange(ctx context.Context, r *http.Request, body []byte) (faultproxy.Reply, error) {
	request, err := faultproxy.Forward(ctx, r, p.backend, bytes.NewReader(body))
	if err != nil {
		return faultproxy.Reply{}, err
	}
	return faultproxy.Send(p.unary, request)
}
