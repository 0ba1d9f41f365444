package gateway

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Every refusal by the gateway itself is a problem document with the headers of a response to a keyed request, and says
// what the client should do next.
func TestRefusalsOfTheGateway(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(service.Close)
	gone := "http://" + freeport.Unreachable(t)
	routes := `
routes:
  - {path: /orders, upstream: "` + service.URL + `", shared: true}
  - {path: /gone, upstream: "` + gone + `", shared: true}`
	defaults := plain("")
	c := must.Get(load(t, defaults, routes))(t)
	_, open := start(t, c)
	_, full := start(t, c, func(o *Options) { o.MaxRequests = 1 })
	full.requests <- struct{}{}
	_, crowded := start(t, c, func(o *Options) { o.MaxPerPeer = 1 })
	if _, ok := crowded.peers.enter("192.0.2.1", 1); !ok {
		t.Fatal("the peer has no room")
	}
	for name, test := range map[string]struct {
		gateway      *Gateway
		method, path string
		status       int
		code         idempotency.Code
		action       idempotency.Action
	}{
		"full gateway":    {full, "POST", "/orders", 503, codeBusy, idempotency.SameKey},
		"crowded peer":    {crowded, "POST", "/orders", 429, codeBusy, idempotency.SameKey},
		"unknown route":   {open, "POST", "/other", 404, codeNoRoute, idempotency.FixRequest},
		"ambiguous path":  {open, "POST", "/x/../orders", 400, codeAmbiguous, idempotency.FixRequest},
		"odd method":      {open, "Post", "/orders", 400, codeMethod, idempotency.FixRequest},
		"service is gone": {open, "POST", "/gone", 502, codeUnreachable, idempotency.SameKey},
	} {
		for _, key := range []string{`"k"`, ""} {
			r := httptest.NewRequestWithContext(t.Context(), test.method, test.path, http.NoBody)
			r.RemoteAddr = "192.0.2.1:1"
			if key != "" {
				r.Header.Set(idempotency.HeaderKey, key)
			}
			w := httptest.NewRecorder()
			test.gateway.ServeHTTP(w, r)
			header := w.Header()
			p := problemOf(t, w.Body.String())
			if w.Code != test.status || p.Status != test.status || p.Code != string(test.code) ||
				p.Action != string(test.action) || p.Retryable != (test.action == idempotency.SameKey) ||
				p.Title == "" {
				t.Errorf("%s, key %s: status %d, %+v", name, key, w.Code, p)
			}
			if header.Get("Content-Type") != "application/problem+json" ||
				!strings.Contains(header.Get("Link"), `rel="describedby"`) ||
				(header.Get("Retry-After") != "") != p.Retryable ||
				header.Get(idempotency.HeaderKey) != key || header.Get(idempotency.HeaderReplayed) != "false" ||
				header.Get("X-Request-Id") == "" {
				t.Errorf("%s, key %s: %v", name, key, header)
			}
		}
	}
}

// The page of codes has a section for each code of the gateway alone.
func TestTheCodesOfTheGatewayAreDocumented(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/codes.md"))(t)
	_, own, _ := strings.Cut(string(page), "## Of the gateway alone")
	for code, line := range map[idempotency.Code]string{
		codeUnreachable: "502, `same-key`: The request could not be sent to the service",
		codeBusy:        "503, `same-key`: Too many requests are under way",
		codeAmbiguous:   "400, `fix-request`: The path may be read in several ways",
		codeMethod:      "400, `fix-request`: Methods are in upper case",
		codeNoRoute:     "404, `fix-request`: No route of this gateway has this path",
	} {
		check.Contains(t, own, "### "+string(code)+"\n\n"+line,
			"the page has no section %s that begins with %q", code, line)
	}
	check.Equal(t, strings.Count(own, "\n### "), 5, "the page has %d codes of the gateway")
}
