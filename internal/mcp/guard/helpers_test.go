package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// hangs bounds a wait that should be short; it does not assert speed.
const hangs = 2 * time.Minute

// pipes is an Upstream in this process.
type pipes struct {
	in   io.WriteCloser // to the server
	out  io.Reader      // from the server
	mu   sync.Mutex
	sent atomic.Int32
}

// Run implements Upstream.
func (p *pipes) Run(receive func([]byte, *bufio.Reader) error) error {
	r := bufio.NewReader(p.out)
	for {
		line, tooLong, err := readLine(r, MaxMessage)
		switch {
		case tooLong:
			_ = receive(line, r)
		case len(line) > 0:
			_ = receive(line, nil)
		}
		if err != nil {
			return nil
		}
	}
}

// Send implements Upstream.
func (p *pipes) Send(m *message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent.Add(1)
	_, err := p.in.Write(append(m.raw, '\n'))
	return err
}

// Call implements Upstream.
func (p *pipes) Call(m *message) error { return p.Send(m) }

// CloseSend implements Upstream.
func (p *pipes) CloseSend() error { return p.in.Close() }

// world is a client, a guard and a server.
type world struct {
	t       *testing.T
	store   idempotency.Store
	config  *Config
	client  *mcp.ClientSession
	options *mcp.ClientOptions // set before connecting
	pipes   *pipes
	kill    func()        // ends the server at once
	ended   chan struct{} // closed when the guard has ended
	log     *lockedLog
	server  *mcp.Server
	effects atomic.Int32

	principal string
}

// lockedLog collects what a guard logs.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// payment holds the arguments of the tool charge.
type payment struct {
	Order  string `json:"order,omitempty"`
	Amount int    `json:"amount,omitempty"`
	Note   string `json:"note,omitempty"`
}

// chargeA has every argument that tells calls apart.
var chargeA = payment{Order: "A", Amount: 5}

const testConfig = `
server: payments
wait: 20s
lease: 1s
tools:
  charge: {arguments: [order, amount], if-unknown: "Call list_charges."}
`

// newWorld returns a world whose server has no tools yet.
func newWorld(t *testing.T, config string) *world {
	t.Helper()
	c := must.Get(parseConfig("guard.yaml", []byte(config), Times{}))(t)
	return &world{
		t: t, store: idempotency.Memory(), config: c, log: new(lockedLog),
		server: mcp.NewServer(&mcp.Implementation{Name: "payments", Version: "1"}, nil),
	}
}

// charge adds the tool charge, which counts its calls and then calls do, if set.
func (w *world) charge(do func(context.Context, *mcp.CallToolRequest, payment) (*mcp.CallToolResult, any, error)) {
	mcp.AddTool(w.server, &mcp.Tool{Name: "charge", Description: "Charges a card."},
		func(ctx context.Context, r *mcp.CallToolRequest, p payment) (*mcp.CallToolResult, any, error) {
			n := w.effects.Add(1)
			if do != nil {
				return do(ctx, r, p)
			}
			return text(fmt.Sprintf("charge %d of %d for %s", n, p.Amount, p.Order)), nil, nil
		})
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// start starts server and guard on the world's store and connects a client.
func (w *world) start() *world {
	w.t.Helper()
	in, out := w.startGuard()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, w.options)
	session := must.Get(client.Connect(w.t.Context(), &mcp.IOTransport{Reader: io.NopCloser(out), Writer: in},
		nil))(w.t)
	w.client = session
	w.t.Cleanup(func() { _ = in.Close() })
	return w
}

// startGuard starts server and guard. The guard reads what is written to in, and writes to out.
func (w *world) startGuard() (in io.WriteCloser, out io.Reader) {
	serverIn, toServer := io.Pipe()
	fromServer, serverOut := io.Pipe()
	guardIn, toGuard := io.Pipe()
	fromGuard, guardOut := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	w.pipes = &pipes{in: toServer, out: fromServer}
	w.kill = func() {
		_ = serverOut.Close()
		_ = serverIn.CloseWithError(errors.New("killed"))
		cancel()
	}
	go func() { // ends when its input does
		_ = w.server.Run(ctx, &mcp.IOTransport{Reader: serverIn, Writer: serverOut})
		_ = serverOut.Close()
	}()
	g := New(Options{
		Config: w.config, Upstream: w.pipes, Store: w.store, Scope: idempotency.Scope{Organization: "mcp"},
		Principal: w.principal,
		Logger:    slog.New(slog.NewTextHandler(w.log, nil)),
	})
	w.ended = make(chan struct{})
	ended := w.ended
	go func() { // ends when the server does, which the cleanup kills
		defer close(ended)
		_ = g.Run(context.Background(), guardIn, guardOut)
		_ = guardOut.Close()
	}()
	kill := w.kill
	w.t.Cleanup(func() {
		kill()
		_ = fromGuard.CloseWithError(errors.New("the test is over"))
		<-ended
	})
	return toGuard, fromGuard
}

// reply is a client's view of an answer.
type reply struct {
	text              string
	isError, replayed bool
	code, action      any
	structured        any
}

// call calls a tool with arguments and, if it is not empty, a key.
func (w *world) call(tool, key string, arguments any) reply {
	w.t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	if key != "" {
		params.Meta = mcp.Meta{MetaKey: key}
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	result, err := w.client.CallTool(ctx, params)
	if err != nil {
		return reply{text: err.Error(), isError: true, code: "rpc"}
	}
	r := reply{isError: result.IsError, replayed: result.Meta[metaReplayed] == true,
		structured: result.StructuredContent}
	r.code, r.action = result.Meta[metaCode], result.Meta[metaAction]
	for _, content := range result.Content {
		if t, ok := content.(*mcp.TextContent); ok {
			r.text += t.Text
		}
	}
	return r
}

// raw writes a line to a guard and returns the guard's next line.
func raw(t *testing.T, in io.Writer, out *bufio.Reader, line string) map[string]any {
	t.Helper()
	if line != "" {
		go func() { _, _ = io.WriteString(in, line+"\n") }() // ends with the write; a pipe has no buffer
	}
	answer := must.Get(out.ReadBytes('\n'))(t)
	var o map[string]any
	if err := json.Unmarshal(answer, &o); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	return o
}
