package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

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

// stop ends a case, as testing.T.FailNow ends a test.
type stop struct{ error }

// must ends the case unless err is nil: the client is wrong.
func must(err error) {
	if err != nil {
		panic(stop{err})
	}
}

// prepared ends the case unless err is nil: the case could not go on, which is not the client's fault.
func prepared(err error) {
	if err != nil {
		panic(stop{&setupError{err}})
	}
}

// attempt returns the error that ends f early.
func attempt(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(stop)
			if !ok {
				panic(r)
			}
			err = s.error
		}
	}()
	f()
	return nil
}

// start starts a server with settings, given by name and value, and the proxy.
func (b *bed) start(config []string) {
	b.data, b.address = filepath.Join(b.dir, "data"), "127.0.0.1:0"
	b.serve()
	for pair := range slices.Chunk(config, 2) {
		b.command("config", "set", pair[0], pair[1], "--server", b.address)
	}
	var err error
	b.proxy, err = startProxy(b.address, b.trail)
	prepared(err)
}

// serve starts a server, always on the same port.
func (b *bed) serve() {
	var err error
	b.server, err = child.Start(b.ctx, child.Options{
		Name: "the server", Log: filepath.Join(b.dir, "server.log"), Started: child.Address(&b.address),
		Command: []string{
			b.options.Program, "serve", "--json", "--log-level", "warn", "--listen", b.address, "--data", b.data,
			"--cors-origin", "*",
		},
	})
	prepared(err)
	b.trail.note("the server is started")
}

// command runs a command of the program until it exits.
func (b *bed) command(args ...string) {
	c := exec.CommandContext(b.ctx, b.options.Program, args...)
	c.Env = child.Environment()
	if out, err := c.CombinedOutput(); err != nil {
		prepared(fmt.Errorf("seqledger %s: %w: %s", args[0], err, out))
	}
}

// close stops everything.
func (b *bed) close() {
	if b.client != nil {
		b.client.Kill()
	}
	if b.proxy != nil {
		b.proxy.Close()
	}
	if b.server != nil {
		b.server.Kill()
	}
}

// directly calls f with a client for the harness itself, which bypasses the proxy.
func (b *bed) directly(f func(conn *client.Client) error) {
	conn, err := client.New(client.Options{Server: b.address})
	prepared(err)
	defer func() { _ = conn.Close() }() // nothing is in flight
	prepared(f(conn))
}

// spawn starts the client program.
func (b *bed) spawn() {
	b.books.begin()
	b.trail.note("the client is started")
	var err error
	b.client, err = child.Start(b.ctx, child.Options{
		Name: "the client", Log: filepath.Join(b.dir, "client.log"), Output: b.books, Command: b.options.Command,
	})
	must(err)
}

// send sends a command to the client. An error becomes visible when its event is awaited.
func (b *bed) send(c command) {
	line, _ := json.Marshal(c) // it always encodes
	b.trail.note("the client is told %s", line)
	_, _ = b.client.Write(append(line, '\n')) // the client may have been killed
}

func (b *bed) await(what string, holds func() bool) {
	err := b.books.await(b.ctx, b.client.Ended(), what, holds)
	if err != nil && b.client.IsAbsent() && b.books.opened == nil && b.books.ended == nil {
		prepared(b.client.Explain("could not be run"))
	}
	must(err)
}

// tellOpen tells the client to open its stream.
func (b *bed) tellOpen() {
	b.send(command{
		Do: "open", Server: "http://" + b.proxy.Address, Organization: "acme", Vault: "main", ClientID: clientID,
		Journal: filepath.Join(b.dir, "journal"), JournalBytes: b.journalBytes,
	})
}

// awaitOpen starts the client and waits until it has opened its stream, or ended.
func (b *bed) awaitOpen() {
	b.spawn()
	b.tellOpen()
	b.await("event opened or ended", func() bool { return b.books.opened != nil || b.books.ended != nil })
}

// open starts the client, and resubmits the writes that have no outcome and are not in its journal.
func (b *bed) open() {
	b.awaitOpen()
	b.checkOpened()
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
}

// checkOpened checks that the client has not ended without opening its stream.
func (b *bed) checkOpened() {
	b.books.view(func() {
		if e := b.books.ended; e != nil && b.books.opened == nil {
			must(fmt.Errorf("the client did not open its stream: %s %s", e.Code, e.Message))
		}
	})
}

// mayNotOpen starts the client, which must find out that it may not send anything, for one of the given reasons; none
// means any reason.
func (b *bed) mayNotOpen(codes ...string) {
	b.awaitOpen()
	b.checkEnd(codes...)
}

// awaitEnd waits until the client has ended its stream, for one of the given reasons; none means any reason. late is a
// write that must no longer be committed. If the client reports it as committed, awaitEnd fails at once, because the
// client continues, and waiting for the rest of the time limit would show nothing.
func (b *bed) awaitEnd(late string, codes ...string) {
	b.await("event ended", func() bool {
		return b.books.ended != nil || b.books.writes[late].outcome.Outcome == committed
	})
	b.checkEnd(codes...)
}

func (b *bed) checkEnd(codes ...string) {
	b.books.view(func() {
		e := b.books.ended
		switch {
		case e == nil:
			must(errors.New("the client goes on with a stream that is not its own any more"))
		case len(codes) > 0 && !slices.Contains(codes, e.Code):
			must(fmt.Errorf("the client has ended with code %q (%s), want %s", e.Code, e.Message,
				strings.Join(codes, " or ")))
		}
	})
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
func (b *bed) settle() {
	for {
		var noted, missing []string
		over := false
		err := attempt(func() {
			b.await("outcome", func() bool {
				noted, missing = b.books.noted, b.books.missing()
				over = b.books.ended != nil && b.books.opened == nil
				return len(noted) > 0 || len(missing) == 0 || over
			})
		})
		if err != nil && len(missing) > 0 {
			err = fmt.Errorf("%w, of %d writes from %s on", err, len(missing), missing[0])
		}
		must(err)
		if over {
			b.checkOpened()
			return
		}
		b.books.view(func() { b.books.noted = b.books.noted[len(noted):] })
		for _, id := range noted {
			b.send(command{Do: "acknowledge", ID: id})
		}
		if len(missing) == 0 {
			return
		}
	}
}

// settleTo waits until every write has an outcome, and checks the outcome of some.
func (b *bed) settleTo(outcome string, ids ...string) {
	b.settle()
	b.want(outcome, ids...)
}

// writeSome submits writes that must be committed.
func (b *bed) writeSome(n int) (ids []string) {
	ids = b.submitMany(n)
	b.settleTo(committed, ids...)
	return ids
}

// conclude stops the client, and compares the books with the ledger.
func (b *bed) conclude() {
	b.finish()
	b.audit()
}

// wantUnsettled checks that a client that has ended returns a write to the application as unsettled.
func (b *bed) wantUnsettled(id string) {
	b.books.view(func() {
		if !slices.Contains(b.books.ended.Unsettled, id) {
			must(fmt.Errorf("%s was sent, and the client does not say that it is unsettled", id))
		}
	})
}

// want checks the outcomes of some writes.
func (b *bed) want(outcome string, ids ...string) {
	b.books.view(func() {
		for _, id := range ids {
			if e := b.books.writes[id].outcome; e.Outcome != outcome {
				must(fmt.Errorf("%s must be %s, and is %s %s %s", id, outcome, e.Outcome, e.Code, e.Message))
			}
		}
	})
}

// resume tells the client to continue after a refusal.
func (b *bed) resume() {
	before := 0
	b.books.view(func() { before = b.books.resumed })
	b.send(command{Do: "resume"})
	b.await("event resumed", func() bool { return b.books.resumed > before })
}

// kill kills the client.
func (b *bed) kill() {
	b.trail.note("the client is killed")
	b.client.Kill()
}

// finish tells the client to end, and waits.
func (b *bed) finish() {
	b.send(command{Do: "close"})
	b.trail.note("the client has no more input")
	must(b.client.Finish(b.ctx))
}

// restartServer kills the server and starts it again.
func (b *bed) restartServer() {
	b.server.Kill()
	b.serve()
}

// ledger reads the client's transactions from the ledger.
func (b *bed) ledger() (all []found) {
	b.directly(func(conn *client.Client) (err error) {
		all, err = readLedger(b.ctx, conn)
		must(err)
		return nil
	})
	return all
}

// release delivers the messages that are held.
func (b *bed) release() {
	if _, err := b.proxy.Release(b.ctx); err != nil {
		must(fmt.Errorf("a held message: %w", err))
	}
}

// audit delivers the messages that are still held, and compares the books with the ledger.
func (b *bed) audit() {
	b.release()
	must(b.books.compare(b.ledger()))
}

// set sets an entity, as another program.
func (b *bed) set(key string) {
	b.sets++
	b.directly(func(conn *client.Client) error {
		_, err := conn.Write(b.ctx, &seqledgerv1.WriteRequest{
			Scope: scope(), ClientId: "another-program", Sequence: b.sets,
			Operations: []*seqledgerv1.Operation{op.Set(key, []byte("there"))},
		})
		return err
	})
}

// stream returns the state of the client's stream.
func (b *bed) stream() (state *seqledgerv1.ClientState) {
	b.directly(func(conn *client.Client) (err error) {
		state, err = conn.GetClientState(b.ctx, &seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: clientID})
		return err
	})
	return state
}

// sleep waits, unless the case ends first.
func (b *bed) sleep(wait time.Duration) {
	if !child.Pause(b.ctx, wait) {
		must(context.Cause(b.ctx))
	}
}
