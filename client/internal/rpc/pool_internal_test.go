package rpc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// piped returns a pool whose connections answer every request with handle, in a bubble.
func piped(handle func(r *http.Request) string) *pool {
	dial := func(context.Context, string, string) (net.Conn, error) {
		near, far := net.Pipe()
		// Ends with the connection, which the pool closes.
		go func() {
			defer func() { _ = far.Close() }()
			reader := bufio.NewReader(far)
			for {
				r, err := http.ReadRequest(reader)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				if _, err := io.WriteString(far, handle(r)); err != nil {
					return
				}
			}
		}()
		return near, nil
	}
	return newPool(dial, "server:1", nil)
}

const noContent = "HTTP/1.1 204 No Content\r\n\r\n"

// getOnce makes one call over a pool.
func (p *pool) getOnce(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server:1/x", strings.NewReader("x"))
	if err != nil {
		return err
	}
	answer, err := p.RoundTrip(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return errors.Join(err, answer.Body.Close())
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
		p := piped(func(r *http.Request) string {
			if r.Method == http.MethodPost {
				<-hold
			}
			return noContent
		})
		results := make(chan error)
		for range 3 {
			go func() { results <- p.getOnce(t.Context()) }() // ends with its call
		}
		synctest.Wait()
		close(hold)
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
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
		if err := p.getOnce(t.Context()); err != nil {
			t.Error(err)
		}
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
		p := piped(func(r *http.Request) string {
			if r.Method == http.MethodPost && calls.Add(1) == 1 {
				<-never
			}
			return noContent
		})
		began := time.Now()
		if err := p.getOnce(t.Context()); err == nil {
			t.Error("want an error")
		}
		if waited := time.Since(began); waited != answerTimeout {
			t.Errorf("the connection was closed after %v", waited)
		}
		if err := p.getOnce(t.Context()); err != nil || p.idleCount() != 1 || len(p.places) != 0 {
			t.Errorf("the next call: %v, with %d connections kept and %d places taken", err, p.idleCount(),
				len(p.places))
		}
		close(never)
		p.close()
	})
}

// TestCallsBeyondTheBound wait for a connection, and end with their context without having sent
// anything.
func TestCallsBeyondTheBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold, sent := make(chan struct{}), 0
		p := piped(func(r *http.Request) string {
			if r.Method == http.MethodPost {
				sent++
				<-hold
			}
			return noContent
		})
		p.places = make(chan struct{}, 1)
		first := make(chan error)
		go func() { first <- p.getOnce(t.Context()) }() // ends with its call
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.getOnce(ctx); !errors.Is(err, context.DeadlineExceeded) || sent != 1 {
			t.Errorf("want the end of the context and one call sent, got %v, %d", err, sent)
		}
		close(hold)
		if err := <-first; err != nil {
			t.Error(err)
		}
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

// plainHead begins an answer of a seqledger server to a write.
const plainHead = "HTTP/1.1 200 OK\r\nAccept-Encoding: gzip\r\nCache-Control: no-store\r\n" +
	"Content-Type: application/proto\r\nX-Request-Id: 00f1\r\nDate: Sun, 22 Nov 2026 20:00:00 GMT\r\n"

// The usual answer is read from the connection's buffer. One that is read in another way, or after which the
// connection cannot be used, is left to net/http.
func TestPlainAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer, body string // no body: it is not a plain answer
	}{
		"usual":             {plainHead + "Content-Length: 4\r\n\r\nbody", "body"},
		"more behind it":    {plainHead + "Content-Length: 4\r\n\r\nbodyHTTP/1.1 500", "body"},
		"other letters":     {plainHead + "content-length:4\r\n\r\nbody", "body"},
		"incomplete body":   {plainHead + "Content-Length: 4\r\n\r\nbod", ""},
		"incomplete header": {plainHead + "Content-Length: 4\r\n", ""},
		"no length":         {plainHead + "\r\nbody", ""},
		"empty":             {plainHead + "Content-Length: 0\r\n\r\n", ""},
		"two lengths":       {plainHead + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nbody", ""},
		"two types":         {plainHead + "Content-Type: text/html\r\nContent-Length: 4\r\n\r\nbody", ""},
		"signed length":     {plainHead + "Content-Length: +4\r\n\r\nbody", ""},
		"long length":       {plainHead + "Content-Length: 0000004\r\n\r\nbody", ""},
		"compressed":        {plainHead + "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nbody", ""},
		"in chunks":         {plainHead + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\nbody", ""},
		"the last":          {plainHead + "connection: close\r\nContent-Length: 4\r\n\r\nbody", ""},
		"folded":            {plainHead + "A: b\r\n c: d\r\nContent-Length: 4\r\n\r\nbody", ""},
		"no field":          {plainHead + "A\r\nContent-Length: 4\r\n\r\nbody", ""},
		"lines of LF":       {plainHead + "Content-Length: 4\n\nbody", ""},
		"no type":           {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", ""},
		"another type":      {"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\nbody", ""},
		"another status": {"HTTP/1.1 201 OK\r\nContent-Type: application/proto\r\nContent-Length: 4\r\n\r\nbody",
			""},
		"another protocol": {"HTTP/1.0 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 4\r\n\r\nbody",
			""},
		"informational":      {"HTTP/1.1 100 Continue\r\n\r\n" + plainHead + "Content-Length: 4\r\n\r\nbody", ""},
		"something unusual":  {plainHead + "A: \x80\r\nContent-Length: 4\r\n\r\nbody", ""},
		"nothing":            {"", ""},
		"not even a newline": {"HTTP/1.1 200 ", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, size := plainAnswer([]byte(test.answer))
			if string(body) != test.body || (size == 0) != (test.body == "") {
				t.Errorf("got %q of %d bytes, want %q", body, size, test.body)
			}
		})
	}
}

// FuzzPlainAnswer compares with net/http, which reads what plainAnswer does not.
func FuzzPlainAnswer(f *testing.F) {
	f.Add([]byte(plainHead + "Content-Length: 4\r\n\r\nbody and more"))
	f.Add([]byte("HTTP/1.1 200 \r\ncontent-type:application/proto\r\nA:\r\nContent-Length: 004 \r\n\r\nbody"))
	f.Add([]byte(plainHead + "Upgrade: x\r\nTrailer: y\r\nKeep-Alive: timeout=5\r\nContent-Length: 1\r\n\r\nb"))
	f.Fuzz(func(t *testing.T, data []byte) {
		body, size := plainAnswer(data)
		if size == 0 {
			return
		}
		reader := bufio.NewReader(bytes.NewReader(data))
		answer, err := http.ReadResponse(reader, postRequest)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		got, err := io.ReadAll(answer.Body)
		rest, restErr := io.ReadAll(reader)
		if err := errors.Join(err, restErr); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if answer.StatusCode != http.StatusOK || answer.Close || answer.ContentLength != int64(len(body)) ||
			len(answer.TransferEncoding) != 0 || len(answer.Trailer) != 0 || !bytes.Equal(got, body) ||
			!bytes.Equal(rest, data[size:]) || answer.Header.Get("Content-Encoding") != "" ||
			!slices.Equal(answer.Header.Values("Content-Type"), []string{"application/proto"}) {
			t.Errorf("%q: net/http reads %+v %q, then %q", data, answer, got, rest)
		}
	})
}
