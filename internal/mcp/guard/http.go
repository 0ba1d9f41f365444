package guard

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/unsent"
)

// The headers of MCP's streamable HTTP.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
)

// maxPosts bounds the messages in flight to a server over HTTP. Further messages wait.
const maxPosts = 128

// HTTPOptions configure a server over HTTP. Endpoint is required.
type HTTPOptions struct {
	// Endpoint is the URL of the server's MCP endpoint.
	Endpoint string
	// Header is sent with every request: credentials, for example.
	Header http.Header
	// Client sends the requests; nil means a client that follows no redirects.
	Client *http.Client
	// DrainTimeout bounds the wait for answers after the client has disconnected.
	DrainTimeout time.Duration
	Logger       *slog.Logger
}

// HTTP is a server that speaks MCP's streamable HTTP. Each message is sent only once, whatever happens to its
// connection. A stream of events that breaks is not resumed.
type HTTP struct {
	HTTPOptions

	ctx    context.Context //nolint:containedctx // It is the life of the connection, ended by Run.
	cancel context.CancelFunc
	lines  chan []byte // received; consumed by Run
	places chan struct{}
	posts  sync.WaitGroup
	closed chan struct{} // by CloseSend
	once   sync.Once

	mu               sync.Mutex
	session, version string
	listening        bool
}

// NewHTTP returns a server over HTTP. Nothing is sent before the first message.
func NewHTTP(o HTTPOptions) *HTTP {
	if o.Client == nil {
		o.Client = &http.Client{
			// A call whose connection breaks may have been executed, so connections are new or were used a moment ago.
			Transport: unsent.NewTransport(&http.Transport{
				Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 16,
			}, unsent.Recent, func(*http.Request) bool { return true }),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	h := &HTTP{HTTPOptions: o, lines: make(chan []byte), places: make(chan struct{}, maxPosts),
		closed: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// Run implements [Upstream]. It ends after CloseSend, when all requests have been answered or DrainTimeout is over.
func (h *HTTP) Run(receive func(line []byte, rest *bufio.Reader) error) error {
	drained := make(chan struct{})
	// Ends with the posts, which end with ctx at the latest; Run waits for it.
	go func() {
		defer close(drained)
		<-h.closed
		h.posts.Wait()
	}()
	var late <-chan time.Time
	closed := h.closed
	for {
		select {
		case line := <-h.lines:
			_ = receive(line, nil) // a client that has disconnected does not end the server's work
		case <-closed:
			timer := time.NewTimer(h.DrainTimeout)
			defer timer.Stop()
			late, closed = timer.C, nil
		case <-late:
			h.cancel()
			late = nil
		case <-drained:
			h.endSession()
			h.cancel()
			return nil
		}
	}
}

// CloseSend implements [Upstream].
func (h *HTTP) CloseSend() error {
	h.once.Do(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		close(h.closed)
	})
	return nil
}

// errClosed is the error of a message sent after CloseSend.
var errClosed = fmt.Errorf("the connection is closed: %w", idempotency.ErrNotExecuted)

// enter takes a slot for a message. It waits for one, which bounds the messages in flight.
func (h *HTTP) enter() error {
	select {
	case h.places <- struct{}{}:
	case <-h.ctx.Done():
		return errClosed
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.closed:
		<-h.places
		return errClosed
	default:
		h.posts.Add(1)
		return nil
	}
}

func (h *HTTP) leave() {
	<-h.places
	h.posts.Done()
}

// Send implements [Upstream]. It waits for the messages that begin a session, because the others need the session. If a
// call fails, it answers the call in place of the server.
func (h *HTTP) Send(m *message) error {
	if m.method == "initialize" || m.method == "notifications/initialized" {
		return h.Call(m)
	}
	if err := h.enter(); err != nil {
		return err
	}
	// Ends with the answer or with ctx; Run waits for it.
	go func() {
		defer h.leave()
		err := h.post(m)
		switch {
		case err == nil:
		case m.isCall():
			h.deliver(rpcError(m.id, codeInternal, "seqledger: "+err.Error()))
		default:
			h.Logger.Warn("a message did not reach the server", "method", m.method, "error", err)
		}
	}()
	return nil
}

// Call implements [Upstream].
func (h *HTTP) Call(m *message) error {
	if err := h.enter(); err != nil {
		return err
	}
	defer h.leave()
	return h.post(m)
}

// deliver passes a line to Run.
func (h *HTTP) deliver(line []byte) {
	if bytes.ContainsAny(line, "\r\n") { // white space, because a JSON string contains no line ends
		value := jsontext.Value(line)
		if value.Compact() != nil {
			return
		}
		line = value
	}
	select {
	case h.lines <- line:
	case <-h.ctx.Done():
	}
}

// post sends a message and delivers what the server sends, until it has answered a call.
func (h *HTTP) post(m *message) error {
	r, err := h.request(http.MethodPost, m.raw)
	if err != nil {
		return fmt.Errorf("%w: %w", err, idempotency.ErrNotExecuted)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	h.describe(r.Header, m)
	r, connected := unsent.Watch(r)
	answer, err := h.Client.Do(r)
	if err != nil {
		if !connected() {
			err = fmt.Errorf("%w: %w", err, idempotency.ErrNotExecuted)
		}
		return err
	}
	defer func() { _ = answer.Body.Close() }() // read only as far as needed
	if id := answer.Header.Get(headerSession); id != "" && m.method == "initialize" {
		h.mu.Lock()
		h.session = id
		h.mu.Unlock()
	}
	answered, err := h.receive(m, answer)
	switch {
	case m.method == "notifications/initialized":
		h.listen()
		fallthrough
	case !m.isCall():
		return err
	case answered:
		return nil
	case err != nil:
		return err
	}
	return errors.New("the server's answer ended before it was complete")
}

// request returns a request with the headers common to all requests.
func (h *HTTP) request(method string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(h.ctx, method, h.Endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range h.Header {
		r.Header[name] = values
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != "" {
		r.Header.Set(headerSession, h.session)
	}
	if h.version != "" {
		r.Header.Set(headerVersion, h.version)
	}
	return r, nil
}

// describe sets the headers that describe a message, which exist since revision 2026-07-28 of MCP. The schema of a tool
// may also require headers derived from arguments; these are not sent.
func (h *HTTP) describe(header http.Header, m *message) {
	var name, version string
	_ = members(m.params, func(member string, value jsontext.Value) error {
		switch {
		case value.Kind() == '"' && (member == "name" && m.method != "resources/read" ||
			member == "uri" && m.method == "resources/read"):
			name = stringOf(value)
		case member == "_meta":
			return members(value, func(member string, value jsontext.Value) error {
				if member == "io.modelcontextprotocol/protocolVersion" && value.Kind() == '"' {
					version = stringOf(value)
				}
				return nil
			})
		}
		return nil
	})
	if version == "" {
		return // an earlier revision
	}
	header.Set(headerVersion, version)
	header.Set(headerMethod, m.method)
	switch m.method {
	case "tools/call", "prompts/get", "resources/read":
		header.Set(headerName, name)
	}
}

// receive delivers what the server sends, and reports whether that included the answer to m.
func (h *HTTP) receive(m *message, answer *http.Response) (answered bool, err error) {
	take := func(data []byte) error {
		one, err := parseMessage(data)
		if err == nil && one.method == "" && one.id != nil && m.isCall() && sameID(one.id, m.id) {
			answered = true
			if m.method == "initialize" {
				h.setVersion(one.result)
			}
		}
		h.deliver(data)
		return nil
	}
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	switch kind {
	case "text/event-stream":
		err = readEvents(answer.Body, func(data []byte) error {
			if err := take(data); err != nil || answered {
				return errors.Join(err, io.EOF)
			}
			return nil
		})
	case "application/json":
		var body []byte
		body, err = io.ReadAll(io.LimitReader(answer.Body, MaxMessage+1))
		if len(body) > MaxMessage {
			return false, errors.New("the server's answer has more than 16 MiB")
		}
		if err == nil && len(bytes.TrimSpace(body)) > 0 {
			err = take(bytes.TrimSpace(body))
		}
	}
	if answered || answer.StatusCode < http.StatusMultipleChoices {
		return answered, err
	}
	err = fmt.Errorf("the server answered with HTTP status %s", answer.Status)
	if h.refusedByTransport(answer) {
		err = fmt.Errorf("%w: %w", err, idempotency.ErrNotExecuted)
	}
	return false, err
}

// refusedByTransport reports whether a server has certainly refused a message before any method ran. Servers also turn
// the exception of a tool that has run into a status such as 403 or 404, so that these alone say nothing.
func (h *HTTP) refusedByTransport(answer *http.Response) bool {
	switch answer.StatusCode {
	case http.StatusUnauthorized: // MCP and HTTP want this header with it
		return answer.Header.Get("WWW-Authenticate") != ""
	case http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType:
		return true
	case http.StatusNotFound: // of a session that the server no longer knows
		return answer.Request.Header.Get(headerSession) != "" && h.sessionIsGone()
	}
	return false
}

// sessionIsGone reports whether the server does not know the session: it answers 404 to a ping, too.
func (h *HTTP) sessionIsGone() bool {
	r, err := h.request(http.MethodPost, []byte(`{"jsonrpc":"2.0","id":"seqledger-session","method":"ping"}`))
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(h.ctx, 5*time.Second)
	defer cancel()
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	answer, err := h.Client.Do(r.WithContext(ctx))
	if err != nil {
		return false
	}
	_ = answer.Body.Close() // only the status counts
	return answer.StatusCode == http.StatusNotFound
}

// setVersion takes the revision of MCP from the result of an initialize.
func (h *HTTP) setVersion(result jsontext.Value) {
	_ = members(result, func(name string, value jsontext.Value) error {
		if name == "protocolVersion" && value.Kind() == '"' {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.version = stringOf(value)
		}
		return nil
	})
}

// readEvents calls take with the data of each event of a stream, until the stream ends or take returns an error. If
// take returns io.EOF, readEvents stops without an error.
func readEvents(body io.Reader, take func(data []byte) error) error {
	r := bufio.NewReaderSize(body, 64<<10)
	var data []byte
	for {
		line, tooLong, err := readLine(r, MaxMessage)
		if tooLong || len(data)+len(line) > MaxMessage {
			return errors.New("an event of the server has more than 16 MiB")
		}
		if err != nil {
			return err // an incomplete event at the end is dropped
		}
		line = bytes.TrimSuffix(line, []byte{'\r'})
		if part, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(part, []byte{' '})...)
			continue
		}
		if len(line) > 0 || len(data) == 0 {
			continue // another field, or an event without data
		}
		if err := take(data); err != nil {
			return ignoreEnd(err)
		}
		data = nil
	}
}

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// The pauses between two streams of messages that the server sends on its own.
const (
	listenFirst = time.Second
	listenMax   = 30 * time.Second
)

// listen receives the messages that the server sends on its own, if it has a stream for them.
func (h *HTTP) listen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listening {
		return
	}
	h.listening = true
	h.posts.Add(1)
	ctx, cancel := context.WithCancel(h.ctx)
	// Both goroutines end with CloseSend or with ctx; Run waits for the second.
	go func() {
		defer cancel()
		select {
		case <-h.closed:
		case <-h.ctx.Done():
		}
	}()
	go func() { // the second
		defer h.posts.Done()
		for wait := listenFirst; h.listenOnce(ctx); wait = min(2*wait, listenMax) {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
	}()
}

// listenOnce receives the events of one stream, and reports whether to open another one.
func (h *HTTP) listenOnce(ctx context.Context) bool {
	r, err := h.request(http.MethodGet, nil)
	if err != nil {
		return false
	}
	r.Header.Set("Accept", "text/event-stream")
	answer, err := h.Client.Do(r.WithContext(ctx))
	if err != nil {
		return ctx.Err() == nil
	}
	defer func() { _ = answer.Body.Close() }() // read only as far as needed
	if answer.StatusCode != http.StatusOK {
		return answer.StatusCode >= http.StatusInternalServerError
	}
	err = readEvents(answer.Body, func(data []byte) error {
		h.deliver(data)
		return nil
	})
	h.Logger.DebugContext(ctx, "a stream of the server ended", "error", err)
	return ctx.Err() == nil
}

// endSession tells the server that the session is over, so that it can free resources. A failure is ignored, because
// nothing else can be done about the session.
func (h *HTTP) endSession() {
	h.mu.Lock()
	session := h.session
	h.mu.Unlock()
	if session == "" {
		return
	}
	r, err := h.request(http.MethodDelete, nil)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if answer, err := h.Client.Do(r.WithContext(ctx)); err == nil {
		_ = answer.Body.Close()
	}
}
