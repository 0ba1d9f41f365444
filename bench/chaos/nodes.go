package chaos

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// node is one process of the cluster, and the way to it for the others.
type node struct {
	number       int // from 1; its id may become another one when it joins anew
	dir, log     string
	client, peer string           // addresses
	process      *process.Process // nil while it is down
}

// cluster is the processes, and what is between them.
type cluster struct {
	binary  string
	token   string // a file with the join token
	nodes   []*node
	network *namespaces // nil where there can be none
	made    bool        // the ledger: the first node that is started makes it, and none afterwards
	disks   bool        // each node has a disk for itself
}

// startCluster starts n nodes in directories below one, which are the disks' mounts if there are disks.
func startCluster(ctx context.Context, binary, dir string, disks bool, w *namespaces, n int) (*cluster, error) {
	c := &cluster{binary: binary, network: w, disks: disks, token: filepath.Join(dir, "join-token")}
	if err := os.WriteFile(c.token, []byte(rand.Text()), 0o600); err != nil {
		return c, err
	}
	for i := 1; i <= n; i++ {
		d := &node{
			number: i, dir: filepath.Join(diskOf(dir, i), "data"),
			log: filepath.Join(dir, fmt.Sprint("node", i, ".log")),
		}
		c.nodes = append(c.nodes, d)
		var errClient, errPeer error
		if w == nil {
			d.client, errClient = freeport.Address()
			d.peer, errPeer = freeport.Address()
		} else {
			errClient = w.add(ctx, d)
		}
		if err := errors.Join(errClient, errPeer, os.MkdirAll(filepath.Dir(d.dir), 0o755)); err != nil {
			return c, err
		}
	}
	for _, d := range c.nodes {
		if err := c.start(ctx, d); err != nil {
			return c, err
		}
		c.made = true
	}
	return c, c.awaitVoters(ctx)
}

// start starts a node as a process of this machine. One without a directory joins the others.
func (c *cluster) start(ctx context.Context, d *node) (err error) {
	var others []string
	for _, other := range c.nodes {
		if other != d && c.made {
			others = append(others, other.peer)
		}
	}
	command := harness.ServeCommand(c.binary, d.dir, d.client, d.peer, c.token, others...)
	if c.network != nil {
		command = c.network.command(d, command)
	}
	if d.process, _, err = process.LaunchServer(ctx, command, d.log); err == nil {
		d.process.Signal = syscall.SIGTERM
	}
	return err
}

// signal sends a signal to a node that runs.
func (d *node) signal(s syscall.Signal) error {
	if d.process == nil {
		return nil
	}
	return syscall.Kill(d.process.Pid, s)
}

// kill ends a node at once, and stop in an orderly way.
func (d *node) kill() error { return d.end((*process.Process).Kill) }

func (d *node) stop() error { return d.end((*process.Process).Stop) }

func (d *node) end(how func(*process.Process) error) error {
	if d.process == nil {
		return nil
	}
	ended := d.process
	d.process = nil
	return how(ended)
}

// close ends all processes.
func (c *cluster) close() error {
	var errs []error
	for _, d := range c.nodes {
		errs = append(errs, d.kill())
	}
	if c.network != nil {
		errs = append(errs, c.network.close(c.nodes))
	}
	return errors.Join(errs...)
}

// servers is the addresses for clients, for a --server flag.
func (c *cluster) servers() string {
	var list []string
	for _, d := range c.nodes {
		list = append(list, d.client)
	}
	return strings.Join(list, ",")
}
