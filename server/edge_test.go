package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// startPair starts a cluster of two nodes: the one that leads, and another one.
func startPair(t *testing.T, o server.Options) (leader, follower *harness) {
	t.Helper()
	leader, peer := startSecureNode(t, "", o, nil)
	follower, _ = startSecureNode(t, peer, o, nil)
	must.Await(t, func() bool {
		l, _ := follower.ledger.Cluster().Leader()
		return l.ID == 1 && leader.ledger.Cluster().Status().Members[1].Voter
	})
	return leader, follower
}

// edgeRequest is a request as it is sent over HTTP/1.1.
type edgeRequest struct {
	method, path, version, host, headers, body string
}

// shown are the headers of an answer that every node sends alike.
var shown = []string{
	"X-Request-Id", "Cache-Control", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers", "Vary",
	"Www-Authenticate", "Retry-After", "Connection", "Content-Type",
}

// send returns the status, the headers that are shown and the body of the answer.
func (q edgeRequest) send(t *testing.T, h *harness) string {
	t.Helper()
	host := strings.TrimPrefix(h.url, "http://")
	conn := must.Get(net.Dial("tcp", host))(t)
	defer func() { _ = conn.Close() }()
	must.Do(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	if q.host != "" {
		host = q.host
	}
	must.Get(fmt.Fprintf(conn, "%s %s HTTP/%s\r\nHost: %s\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		q.method, q.path, q.version, host, q.headers, len(q.body), q.body))(t)
	answer, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: q.method})
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body := must.Get(io.ReadAll(answer.Body))(t)
	text := fmt.Sprint(answer.StatusCode)
	for _, name := range shown {
		if values := answer.Header[name]; values != nil {
			text += fmt.Sprintf("\n%s: %q", name, values)
		}
	}
	return text + "\n\n" + string(body)
}

// edgeRequests are requests that meet a rule of the edge each.
func edgeRequests() map[string]edgeRequest {
	var fields strings.Builder
	for range 6_000 {
		fields.WriteString("a:\r\n")
	}
	long := func(n int) string { return "X-A: " + strings.Repeat("a", n) + "\r\n" }
	const (
		id     = "X-Request-Id: id-1\r\n"
		json   = "Content-Type: application/json\r\n"
		origin = "Origin: https://app.example\r\n"
		write  = seqledgerv1connect.LedgerServiceWriteProcedure
		socket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
		// It is refused by the rules of the ledger, and so shows no receipt.
		gap = `{"scope":{"organization":"acme","vault":"main"},"clientId":"till-1","sequence":"7",` +
			`"operations":[{"append":{"payload":"aGk="}}]}`
	)
	post := func(headers string) edgeRequest {
		return edgeRequest{http.MethodPost, write, "1.1", "", id + json + headers, gap}
	}
	old, foreign := post(""), post("")
	old.version, foreign.host = "1.0", "rebound.example"
	other, large, preflight, ws, get := post(""), post(""), post(""), post(""), post("")
	other.path, large.body = "/nothing", `{"clientId":"`+strings.Repeat("x", 100<<10)+`"}`
	preflight.method, preflight.body = http.MethodOptions, ""
	preflight.headers = id + origin + "Access-Control-Request-Method: POST\r\n" +
		"Access-Control-Request-Headers: content-type\r\n"
	ws.method, ws.path, ws.body = http.MethodGet, seqledgerv1connect.LedgerServiceWriteStreamProcedure, ""
	ws.headers = id + "Origin: https://evil.example\r\n" + socket
	get.method, get.body = http.MethodGet, ""
	bare := ws
	bare.headers = id + socket
	mcp := func(headers, body string) edgeRequest {
		return edgeRequest{http.MethodPost, "/mcp", "1.1", "", id + json +
			"Accept: application/json, text/event-stream\r\n" + headers, body}
	}
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	return map[string]edgeRequest{
		"a call": post(""), "HTTP/1.0": old, "a foreign host": foreign, "no such path": other, "too large": large,
		"Via": post("Via: 1.1 proxy\r\n"), "X-Real-IP": post("X-Real-IP: 192.0.2.1\r\n"),
		"X-Forwarded-For": post("X-Forwarded-For: 192.0.2.1\r\n"), "Forwarded": post("Forwarded: for=192.0.2.1\r\n"),
		"17 KB of headers": post(long(17 << 10)), "31 KB of headers": post(long(31 << 10)),
		"40 KB of headers": post(long(40 << 10)), "many headers": post(fields.String()),
		"an offer of h2c": post("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" +
			"HTTP2-Settings: AAMAAABk\r\n"),
		"an offer of a WebSocket": post("Connection: Upgrade\r\nUpgrade: websocket\r\n"),
		"a preflight":             preflight, "a page": post(origin),
		"another page":                post("Origin: https://evil.example\r\n"),
		"a WebSocket of another page": ws, "a WebSocket without its protocol": bare, "a GET": get,
		"another protocol": {http.MethodPost, write, "1.1", "", id + "Content-Type: text/plain\r\n", "x"},
		"a bad time-out":   post("Connect-Timeout-Ms: soon\r\n"),
		"another ledger":   post("Seqledger-Ledger: 00000000-0000-4000-8000-000000000000\r\n"),
		"forged":           post("Seqledger-Client-Address: 192.0.2.1:5\r\nConnection: Seqledger-Client-Address\r\n"),
		"an agent":         mcp("", ping), "an agent's batch": mcp("", "["+ping+"]"),
		"an agent on a page":     mcp(origin, ping),
		"an agent on a bad page": mcp("Origin: https://evil.example\r\n", ping),
		"a reserve without a key": {http.MethodPost, seqledgerv1connect.IdempotencyServiceReserveProcedure, "1.1", "",
			id + json, "{}"},
		"a refused change": {http.MethodPost, seqledgerv1connect.AdminServiceChangeClusterProcedure, "1.1", "",
			id + json, "{}"},
	}
}

// Every rule of the edge is the same on every node, whether it answers a call or passes it on.
func TestEveryNodeHasTheSameEdge(t *testing.T) {
	t.Parallel()
	for name, id := range map[string]string{
		"open": "", "without a credential": "", "with a wrong credential": "nonsense", "as a reader": "reader",
		"as a writer": "writer", "beyond a rate": "slow",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := withTools()
			o.MaxRequestBytes, o.CORSOrigins = 64<<10, []string{"https://app.example"}
			headers := ""
			if name != "open" {
				g := newGuard(t, &o, map[string]string{
					"slow": `role: writer, scopes: ["*"], client_ids: ["*"], limits: {requests_per_second: 1}`,
				})
				g.keys["nonsense"] = "nonsense"
				if id != "" {
					headers = "Authorization: Bearer " + g.keys[id] + "\r\n"
				}
			}
			leader, follower := startPair(t, o)
			for rule, q := range edgeRequests() {
				q.headers += headers
				want, got := q.send(t, leader), q.send(t, follower)
				if name == "beyond a rate" {
					// On a slow machine the rate may allow one of the two.
					call := edgeRequests()["a call"]
					call.headers += headers
					must.Await(t, func() bool {
						beyond := strings.HasPrefix(call.send(t, leader), "429")
						// The time after which to retry differs.
						want, _, _ = strings.Cut(q.send(t, leader), `,"details"`)
						got, _, _ = strings.Cut(q.send(t, follower), `,"details"`)
						return beyond && want == got
					})
				}
				if strings.Contains(want, "NOT_LEADER") || strings.Contains(got, "NOT_LEADER") {
					t.Fatalf("%s: there was an election:\n%s\n%s", rule, want, got)
				}
				if want != got {
					t.Errorf("%s: the leader answers\n%s\nand another node\n%s", rule, want, got)
				}
			}
		})
	}
}

// A connection belongs to a credential once a call on it was authenticated, also if the call is passed on. A caller
// without one has few connections, and cannot take the places of others.
func TestPassedOnCallsMakeTheirConnectionKnown(t *testing.T) {
	t.Parallel()
	var o server.Options
	g := newGuard(t, &o, nil)
	leader, follower := startPair(t, o)
	for name, h := range map[string]*harness{"leader": leader, "follower": follower} {
		node := *g
		node.harness = h
		writer, _ := node.as("writer")
		for i := range 2 {
			_, err := writer.Write(within(t), connect.NewRequest(writeOf("till-"+name, uint64(i+1), appendOp("x"))))
			must.Do(t, err, "%v", name)
		}
		check.Equal(t, server.UnknownConnections(h.server), 0, "the %s does not know %d of the connections of a writer",
			name)
	}
}

// Clients that read no answers hold no places, whatever the protocol: they must not block a node for all others.
func TestUnreadAnswersHoldNoPlaces(t *testing.T) {
	t.Parallel()
	leader, follower := startPair(t, server.Options{MaxRequests: 8})
	const (
		procedure = seqledgerv1connect.LedgerServiceWriteProcedure
		n         = 100
	)
	// answered returns how many writes both nodes have answered or refused.
	answered := func() (all int) {
		for _, h := range []*harness{leader, follower} {
			q := must.Get(http.NewRequestWithContext(within(t), http.MethodGet, h.url+"/metrics", http.NoBody))(t)
			_, _, text := h.do(t, q)
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "seqledger_requests_total{") && strings.Contains(line, procedure) {
					count := 0
					_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &count)
					all += count
				}
			}
		}
		return all
	}
	for _, h := range []*harness{leader, follower} {
		before := answered()
		for kind, body := range map[string]string{
			"application/json": `{"scope":{"organization":"acme","vault":"main"},"clientId":"x","sequence":"5"}`,
			"application/grpc": string(prototest.Enveloped(writeOf("deaf", 1, appendOp("x")))), // the others repeat it
		} {
			server.DeafConnection(t, strings.TrimPrefix(h.url, "http://"), procedure, kind, body, n)
		}
		must.Await(t, func() bool { return answered() >= before+2*n })
		must.Await(t, func() bool { // the last ones may be about to leave
			_, err := h.client.Write(within(t), connect.NewRequest(writeOf("c", 1, appendOp("x"))))
			return err == nil
		})
	}
}
