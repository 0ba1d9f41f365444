package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/child"
)

// side is one side of the demo: a server, a proxy, clients, and the loop that kills them.
type side struct {
	name    string
	plain   bool
	options *Options
	dir     string
	tally   *tally

	address string // of all processes of the server
	server  *child.Child
	proxy   *proxy
	clients []*child.Child
	startup time.Duration // how long the server took to start the last time
	// failed holds one reason why the demo cannot continue.
	failed chan error
}

func newSide(o *Options, dir, name string, plain bool) *side {
	return &side{
		name: name, plain: plain, options: o, dir: filepath.Join(dir, name),
		tally: newTally(), failed: make(chan error, 1),
	}
}

// run runs the side. No process is left when it returns.
func (s *side) run(ctx context.Context) (_ *Side, err error) {
	defer s.close()
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%s: %w", s.name, err)
		}
	}()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	if err := s.killLoop(ctx); err != nil {
		return nil, err
	}
	if err := s.finish(ctx); err != nil {
		return nil, err
	}
	return s.audit(ctx)
}

// start starts everything.
func (s *side) start(ctx context.Context) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	s.address = "127.0.0.1:0"
	if err := s.serve(ctx); err != nil {
		return err
	}
	var err error
	// The same seed on both sides: request n of each meets the same fault.
	if s.proxy, err = startProxy(s.address, s.options.Seed, s.tally); err != nil {
		return err
	}
	s.clients = make([]*child.Child, s.options.Clients)
	for i := range s.clients {
		if err := os.Mkdir(s.clientDir(i), 0o700); err != nil {
			return err
		}
		if err := s.pay(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// spawn starts a process of this program. One that ends without having been told to is reported to
// failed.
func (s *side) spawn(
	ctx context.Context, name string, args []string, started func(io.Reader) error,
) (*child.Child, error) {
	return child.Start(ctx, child.Options{
		Name: name, Command: append([]string{s.options.Program}, args...), Log: filepath.Join(s.dir, name+".log"),
		Started: started, Failed: s.failed,
	})
}

// serve starts the server, always on the same port.
func (s *side) serve(ctx context.Context) (err error) {
	args := []string{"serve", "--json", "--log-level", "warn", "--listen", s.address,
		"--data", filepath.Join(s.dir, "data")}
	began := time.Now()
	s.server, err = s.spawn(ctx, "server", args, child.Address(&s.address))
	s.startup = time.Since(began)
	return err
}

// pay starts a client.
func (s *side) pay(ctx context.Context, i int) (err error) {
	args := []string{PayCommand, "--server", s.proxy.Address, "--dir", s.clientDir(i), "--name", clientName(i),
		"--seed", strconv.FormatUint(s.options.Seed+uint64(i), 10)}
	if s.plain {
		args = append(args, "--plain")
	}
	s.clients[i], err = s.spawn(ctx, clientName(i), args, nil)
	return err
}

func clientName(i int) string { return fmt.Sprint("client-", i+1) }

func (s *side) clientDir(i int) string { return filepath.Join(s.dir, clientName(i)) }

// killLoop kills the server and the clients now and then, until the time
// has passed and each kind of fault and kill has happened.
func (s *side) killLoop(ctx context.Context) error {
	random := rand.New(rand.NewPCG(s.options.Seed, 2))
	began, up := time.Now(), time.NewTimer(s.options.Duration)
	defer up.Stop()
	server := time.NewTimer(s.lifetime(random, serverLives))
	defer server.Stop()
	client := time.NewTimer(s.clientLifetime(random))
	defer client.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-s.failed:
			return err
		case <-up.C:
			// Otherwise a short run on a slow machine might lack a kind of fault.
			if s.tally.complete() || time.Since(began) > s.options.Duration+finishTimeout {
				return nil
			}
			up.Reset(progressEvery)
		case <-server.C:
			s.server.Kill()
			s.tally.add(func(n *Counts) { n.ServersKilled++ })
			if err := s.serve(ctx); err != nil {
				return err
			}
			server.Reset(s.lifetime(random, serverLives))
		case <-client.C:
			i := random.IntN(len(s.clients))
			s.clients[i].Kill()
			s.tally.add(func(n *Counts) { n.ClientsKilled++ })
			if err := s.pay(ctx, i); err != nil {
				return err
			}
			client.Reset(s.clientLifetime(random))
		}
	}
}

// About how many kills there are in a run of at most the default length, where processes start at once. A longer run
// has the same pace.
const (
	serverLives = 5
	clientLives = 25
)

// lifetime returns how long until the next kill, from half to one and a half of
// the mean.
func (s *side) lifetime(random *rand.Rand, lives int64) time.Duration {
	mean := int64(min(s.options.Duration, DefaultDuration)) / lives
	return time.Duration(mean/2 + random.Int64N(mean+1))
}

// clientLifetime is lifetime for a client, whose start is not waited for. On a machine that takes longer to start a
// program than a client is to live, no client would ever pay. A client starts no slower than the server does, and the
// next one to be killed may be any of them.
func (s *side) clientLifetime(random *rand.Rand) time.Duration {
	return 2*s.startup/time.Duration(len(s.clients)) + s.lifetime(random, clientLives)
}

// finishTimeout bounds how long the clients take to settle open payments after the faults, and
// how long the faults may be extended.
const finishTimeout = 30 * time.Second

// finish ends the faults, waits until the clients have settled their payments, and restarts the
// server in an orderly way.
func (s *side) finish(ctx context.Context) error {
	s.proxy.stop()
	patient, cancel := context.WithTimeoutCause(ctx, finishTimeout, errors.New("does not settle its payments"))
	defer cancel()
	for _, client := range s.clients {
		// All at once, because each of them waits.
		client.CloseInput()
	}
	for _, client := range s.clients {
		if err := client.Finish(patient); err != nil {
			return err
		}
	}
	// Wait, so that no copy commits after the audit.
	s.proxy.settle()
	if err := s.server.Stop(patient); err != nil {
		return err
	}
	return s.serve(ctx)
}

// close ends whatever still runs.
func (s *side) close() {
	for _, client := range s.clients {
		if client != nil {
			client.Kill()
		}
	}
	if s.server != nil {
		s.server.Kill()
	}
	if s.proxy != nil {
		s.proxy.close()
	}
}
