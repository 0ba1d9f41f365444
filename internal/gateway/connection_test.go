package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/listen"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// inBubble starts a gateway in front of a service, both on connections in memory, in a synctest bubble. dial connects
// to the gateway.
func inBubble(t *testing.T, service http.Handler, change ...func(*Options)) (dial func() net.Conn, stop func()) {
	t.Helper()
	defaults := plain("http://service")
	defaults.Shared = true
	o := Options{Config: must.Get(load(t, defaults, ""))(t), Store: idempotency.Memory()}
	o.Logger = quiet
	for _, f := range change {
		f(&o)
	}
	g := New(o)
	behind, front := NewPipe(), NewPipe()
	g.transports[o.Config.fallback.connections].Base.DialContext = behind.Dial
	servers := []*http.Server{{Handler: service}, {Handler: g}}
	var group sync.WaitGroup
	// End with the servers, which stop closes; it waits for them.
	group.Go(func() { _ = servers[0].Serve(behind) })
	group.Go(func() { _ = servers[1].Serve(front) })
	dial = func() net.Conn {
		conn, err := front.Dial(context.Background(), "", "")
		check.Is(t, err, nil)
		return conn
	}
	return dial, func() {
		_, _ = servers[1].Close(), servers[0].Close()
		group.Wait()
		g.Close()
	}
}

// pass advances the clock of the test's bubble.
func pass(d time.Duration) {
	//nolint:forbidigo // In a synctest bubble this moves the clock and waits for nothing.
	time.Sleep(d)
}

// As many clients as the gateway accepts requests send a byte now and then, with a key and without. After twenty
// seconds the gateway has free places again, and the service has seen no request with a key.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var keyed atomic.Int32
		dial, stop := inBubble(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.Header.Get(idempotency.HeaderKey) != "" {
				keyed.Add(1)
			}
		}), func(o *Options) { o.MaxRequests, o.MaxPerPrincipal = 16, 16 })
		defer stop()
		var clients sync.WaitGroup
		var refused atomic.Int32
		for i := range 16 {
			// Ends with the response, or with the connection; the Wait below joins it.
			clients.Go(func() {
				conn := dial()
				defer conn.Close()
				key := ""
				if i%2 == 0 {
					key = fmt.Sprintf("Idempotency-Key: k%d\r\n", i)
				}
				fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n%s\r\n", key)
				go func() { // ends when the gateway closes the connection
					for {
						if _, err := io.WriteString(conn, "x"); err != nil {
							return
						}
						pass(3 * time.Second)
					}
				}()
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Error(err)
					return
				}
				if answer.StatusCode != http.StatusRequestTimeout {
					t.Errorf("client %d: %d", i, answer.StatusCode)
				} else {
					refused.Add(1)
				}
				_ = answer.Body.Close()
			})
		}
		synctest.Wait()
		check.Equal(t, post(t, dial(), "", "x"), http.StatusServiceUnavailable, "beside 16 slow requests: %d")
		pass(patience + time.Second)
		synctest.Wait()
		check.Equal(t, post(t, dial(), "Idempotency-Key: k0\r\n", "x"), http.StatusOK, "after %v: %d", patience)
		clients.Wait()
		if refused.Load() != 16 || keyed.Load() != 1 {
			t.Errorf("%d requests were refused, the service saw %d with a key", refused.Load(), keyed.Load())
		}
	})
}

// post sends a request on a connection and returns the status.
func post(t *testing.T, conn net.Conn, header, body string) int {
	t.Helper()
	defer conn.Close()
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n%s", len(body), header, body)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// A request is refused before its body is read, and the body never arrives: the response is sent anyway.
func TestUnwantedBodies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial, stop := inBubble(t, http.NotFoundHandler())
		defer stop()
		for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
			conn := dial()
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nIdempotency-Key: \"\r\n%s\r\n",
				expect)
			answer := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
			must.Equal(t, answer.StatusCode, http.StatusBadRequest)
			_, _ = answer.Body.Close(), conn.Close()
		}
	})
}

// Beside a full gateway a request is refused, its body never arrives, and the connection ends.
func TestRefusedConnectionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial, stop := inBubble(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}), func(o *Options) { o.MaxRequests = 1 })
		defer stop()
		busy, conn := dial(), dial()
		defer busy.Close()
		must.Get(fmt.Fprint(busy, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"))(t)
		synctest.Wait()
		must.Get(fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"))(t)
		if text := must.Get(io.ReadAll(conn))(t); !strings.Contains(string(text), " 503 ") {
			t.Errorf("it is not refused: %s", text)
		}
	})
}

// A body that arrives at the required rate is accepted, however long it takes. The time that the service takes to read
// it, or to respond, does not count.
func TestSteadyBodiesPass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got atomic.Int64
		dial, stop := inBubble(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			pass(time.Minute)
			n, _ := io.Copy(io.Discard, r.Body)
			got.Store(n)
			pass(time.Minute)
		}))
		defer stop()
		const size = 50 * slowest
		for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
			conn := dial()
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n", size, key)
			done := make(chan struct{})
			go func() { // received below
				defer close(done)
				for range 50 {
					pass(time.Second)
					if _, err := io.WriteString(conn, strings.Repeat("x", slowest)); err != nil {
						t.Error(err)
						return
					}
				}
			}()
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || answer.StatusCode != http.StatusOK || got.Load() != size {
				t.Fatalf("key %q: %v, %v, the service got %d bytes", key, answer, err, got.Load())
			}
			_ = answer.Body.Close()
			<-done
			_ = conn.Close()
		}
	})
}

// A client that does not read is disconnected, and its place is freed.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial, stop := inBubble(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			// Without a length, httputil.ReverseProxy flushes under a mutex, which synctest.Wait waits for.
			w.Header().Set("Content-Length", strconv.Itoa(100<<10))
			_, _ = w.Write(make([]byte, 100<<10))
		}), func(o *Options) { o.MaxRequests = 2 })
		defer stop()
		for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
			conn := dial()
			defer conn.Close()
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n%s\r\n", key)
		}
		synctest.Wait()
		check.Equal(t, post(t, dial(), "", ""), http.StatusServiceUnavailable, "beside two that read nothing: %d")
		pass(2*patience + 100<<10/slowest*time.Second)
		synctest.Wait()
		check.Equal(t, post(t, dial(), "", ""), http.StatusOK, "afterwards: %d")
	})
}

// Events may be further apart than any deadline.
func TestSlowEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dial, stop := inBubble(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				_, _ = io.WriteString(w, "data: x\n\n")
				_ = http.NewResponseController(w).Flush()
				pass(10 * patience)
			}
		}))
		defer stop()
		for _, key := range []string{"", "Idempotency-Key: k\r\n"} {
			conn := dial()
			fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n%s\r\n", key)
			answer := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
			if text := readAll(t, answer); strings.Count(text, "data: x") != 3 {
				t.Errorf("key %q: %q", key, text)
			}
			_ = conn.Close()
		}
	})
}

// readAll reads a response.
func readAll(t *testing.T, answer *http.Response) string {
	t.Helper()
	b := must.Get(io.ReadAll(answer.Body))(t)
	_ = answer.Body.Close()
	return string(b)
}

// A service stalls with a request that owns a key, and its client goes. After upstream_timeout the request has no place
// and no lease any more, and its outcome is unknown. A service that goes on, however slowly, is not cut short.
func TestStalledServices(t *testing.T) {
	t.Parallel()
	const timeout = 10 * time.Second
	for name, test := range map[string]struct {
		service func(w http.ResponseWriter, over <-chan struct{})
		body    int
		want    int // the status of a repeat
	}{
		// Without a length, httputil.ReverseProxy flushes under a mutex, for which the clock of the bubble waits.
		"in its response": {func(w http.ResponseWriter, over <-chan struct{}) {
			w.Header().Set("Content-Length", "20")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			<-over
		}, 1, http.StatusConflict},
		"in the request": {func(_ http.ResponseWriter, over <-chan struct{}) { <-over }, 1 << 20, http.StatusConflict},
		"not at all": {func(w http.ResponseWriter, _ <-chan struct{}) {
			w.Header().Set("Content-Length", "20")
			for range 5 {
				_, _ = io.WriteString(w, "part")
				_ = http.NewResponseController(w).Flush()
				pass(timeout - time.Second)
			}
		}, 1, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				dial, stop := inBubble(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					test.service(w, over)
				}), func(o *Options) {
					s := plain("http://service")
					s.Shared, s.Timeout = true, timeout
					o.Config, o.MaxRequests = must.Get(load(t, s, ""))(t), 1
				})
				defer stop()
				defer pass(time.Second) // net/http lingers before it closes a connection with an unread body
				defer close(over)
				conn, body := dial(), strings.Repeat("x", test.body)
				go fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: %d\r\n\r\n%s",
					len(body), body)
				pass(time.Second)
				_ = conn.Close()
				pass(5 * timeout)
				check.Equal(t, post(t, dial(), "Idempotency-Key: k\r\n", body), test.want, "the repeat: %d")
			})
		})
	}
}

// All services together are left as many unused connections as the files of the process allow, however many settings
// of connections the routes have.
func TestUnusedConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	var routes strings.Builder
	for i := range 20 {
		fmt.Fprintf(&routes, "  - {path: /%d, upstream_timeout: %ds}\n", i, i+1)
	}
	config := must.Get(load(t, plain("http://service"), "routes:\n"+routes.String()))(t)
	g := New(Options{Config: config, Store: idempotency.Memory(), Logger: quiet})
	defer g.Close()
	total := 0
	for _, transport := range g.transports {
		total += 2 * transport.Base.MaxIdleConns // beside those for requests with a key
	}
	if most := listen.Connections().Gateway; len(g.transports) < 20 || total > most {
		t.Errorf("%d transports keep %d connections, at most %d", len(g.transports), total, most)
	}
}
