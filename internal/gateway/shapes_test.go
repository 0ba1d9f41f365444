package gateway

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// This file tests the forms of HTTP messages through a gateway, with a key and without.

// newRequest returns a request with a key, unless it is empty.
func newRequest(t *testing.T, method, target, key string, body io.Reader) *http.Request {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, target, body))(t)
	if key != "" {
		r.Header.Set(idempotency.HeaderKey, key)
	}
	return r
}

// An upgrade without a key is a tunnel; with a key there would be no response to replay.
func TestUpgradePasses(t *testing.T) {
	t.Parallel()
	var upgraded atomic.Int32
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		upgraded.Add(1)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("you said " + line)
		_ = rw.Flush()
	}))
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		r := newRequest(t, method, base, `"k"`, http.NoBody)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
		if answer, text := exchange(t, r); answer.StatusCode != http.StatusBadRequest || upgraded.Load() != 0 {
			t.Errorf("%s with a key: %d %s", method, answer.StatusCode, text)
		}
	}
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(base, "http://")))(t)
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	reader := bufio.NewReader(conn)
	must.Equal(t, must.Get(http.ReadResponse(reader, nil))(t).StatusCode, http.StatusSwitchingProtocols)
	fmt.Fprint(conn, "hello\n")
	if line, err := reader.ReadString('\n'); line != "you said hello\n" {
		t.Error(line, err)
	}
}

// HEAD and OPTIONS, including CORS preflights, reach the service, even on a route that requires keys.
func TestHeadAndPreflightPass(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://shop.example")
		w.Header().Set("Access-Control-Allow-Headers", "idempotency-key")
		w.Header().Set("X-Method", r.Method)
		w.Header().Set("Content-Length", "5")
		if r.Method == http.MethodOptions {
			w.Header().Del("Content-Length")
			w.WriteHeader(http.StatusNoContent)
		}
	}), func(s *Settings) { s.Required = true })
	for _, method := range []string{http.MethodHead, http.MethodOptions} {
		for _, key := range []string{"", `"k"`} {
			r := newRequest(t, method, base, key, http.NoBody)
			r.Header.Set("Origin", "https://shop.example")
			r.Header.Set("Access-Control-Request-Method", "POST")
			r.Header.Set("Access-Control-Request-Headers", "idempotency-key")
			for range 2 {
				answer, _ := exchange(t, r)
				if answer.Header.Get("X-Method") != method || answer.Header.Get(idempotency.HeaderReplayed) != "" ||
					answer.Header.Get("Access-Control-Allow-Headers") != "idempotency-key" {
					t.Errorf("%s, key %q: %d %v", method, key, answer.StatusCode, answer.Header)
				}
			}
		}
	}
}

// A client that waits for 100 Continue sends its body only if it is wanted.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	var got atomic.Int32
	base, _ := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got.Add(int32(n))
	}), func(s *Settings) { s.Required = true })
	c := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}
	t.Cleanup(c.CloseIdleConnections)
	for _, test := range []struct {
		key    string
		status int
		sent   int64 // by the client
		got    int32 // by the service, in total
	}{{"", 400, 0, 0}, {`"k"`, 200, 4, 4}, {`"k"`, 200, 4, 4}, {`"`, 400, 0, 4}} {
		sent := &countingReader{Reader: strings.NewReader("body")}
		r := newRequest(t, http.MethodPost, base, test.key, sent)
		r.ContentLength = 4
		r.Header.Set("Expect", "100-continue")
		answer := must.Get(c.Do(r))(t)
		text := readAll(t, answer)
		if answer.StatusCode != test.status || sent.n.Load() != test.sent || got.Load() != test.got {
			t.Errorf("key %q: %d %s; the client sent %d bytes, the service got %d", test.key, answer.StatusCode, text,
				sent.n.Load(), got.Load())
		}
	}
}

type countingReader struct {
	io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// A body without a length is the same request as one with a length; without a key it is streamed.
func TestChunkedUploads(t *testing.T) {
	t.Parallel()
	arrived := make(chan string, 1)
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := make([]byte, 3)
		_, _ = io.ReadFull(r.Body, first)
		arrived <- string(first)
		rest, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append(first, rest...))
	}))
	upload, pipe := io.Pipe()
	done := make(chan string)
	go func() { // received below
		_, text := exchange(t, newRequest(t, http.MethodPost, base, "", upload))
		done <- text
	}()
	_, _ = io.WriteString(pipe, "one")
	if first := <-arrived; first != "one" { // before the client has sent the rest
		t.Error(first)
	}
	_, _ = io.WriteString(pipe, "two")
	_ = pipe.Close()
	check.Equal(t, <-done, "onetwo")
	chunked := newRequest(t, http.MethodPost, base, `"k"`, struct{ io.Reader }{strings.NewReader("onetwo")})
	if answer, text := exchange(t, chunked); text != "onetwo" ||
		answer.Header.Get(idempotency.HeaderReplayed) != "false" {
		t.Error(answer.StatusCode, text)
	}
	<-arrived
	if status, header, text := send(t, http.MethodPost, base, `"k"`, "onetwo"); text != "onetwo" ||
		header.Get(idempotency.HeaderReplayed) != "true" {
		t.Error(status, text)
	}
}

// What the service has compressed although it was not asked to is delivered and replayed in clear, whatever the client
// accepts. Without a key it passes unchanged.
func TestCompressedResponses(t *testing.T) {
	t.Parallel()
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	_, _ = io.WriteString(z, "hello")
	_ = z.Close()
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(compressed.Bytes())
	}))
	for _, test := range []struct{ key, accept, replayed, coding, text string }{
		{`"k"`, "gzip", "false", "", "hello"}, {`"k"`, "gzip", "true", "", "hello"}, {`"k"`, "identity", "true", "", "hello"},
		{"", "gzip", "", "gzip", compressed.String()},
	} {
		r := newRequest(t, http.MethodPost, base, test.key, http.NoBody)
		r.Header.Set("Accept-Encoding", test.accept) // so that the client does not decompress it
		answer, text := exchange(t, r)
		if text != test.text || answer.Header.Get("Content-Encoding") != test.coding ||
			answer.Header.Get(idempotency.HeaderReplayed) != test.replayed {
			t.Errorf("%+v: %v %q", test, answer.Header, text)
		}
	}
}

// Trailers pass, except those that only a gateway may send; a replay has none.
func TestTrailers(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum, "+idempotency.HeaderReplayed)
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "4")
		w.Header().Set(idempotency.HeaderReplayed, "spoofed")
		w.Header().Set(http.TrailerPrefix+idempotency.HeaderExpires, "spoofed")
		w.Header().Set(http.TrailerPrefix+"X-Late", "1")
	}))
	for _, test := range []struct{ key, sum string }{{"", "4"}, {`"k"`, "4"}, {`"k"`, ""}} {
		answer, text := exchange(t, newRequest(t, http.MethodPost, base, test.key, http.NoBody))
		if text != "body" || answer.Trailer.Get("X-Sum") != test.sum ||
			(answer.Trailer.Get("X-Late") == "1") != (test.sum != "") {
			t.Errorf("key %q: %q, trailers %v", test.key, text, answer.Trailer)
		}
		if all := fmt.Sprint(answer.Header, answer.Trailer); strings.Contains(all, "spoofed") {
			t.Errorf("key %q: %s", test.key, all)
		}
	}
}

// A client that disconnects ends its request at the service, unless it has a key: then the service finishes, and the
// retry gets the response.
func TestClientDisconnects(t *testing.T) {
	t.Parallel()
	arrived, gone, finish := make(chan bool), make(chan struct{}), make(chan struct{})
	var executed atomic.Int32
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keyed := r.Header.Get(idempotency.HeaderKey) != ""
		if executed.Add(1) > 2 {
			t.Error("the repeat reached the service")
			return
		}
		arrived <- keyed
		if !keyed {
			<-r.Context().Done()
			close(gone)
			return
		}
		<-finish
		check.Is(t, r.Context().Err(), nil, "the request with a key was ended")
		_, _ = io.WriteString(w, "done")
	}), func(s *Settings) { s.Wait = time.Minute })
	for _, key := range []string{"", `"k"`} {
		ctx, disconnect := context.WithCancel(t.Context())
		r := newRequest(t, http.MethodPost, base, key, http.NoBody).WithContext(ctx)
		ended := make(chan struct{})
		go func() { // received below
			defer close(ended)
			if answer, err := http.DefaultClient.Do(r); err == nil {
				t.Errorf("an answer without a response: %d", answer.StatusCode)
			}
		}()
		<-arrived
		disconnect()
		<-ended
		if key == "" {
			<-gone
		}
	}
	close(finish)
	if _, header, text := send(t, http.MethodPost, base, `"k"`, ""); text != "done" ||
		header.Get(idempotency.HeaderReplayed) != "true" {
		t.Error(header, text)
	}
}

// The service crashes in the middle of a response that is delivered as it comes: the client gets half of it, the
// outcome is unknown, and nothing runs again.
func TestServiceCrashesInMidBody(t *testing.T) {
	t.Parallel()
	var executed atomic.Int32
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		executed.Add(1)
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	answer, err := http.DefaultClient.Do(newRequest(t, http.MethodPost, base, `"k"`, http.NoBody))
	if err == nil {
		text, readErr := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if readErr == nil && answer.StatusCode < 500 {
			t.Errorf("half a response looks whole: %d %q", answer.StatusCode, text)
		}
	}
	status, _, text := send(t, http.MethodPost, base, `"k"`, "")
	if executed.Load() != 1 || status != http.StatusConflict {
		t.Errorf("executed %d times, the repeat: %d %s", executed.Load(), status, text)
	}
}

// Routes with different services and timeouts have separate connections.
func TestRouteTimeout(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	stuck := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-end
		}
	}))
	t.Cleanup(stuck.Close)
	defaults := plain(stuck.URL)
	defaults.Shared = true
	c := must.Get(load(t, defaults, "routes: [{path: /slow, upstream_timeout: 20ms}]"))(t)
	base, g := start(t, c)
	if status, _, _ := send(t, http.MethodPost, base+"/slow", `"k"`, ""); status != http.StatusGatewayTimeout {
		t.Error(status)
	}
	if status, _, _ := send(t, http.MethodPost, base+"/fast", `"k"`, ""); status != http.StatusOK {
		t.Error(status)
	}
	close(end)
	check.Equal(t, len(g.transports), 2, "%d transports")
	c = must.Get(load(t, defaults, ""))(t)
	if g.Reload(c); len(g.transports) != 1 {
		t.Errorf("%d transports after the route has gone", len(g.transports))
	}
}
