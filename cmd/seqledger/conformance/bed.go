package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// clientID names the stream of the client under test.
const clientID = "client-under-test"

func scope() *seqledgerv1.Scope { return &seqledgerv1.Scope{Organization: "acme", Vault: "main"} }

// bed is what a case works with: a server, the proxy in front of it, the client and the books.
type bed struct {
	options *Options
	dir     string
	// ctx ends with the case.
	ctx context.Context //nolint:containedctx // It is the life of one case, made once by runCase.

	data    string // directory of the ledger
	address string // of all server processes
	server  *child.Child
	proxy   *proxy

	client       *child.Child
	books        *books
	trail        *trail
	journalBytes int64
	submitted    int    // used to name the next write
	sets         uint64 // numbers the writes of another program
}

// start starts a server with settings, given by name and value, and the proxy.
func (b *bed) start(config []string) error {
	b.data, b.address = filepath.Join(b.dir, "data"), "127.0.0.1:0"
	if err := b.serve(); err != nil {
		return err
	}
	for pair := range slices.Chunk(config, 2) {
		if err := b.command("config", "set", pair[0], pair[1], "--server", b.address); err != nil {
			return err
		}
	}
	var err error
	if b.proxy, err = startProxy(b.address); err != nil {
		return err
	}
	b.proxy.noteOn(b.trail)
	return nil
}

// serve starts a server, always on the same port.
func (b *bed) serve() (err error) {
	b.server, err = child.Start(b.ctx, child.Options{
		Name: "the server", Log: filepath.Join(b.dir, "server.log"), Started: child.Address(&b.address),
		Command: []string{
			b.options.Program, "serve", "--json", "--log-level", "warn", "--listen", b.address, "--data", b.data,
			"--cors-origin", "*",
		},
	})
	if err == nil {
		b.trail.note("the server is started")
	}
	return err
}

// command runs a command of the program until it exits.
func (b *bed) command(args ...string) error {
	c := exec.CommandContext(b.ctx, b.options.Program, args...)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "SEQLEDGER_") {
			c.Env = append(c.Env, variable)
		}
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("seqledger %s: %w: %s", args[0], err, out)
	}
	return nil
}

// close stops everything.
func (b *bed) close() {
	if b.client != nil {
		b.client.Kill()
	}
	if b.proxy != nil {
		b.proxy.close()
	}
	if b.server != nil {
		b.server.Kill()
	}
}

// conn returns a client for the harness itself, which bypasses the proxy.
func (b *bed) conn() (*client.Client, error) { return client.New(client.Options{Server: b.address}) }

// spawn starts the client program.
func (b *bed) spawn() (err error) {
	b.books.begin()
	b.trail.note("the client is started")
	b.client, err = child.Start(b.ctx, child.Options{
		Name: "the client", Log: filepath.Join(b.dir, "client.log"), Output: b.books, Command: b.options.Command,
	})
	return err
}

// send sends a command to the client. An error becomes visible when its event is awaited.
func (b *bed) send(c command) {
	line, _ := json.Marshal(c) // it always encodes
	b.trail.note("the client is told %s", line)
	_, _ = b.client.Write(append(line, '\n')) // the client may have been killed
}

func (b *bed) await(what string, holds func() bool) error {
	return b.books.await(b.ctx, b.client.Ended(), what, holds)
}

// beginOpen starts the client and tells it to open its stream.
func (b *bed) beginOpen() error {
	if err := b.spawn(); err != nil {
		return err
	}
	b.tellOpen()
	return nil
}

// tellOpen tells the client to open its stream.
func (b *bed) tellOpen() {
	b.send(command{
		Do: "open", Server: "http://" + b.proxy.address, Organization: "acme", Vault: "main", ClientID: clientID,
		Journal: filepath.Join(b.dir, "journal"), JournalBytes: b.journalBytes,
	})
}

// open starts the client, and resubmits the writes that have no outcome and are not in its journal.
func (b *bed) open() error {
	if err := b.beginOpen(); err != nil {
		return err
	}
	if err := b.awaitOpen(); err != nil {
		return err
	}
	if err := b.notOpened(); err != nil {
		return err
	}
	var again []command
	b.books.view(func() {
		for _, id := range b.books.missing() {
			if !b.books.recovered[id] {
				again = append(again, b.books.writes[id].command)
			}
		}
	})
	for _, c := range again {
		b.send(c)
	}
	return nil
}

// notOpened returns an error if the client has ended without opening its stream.
func (b *bed) notOpened() (err error) {
	b.books.view(func() {
		if e := b.books.ended; e != nil && b.books.opened == nil {
			err = fmt.Errorf("the client did not open its stream: %s %s", e.Code, e.Message)
		}
	})
	return err
}

// mayNotOpen starts the client, which must find out that it may not send anything, for one of the given reasons; none
// means any reason.
func (b *bed) mayNotOpen(codes ...string) error {
	if err := b.beginOpen(); err != nil {
		return err
	}
	if err := b.awaitOpen(); err != nil {
		return err
	}
	return b.checkEnd(codes)
}

// awaitOpen waits until the client has opened its stream, or ended.
func (b *bed) awaitOpen() error {
	return b.await("event opened or ended", func() bool { return b.books.opened != nil || b.books.ended != nil })
}

// awaitEnd waits until the client has ended its stream, for one of the given reasons; none means any reason. late is a
// write that must no longer be committed. If the client reports it as committed, awaitEnd fails at once, because the
// client continues, and waiting for the rest of the time limit would show nothing.
func (b *bed) awaitEnd(late string, codes ...string) error {
	over := func() bool { return b.books.ended != nil || b.books.writes[late].outcome.Outcome == committed }
	if err := b.await("event ended", over); err != nil {
		return err
	}
	return b.checkEnd(codes)
}

func (b *bed) checkEnd(codes []string) (err error) {
	b.books.view(func() {
		e := b.books.ended
		switch {
		case e == nil:
			err = errors.New("the client goes on with a stream that is not its own any more")
		case len(codes) > 0 && !slices.Contains(codes, e.Code):
			err = fmt.Errorf("the client has ended with code %q (%s), want %s", e.Code, e.Message,
				strings.Join(codes, " or "))
		}
	})
	return err
}

// submit submits a new write and returns its id.
func (b *bed) submit(c command) string {
	b.submitted++
	c.Do, c.ID = "submit", fmt.Sprint("write-", b.submitted)
	b.books.intend(c)
	b.send(c)
	return c.ID
}

// submitMany submits writes that append.
func (b *bed) submitMany(n int) (ids []string) {
	for range n {
		ids = append(ids, b.submit(command{}))
	}
	return ids
}

// settle waits until every write has an outcome. It records each commit and then acknowledges it to the client, which
// frees space in the client's journal.
func (b *bed) settle() error {
	for {
		var noted, missing []string
		over := false
		err := b.await("outcome", func() bool {
			noted, missing = b.books.noted, b.books.missing()
			over = b.books.ended != nil && b.books.opened == nil
			return len(noted) > 0 || len(missing) == 0 || over
		})
		switch {
		case err != nil && len(missing) > 0:
			return fmt.Errorf("%w, of %d writes from %s on", err, len(missing), missing[0])
		case err != nil:
			return err
		case over:
			return b.notOpened()
		}
		b.books.view(func() { b.books.noted = b.books.noted[len(noted):] })
		for _, id := range noted {
			b.send(command{Do: "acknowledge", ID: id})
		}
		if len(missing) == 0 {
			return nil
		}
	}
}

// settleTo waits until every write has an outcome, and checks the outcome of some.
func (b *bed) settleTo(outcome string, ids ...string) error {
	if err := b.settle(); err != nil {
		return err
	}
	return b.want(outcome, ids...)
}

// conclude stops the client, and compares the books with the ledger.
func (b *bed) conclude() error {
	if err := b.finish(); err != nil {
		return err
	}
	return b.audit()
}

// wantUnsettled checks that a client that has ended returns a write to the application as unsettled.
func (b *bed) wantUnsettled(id string) (err error) {
	b.books.view(func() {
		if !slices.Contains(b.books.ended.Unsettled, id) {
			err = fmt.Errorf("%s was sent, and the client does not say that it is unsettled", id)
		}
	})
	return err
}

// want checks the outcomes of some writes.
func (b *bed) want(outcome string, ids ...string) (err error) {
	b.books.view(func() {
		for _, id := range ids {
			if e := b.books.writes[id].outcome; e.Outcome != outcome && err == nil {
				err = fmt.Errorf("%s must be %s, and is %s %s %s", id, outcome, e.Outcome, e.Code, e.Message)
			}
		}
	})
	return err
}

// resume tells the client to continue after a refusal.
func (b *bed) resume() error {
	before := 0
	b.books.view(func() { before = b.books.resumed })
	b.send(command{Do: "resume"})
	return b.await("event resumed", func() bool { return b.books.resumed > before })
}

// kill kills the client.
func (b *bed) kill() {
	b.trail.note("the client is killed")
	b.client.Kill()
}

// finish tells the client to end, and waits.
func (b *bed) finish() error {
	b.send(command{Do: "close"})
	b.trail.note("the client has no more input")
	return b.client.Finish(b.ctx)
}

// restartServer kills the server and starts it again.
func (b *bed) restartServer() error {
	b.server.Kill()
	return b.serve()
}

// ledger reads the client's transactions from the ledger.
func (b *bed) ledger() ([]found, error) {
	conn, err := b.conn()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // read only
	return readLedger(b.ctx, conn)
}

// audit delivers the messages that are still held, and compares the books with the ledger.
func (b *bed) audit() error {
	if _, err := b.proxy.release(b.ctx); err != nil {
		return fmt.Errorf("a held message: %w", err)
	}
	ledger, err := b.ledger()
	if err != nil {
		return err
	}
	return b.books.compare(ledger)
}

// set sets an entity, as another program.
func (b *bed) set(key string) error {
	conn, err := b.conn()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is in flight
	b.sets++
	_, err = conn.Write(b.ctx, &seqledgerv1.WriteRequest{
		Scope: scope(), ClientId: "another-program", Sequence: b.sets,
		Operations: []*seqledgerv1.Operation{op.Set(key, []byte("there"))},
	})
	return err
}
