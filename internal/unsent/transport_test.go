package unsent

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The time for which a connection is used again is the shortest of the setting, what the server announces, and for a
// careful request a second. Without any time each request has a connection of its own.
func TestIdleTimes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		setting        time.Duration
		announced      []string
		plain, careful time.Duration
	}{
		"nothing is announced":      {4 * time.Second, []string{""}, 4 * time.Second, Recent},
		"as Node announces":         {time.Minute, []string{"timeout=5"}, 4 * time.Second, Recent},
		"with a number of requests": {time.Minute, []string{"max=100, Timeout = \"3\""}, 2 * time.Second, Recent},
		"longer than the setting":   {2 * time.Second, []string{"timeout=75"}, 2 * time.Second, Recent},
		"the shortest": {
			time.Minute, []string{"timeout=5", "timeout=9", "timeout=2"}, time.Second, Recent,
		},
		"a second":                   {time.Minute, []string{"timeout=1"}, Recent / 2, Recent / 2},
		"less than a second":         {time.Minute, []string{"timeout=0"}, 0, 0},
		"none is kept":               {0, []string{""}, 0, 0},
		"no number":                  {3 * time.Second, []string{"timeout=a", "timeout=-1"}, 3 * time.Second, Recent},
		"more than fits into an int": {3 * time.Second, []string{"timeout=9999999999999"}, 3 * time.Second, Recent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests, conns atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				n := int(requests.Add(1)) - 1
				w.Header().Set("Keep-Alive", test.announced[n%len(test.announced)])
			}))
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					conns.Add(1)
				}
			}
			server.Start()
			t.Cleanup(server.Close)
			transport := NewTransport(new(http.Transport), test.setting,
				func(r *http.Request) bool { return r.Method == http.MethodPost })
			t.Cleanup(transport.CloseIdleConnections)
			for i := range 20 {
				answer := must.Get(transport.RoundTrip(newRequest(t, server.URL, i%2 == 0)))(t)
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
			for careful, want := range map[bool]time.Duration{false: test.plain, true: test.careful} {
				pool := transport.pool(newRequest(t, server.URL, careful))
				if pool.IdleConnTimeout != want || pool.DisableKeepAlives != (want == 0) {
					t.Errorf("careful %t: idle for %v, want %v", careful, pool.IdleConnTimeout, want)
				}
			}
			other := transport.pool(newRequest(t, "http://other.example", false))
			check.Equal(t, other.IdleConnTimeout, test.setting, "another host is idle for %v")
			if n := conns.Load(); test.plain == 0 && n < 19 { // the first response is the first to announce
				t.Errorf("%d connections for 20 requests", n)
			}
		})
	}
}

func newRequest(t *testing.T, url string, careful bool) *http.Request {
	t.Helper()
	method := http.MethodGet
	if careful {
		method = http.MethodPost
	}
	r := must.Get(http.NewRequestWithContext(t.Context(), method, url, http.NoBody))(t)
	return r
}
