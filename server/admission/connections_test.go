package admission

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// fakeConn is a connection from an address that counts how often it is closed.
type fakeConn struct {
	net.Conn
	remote string
	closed sync.WaitGroup
	once   sync.Once
}

func newFakeConn(remote string) *fakeConn {
	f := &fakeConn{remote: remote}
	f.closed.Add(1)
	return f
}

func (f *fakeConn) RemoteAddr() net.Addr { return fakeAddr(f.remote) }

func (f *fakeConn) Close() error {
	f.once.Do(f.closed.Done)
	return nil
}

type fakeAddr string

func (fakeAddr) Network() string  { return "tcp" }
func (a fakeAddr) String() string { return string(a) }

// open opens n connections from an address.
func openConnections(c *Controller, n int, address string) (all []*conn, inner []*fakeConn) {
	for i := range n {
		f := newFakeConn(fmt.Sprintf("%s:%d", address, i+1))
		inner, all = append(inner, f), append(all, c.connections.enter(f))
	}
	return all, inner
}

// openOne opens a connection from an address.
func openOne(c *Controller, address string) (*conn, *fakeConn) {
	all, inner := openConnections(c, 1, address)
	return all[0], inner[0]
}

// Where there are too many unknown connections, the oldest is closed: of the address if that has too many, or else of
// all. One that has not had its round trip stays, and the newest is closed in its place.
func TestOldestUnknownConnectionIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Connections: 10_000, Shares: true})
		_, first := openConnections(c, unknownOfAddress, "192.0.2.1")
		if more, _ := openOne(c, "192.0.2.1"); more != nil {
			t.Error("all of the address are as new as this one")
		}
		if more, _ := openOne(c, "192.0.2.2"); more == nil {
			t.Error("another address must not be refused")
		}
		<-time.After(roundTrip)
		openConnections(c, 3, "192.0.2.1")
		for _, f := range first[:3] {
			f.closed.Wait()
		}
		mustCount(t, c, Connections, OfAddress, 4)
		<-time.After(roundTrip)
		for i := range 20 {
			openConnections(c, 100, fmt.Sprintf("198.51.100.%d", i))
			<-time.After(roundTrip)
		}
		for _, f := range first {
			f.closed.Wait()
		}
		if all, unknown := c.used[Connections].Used(), c.connections.unknownCount(); all != maxUnknownConnections ||
			unknown != all {
			t.Errorf("%d are open, %d unknown, want %d", all, unknown, maxUnknownConnections)
		}
	})
}

// A known connection is not closed for others, and counts for its party.
func TestKnownConnectionsStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Connections: 4, Shares: true})
		p := partyOf(c, "a", Limits{Connections: 2})
		all, inner := openConnections(c, 4, "192.0.2.1")
		for _, known := range all[:2] {
			for range 2 { // the second request of the same connection counts no more
				if !c.connections.identify(known, p) {
					t.Fatal("the share has room for two")
				}
			}
		}
		if c.connections.identify(all[2], p) {
			t.Error("a third connection of the party")
		}
		<-time.After(roundTrip)
		more, _ := openConnections(c, 2, "192.0.2.1")
		inner[2].closed.Wait()
		inner[3].closed.Wait()
		for _, unknown := range more {
			if !c.connections.identify(unknown, partyOf(c, "b", Limits{Connections: 4})) {
				t.Fatal("another party")
			}
		}
		<-time.After(roundTrip)
		if refused, _ := openOne(c, "192.0.2.9"); refused != nil {
			t.Error("there are four, and all are known")
		}
		mustCount(t, c, Connections, OfServer, 3)
		for range 2 {
			_ = all[0].Close()
		}
		check.Equal(t, p.Share.used[Connections].Used(), 1, "the party has %d connections")
		if last, _ := openOne(c, "192.0.2.9"); last == nil {
			t.Error("a connection that is closed makes room")
		}
	})
}

func mustCount(t *testing.T, c *Controller, b Bound, o Owner, want uint64) {
	t.Helper()
	if got := refusals(c, b, o); got != want {
		t.Errorf("%d refusals of %s of the %s, want %d", got, b, o, want)
	}
}

// A connection that says nothing is closed, one that is known is not.
func TestSilentConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(*testing.T) {
		c := newController(t, Options{Shares: true})
		all, inner := openConnections(c, 3, "192.0.2.1")
		c.connections.identify(all[0], partyOf(c, "a", Limits{}))
		<-time.After(unknownTimeout / 2)
		c.connections.visited(all[1])
		<-time.After(unknownTimeout * 3 / 4)
		inner[2].closed.Wait()
		check.Equal(t, c.used[Connections].Used(), 2,
			"%d are open, want the known one and the one that asked for the health")
		inner[1].closed.Wait()
		<-time.After(time.Hour)
		check.Equal(t, c.used[Connections].Used(), 1, "%d are open, want the known one")
	})
}

// The listener closes excess connections, and closing one twice does not free two places.
func TestListener(t *testing.T) {
	t.Parallel()
	inner := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	c := newController(t, Options{Connections: 1, Shares: true})
	l := c.Listener(inner)
	accepted := make(chan net.Conn)
	// Ends when the listener is closed, which the end of the test waits for.
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn := must.Get(net.Dial("tcp", inner.Addr().String()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	dial()
	first := <-accepted
	ours, ok := ConnContext(t.Context(), first).Value(connKey{}).(*conn)
	if !ok || !c.connections.identify(ours, partyOf(c, "a", Limits{})) {
		t.Fatal("the connection is not found in its context")
	}
	second := dial()
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("a connection beyond the limit must be closed")
	}
	for range 2 {
		_ = first.Close()
	}
	check.Equal(t, c.used[Connections].Used(), 0, "open connections: %v")
	dial()
	_ = (<-accepted).Close()
	must.Do(t, inner.Close())
	for conn := range accepted {
		_ = conn.Close()
	}
	if ConnContext(context.Background(), second).Value(connKey{}) != nil {
		t.Error("a connection of another listener")
	}
}

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[2001:db8:1:2:3::4]:1": "2001:db8:1:2::",
		"[fe80::1%eth0]:1": "fe80::", "": "", "pipe": "", "192.0.2.1": "",
	} {
		if got := parseAddress(text); got != (netip.Addr{}) && got.String() != want || got == (netip.Addr{}) &&
			want != "" {
			t.Errorf("%q: got %v, want %s", text, got, want)
		}
	}
}

// Requests of every kind of connection find it: over HTTP/1.1, over HTTP/2 and over TLS.
func TestConnContextOverEveryProtocol(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		inner := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		c := newController(t, Options{Shares: true})
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!http2)
		protocols.SetUnencryptedHTTP2(http2)
		hs := &http.Server{Protocols: protocols, ConnContext: ConnContext,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if connOf(r) == nil {
					w.WriteHeader(http.StatusTeapot)
				}
			})}
		served := make(chan error, 1)
		go func() { served <- hs.Serve(c.Listener(inner)) }() // ends with Close; received below
		transport := &http.Transport{Protocols: protocols}
		answer := must.Get((&http.Client{Transport: transport}).Get("http://" + inner.Addr().String()))(t)
		_ = answer.Body.Close()
		check.Equal(t, answer.StatusCode, http.StatusOK, "%v requests do not know their connection: got %v", name)
		transport.CloseIdleConnections()
		_ = hs.Close()
		<-served
	}
}
