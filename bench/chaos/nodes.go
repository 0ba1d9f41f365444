package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/seqledger/seqledger/bench/harness"
)

// node is one process of the cluster, and the way to it for the others.
type node struct {
	number             int // from 1; its id may become another one when it joins anew
	dir, log           string
	client, peer, name string // addresses; name is that of link
	link               *link
	process            *harness.Process // nil while it is down
}

// cluster is the processes.
type cluster struct {
	binary string
	nodes  []*node
}

// startCluster starts n nodes below a directory.
func startCluster(ctx context.Context, binary, dir string, n int) (*cluster, error) {
	c := &cluster{binary: binary}
	for i := 1; i <= n; i++ {
		d := &node{
			number: i, dir: filepath.Join(dir, fmt.Sprint("node", i)),
			log: filepath.Join(dir, fmt.Sprint("node", i, ".log")),
		}
		for _, address := range []*string{&d.client, &d.peer} {
			var err error
			if *address, err = harness.FreeAddress(); err != nil {
				return c, err
			}
		}
		var err error
		if d.link, err = newLink(d.peer); err != nil {
			return c, err
		}
		d.name = d.link.address()
		c.nodes = append(c.nodes, d)
		if err := c.start(ctx, d); err != nil {
			return c, err
		}
	}
	return c, nil
}

// start starts a node. One without a directory joins the others.
func (c *cluster) start(ctx context.Context, d *node) (err error) {
	arguments := []string{
		"serve", "--data", d.dir, "--listen", d.client, "--peer-listen", d.peer, "--peer-advertise", d.name,
		"--no-console",
	}
	for _, other := range c.nodes {
		if other != d {
			arguments = append(arguments, "--join", other.name)
		}
	}
	if _, err := os.Stat(d.dir); d.number == 1 && errors.Is(err, os.ErrNotExist) {
		arguments = arguments[:len(arguments)-2*(len(c.nodes)-1)] // the first makes the ledger
	}
	command := exec.Command(c.binary, arguments...)
	if d.process, _, err = harness.LaunchServer(ctx, command, d.log); err == nil {
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

// kill ends a node at once.
func (d *node) kill() error {
	if d.process == nil {
		return nil
	}
	err := d.process.Kill()
	d.process = nil
	return err
}

// stop ends a node in an orderly way.
func (d *node) stop() error {
	if d.process == nil {
		return nil
	}
	err := d.process.Stop()
	d.process = nil
	return err
}

// close ends all processes.
func (c *cluster) close() error {
	var errs []error
	for _, d := range c.nodes {
		errs = append(errs, d.kill())
		d.link.close()
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

// link carries the connections of other nodes to one, and can be cut.
type link struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
	loops sync.WaitGroup
}

func newLink(target string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, target: target, conns: map[net.Conn]bool{}}
	l.loops.Go(l.accept) // ends when the listener is closed; joined by close
	return l, nil
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.loops.Go(func() { l.carry(conn) }) // ends with the connection, at the latest in close
	}
}

// carry copies both ways until either side ends, or the link is cut.
func (l *link) carry(from net.Conn) {
	defer l.drop(from)
	if !l.keep(from) {
		return
	}
	to, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer l.drop(to)
	if !l.keep(to) {
		return
	}
	l.loops.Go(func() { // ends with either connection
		_, _ = io.Copy(from, to) // that it has ended is all there is to know
		l.drop(from)
	})
	_, _ = io.Copy(to, from) // the same
}

func (l *link) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.cut {
		l.conns[c] = true
	}
	return !l.cut
}

func (l *link) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	_ = c.Close() // it may be closed already
}

// setCut ends all connections and takes no new ones, or takes them again.
func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for c := range l.conns {
			_ = c.Close() // it may be closed already
		}
	}
}

func (l *link) close() {
	_ = l.listener.Close() // what it carries ends below
	l.setCut(true)
	l.loops.Wait()
}
