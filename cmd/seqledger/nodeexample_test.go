package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// killingProxy stands between a program and a server, and kills the program at a chosen
// request.
type killingProxy struct {
	target string

	mu       sync.Mutex
	program  *exec.Cmd
	requests int            // of this run
	killAt   int            // the request at which the program is killed, from 0
	early    bool           // kill it before the server has the request, not after
	killed   bool           // in this run
	late     []*lateRequest // requests that the server has not had yet
}

// lateRequest is a request that was on its way when its sender was killed.
type lateRequest struct {
	path string
	body []byte
}

// send has the server execute a request.
func (p *killingProxy) send(path string, body []byte) (*http.Response, error) {
	return http.Post("http://"+p.target+path, "application/json", bytes.NewReader(body))
}

func (p *killingProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // killed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	kill := p.requests == p.killAt
	p.requests++
	if kill && p.early {
		p.late = append(p.late, &lateRequest{r.URL.Path, body})
	} else {
		answer, err := p.send(r.URL.Path, body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer answer.Body.Close()
		if !kill {
			w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
			w.WriteHeader(answer.StatusCode)
			_, _ = io.Copy(w, answer.Body) // the program repeats what breaks off
			return
		}
	}
	p.killed = true
	_ = p.program.Process.Kill() // it lives, because it waits for this answer
	panic(http.ErrAbortHandler)
}

// TestNodeExample kills docs/examples/pay.mjs a hundred times, before and after each of its
// requests, and has the requests that were under way arrive later. No payment is booked
// twice or lost.
func TestNodeExample(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts Node 200 times: make test-long")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	if err := exec.CommandContext(t.Context(), node, "-e", "fetch").Run(); err != nil {
		t.Skip("node has no fetch: it is older than version 18")
	}
	s := serve(t)
	p := &killingProxy{target: s.address}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	memory := filepath.Join(t.TempDir(), "till-9.json")
	run := func(payment string, killAt int, early bool) (killed bool) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), node, "../../docs/examples/pay.mjs", server.URL, memory, payment, "100")
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		p.mu.Lock()
		late := p.late
		p.program, p.requests, p.killAt, p.early, p.killed, p.late = cmd, 0, killAt, early, false, nil
		err := cmd.Start()
		p.mu.Unlock()
		must.Do(t, err)
		err = cmd.Wait()
		for _, r := range late { // the run before this one sent it
			answer := must.Get(p.send(r.path, r.body))(t)
			_ = answer.Body.Close()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil && !p.killed {
			t.Fatalf("%s, killed at %d: %v\n%s", payment, killAt, err, output.String())
		}
		return p.killed
	}
	const kills = 100
	payments := 0
	for killed, i := 0, 0; killed < kills; i++ {
		payments = i/2 + 1
		// A run makes three requests or four: GetStatus, OpenSession, Write of what was open, Write.
		if run(strconv.Itoa(payments), i%4, i/4%2 == 0) {
			killed++
		}
	}
	for n := range payments {
		run(strconv.Itoa(n+1), -1, false)
	}
	blocks := strings.Count(s.do(t, "list", "blocks", "--scope", "acme/main", "--json").expect(t, exitDone).stdout,
		"\n")
	found := s.do(t, "watch", "--scope", "acme/main", "--json", "--limit", strconv.Itoa(blocks)).expect(t,
		exitDone).stdout
	for n := range payments {
		payload := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%d 100", n+1))
		check.Equal(t, strings.Count(found, `"`+payload+`"`), 1, "payment %d was booked %d times", n+1)
	}
}
