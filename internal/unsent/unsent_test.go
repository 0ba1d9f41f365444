package unsent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A connection counts, whatever becomes of the request on it; the lack of one is certain.
func TestWatch(t *testing.T) {
	t.Parallel()
	abort := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	running, untrusted := httptest.NewServer(abort), httptest.NewTLSServer(abort)
	t.Cleanup(running.Close)
	t.Cleanup(untrusted.Close)
	refusing := freeport.Unreachable(t)
	for name, test := range map[string]struct {
		url       string
		connected bool
	}{
		"a connection that breaks":   {running.URL, true},
		"no server":                  {"http://" + refusing, false},
		"an untrusted certificate":   {untrusted.URL, false},
		"TLS to a server without it": {strings.Replace(running.URL, "http:", "https:", 1), false},
	} {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, test.url, http.NoBody))(t)
		r, connected := Watch(r)
		if answer, err := http.DefaultClient.Do(r); err == nil {
			_ = answer.Body.Close()
			t.Errorf("%s: no error", name)
		}
		check.Equal(t, connected(), test.connected, "%s: connected %t", name)
	}
}
