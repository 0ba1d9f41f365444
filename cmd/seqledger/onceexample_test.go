package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// onceScript makes the same call as a page would after a reload: from another process, with a storage that outlives it.
const onceScript = `
import { readFileSync, writeFileSync, existsSync } from 'node:fs'
import { once } from %q
const file = %q
const memory = existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {}
const storage = {
  getItem: (k) => memory[k] ?? null,
  setItem: (k, v) => { memory[k] = v; writeFileSync(file, JSON.stringify(memory)) },
  removeItem: (k) => { delete memory[k]; writeFileSync(file, JSON.stringify(memory)) },
}
const headers = { authorization: 'Bearer demo' }
const answer = await once(%q, { amount: 5 }, { name: 'charge-1', headers, storage, pause: 1, attempts: 5 })
console.log(JSON.stringify({ body: await answer.response.text(), problem: answer.problem?.code }))
`

// docs/examples/once.mjs repeats a request under one key, over lost answers and restarts of the page, until it has the
// first response. The service executes it once.
func TestOnceExample(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	if err := exec.CommandContext(t.Context(), node, "-e", "fetch; crypto.randomUUID").Run(); err != nil {
		t.Skip("node has no fetch or no crypto: it is too old")
	}
	var executed, requests atomic.Int32
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d", executed.Add(1))
	}))
	t.Cleanup(service.Close)
	dir := t.TempDir()
	g := startGateway(t, dir, service.URL, "--data", filepath.Join(dir, "data"))
	target := must.Get(url.Parse(g.url))(t)
	proxy := httputil.NewSingleHostReverseProxy(target)
	// The first request does not arrive, and the answer of the second is lost.
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch requests.Add(1) {
		case 1:
			panic(http.ErrAbortHandler)
		case 2:
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	module := must.Get(filepath.Abs("../../docs/examples/once.mjs"))(t)
	for run := range 2 {
		script := fmt.Sprintf(onceScript, module, filepath.Join(dir, "storage.json"), front.URL+"/charges")
		cmd := exec.CommandContext(t.Context(), node, "--input-type=module")
		cmd.Stdin = strings.NewReader(script)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var got struct{ Body, Problem string }
		if err == nil {
			err = json.Unmarshal(out, &got)
		}
		if err != nil || got.Body != "charge 1" || got.Problem != "" {
			t.Errorf("run %d: %s (%v) %s", run, out, err, stderr.String())
		}
	}
	if executed.Load() != 1 || requests.Load() != 4 {
		t.Errorf("executed %d times, with %d requests", executed.Load(), requests.Load())
	}
}
