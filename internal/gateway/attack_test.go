package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// arrived records the requests that a service received.
type arrived struct {
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

func (a *arrived) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		body = []byte("cut off")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests, a.bodies = append(a.requests, r), append(a.bodies, string(body))
	w.WriteHeader(http.StatusCreated)
}

// take returns the requests since the last call, and their bodies.
func (a *arrived) take() (requests []*http.Request, bodies []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests, bodies = a.requests, a.bodies
	a.requests, a.bodies = nil, nil
	return requests, bodies
}

// attacked starts a gateway with routes in front of a service, with one principal for all. Clients are not trusted
// proxies.
func attacked(t *testing.T, routes string, change ...func(*Settings)) (address string, service *arrived) {
	t.Helper()
	service = new(arrived)
	upstream := httptest.NewServer(service)
	t.Cleanup(upstream.Close)
	s := plain(upstream.URL)
	s.Shared = true
	for _, f := range change {
		f(&s)
	}
	c := must.Get(load(t, s, routes, "203.0.113.0/24"))(t)
	base, _ := start(t, c)
	return strings.TrimPrefix(base, "http://"), service
}

// raw sends bytes over a connection of its own, and returns the status of each response.
func raw(t *testing.T, address, text string) (statuses []int, bodies []string) {
	t.Helper()
	conn := must.Get(net.Dial("tcp", address))(t)
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, text) }() // ends with the connection
	for in := bufio.NewReader(conn); ; {
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			return statuses, bodies
		}
		body, _ := io.ReadAll(answer.Body)
		statuses, bodies = append(statuses, answer.StatusCode), append(bodies, string(body))
		if answer.Close {
			return statuses, bodies
		}
	}
}

// No spelling of a path bypasses the rule of its route, whatever path the service reads: the service gets the request
// under the rule, or not at all. A path that looks odd but has only one reading still works.
func TestSpellingsOfAPath(t *testing.T) {
	t.Parallel()
	address, service := attacked(t, `
routes:
- {path: /charges, required: true}
- {path: "/charges/{id}", required: true}
- {path: "/charges/{id}/notes"}
- {path: /admin/, required: true}
- {path: "/files/{name...}"}
- {path: "/users/{id}/pay", required: true}
`)
	for target, want := range map[string]string{
		"/charges": "key-missing", "/charges/": "key-missing", "/%63harges": "key-missing",
		"/charges?x=/../y": "key-missing", "http://elsewhere.example/charges": "key-missing",
		"/charges/5": "key-missing", "/charges/a%20b": "key-missing", "/charges/a;b": "key-missing",
		"/admin": "key-missing", "/admin/x": "key-missing", "/admin/x;y": "key-missing", "/admin/x//y": "key-missing",
		"//charges": "path-ambiguous", "/charges//": "path-ambiguous", "/./charges": "path-ambiguous",
		"/x/../charges": "path-ambiguous", "/charges/../files/x": "path-ambiguous", "/..": "path-ambiguous",
		"/files/%2e%2e/charges": "path-ambiguous", "/files/..;/charges": "path-ambiguous",
		"/files/..%2fcharges": "path-ambiguous", "/files/.;x/y": "path-ambiguous",
		`/files/..\charges`: "path-ambiguous", "/files%5c..%5ccharges": "path-ambiguous",
		"/charges%00": "path-ambiguous", "/charges%0d%0a": "path-ambiguous", "/charges;x": "path-ambiguous",
		"/charges;x/5": "path-ambiguous", "/charges%2f5": "path-ambiguous", "/charges/5%2fnotes": "path-ambiguous",
		"/charges/5%2Fnotes": "path-ambiguous", "/x//charges/5/notes": "", "/charges/5//notes": "path-ambiguous",
		"/admin%2fx": "path-ambiguous", "/files/a%2fb": "", "/files/a//b": "", "/files/a;b": "",
		"/;x/charges": "path-ambiguous", "/;/charges": "path-ambiguous", "/;x;y/charges": "path-ambiguous",
		"/;x//charges": "path-ambiguous", "/%3bx/charges": "path-ambiguous", "/;%2fx/charges": "path-ambiguous",
		"/x;/charges": "", "/charges;": "path-ambiguous", "/charges/;x": "path-ambiguous",
		"/;x/admin/y":  "path-ambiguous",
		"/users/1/pay": "key-missing", "/users/%2f/pay": "path-ambiguous", "/users/%2F%2F/pay": "path-ambiguous",
		"/users/a%2fb/pay": "path-ambiguous", "/users/%2fb/pay": "path-ambiguous", "/users//pay": "path-ambiguous",
		"/users/;a/1/pay": "path-ambiguous", "/users/1/;x/pay": "path-ambiguous", "/users/;/pay": "path-ambiguous",
		"/;x/users/1/pay": "path-ambiguous", "/users/1/%2fpay": "path-ambiguous", "/users/1/pay%2f": "path-ambiguous",
		"/%2fcharges": "path-ambiguous", "/charges%2f": "path-ambiguous", "/charges/.": "path-ambiguous",
		"/charges/%2e": "path-ambiguous", "/.;/charges": "path-ambiguous", "/%252e%252e/charges": "path-ambiguous",
		"/%2563harges": "path-ambiguous", "/charges%252f": "path-ambiguous", "/charges%3fx": "path-ambiguous",
		"/charges%23x": "path-ambiguous", "/charges%3bx": "path-ambiguous", "/charges.": "path-ambiguous",
		"/charges%20": "path-ambiguous", "/charges/.%20./files": "path-ambiguous", "/files/%ff": "path-ambiguous",
		"/files/%c0%af": "path-ambiguous", "/files/100%25": "", "/files/a%3fb": "", "/files/a.": "",
		"/charges/5/notes": "", "/charges/5/notes/": "", "/other/..x": "", "/other/...": "", "/CHARGES": "",
	} {
		statuses, bodies := raw(t, address, "POST "+target+
			" HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		passed, _ := service.take()
		if want == "" {
			if len(passed) != 1 || !slices.Equal(statuses, []int{http.StatusCreated}) ||
				passed[0].RequestURI != target {
				t.Errorf("%s: %v %v, %d requests", target, statuses, bodies, len(passed))
			}
			continue
		}
		if len(passed) != 0 || len(bodies) != 1 || !strings.Contains(bodies[0], want) {
			t.Errorf("%s: want %s, got %v %v, %d requests", target, want, statuses, bodies, len(passed))
		}
	}
}

// A request cannot leave the base path of the upstream, and a gateway without routes changes no path.
func TestPathOfTheUpstream(t *testing.T) {
	t.Parallel()
	address, service := attacked(t, "", func(s *Settings) { s.Upstream += "/public" })
	for _, target := range []string{"/../secret", "/x/../../secret", "/%2e%2e/secret", "/..%2fsecret"} {
		statuses, _ := raw(t, address, "GET "+target+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		check.EqualSlices(t, statuses, []int{http.StatusBadRequest}, "%s: %v", target)
	}
	if passed, _ := service.take(); len(passed) != 0 {
		t.Errorf("the service got %s", passed[0].RequestURI)
	}
	address, service = attacked(t, "")
	for _, target := range []string{"/a//b", "/a/../b", "/a%2fb;c"} {
		raw(t, address, "GET "+target+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
		if passed, _ := service.take(); len(passed) != 1 || passed[0].RequestURI != target {
			t.Errorf("%s came as %v", target, passed)
		}
	}
}

// Whatever a client claims about the length of its body or the end of its request, the service gets as many requests as
// the gateway has answered, with the same bodies.
func TestRequestsAreNotSmuggled(t *testing.T) {
	t.Parallel()
	address, service := attacked(t, "routes: [{path: /charges, required: true}]")
	const smuggled = "POST /charges HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	for name, text := range map[string]string{
		"chunked and a length": "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + smuggled,
		"a length and chunked": "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"two lengths":          "Content-Length: 0\r\nContent-Length: 64\r\n\r\n" + smuggled,
		"a list of lengths":    "Content-Length: 0, 64\r\n\r\n" + smuggled,
		"a signed length":      "Content-Length: +0\r\n\r\n" + smuggled,
		"unknown coding":       "Transfer-Encoding: xchunked\r\n\r\n" + smuggled,
		"two codings":          "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + smuggled,
		"coding twice":         "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"space before colon":   "Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n" + smuggled,
		"folded":               "Transfer-Encoding:\r\n chunked\r\nContent-Length: 0\r\n\r\n" + smuggled,
		"lone line feeds":      "Transfer-Encoding: chunked\nContent-Length: 0\n\n0\r\n\r\n" + smuggled,
		"bad chunk size":       "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + smuggled,
		"chunk extension":      "Transfer-Encoding: chunked\r\n\r\n1;a=\"\r\n\"\r\nx\r\n0\r\n\r\n" + smuggled,
		"huge trailer": "Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n0\r\nX-T: " + strings.Repeat("x", 1<<20) +
			"\r\n\r\n" + smuggled,
		"many trailers": "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X-T: 1\r\n", 100_000) + "\r\n" +
			smuggled,
	} {
		statuses, _ := raw(t, address, `POST /other HTTP/1.1`+"\r\nHost: a\r\nIdempotency-Key: "+
			strings.ReplaceAll(name, " ", "-")+"\r\n"+text)
		requests, bodies := service.take()
		created := 0
		for _, status := range statuses {
			if status == http.StatusCreated {
				created++
			}
		}
		if len(requests) != created || created > 1 {
			t.Errorf("%s: %d requests came, the answers are %v", name, len(requests), statuses)
		}
		for i, r := range requests {
			if r.URL.Path != "/other" || strings.Contains(bodies[i], "HTTP/1.1") {
				t.Errorf("%s: %s with body %q", name, r.URL.Path, bodies[i])
			}
		}
	}
}

// A client cannot set what only the gateway or a trusted proxy may set, however it spells the header, and cannot remove
// what the gateway sets.
func TestForgedHeaders(t *testing.T) {
	t.Parallel()
	address, service := attacked(t, "routes: [{path: /, principal_header: X-User}, {path: /other}]")
	for _, header := range []string{
		"X-Forwarded-Port: 1", "X-Forwarded-Prefix: /forged", "X-Forwarded-Uri: /forged", "X-Forwarded-User: alice",
		"X_Forwarded_Port: 1", "X-Real-IP: 10.0.0.1", "X_Real_IP: 10.0.0.1", "Proxy: forged:1",
		"True-Client-IP: 10.0.0.1",
		"X-Remote-User: alice", "Remote_User: alice", "X-Original-Host: forged",
		"Idempotency-Fence: 999", "idempotency-attempt: 9", "Idempotency_Fence: 999", "IDEMPOTENCY_ATTEMPT: 9",
		"Idempotent-Replayed: true", "Idempotent_Replayed: true", "X-Idempotent-Replayed: true",
		"X-User: alice", "X_User: alice", "x_user: alice", "X_Forwarded_For: 10.0.0.1", "X-Forwarded-For: 10.0.0.1",
		"Forwarded: for=10.0.0.1", "X-Forwarded-Host: forged", "X_Forwarded_Host: forged",
		"X-Original-URL: /forged", "X-Rewrite-URL: /forged", "X_Rewrite_URL: /forged", "X-Original-Method: DELETE",
		"X-HTTP-Method-Override: POST", "X_HTTP_Method_Override: POST", "X-Method-Override: POST",
		"Idempotency_Key: other",
	} {
		for _, path := range []string{"/", "/other"} {
			statuses, bodies := raw(t, address, "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"+header+
				"\r\n\r\n")
			requests, _ := service.take()
			if len(requests) != 1 {
				t.Errorf("%s: %v %v", header, statuses, bodies)
				continue
			}
			name, value, _ := strings.Cut(header, ": ")
			for got, values := range requests[0].Header {
				if strings.EqualFold(strings.ReplaceAll(got, "_", "-"), strings.ReplaceAll(name, "_", "-")) &&
					slices.Contains(values, value) {
					t.Errorf("%s came through to %s as %s: %s", header, path, got, values)
				}
			}
		}
	}
}

// Headers named in Connection belong to one hop. Naming them there does not keep the service from seeing the key, what
// the gateway says about it, and the credential that the key belongs to.
func TestConnectionRemovesNothing(t *testing.T) {
	t.Parallel()
	address, service := attacked(t, "")
	raw(t, address, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nIdempotency-Key: k\r\n"+
		"Authorization: Bearer me\r\nConnection: close, Idempotency-Fence, idempotency-attempt, Idempotency-Key, "+
		"Authorization, X-Forwarded-For\r\n\r\n")
	requests, _ := service.take()
	must.Equal(t, len(requests), 1, "%d requests")
	for _, name := range []string{
		idempotency.HeaderKey, idempotency.HeaderAttempt, idempotency.HeaderFence, "Authorization", "X-Forwarded-For",
	} {
		if len(requests[0].Header[name]) != 1 {
			t.Errorf("%s is %q", name, requests[0].Header[name])
		}
	}
}

// A request with more than one key is refused, however the keys are sent, and so is a method that some services take
// for another one.
func TestMoreThanOneKey(t *testing.T) {
	t.Parallel()
	address, service := attacked(t, "routes: [{path: /, required: true}]")
	for name, text := range map[string]string{
		"two lines":      "POST / HTTP/1.1\r\nIdempotency-Key: a\r\nIdempotency-Key: a\r\n",
		"in two cases":   "POST / HTTP/1.1\r\nIdempotency-Key: a\r\nIDEMPOTENCY-KEY: b\r\n",
		"a list":         "POST / HTTP/1.1\r\nIdempotency-Key: a, b\r\n",
		"quoted list":    "POST / HTTP/1.1\r\nIdempotency-Key: \"a\", \"b\"\r\n",
		"one empty":      "POST / HTTP/1.1\r\nIdempotency-Key: a\r\nIdempotency-Key:\r\n",
		"an underscore":  "POST / HTTP/1.1\r\nIdempotency_Key: a\r\n",
		"a small method": "post / HTTP/1.1\r\nIdempotency-Key: a\r\n",
		"a mixed method": "Post / HTTP/1.1\r\n",
	} {
		statuses, bodies := raw(t, address, text+"Host: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		if requests, _ := service.take(); len(requests) != 0 || !slices.Equal(statuses, []int{http.StatusBadRequest}) {
			t.Errorf("%s: %v %v, %d requests", name, statuses, bodies, len(requests))
		}
	}
}
