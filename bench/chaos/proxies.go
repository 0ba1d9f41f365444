package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
)

// proxies is a network of this machine's own addresses, with a proxy before each node. Two nodes share a stream that
// one of them has dialled, so that a link knows who is at either end of a connection: a cut of one node alone would
// leave the streams that it has dialled itself.
type proxies struct {
	mu      sync.Mutex
	changed sync.Cond
	links   []*link
	cut     map[*node]bool // nothing gets to it, and nothing from it
	deaf    map[*node]bool // nothing gets to it for now: it waits on the way
	conns   map[net.Conn]ends
	closed  bool
}

// ends are the nodes that a connection is between.
type ends struct{ from, to *node }

func newProxies() *proxies {
	w := &proxies{cut: map[*node]bool{}, deaf: map[*node]bool{}, conns: map[net.Conn]ends{}}
	w.changed.L = &w.mu
	return w
}

// keep takes in one side of a connection, unless there is a cut between its ends.
func (w *proxies) keep(c net.Conn, e ends) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.cut[e.from] || w.cut[e.to] {
		return false
	}
	w.conns[c] = e
	return true
}

func (w *proxies) drop(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
	_ = c.Close() // it may be closed already
}

// add puts a proxy before a node.
func (w *proxies) add(_ context.Context, d *node) (err error) {
	for _, address := range []*string{&d.client, &d.peer} {
		if *address, err = freeport.Address(); err != nil {
			return err
		}
	}
	l, err := newLink(w, d.peer, d, w.dialler)
	if err != nil {
		return err
	}
	d.name = l.address()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links = append(w.links, l)
	return nil
}

func (w *proxies) command(_ *node, binary string, arguments []string) *exec.Cmd {
	return exec.Command(binary, arguments...)
}

// faults are those of every network.
func (w *proxies) faults() []fault { return nil }

// setCut ends all connections of a node, in both directions, and takes no new ones, or takes them again.
func (w *proxies) setCut(_ context.Context, d *node, cut bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[d] = cut
	for c, e := range w.conns {
		if cut && (e.from == d || e.to == d) {
			_ = c.Close() // it may be closed already
		}
	}
	return nil
}

// setDeaf keeps what the others send to a node, while what it sends gets through, or lets it go on.
func (w *proxies) setDeaf(_ context.Context, d *node, deaf bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf[d] = deaf
	w.changed.Broadcast()
	return nil
}

// carry copies from one side of a connection to the other, whose node may be deaf.
func (w *proxies) carry(to, from net.Conn, receiver *node) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		for w.deaf[receiver] && !w.closed {
			w.changed.Wait()
		}
		w.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// close ends everything.
func (w *proxies) close([]*node) error {
	w.end()
	for _, l := range w.links {
		l.close()
	}
	return nil
}

// end ends what is carried.
func (w *proxies) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for c := range w.conns {
		_ = c.Close() // it may be closed already
	}
	w.changed.Broadcast()
}

// link carries the connections of other nodes to one.
type link struct {
	w        *proxies
	listener net.Listener
	target   string
	to       *node
	dialler  func(net.Conn) (*node, error) // who has made a connection
	loops    sync.WaitGroup
}

func newLink(w *proxies, target string, to *node, dialler func(net.Conn) (*node, error)) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{w: w, listener: listener, target: target, to: to, dialler: dialler}
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

// carry copies both ways until either side ends, or there is a cut between them.
func (l *link) carry(conn net.Conn) {
	defer l.w.drop(conn)
	from, err := l.dialler(conn)
	if err != nil {
		return // it is gone already; a node that is still there dials again
	}
	e := ends{from, l.to}
	if !l.w.keep(conn, e) {
		return
	}
	to, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer l.w.drop(to)
	if !l.w.keep(to, e) {
		return
	}
	l.loops.Go(func() { // ends with either connection
		l.w.carry(conn, to, from)
		l.w.drop(conn)
	})
	l.w.carry(to, conn, l.to)
}

// close ends the link; what the proxies carry must have ended.
func (l *link) close() {
	_ = l.listener.Close() // what it carries has ended
	l.loops.Wait()
}

// dialler returns the node whose process has made a connection from this machine.
func (w *proxies) dialler(conn net.Conn) (*node, error) {
	ours, its := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	inode, err := socketInode(its.Port, ours.Port)
	if err != nil {
		return nil, err
	}
	// A process that has not announced itself yet dials, too: so all processes are looked at, and known by their
	// data directories.
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err != nil || to != "socket:["+inode+"]" {
			continue
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(l)), "cmdline"))
		if err != nil {
			return nil, err
		}
		arguments := bytes.Split(line, []byte{0})
		for _, d := range w.nodes() {
			for _, a := range arguments {
				if string(a) == d.dir {
					return d, nil
				}
			}
		}
	}
	return nil, errors.New("no node has this connection")
}

func (w *proxies) nodes() (list []*node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		list = append(list, l.to)
	}
	return list
}

// socketInode returns the inode of the TCP socket between two ports of this machine, as Linux numbers them in
// /proc/net/tcp, for the process that has the first one.
func socketInode(local, remote int) (string, error) {
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	const localField, remoteField, inodeField = 1, 2, 9
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > inodeField && portOf(f[localField]) == local && portOf(f[remoteField]) == remote {
			return f[inodeField], nil
		}
	}
	return "", fmt.Errorf("no connection from port %d to port %d", local, remote)
}

// portOf returns the port of an address like 0100007F:1D1A, and -1 of anything else.
func portOf(address string) int {
	_, text, _ := strings.Cut(address, ":")
	port, err := strconv.ParseUint(text, 16, 16)
	if err != nil {
		return -1
	}
	return int(port)
}
