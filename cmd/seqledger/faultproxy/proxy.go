package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/seqledger/seqledger/internal/upgrade"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Kind is what the proxy does with a message: a call, or a message of a stream.
type Kind int

// The kinds of faults.
const (
	Pass   Kind = iota
	Drop        // the server does not receive it, and the client's connection breaks
	Lose        // the server answers, and the client's connection breaks without the answer
	Hold        // the client's connection breaks, and the server receives it on Release
	Twice       // passes, and the server receives a copy on Release
	Answer      // the proxy answers with a status; a stream is cut
	Mangle      // the server answers, and the client gets the first half of the answer; a stream is cut
)

var kindNames = [...]string{"pass", "drop", "lose", "hold", "twice", "answer", "mangle"}

// Fault is what happens to a message.
type Fault struct {
	Kind   Kind
	Status int // for Answer
	// Before is called before the server receives the message, After once the server has answered and before the client
	// gets the answer; both may be nil.
	Before, After func()
}

// String implements fmt.Stringer.
func (f Fault) String() string {
	if f.Kind == Answer {
		return fmt.Sprint(kindNames[f.Kind], " ", f.Status)
	}
	return kindNames[f.Kind]
}

// errCut means that the proxy has deliberately broken a connection.
var errCut = errors.New("the connection is cut")

// Options configure a Proxy.
type Options struct {
	// Plan decides about each message; its calls do not overlap. nil lets all pass.
	Plan func(m *Message) Fault
	// Answered gets the receipts of each answer of the server, also of those that the client does not get; nil ignores
	// them.
	Answered func(receipts []*seqledgerv1.Receipt)
}

// Proxy stands between clients and a server. It speaks HTTP/1.1, cleartext HTTP/2 and WebSocket with clients.
type Proxy struct {
	// Address is where clients connect.
	Address string

	options Options
	front   *Front
	backend string // host:port of the server
	unary   *http.Transport
	streams *http.Transport
	ctx     context.Context //nolint:containedctx // It bounds the copies, which outlive their requests.
	cancel  context.CancelFunc
	open    sync.WaitGroup // the streams to the server, some of which outlive their requests

	mu   sync.Mutex
	held []func(ctx context.Context) error // messages that wait for Release
}

// Start listens on a free loopback port.
func Start(backend string, o Options) (*Proxy, error) {
	p := &Proxy{
		options: o, backend: backend,
		unary: NewTransport(Protocols(true, false)), streams: NewTransport(Protocols(false, true)),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	stream := http.HandlerFunc(p.serveStream)
	upgraded := upgrade.Handler(upgrade.Options{
		Closed: p.ctx, MaxMessageBytes: MaxMessageBytes, PingEvery: 5 * time.Second}, stream)
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
	if p.front, err = Listen(handler, Protocols(true, true)); err != nil {
		p.cancel()
		return nil, err
	}
	p.Address = p.front.Address
	return p, nil
}

// isStream reports whether a request's body has envelopes: a Connect stream, or gRPC.
func isStream(contentType string) bool {
	return strings.HasPrefix(contentType, "application/connect+") ||
		strings.HasPrefix(contentType, "application/grpc")
}

// Close stops everything and waits for it.
func (p *Proxy) Close() {
	p.cancel()
	p.front.Close()
	p.open.Wait()
	p.unary.CloseIdleConnections()
	p.streams.CloseIdleConnections()
}

// decide returns the fault of a message.
func (p *Proxy) decide(m *Message) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.options.Plan == nil {
		return Fault{}
	}
	return p.options.Plan(m)
}

// keep holds a message until Release.
func (p *Proxy) keep(send func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = append(p.held, send)
}

// Release sends the held messages to the server, in order, waits for the answers, and returns their number.
func (p *Proxy) Release(ctx context.Context) (int, error) {
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
func (p *Proxy) serveCall(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxMessageBytes))
	if err != nil {
		Abort()
	}
	encoding := r.Header.Get("Content-Encoding")
	f := p.decide(newMessage(r, encoding != "" && encoding != "identity", body))
	call(f.Before)
	again := func(ctx context.Context) error {
		_, err := p.exchange(ctx, r, body)
		return err
	}
	switch f.Kind {
	case Drop:
		Abort()
	case Hold:
		p.keep(again)
		Abort()
	case Answer:
		http.Error(w, "<html>not the ledger</html>", f.Status)
		return
	}
	got, err := p.exchange(r.Context(), r, body)
	if err != nil {
		Abort()
	}
	call(f.After)
	if f.Kind == Twice {
		p.keep(again)
	}
	if f.Kind == Lose {
		Abort()
	}
	maps.Copy(w.Header(), got.header)
	w.WriteHeader(got.status)
	if f.Kind == Mangle {
		_, _ = w.Write(got.body[:len(got.body)/2])
		_ = http.NewResponseController(w).Flush()
		Abort()
	}
	_, _ = w.Write(got.body) // the client may have disconnected
}

// forward returns a client's request with another body, for the server. Its answers are not compressed if they are to
// be read.
func (p *Proxy) forward(ctx context.Context, r *http.Request, body io.Reader) (*http.Request, error) {
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
	if p.options.Answered != nil {
		request.Header.Del("Accept-Encoding")
		request.Header.Del("Connect-Accept-Encoding")
	}
	return request, nil
}

// reply is the whole answer to a call.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// exchange sends a whole call and returns the whole answer.
func (p *Proxy) exchange(ctx context.Context, r *http.Request, body []byte) (reply, error) {
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
	p.answered(r, got)
	return reply{response.StatusCode, response.Header, got}, nil
}

// answered hands on the receipts of an answer.
func (p *Proxy) answered(r *http.Request, body []byte) {
	if p.options.Answered == nil {
		return
	}
	if receipts := receiptsOf(r, body); len(receipts) > 0 {
		p.options.Answered(receipts)
	}
}
