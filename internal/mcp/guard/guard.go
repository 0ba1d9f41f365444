package guard

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/seqledger/seqledger/client/idempotency"
)

// defaultMaxCalls bounds the guarded calls in flight.
const defaultMaxCalls = 64

// Upstream is the server that a guard protects. Each message is one line of JSON, without its line end.
type Upstream interface {
	// Run passes what the server sends to receive, in sequential calls, until the server has ended. Its error says how
	// the server ended.
	Run(receive func(line []byte, rest *bufio.Reader) error) error
	// Send sends a message. Messages are sent in the order of the calls.
	Send(m *message) error
	// Call sends a message whose answer the guard waits for. It may return before or after the answer has arrived. An
	// error that wraps [idempotency.ErrNotExecuted] means that the server did not receive the message; any other error
	// leaves that open.
	Call(m *message) error
	// CloseSend tells the server that no message follows. Outstanding answers still arrive.
	CloseSend() error
}

// Options configure a [Guard]. All but Principal, Journal, Logger and MaxCalls are required.
type Options struct {
	Config   *Config
	Upstream Upstream
	Store    idempotency.Store
	Scope    idempotency.Scope
	// Principal is the party on whose behalf the client calls; empty means the holder of the store's credential.
	Principal string
	// Journal keeps results that the store does not take.
	Journal *idempotency.Journal
	// Logger never receives a key, a principal or an argument.
	Logger *slog.Logger
	// MaxCalls bounds the guarded calls and tool lists in flight; 0 means 64. Further calls are refused, without any
	// effect.
	MaxCalls int
}

// Guard passes messages between a client and a server.
type Guard struct {
	Options

	out lineWriter
	// prefix is the prefix of the ids of the guard's own requests. It is random, so that no client uses it.
	prefix string
	// ended is closed when the server has ended.
	ended chan struct{}
	slots chan struct{} // one for each call in flight
	calls sync.WaitGroup

	mu      sync.Mutex
	over    bool // the server has ended: nothing joins calls
	next    uint64
	pending map[string]*request // by the guard's own id
	ignored []string            // ids of the client's last calls that pass although they have a key; see maxIgnored

	listed map[string]bool // guarded tools that the server has; used only by the receiver
}

// request is one of the guard's own requests, waiting for its answer.
type request struct {
	clientID  jsontext.Value
	cancelled *atomic.Bool // set when the client cancels
	answer    chan *message
}

// New returns a guard.
func New(o Options) *Guard {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var prefix [8]byte
	_, _ = rand.Read(prefix[:]) // never fails
	return &Guard{
		Options: o, prefix: "seqledger:" + hex.EncodeToString(prefix[:]) + ":", ended: make(chan struct{}),
		slots: make(chan struct{}, cmp.Or(o.MaxCalls, defaultMaxCalls)), pending: map[string]*request{},
		listed: map[string]bool{},
	}
}

// lineWriter writes whole lines.
type lineWriter struct {
	mu     sync.Mutex
	w      io.Writer
	failed error
}

// write writes a line and then, for a long line, the rest of it.
func (w *lineWriter) write(line []byte, more func(io.Writer) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	if more == nil {
		line = append(line, '\n')
	}
	_, w.failed = w.w.Write(line)
	if w.failed == nil && more != nil {
		w.failed = more(w.w)
	}
	return w.failed
}

// Run passes messages until the server has ended, and every guarded call has its answer. It returns the error of the
// server's end. When the client closes in, Run tells the server. Run may leave a goroutine that reads in; it ends with
// in.
func (g *Guard) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	g.out.w = out
	// Ends when the client closes in; nothing waits for it, because a client may keep it open.
	go g.readClient(context.WithoutCancel(ctx), bufio.NewReaderSize(in, 64<<10))
	err := g.Upstream.Run(g.fromServer)
	close(g.ended)
	g.mu.Lock()
	// Under the lock, so that no call joins once Wait has begun.
	g.over = true
	g.mu.Unlock()
	g.calls.Wait()
	return err
}

// readClient passes the client's messages until there are no more.
func (g *Guard) readClient(ctx context.Context, in *bufio.Reader) {
	for {
		line, tooLong, err := readLine(in, MaxMessage)
		switch {
		case tooLong:
			g.answer(rpcError(nil, codeInvalidRequest, "a message has at most 16 MiB; nothing was done"))
			err = rest(io.Discard, in, line)
		case len(line) > 0:
			g.fromClient(ctx, line)
		}
		if err != nil {
			break
		}
	}
	if err := g.Upstream.CloseSend(); err != nil {
		g.Logger.WarnContext(ctx, "the server's input was not closed", "error", err)
	}
}

// answer sends a message of the guard itself. If the client has disconnected, it is dropped.
func (g *Guard) answer(line []byte) { _ = g.out.write(line, nil) }

// fromClient handles one message of the client.
func (g *Guard) fromClient(ctx context.Context, line []byte) {
	if len(strings.TrimSpace(string(line[:min(len(line), 16)]))) == 0 && len(line) <= 16 {
		return // an empty line
	}
	m, err := parseMessage(line)
	if err != nil {
		g.answer(rpcError(m.id, codeParse, "seqledger: this is no JSON-RPC message: "+err.Error()+"; nothing was done"))
		return
	}
	for _, one := range m.batch {
		if one.method == "tools/call" || one.method == "tools/list" {
			g.refuseBatch(m)
			return
		}
	}
	switch m.method {
	case "tools/call":
		if g.guarded(ctx, m) {
			return
		}
	case "tools/list":
		if m.isCall() && g.list(m) {
			return
		}
	case "notifications/cancelled":
		if g.cancelled(m) {
			return
		}
	}
	g.pass(m)
}

// pass sends a message unchanged.
func (g *Guard) pass(m *message) {
	err := g.Upstream.Send(m)
	if err != nil && m.isCall() {
		g.answer(rpcError(m.id, codeInternal, "seqledger: the server did not take the message: "+err.Error()))
	}
}

// refuseBatch answers a batch that contains a call. Revisions of MCP after 2025-03-26 have no batches.
func (g *Guard) refuseBatch(m *message) {
	var answers []string
	for _, one := range m.batch {
		if one.isCall() {
			answers = append(answers, string(rpcError(one.id, codeInvalidRequest,
				"seqledger: a batch must not have calls of tools; nothing of it was done; send the messages one "+
					"by one")))
		}
	}
	if len(answers) > 0 {
		g.answer([]byte("[" + strings.Join(answers, ",") + "]"))
	}
}

// enter takes a slot for a request of the guard's own. It fails if there are too many, or if the server has ended.
func (g *Guard) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return false
	}
	select {
	case g.slots <- struct{}{}:
		g.calls.Add(1)
		return true
	default:
		return false
	}
}

func (g *Guard) leave() {
	<-g.slots
	g.calls.Done()
}

// await registers a request and returns its id.
func (g *Guard) await(r *request) (id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next++
	id = g.prefix + strconv.FormatUint(g.next, 10)
	g.pending[id] = r
	return id
}

// take removes and returns the request with an id. It returns nil if there is none.
func (g *Guard) take(id jsontext.Value) *request {
	if id.Kind() != '"' {
		return nil
	}
	text := stringOf(id)
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.pending[text]
	delete(g.pending, text)
	return r
}

// cancelled handles a cancellation by the client, and reports whether the request is one of the guard's own. A call
// that has begun continues.
func (g *Guard) cancelled(m *message) bool {
	var id jsontext.Value
	err := members(m.params, func(name string, value jsontext.Value) error {
		if name == "requestId" {
			id = value
		}
		return nil
	})
	if err != nil || id == nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.pending {
		if sameID(r.clientID, id) {
			r.cancelled.Store(true)
			return true
		}
	}
	return false
}

// sameID reports whether two ids are the same.
func sameID(a, b jsontext.Value) bool {
	if a.Kind() == '"' && b.Kind() == '"' {
		return stringOf(a) == stringOf(b)
	}
	return string(a) == string(b)
}

// fromServer handles one message of the server. If the message is longer than the guard reads, more is set, and the
// message passes unchanged.
func (g *Guard) fromServer(line []byte, more *bufio.Reader) error {
	if more != nil {
		g.Logger.Warn("a message of the server has more than 16 MiB; it passes unread")
		return g.out.write(line, func(w io.Writer) error { return rest(w, more, line) })
	}
	m, err := parseMessage(line)
	if err == nil && m.method == "" && m.id != nil {
		if r := g.take(m.id); r != nil {
			r.answer <- m
			return nil
		}
		line = g.tellIgnored(m, line)
	}
	// Passed unchanged, because a server may write lines that are not messages, and the client must see what it would
	// see without a guard.
	return g.out.write(line, nil)
}

// ignoreKey notes a call that passes although it has a key, so that its answer tells.
func (g *Guard) ignoreKey(m *message) {
	if len(m.id) > maxIgnoredID {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ignored) == maxIgnored {
		g.ignored = g.ignored[1:]
	}
	g.ignored = append(g.ignored, string(m.id))
}

// tellIgnored returns an answer of the server for the client: with a mark if the key of its call had no effect.
func (g *Guard) tellIgnored(m *message, line []byte) []byte {
	g.mu.Lock()
	i := slices.Index(g.ignored, string(m.id))
	if i >= 0 {
		g.ignored = slices.Delete(g.ignored, i, i+1)
	}
	g.mu.Unlock()
	if i < 0 {
		return line
	}
	name, answer, member := "result", m.result, "_meta"
	if m.fault != nil {
		name, answer, member = "error", m.fault, "data"
	}
	marked, err := mark(answer, member, metaIgnored)
	if err == nil {
		marked, err = setMembers(m.raw, edit{name, marked})
	}
	if err != nil {
		return line // for example because the data of an error is a text
	}
	return marked
}

// hashed returns a key in the form used in logs.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}

// errEnded is the error of a call that has no answer because the server ended.
var errEnded = errors.New("the server ended before it answered")

// ask sends a guarded call to the server and returns its answer.
func (g *Guard) ask(m *message, cancelled *atomic.Bool) (*message, error) {
	r := &request{clientID: m.id, cancelled: cancelled, answer: make(chan *message, 1)}
	id := quote(g.await(r))
	defer g.take(id)
	own, err := setMembers(m.raw, edit{"id", id})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, idempotency.ErrNotExecuted)
	}
	sent := *m
	sent.raw = own
	sent.id = id
	if err := g.Upstream.Call(&sent); err != nil {
		return nil, err
	}
	select {
	case a := <-r.answer:
		return a, nil
	case <-g.ended:
	}
	select { // the answer may have been the server's last message
	case a := <-r.answer:
		return a, nil
	default:
		return nil, errEnded
	}
}
