package gateway

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
)

func serve(t *testing.T, service http.Handler) (base string, upstream *httptest.Server) {
	t.Helper()
	upstream = httptest.NewServer(service)
	t.Cleanup(upstream.Close)
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	handler := New(Options{
		Upstream: target, Store: idempotency.Memory(), Logger: slog.New(slog.DiscardHandler),
		Idempotency: idempotency.Options{Shared: true, Settings: idempotency.Settings{Wait: -1}},
	})
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL, upstream
}

func send(t *testing.T, method, target, key, body string) (status int, header http.Header, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set(idempotency.HeaderKey, key)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header, string(b)
}

// A request whose connection breaks after it was sent is not sent again, although net/http counts a
// request without a body that has the header as one that may be.
func TestARequestIsSentOnce(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"without a body": "", "with a body": "x"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var executed atomic.Int32
			base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.URL.Path == "/charge" {
					executed.Add(1)
					conn, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					_ = conn.Close()
				}
			}))
			// So that the charge meets a connection that was used before.
			if status, _, _ := send(t, http.MethodPost, base+"/warm", "", ""); status != http.StatusOK {
				t.Fatal(status)
			}
			status, _, _ := send(t, http.MethodPost, base+"/charge", `"k"`, body)
			if n := executed.Load(); n != 1 || status != http.StatusBadGateway {
				t.Errorf("executed %d times, status %d", n, status)
			}
			status, _, text := send(t, http.MethodPost, base+"/charge", `"k"`, body)
			if n := executed.Load(); n != 1 || status != http.StatusConflict || !strings.Contains(text, "in-flight") {
				t.Errorf("the repeat: executed %d times, status %d, %s", n, status, text)
			}
		})
	}
}

// Nothing was executed if no connection was made, so that the key is free again.
func TestNoConnectionFreesTheKey(t *testing.T) {
	t.Parallel()
	base, upstream := serve(t, http.NotFoundHandler())
	upstream.Close()
	for range 2 {
		if status, header, _ := send(t, http.MethodPost, base+"/charge", `"k"`, "x"); status != http.StatusBadGateway ||
			header.Get(idempotency.HeaderReplayed) != "false" {
			t.Error(status, header)
		}
	}
}

// What only a gateway may say is taken from both sides, with a key and without.
func TestHeadersThatOnlyAGatewaySends(t *testing.T) {
	t.Parallel()
	var got http.Header
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		w.Header().Set(idempotency.HeaderReplayed, "true")
		w.Header().Set(idempotency.HeaderExpires, "never")
	}))
	for _, key := range []string{"", `"k"`} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(idempotency.HeaderFence, "99")
		r.Header.Set("X-Forwarded-For", "10.0.0.1")
		want := ""
		if key != "" {
			r.Header.Set(idempotency.HeaderKey, key)
			want = "false"
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.Header.Get(idempotency.HeaderReplayed) != want ||
			answer.Header.Get(idempotency.HeaderExpires) == "never" {
			t.Errorf("key %q: the client got %v", key, answer.Header)
		}
		if got.Get(idempotency.HeaderFence) == "99" || strings.Contains(got.Get("X-Forwarded-For"), "10.0.0.1") {
			t.Errorf("key %q: the service got %v", key, got)
		}
	}
}

// Beyond its bound a gateway refuses requests, and the service does not see them.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	started, end := make(chan struct{}), make(chan struct{})
	handler := bounded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		started <- struct{}{}
		<-end
	}), 1)
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	done := make(chan int)
	go func() { // received below
		status, _, _ := send(t, http.MethodPost, s.URL, "", "")
		done <- status
	}()
	<-started
	if status, header, _ := send(t, http.MethodPost, s.URL, "", ""); status != http.StatusServiceUnavailable ||
		header.Get("Retry-After") == "" {
		t.Error(status, header)
	}
	close(end)
	if status := <-done; status != http.StatusOK {
		t.Error(status)
	}
}

// Events pass as they come, and a page that goes does not end a keyed request.
func TestEventsPass(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: one\n\n")
		_ = http.NewResponseController(w).Flush()
		<-more
		_, _ = io.WriteString(w, "data: two\n\n")
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(idempotency.HeaderKey, `"k"`)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	first := make([]byte, len("data: one\n\n"))
	if _, err := io.ReadFull(answer.Body, first); err != nil || string(first) != "data: one\n\n" {
		t.Fatal(string(first), err)
	}
	close(more)
	if rest, err := io.ReadAll(answer.Body); err != nil || string(rest) != "data: two\n\n" {
		t.Error(string(rest), err)
	}
	if status, _, text := send(t, http.MethodPost, base, `"k"`, "x"); status != http.StatusGone {
		t.Errorf("the repeat of a stream: %d %s", status, text)
	}
}
