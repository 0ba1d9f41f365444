package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/demo"
)

type demoCommand struct {
	Duration time.Duration `help:"How long faults and kills go on, at least; 1s or more." default:"10s" env:"-"`
	Clients  int           `help:"How many clients each side has." default:"4" env:"-"`
	Seed     uint64        `help:"Selects the faults, the kills and the amounts; 0 picks a new seed." default:"0" env:"-"`
	Keep     bool          `help:"Keep the directory with the ledgers, journals and logs, and say where it is." env:"-"`
}

func (*demoCommand) Help() string {
	return `Everything runs on this machine, in a temporary directory, as processes of its own: two servers, and clients
that make numbered payments through a proxy in front of each. Servers and clients are killed with SIGKILL now
and then and started again. At the end the clients settle what is open, the servers are restarted, and every
transaction is read and compared with the payment logs that the clients have kept in files of their own.

Of 50 requests the proxy drops 4 before the server sees them, drops the answers of 4 that the server has
executed, delays 4, and sends 4 a second time, up to 60 ms after their answer. A request is a call, or a frame
of a write stream. A dropped one looks like a broken connection: on a stream, that cuts everything behind it.

The two sides differ in the clients alone:

    exactly once   a Writer with a journal: sessions, sequences, keys, and a disk that remembers
    plain retries  what a plain POST with retries does: what was not answered, or not noted before a kill, is
                   sent again as a new write

The server has no switch that turns its protection off, and recognises even the proxy's copies of plain writes.
A server that knows nothing of duplicates would book those, too.

Retried counts payments that clients sent again; replayed counts answers with which the ledger repeated an
earlier receipt rather than execute a write again. The seed repeats the choices, not the speed of the machine.
Exit code 1 says that a payment was booked twice, lost or made up on the side "exactly once".

    seqledger demo
    seqledger demo --duration 1m --clients 8
    seqledger demo --seed 42 --json
    seqledger demo --keep`
}

func (c *demoCommand) Run(e *environment) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	for c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	if c.Duration <= 0 || c.Clients <= 0 {
		return usage("--duration and --clients must be more than 0")
	}
	live := newDemoProgress(e, c.Seed, c.Duration)
	options := demo.Options{
		Program: program, Duration: c.Duration, Clients: c.Clients, Seed: c.Seed, Keep: c.Keep, Progress: live.show,
	}
	if err := options.Validate(); err != nil {
		return usage("%w", err)
	}
	live.begin()
	report, err := demo.Run(e.ctx, options)
	live.end()
	if err != nil {
		return err
	}
	if e.json {
		err = e.showObject(report)
	} else {
		err = showDemo(e, report)
	}
	return errors.Join(err, judgeDemo(report))
}

// judgeDemo returns an error if the protected side has a wrong payment. Errors of plain retries
// are expected.
func judgeDemo(r *demo.Report) error {
	if r.Protected.Correct() {
		return nil
	}
	hint := fmt.Sprintf("this must not happen: run it again with --keep --seed %d, and report it with the directory",
		r.Seed)
	return fail(exitFailed, hint, "%d payments were booked twice, %d lost, %d made up",
		r.Protected.Duplicates, r.Protected.Lost, r.Protected.Extra)
}

type demoClientCommand struct {
	Server string `required:"" help:"Address of the proxy." env:"-"`
	Dir    string `required:"" help:"Directory of the payment log and the journal." env:"-"`
	Name   string `required:"" help:"Client id." env:"-"`
	Seed   uint64 `required:"" help:"Decides the amounts." env:"-"`
	Plain  bool   `help:"Send again what was not answered, as a new write." env:"-"`
}

func (c *demoClientCommand) Run(e *environment) error {
	stop := make(chan struct{})
	// Ends with standard input, or with the process.
	go func() {
		defer close(stop)
		_, _ = io.Copy(io.Discard, e.stdin)
	}()
	return demo.Pay(e.ctx, stop,
		demo.PayerOptions{Server: c.Server, Dir: c.Dir, Name: c.Name, Seed: c.Seed, Plain: c.Plain})
}
