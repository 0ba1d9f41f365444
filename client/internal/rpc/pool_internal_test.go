package rpc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

const noContent = "HTTP/1.1 204 No Content\r\n\r\n"

// call is post without an answer.
func (p *pool) call(ctx context.Context) error {
	_, err := p.post(ctx, "x")
	return err
}

// idleCount returns how many connections wait for a call.
func (p *pool) idleCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

// TestIdleConnections are kept for their time and then closed, the oldest first, also when
// no call comes any more.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		p := (&peer{answer: noContent, before: func() { <-hold }}).pool(t)
		results := make(chan error)
		for range 3 {
			go func() { results <- p.call(t.Context()) }() // ends with its call
		}
		synctest.Wait()
		close(hold)
		for range 3 {
			must.Do(t, <-results)
		}
		wait := func(d time.Duration, want int) {
			t.Helper()
			//nolint:forbidigo // In a synctest bubble this moves the clock and waits for nothing.
			time.Sleep(d)
			synctest.Wait()
			if n := p.idleCount(); n != want {
				t.Errorf("want %d connections kept, got %d", want, n)
			}
		}
		wait(idleConnTimeout-time.Second, 3)
		must.Do(t, p.call(t.Context()))
		wait(time.Second, 1)
		wait(idleConnTimeout-2*time.Second, 1)
		wait(time.Second, 0)
		if p.sweep != nil {
			t.Error("a timer is left")
		}
		p.close()
	})
}

// TestAPeerThatFallsSilent: a connection whose peer falls silent during a call is closed, and
// the call repeated on another one, because HTTP/1.1 has no pings.
func TestAPeerThatFallsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		var calls atomic.Int32
		p := (&peer{answer: noContent, before: func() {
			if calls.Add(1) == 1 {
				<-never
			}
		}}).pool(t)
		began := time.Now()
		if err := p.call(t.Context()); err == nil {
			t.Error("want an error")
		}
		check.Equal(t, time.Since(began), answerTimeout, "the connection was closed after %v")
		if err := p.call(t.Context()); err != nil || p.idleCount() != 1 || len(p.places) != 0 {
			t.Errorf("the next call: %v, with %d connections kept and %d places taken", err, p.idleCount(),
				len(p.places))
		}
		close(never)
		p.close()
	})
}

// TestACallEndsWithItsContextInItsBody: the end of a context between the head of an answer and its body is not lost
// when the body gets its own time.
func TestACallEndsWithItsContextInItsBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &peer{answer: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"}
		p := s.pool(t)
		ctx, cancel := context.WithCancel(t.Context())
		p.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := s.dial(ctx, network, address)
			return &endingAtHead{Conn: conn, cancel: cancel, interrupted: make(chan struct{})}, err
		}
		began := time.Now()
		_, err := p.post(ctx, "x")
		if waited := time.Since(began); err == nil || waited != 0 || len(p.places) != 0 || p.idleCount() != 0 {
			t.Errorf("after %v: %v, %d places taken, %d connections kept", waited, err, len(p.places), p.idleCount())
		}
	})
}

// endingAtHead is a connection whose second read, of the head of a call's answer, ends the call's context and waits
// until that has interrupted the connection.
type endingAtHead struct {
	net.Conn

	cancel      func()
	interrupted chan struct{}
	reads       int
}

func (c *endingAtHead) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.reads++; c.reads == 2 {
		c.cancel()
		<-c.interrupted
	}
	return n, err
}

func (c *endingAtHead) SetDeadline(at time.Time) error {
	err := c.Conn.SetDeadline(at)
	select {
	case <-c.interrupted:
	default:
		close(c.interrupted)
	}
	return err
}

// TestCallsBeyondTheBound wait for a connection, and end with their context without having sent
// anything.
func TestCallsBeyondTheBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold, sent := make(chan struct{}), 0
		p := (&peer{answer: noContent, before: func() { sent++; <-hold }}).pool(t)
		p.places = make(chan struct{}, 1)
		first := make(chan error)
		go func() { first <- p.call(t.Context()) }() // ends with its call
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.call(ctx); !errors.Is(err, context.DeadlineExceeded) || sent != 1 {
			t.Errorf("want the end of the context and one call sent, got %v, %d", err, sent)
		}
		close(hold)
		must.Do(t, <-first)
		p.close()
	})
}

// TestViaProxy: the environment's proxy is net/http's to talk to. It is read once for a
// process, so the test asks what there is.
func TestViaProxy(t *testing.T) {
	t.Parallel()
	base := &url.URL{Scheme: "https", Host: "ledger.example"}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: base})
	if got := viaProxy(base); got != (proxy != nil || err != nil) {
		t.Errorf("via a proxy: %v, and the environment says %v, %v", got, proxy, err)
	}
	if viaProxy(&url.URL{Scheme: "http", Host: "127.0.0.1:7450"}) {
		t.Error("a server on this machine is asked through a proxy")
	}
}
