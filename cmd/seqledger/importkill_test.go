package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// TestImportSurvivesKills kills imports and servers at random moments and then
// expects every line in the ledger exactly once, in order.
func TestImportSurvivesKills(t *testing.T) {
	t.Parallel()
	const lines = 12_000
	seed := must.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))

	input := numberedLines(t, lines)
	s := serve(t)
	killed := 0
	// The moments spread over all of an import: before the session, around it,
	// and while lines are under way.
	for range 40 {
		if killed == 8 {
			break
		}
		p := start(t, "import", "--server", s.address, "--scope", "acme/main", "--client-id", "loader", "--json", input)
		moment := time.NewTimer(time.Duration(random.IntN(200)) * time.Millisecond)
		select {
		case <-moment.C:
		case <-p.ended:
		}
		if random.IntN(3) == 0 {
			s.kill()
			// Sometimes the import goes first, sometimes it meets the new server.
			if random.IntN(2) == 0 {
				p.kill()
			}
			s = serveOn(t, s.data, s.address)
		}
		p.kill()
		if p.cmd.ProcessState.ExitCode() == -1 {
			killed++
			continue
		}
		if code := p.cmd.ProcessState.ExitCode(); code != exitDone {
			t.Fatalf("an import that was not killed ended with %d: %s", code, p.stderr.String())
		}
		break
	}
	if killed == 0 {
		t.Error("no import was killed: the test says nothing")
	}
	done := s.do(t, "import", "--scope", "acme/main", "--client-id", "loader", "--json", input).expect(t, exitDone)
	if first, last := done.field(t, "firstSequence"), done.field(t, "lastSequence"); first != "1" ||
		last != fmt.Sprint(lines) {
		t.Errorf("want the sequences 1 to %d, got %v to %v", lines, first, last)
	}
	t.Logf("%d imports killed", killed)
	audit(t, s, "acme/main", lines)

	s.kill()
	seqledger(t, "verify", "--data", s.data).expect(t, exitDone, "problems")
}

// numberedLines writes an input whose line n appends "line n".
func numberedLines(t *testing.T, lines int) string {
	t.Helper()
	var b strings.Builder
	for n := range lines {
		fmt.Fprintf(&b, "{\"append\": \"line %d\"}\n", n+1)
	}
	return writeFile(t, "events.ndjson", b.String())
}

// audit reads every transaction of a scope through the binary and expects
// exactly the lines of numberedLines.
func audit(t *testing.T, s *testServer, scope string, lines uint64) {
	t.Helper()
	next, last := uint64(1), map[string]uint64{} // by client id
	organization, vault, _ := strings.Cut(scope, "/")
	request := &seqledgerv1.WatchRequest{Scope: &seqledgerv1.Scope{Organization: organization, Vault: vault}}
	heights := strings.Count(s.do(t, "list", "blocks", "--scope", scope, "--json").expect(t, exitDone).stdout, "\n")
	for block, err := range s.client(t).Watch(t.Context(), request) {
		must.Do(t, err)
		for _, tx := range block.GetTransactions() {
			payload := string(tx.GetOperations()[0].GetAppend().GetPayload())
			last[tx.GetClientId()]++
			sequence := last[tx.GetClientId()]
			if want := fmt.Sprintf("line %d", next); tx.GetSequence() != sequence || payload != want {
				t.Fatalf("want sequence %d with %q, got sequence %d with %q", sequence, want, tx.GetSequence(), payload)
			}
			next++
		}
		if block.GetHeader().GetHeight() == uint64(heights) {
			break
		}
	}
	if next != lines+1 {
		t.Fatalf("want %d transactions, got %d", lines, next-1)
	}
}

// lossy is a proxy that loses the answers of the first write stream, and the answer
// of the second OpenSession, which it lets the server execute.
type lossy struct {
	backend *httputil.ReverseProxy
	streams atomic.Int32
	opened  atomic.Int32
	held    chan struct{} // closed once the second session is open
}

// connKey is of the connection of a request.
type connKey struct{}

func newLossy(t *testing.T, server string) (l *lossy, address string) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	l = &lossy{held: make(chan struct{})}
	l.backend = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: server})
			r.Out.Host = server
		},
		Transport:      &http.Transport{Protocols: protocols},
		FlushInterval:  -1,
		ModifyResponse: l.lose,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" { // no connection of its own for a write stream
			w.WriteHeader(http.StatusHTTPVersionNotSupported)
			return
		}
		l.backend.ServeHTTP(w, r)
	}))
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetHTTP1(true)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.Start()
	t.Cleanup(front.Close)
	return l, front.Listener.Addr().String()
}

// lose looks at the answer of the server, which has executed the request then.
func (l *lossy) lose(answer *http.Response) error {
	switch path.Base(answer.Request.URL.Path) {
	case "WriteStream":
		if l.streams.Add(1) == 1 {
			_, err := answer.Body.Read(make([]byte, 1))
			conn, _ := answer.Request.Context().Value(connKey{}).(net.Conn)
			return errors.Join(errors.New("the answers are lost"), err, conn.Close())
		}
	case "OpenSession":
		if l.opened.Add(1) == 2 {
			close(l.held)
			<-answer.Request.Context().Done()
			return context.Cause(answer.Request.Context())
		}
	}
	return nil
}

// TestImportKilledWhileItFences kills an import while its Writer opens a session to make a
// refusal final. The next run continues, although the stream has a session whose answer was
// lost.
func TestImportKilledWhileItFences(t *testing.T) {
	t.Parallel()
	s := serve(t)
	s.do(t, "write", "--scope", "acme/main", "--client-id", "other", "--set", "k=1").expect(t, exitDone)
	input := writeFile(t, "in.ndjson",
		`{"append":"first"}`+"\n"+`{"set":{"key":"k","value":"2","condition":{"not_exists":true}}}`+"\n")
	front, address := newLossy(t, s.address)
	p := start(t, append(importArgs(input), "--server", address)...)
	select {
	case <-front.held:
	case <-p.ended:
		t.Fatalf("it ended by itself: %s", p.stderr.String())
	case <-time.After(hangs):
		t.Fatalf("it opens no session: %s", p.stderr.String())
	}
	p.kill()
	s.do(t, "write", "--scope", "acme/main", "--client-id", "other", "--delete", "k").expect(t,
		exitDone) // repaired, as the help says
	s.do(t, importArgs(input)...).expect(t, exitDone, "all 2 lines")
	s.do(t, "get", "--scope", "acme/main", "k").expect(t, exitDone, "2")
}
