package chaos

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
)

// echoServer answers each connection with what it gets.
func echoServer(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String()
}

// testLink makes a link to an echo server, whose connections all come from one node.
func testLink(t *testing.T) (w *proxies, l *link, from, to *node) {
	t.Helper()
	w, from, to = newProxies(), new(node), new(node)
	l, err := newLink(w, echoServer(t), to, func(net.Conn) (*node, error) { return from, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.end()
		l.close()
	})
	return w, l, from, to
}

// dialLink makes a connection through a link, and checks that it carries both ways.
func dialLink(t *testing.T, l *link) (net.Conn, error) {
	t.Helper()
	conn, err := net.Dial("tcp", l.address())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, talk(conn)
}

func talk(conn net.Conn) error {
	b := make([]byte, 2)
	_, err := conn.Write([]byte("hi"))
	if err == nil {
		_, err = io.ReadFull(conn, b)
	}
	if err == nil && string(b) != "hi" {
		err = fmt.Errorf("it carried %q", b)
	}
	return err
}

// A cut at either end ends what a link carries, and it carries again afterwards. A cut elsewhere does nothing.
func TestCut(t *testing.T) {
	t.Parallel()
	w, l, from, to := testLink(t)
	for name, end := range map[string]*node{"the node that dials": from, "the node that is dialled": to} {
		open, err := dialLink(t, l)
		if err != nil {
			t.Fatal(err)
		}
		mustSet(t, w.setCut, new(node), true)
		if err := talk(open); err != nil {
			t.Errorf("a cut elsewhere: %v", err)
		}
		mustSet(t, w.setCut, end, true)
		if _, err := open.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s is cut off, and a connection lives on", name)
		}
		if _, err := dialLink(t, l); err == nil {
			t.Errorf("%s is cut off, and a new connection carries", name)
		}
		mustSet(t, w.setCut, end, false)
		if _, err := dialLink(t, l); err != nil {
			t.Error(err)
		}
	}
}

// What is sent to a deaf node waits and comes when it hears again; what it sends arrives.
func TestDeaf(t *testing.T) {
	t.Parallel()
	for name, toIt := range map[string]bool{"to a deaf node": true, "from a deaf node": false} {
		synctest.Test(t, func(t *testing.T) {
			w, d, receiver := newProxies(), new(node), new(node)
			if toIt {
				receiver = d
			}
			mustSet(t, w.setDeaf, d, true)
			in, source := net.Pipe()
			sink, out := net.Pipe()
			go w.carry(sink, in, receiver) // ends with the pipes
			go func() {                    // ends when it is carried
				_, _ = source.Write([]byte("hi"))
			}()
			var got string
			go func() { // ends with the first two bytes
				b := make([]byte, 2)
				_, _ = io.ReadFull(out, b)
				got = string(b)
			}()
			synctest.Wait()
			if arrived := got == "hi"; arrived == toIt {
				t.Errorf("%s: %q arrives", name, got)
			}
			mustSet(t, w.setDeaf, d, false)
			synctest.Wait()
			if got != "hi" {
				t.Errorf("%s: %q arrives afterwards", name, got)
			}
			_, _ = source.Close(), out.Close()
		})
	}
}

func mustSet(t *testing.T, set func(context.Context, *node, bool) error, d *node, parted bool) {
	t.Helper()
	if err := set(t.Context(), d, parted); err != nil {
		t.Fatal(err)
	}
}
