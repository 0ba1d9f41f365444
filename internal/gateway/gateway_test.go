package gateway

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/yamlfile"
)

var quiet = slog.New(slog.DiscardHandler)

// plain returns the default settings of the command's flags.
func plain(upstream string) Settings {
	return Settings{
		Upstream: upstream, IdleTimeout: 4 * time.Second, Methods: []string{http.MethodPost, http.MethodPatch},
		Fingerprint: "raw", MaxBody: 1 << 20,
		TTL: 24 * time.Hour, RejectedTTL: time.Minute, Lease: time.Minute, OnLeaseExpired: "indeterminate",
		ServerErrors: []string{"indeterminate"}, Stored: "response", ReplayStatus: "original", MismatchStatus: "422",
	}
}

// load loads a configuration from this file content.
func load(t *testing.T, defaults Settings, content string, proxies ...string) (*Config, error) {
	t.Helper()
	f := &File{Default: defaults, TrustedProxies: proxies, Path: filepath.Join(t.TempDir(), "gateway.yaml")}
	if content != "" {
		root := must.Get(yamlfile.Parse([]byte(content)))(t)
		for i := 0; i < len(root.Content); i += 2 {
			switch root.Content[i].Value {
			case "routes":
				f.Routes = root.Content[i+1]
			case "jwt":
				f.JWT = root.Content[i+1]
			}
		}
	}
	return Load(f)
}

// start starts a gateway with its own store.
func start(t *testing.T, c *Config, change ...func(*Options)) (base string, g *Gateway) {
	t.Helper()
	o := Options{Config: c, Store: idempotency.Memory(), Logger: quiet}
	for _, f := range change {
		f(&o)
	}
	g = New(o)
	t.Cleanup(g.Close)
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	return s.URL, g
}

// serve starts a gateway in front of a service, with one principal for all.
func serve(t *testing.T, service http.Handler, change ...func(*Settings)) (base string, upstream *httptest.Server) {
	t.Helper()
	upstream = httptest.NewServer(service)
	t.Cleanup(upstream.Close)
	s := plain(upstream.URL)
	s.Shared = true
	for _, f := range change {
		f(&s)
	}
	c := must.Get(load(t, s, ""))(t)
	base, _ = start(t, c)
	return base, upstream
}

func send(t *testing.T, method, target, key, body string) (status int, header http.Header, text string) {
	t.Helper()
	return sendAs(t, "", method, target, key, body)
}

// sendAs sends a request with credentials.
func sendAs(t *testing.T, who, method, target, key, body string) (status int, header http.Header, text string) {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)))(t)
	if key != "" {
		r.Header.Set(idempotency.HeaderKey, key)
	}
	if who != "" {
		r.Header.Set("Authorization", who)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err) // not Fatal, because tests also send from goroutines
		return 0, nil, ""
	}
	return answer.StatusCode, answer.Header, readAll(t, answer)
}

// A request whose connection breaks after it was sent is not sent again, although net/http considers a request without
// a body retryable if it has the header.
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
			// This makes the charge use an existing connection.
			if status, _, _ := send(t, http.MethodPost, base+"/warm", "", ""); status != http.StatusOK {
				t.Fatal(status)
			}
			status, _, _ := send(t, http.MethodPost, base+"/charge", `"k"`, body)
			if n := executed.Load(); n != 1 || status != http.StatusBadGateway {
				t.Errorf("executed %d times, status %d", n, status)
			}
			status, _, text := send(t, http.MethodPost, base+"/charge", `"k"`, body)
			if n := executed.Load(); n != 1 || status != http.StatusConflict ||
				!strings.Contains(text, "outcome-unknown") {
				t.Errorf("the repeat: executed %d times, status %d, %s", n, status, text)
			}
		})
	}
}

// Beyond its limits, in total and per principal, a gateway refuses requests, and the service does not see them.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	started, end := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		started <- struct{}{}
		<-end
	}))
	t.Cleanup(upstream.Close)
	c := must.Get(load(t, plain(upstream.URL), ""))(t)
	base, g := start(t, c, func(o *Options) { o.MaxRequests, o.MaxPerPrincipal = 2, 1 })
	post := func(who, key string) (int, http.Header, string) {
		return sendAs(t, who, http.MethodPost, base, key, "")
	}
	done := make(chan int)
	go func() { // received below
		status, _, _ := post("a", "k1")
		done <- status
	}()
	<-started
	if status, header, text := post("a", "k2"); status != http.StatusTooManyRequests ||
		header.Get("Retry-After") == "" || !strings.Contains(text, "quota") {
		t.Error(status, header, text)
	}
	go func() { // received below
		status, _, _ := post("b", "k2")
		done <- status
	}()
	<-started
	if status, header, _ := post("c", "k2"); status != http.StatusServiceUnavailable ||
		header.Get("Retry-After") == "" {
		t.Error(status, header)
	}
	close(end)
	for range 2 {
		check.Equal(t, <-done, http.StatusOK)
	}
	g.principals.mu.Lock()
	defer g.principals.mu.Unlock()
	if len(g.principals.of) != 0 {
		t.Errorf("still counted: %v", g.principals.of)
	}
}
