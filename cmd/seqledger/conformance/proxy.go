package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/seqledger/seqledger/internal/upgrade"
)

// kind is what the proxy does with a message: with a call, or with a message of a stream.
type kind int

const (
	pass   kind = iota
	drop        // the server does not get it, and the client's connection breaks
	lose        // the server answers, and the client's connection breaks without the answer
	hold        // the client's connection breaks, and the server gets it with release
	twice       // passes, and the server gets a copy with release
	answer      // the proxy answers with a status; a stream is cut
	mangle      // the server answers, and the client gets the first half of that; a stream is cut
)

// fault is what happens to a message.
type fault struct {
	kind   kind
	status int // of answer
	// before is called before the server gets the message, after once it has answered and before
	// the client gets that; both may be nil.
	before, after func()
}

// maxMessage is more than the server takes.
const maxMessage = 8 << 20

// errCut says that the proxy has broken a connection on purpose.
var errCut = errors.New("the connection is cut")

// proxy stands between the client and the server. It speaks HTTP/1.1, cleartext HTTP/2 and
// WebSocket with the client.
type proxy struct {
	address string // where the client finds it
	backend string // host:port of the server
	unary   *http.Transport
	streams *http.Transport
	server  *http.Server
	ctx     context.Context //nolint:containedctx // It bounds the copies, which outlive their requests.
	cancel  context.CancelFunc
	served  chan struct{} // closed when the server has ended
	open    sync.WaitGroup

	mu sync.Mutex
	// plan decides about each message; it is called by one goroutine at a time.
	plan func(procedure string) fault
	// held are the messages that wait for release.
	held []func(ctx context.Context) error
	seen map[string]int // messages by procedure
}

// startProxy listens on a free port of the loopback.
func startProxy(backend string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{
		address: listener.Addr().String(), backend: backend, served: make(chan struct{}),
		unary:   &http.Transport{Protocols: protocols(true, false), DisableCompression: true},
		streams: &http.Transport{Protocols: protocols(false, true), DisableCompression: true},
		seen:    make(map[string]int),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	stream := http.HandlerFunc(p.serveStream)
	upgraded := upgrade.Handler(
		upgrade.Options{Closed: p.ctx, MaxMessageBytes: maxMessage, PingEvery: 5 * time.Second}, stream)
	p.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p.open.Add(1)
			defer p.open.Done()
			switch {
			case upgrade.IsRequested(r):
				upgraded.ServeHTTP(w, r)
			case isStream(r.Header.Get("Content-Type")):
				stream.ServeHTTP(w, r)
			default:
				p.serveCall(w, r)
			}
		}),
		Protocols: protocols(true, true), ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), // broken connections are expected
	}
	// Ended by close, which waits for it.
	go func() {
		defer close(p.served)
		_ = p.server.Serve(listener)
	}()
	return p, nil
}

func protocols(http1, http2 bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(http1)
	p.SetUnencryptedHTTP2(http2)
	return p
}

// isStream reports whether a request's body has envelopes: a stream of Connect, or gRPC.
func isStream(contentType string) bool {
	return strings.HasPrefix(contentType, "application/connect+") ||
		strings.HasPrefix(contentType, "application/grpc")
}

// close ends everything and waits for it.
func (p *proxy) close() {
	p.cancel()
	_ = p.server.Close()
	<-p.served
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

// decide counts a message and returns its fault.
func (p *proxy) decide(r *http.Request) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	procedure := path.Base(r.URL.Path)
	p.seen[procedure]++
	if p.plan == nil {
		return fault{}
	}
	return p.plan(procedure)
}

// writes returns how many messages with writes were seen.
func (p *proxy) writes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen["Write"] + p.seen["WriteBatch"] + p.seen["WriteStream"]
}

// isWrite reports whether the messages of a procedure have writes.
func isWrite(procedure string) bool {
	return procedure == "Write" || procedure == "WriteBatch" || procedure == "WriteStream"
}

// keep lets a message wait for release.
func (p *proxy) keep(send func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, send)
}

// release sends what was held to the server, in order, waits for the answers, and returns how many
// there were.
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

// abort ends a request so that it looks like a broken connection to the client.
func abort() { panic(http.ErrAbortHandler) }

func call(f func()) {
	if f != nil {
		f()
	}
}

// reply is the answer to a call.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// serveCall relays a call that has one request and one answer.
func (p *proxy) serveCall(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		abort()
	}
	f := p.decide(r)
	call(f.before)
	again := func(ctx context.Context) error {
		_, err := p.exchange(ctx, r, body)
		return err
	}
	switch f.kind {
	case drop:
		abort()
	case hold:
		p.keep(again)
		abort()
	case answer:
		http.Error(w, "<html>not the ledger</html>", f.status)
		return
	}
	got, err := p.exchange(r.Context(), r, body)
	if err != nil {
		abort()
	}
	call(f.after)
	if f.kind == twice {
		p.keep(again)
	}
	if f.kind == lose {
		abort()
	}
	maps.Copy(w.Header(), got.header)
	w.WriteHeader(got.status)
	if f.kind == mangle {
		_, _ = w.Write(got.body[:len(got.body)/2])
		_ = http.NewResponseController(w).Flush()
		abort()
	}
	_, _ = w.Write(got.body) // the client may be gone
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
	// The body's own length is the right one, and the other headers are about the client's connection.
	for _, name := range []string{"Content-Length", "Connection", "Upgrade", "Te"} {
		request.Header.Del(name)
	}
	for name := range request.Header {
		if strings.HasPrefix(name, "Sec-Websocket-") {
			request.Header.Del(name)
		}
	}
	return request, nil
}

// exchange sends a whole call and returns the whole answer.
func (p *proxy) exchange(ctx context.Context, r *http.Request, body []byte) (reply, error) {
	request, err := p.forward(ctx, r, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	response, err := p.unary.RoundTrip(request)
	if err != nil {
		return reply{}, err
	}
	got, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return reply{}, err
	}
	return reply{response.StatusCode, response.Header, got}, nil
}
