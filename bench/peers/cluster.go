package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// clusterSize is how many servers a cluster has here: the fewest that go on when one is lost.
const clusterSize = 3

// cluster is a system of servers that are a process each and share this machine's processors and disk.
type cluster struct {
	members []*child
	// first starts the members for the first time, with nothing in their directories.
	first func(ctx context.Context) error
	// ready waits until all members vote and one leads.
	ready func(ctx context.Context) error
}

func (c *cluster) start(ctx context.Context, dir string) error {
	for i := range clusterSize {
		c.members = append(c.members, &child{dir: filepath.Join(dir, fmt.Sprint("member", i+1))})
	}
	if err := c.first(ctx); err != nil {
		return err
	}
	return c.ready(ctx)
}

// launch starts all members concurrently: none of them answers before a majority is up.
func (c *cluster) launch(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range c.members {
		g.Go(func() error { return m.launch(ctx) })
	}
	return g.Wait()
}

func (c *cluster) restart(ctx context.Context) error {
	if err := c.stop(); err != nil {
		return err
	}
	if err := c.launch(ctx); err != nil {
		return err
	}
	return c.ready(ctx)
}

func (c *cluster) processes() (pids []int) {
	for _, m := range c.members {
		pids = append(pids, m.processes()...)
	}
	return pids
}

// stop ends all members at once: the last ones would wait for the others.
func (c *cluster) stop() error {
	var g errgroup.Group
	for _, m := range c.members {
		g.Go(m.stop)
	}
	return g.Wait()
}

// addresses are those for clients.
func (c *cluster) addresses() (list []string) {
	for _, m := range c.members {
		list = append(list, m.address)
	}
	return list
}

// wireCluster is seqledger serve, as users start it, three times.
type wireCluster struct{ cluster }

func newWireCluster() system {
	w := new(wireCluster)
	w.first, w.ready = w.firstStart, w.allVote
	return w
}

// firstStart builds the program, starts a node that makes the ledger, and then the others, which join it.
func (w *wireCluster) firstStart(ctx context.Context) error {
	dir := filepath.Dir(w.members[0].dir)
	binary := filepath.Join(dir, "seqledger")
	if err := process.Build(ctx, binary); err != nil {
		return err
	}
	var join []string
	for _, m := range w.members {
		peer, err := freeport.Address()
		if err != nil {
			return err
		}
		if m.address, err = freeport.Address(); err != nil {
			return err
		}
		arguments := append([]string{"serve", "--data", m.dir, "--listen", m.address, "--peer-listen", peer,
			"--no-console"}, join...)
		m.launch = func(ctx context.Context) (err error) {
			m.process, _, err = process.LaunchServer(ctx, exec.Command(binary, arguments...), m.dir+".log")
			if err == nil {
				m.process.Signal = syscall.SIGTERM
			}
			return err
		}
		if err := m.launch(ctx); err != nil {
			return err
		}
		if join == nil {
			join = []string{"--join", peer, "--join-token-file", filepath.Join(m.dir, "JOIN-TOKEN")}
		}
	}
	return nil
}

// allVote waits until all nodes vote.
func (w *wireCluster) allVote(ctx context.Context) error {
	_, err := w.leader(ctx)
	return err
}

// leader returns the address of the node that leads, as soon as all nodes vote.
func (w *wireCluster) leader(ctx context.Context) (address string, err error) {
	ctx, cancel := context.WithTimeout(ctx, process.StartsWithin)
	defer cancel()
	c, err := client.New(client.Options{Server: strings.Join(w.addresses(), ",")})
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // It has only read.
	for {
		s, err := admin.GetCluster(ctx, c)
		if err != nil {
			return "", err
		}
		voters := 0
		for _, m := range s.GetMembers() {
			if m.GetVoter() {
				voters++
			}
			if m.GetId() == s.GetLeader() {
				address = m.GetClientAddress()
			}
		}
		if voters == clusterSize && s.GetSelf() == s.GetLeader() && address != "" {
			return address, nil
		}
		load.Pause(ctx, 20*time.Millisecond)
	}
}

func (w *wireCluster) connect(ctx context.Context, _ placement) (conn, error) {
	leader, err := w.leader(ctx)
	if err != nil {
		return nil, err
	}
	return connectStream(ctx, strings.Join(w.addresses(), ","), leader)
}

// etcdCluster is three members of etcd.
type etcdCluster struct{ cluster }

func newEtcdCluster() system {
	e := new(etcdCluster)
	e.first = e.firstStart
	e.ready = func(context.Context) error { return nil } // a member says where it listens when there is a leader
	return e
}

func (e *etcdCluster) firstStart(ctx context.Context) error {
	var peers []string
	for range e.members {
		peer, err := freeport.Address()
		if err != nil {
			return err
		}
		peers = append(peers, peer)
	}
	for i, m := range e.members {
		if err := os.Mkdir(m.dir, 0o700); err != nil {
			return err
		}
		// Its own address first.
		list := append([]string{peers[i]}, append(peers[:i:i], peers[i+1:]...)...)
		m.launch = func(ctx context.Context) error { return m.self(ctx, "etcd", "-members", strings.Join(list, ",")) }
	}
	return e.launch(ctx)
}

func (e *etcdCluster) connect(ctx context.Context, at placement) (conn, error) {
	return connectEtcd(ctx, e.addresses(), at)
}
