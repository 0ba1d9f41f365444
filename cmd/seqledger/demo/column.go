package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// column is one side of the demo: a server, a proxy, clients, and the loop that kills them.
type column struct {
	name    string
	plain   bool
	options *Options
	dir     string
	tally   *tally
	deck    *deck

	address string // of all processes of the server
	server  *child
	proxy   *proxy
	clients []*child
	// failed holds one reason why the demo cannot continue.
	failed chan error
}

func newColumn(o *Options, dir, name string, plain bool) *column {
	return &column{
		name: name, plain: plain, options: o, dir: filepath.Join(dir, name),
		// The same seed on both sides: request n of each meets the same fault.
		tally: newTally(), deck: newDeck(o.Seed), failed: make(chan error, 1),
	}
}

// run runs the column. No process is left when it returns.
func (c *column) run(ctx context.Context) (_ *Column, err error) {
	defer c.close()
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%s: %w", c.name, err)
		}
	}()
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	if err := c.torment(ctx); err != nil {
		return nil, err
	}
	if err := c.finish(ctx); err != nil {
		return nil, err
	}
	return c.audit(ctx)
}

// start starts everything.
func (c *column) start(ctx context.Context) error {
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return err
	}
	c.address = "127.0.0.1:0"
	if err := c.serve(ctx); err != nil {
		return err
	}
	var err error
	if c.proxy, err = startProxy(c.address, c.deck, c.tally); err != nil {
		return err
	}
	c.clients = make([]*child, c.options.Clients)
	for i := range c.clients {
		if err := os.Mkdir(c.clientDir(i), 0o700); err != nil {
			return err
		}
		if err := c.pay(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// serve starts the server, always on the same port.
func (c *column) serve(ctx context.Context) (err error) {
	args := []string{"serve", "--json", "--log-level", "warn", "--listen", c.address,
		"--data", filepath.Join(c.dir, "data")}
	c.server, err = c.spawn(ctx, "server", args, readAddress(&c.address))
	return err
}

// pay starts a client.
func (c *column) pay(ctx context.Context, i int) (err error) {
	args := []string{PayCommand, "--server", c.proxy.address, "--dir", c.clientDir(i), "--name", clientName(i),
		"--seed", strconv.FormatUint(c.options.Seed+uint64(i), 10)}
	if c.plain {
		args = append(args, "--plain")
	}
	c.clients[i], err = c.spawn(ctx, clientName(i), args, silent)
	return err
}

func clientName(i int) string { return fmt.Sprint("client-", i+1) }

func (c *column) clientDir(i int) string { return filepath.Join(c.dir, clientName(i)) }

// torment is the kill loop: it kills the server and the clients now and then, until the time
// has passed and each kind of fault and kill has happened.
func (c *column) torment(ctx context.Context) error {
	random := rand.New(rand.NewPCG(c.options.Seed, 2))
	began, up := time.Now(), time.NewTimer(c.options.Duration)
	defer up.Stop()
	server := time.NewTimer(c.lifetime(random, serverLives))
	defer server.Stop()
	client := time.NewTimer(c.lifetime(random, clientLives))
	defer client.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-c.failed:
			return err
		case <-up.C:
			// Otherwise a short run on a slow machine might lack a kind of fault.
			if c.tally.complete() || time.Since(began) > c.options.Duration+finishTimeout {
				return nil
			}
			up.Reset(progressEvery)
		case <-server.C:
			c.server.kill()
			c.tally.add(func(n *Counts) { n.ServersKilled++ })
			if err := c.serve(ctx); err != nil {
				return err
			}
			server.Reset(c.lifetime(random, serverLives))
		case <-client.C:
			i := random.IntN(len(c.clients))
			c.clients[i].kill()
			c.tally.add(func(n *Counts) { n.ClientsKilled++ })
			if err := c.pay(ctx, i); err != nil {
				return err
			}
			client.Reset(c.lifetime(random, clientLives))
		}
	}
}

// About how many kills there are in a run of at most the default length. A longer run has the
// same pace.
const (
	serverLives = 5
	clientLives = 25
)

// lifetime returns how long until the next kill, from half to one and a half of
// the mean.
func (c *column) lifetime(random *rand.Rand, lives int64) time.Duration {
	mean := int64(min(c.options.Duration, DefaultDuration)) / lives
	return time.Duration(mean/2 + random.Int64N(mean+1))
}

// finishTimeout bounds how long the clients take to settle open payments after the faults, and
// how long the faults may be extended.
const finishTimeout = 30 * time.Second

// finish ends the faults, waits until the clients have settled their payments, and restarts the
// server in an orderly way.
func (c *column) finish(ctx context.Context) error {
	c.deck.rest()
	patient, cancel := context.WithTimeoutCause(ctx, finishTimeout, errors.New("does not settle its payments"))
	defer cancel()
	for _, client := range c.clients {
		// All at once, because each of them waits.
		client.expected.Store(true)
		_ = client.stdin.Close() // fails when it has ended, which finish finds
	}
	for _, client := range c.clients {
		if err := client.finish(patient); err != nil {
			return err
		}
	}
	// Wait, so that no copy commits after the audit.
	c.proxy.settle()
	if err := c.server.stop(patient); err != nil {
		return err
	}
	return c.serve(ctx)
}

// close ends whatever still runs.
func (c *column) close() {
	for _, client := range c.clients {
		if client != nil {
			client.kill()
		}
	}
	if c.server != nil {
		c.server.kill()
	}
	if c.proxy != nil {
		c.proxy.close()
	}
}
