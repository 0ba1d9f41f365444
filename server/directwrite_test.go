package server_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// encoded returns a message in binary.
func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data := must.Get(proto.Marshal(m))(t)
	return data
}

// keyedOf returns a write without a number.
func keyedOf(key string, ops ...*seqledgerv1.Operation) *seqledgerv1.WriteRequest {
	w := writeOf("", 0, ops...)
	w.IdempotencyKey = key
	return w
}

// counters are the server's counts of calls and of results, by name.
type counters map[string]float64

func (h *harness) counters(t testing.TB) counters {
	t.Helper()
	found := counters{}
	_, text := h.get(t, "/metrics")
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(name, "seqledger_re") &&
			!strings.HasPrefix(name, "seqledger_write_duration_seconds_count") {
			continue
		}
		found[name] = must.Get(strconv.ParseFloat(value, 64))(t)
	}
	return found
}

// less returns what was counted since.
func (c counters) less(before counters) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if n := c[name] - before[name]; n != 0 {
			fmt.Fprintf(&text, "%s %g\n", name, n)
		}
	}
	return text.String()
}

// TestDirectWrite: what directWrite answers, Connect's handler answers in the same way, to the last byte and the last
// counter. A request whose length is not announced goes to Connect's handler.
func TestDirectWrite(t *testing.T) {
	t.Parallel()
	const key = "00000000-0000-4000-8000-000000000001"
	many := writeOf("many", 1)
	for range 400 {
		many.Operations = append(many.Operations, appendOp("x"))
	}
	proven := writeOf("proven", 1, appendOp("x"))
	proven.IncludeProof = true
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(encoded(t, writeOf("zipped", 1, appendOp("x")))); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	unknown := append(encoded(t, writeOf("c", 1, appendOp("x"))), 0x98, 0x06, 0x01) // field 99
	for name, test := range map[string]struct {
		body    []byte
		headers string // "Name: value", separated by line breaks
		status  int
	}{
		"committed": {body: encoded(t, writeOf("c", 1, appendOp("x"))), status: 200},
		"keyed":     {body: encoded(t, keyedOf(key, appendOp("x"))), status: 200},
		"with a deadline": {body: encoded(t, writeOf("c", 1, appendOp("x"))), headers: "Connect-Timeout-Ms: 60000",
			status: 200},
		"past the deadline": {body: encoded(t, writeOf("c", 1, appendOp("x"))), headers: "Connect-Timeout-Ms: 0",
			status: 504},
		"a deadline that is no number": {body: encoded(t, writeOf("c", 1, appendOp("x"))),
			headers: "Connect-Timeout-Ms: soon", status: 400},
		"with a proof": {body: encoded(t, proven), status: 200},
		"with a proof, compressed": {body: encoded(t, proven), headers: "Accept-Encoding: gzip",
			status: 200},
		"many operations":             {body: encoded(t, many), status: 200},
		"many operations, compressed": {body: encoded(t, many), headers: "Accept-Encoding: gzip", status: 200},
		"compressed":                  {body: zipped.Bytes(), headers: "Content-Encoding: gzip", status: 200},
		"compressed in another way":   {body: zipped.Bytes(), headers: "Content-Encoding: br", status: 501},
		"a gap":                       {body: encoded(t, writeOf("c", 9, appendOp("x"))), status: 400},
		"another payload":             {body: encoded(t, writeOf("c", 1, appendOp("y"))), status: 400},
		"no scope": {body: encoded(t, &seqledgerv1.WriteRequest{ClientId: "c", Sequence: 1}),
			status: 400},
		"no operations":        {body: encoded(t, writeOf("c", 2)), status: 400},
		"another client id":    {body: encoded(t, writeOf("c\n", 1, appendOp("x"))), status: 400},
		"keyed, without a key": {body: encoded(t, keyedOf("", appendOp("x"))), status: 400},
		"an unknown field":     {body: unknown, status: 400},
		"no message":           {body: []byte("\xff\xff"), status: 400},
		"nothing":              {status: 400},
		"too large": {body: encoded(t, writeOf("c", 2, appendOp(strings.Repeat("x", 40<<10)))),
			status: 400},
		"large": {body: encoded(t, writeOf("large", 1, appendOp(strings.Repeat("x", 30<<10)))),
			status: 200},
		"another version": {body: encoded(t, writeOf("c", 1, appendOp("x"))), headers: "Connect-Protocol-Version: 2",
			status: 400},
		"its version": {body: encoded(t, writeOf("c", 1, appendOp("x"))), headers: "Connect-Protocol-Version: 1",
			status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := startWith(t, server.Options{MaxRequestBytes: 32 << 10})
			for _, w := range []*seqledgerv1.WriteRequest{
				writeOf("c", 1, appendOp("x")), many, proven, keyedOf(key, appendOp("x")),
				writeOf("zipped", 1, appendOp("x")), writeOf("large", 1, appendOp(strings.Repeat("x", 30<<10))),
			} {
				h.mustWrite(t, w)
			}
			for version, client := range map[string]*http.Client{"1.1": h.h1, "2": h.h2} {
				ask := func(body io.Reader) (int, string, string, string) {
					t.Helper()
					before := h.counters(t)
					request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost,
						h.url+seqledgerv1connect.LedgerServiceWriteProcedure, body))(t)
					request.Header.Set("Content-Type", "application/proto")
					request.Header.Set("X-Request-Id", "same")
					for line := range strings.Lines(test.headers) {
						name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
						request.Header.Set(name, value)
					}
					answer := must.Get(client.Do(request))(t)
					defer answer.Body.Close()
					text := must.Get(io.ReadAll(answer.Body))(t)
					answer.Header.Del("Date")
					var header strings.Builder
					must.Do(t, answer.Header.Write(&header))
					return answer.StatusCode, header.String(), string(text), h.counters(t).less(before)
				}
				status, header, text, counted := ask(bytes.NewReader(test.body))
				general, wantHeader, wantText, wantCounted := ask(struct{ io.Reader }{bytes.NewReader(test.body)})
				if status != test.status {
					t.Errorf("HTTP/%s: status %d, want %d: %s", version, status, test.status, text)
				}
				if status != general || header != wantHeader || text != wantText || counted != wantCounted {
					t.Errorf("HTTP/%s: %d, Connect's handler %d:\n%s%q\n%s\nConnect's handler:\n%s%q\n%s",
						version, status, general, header, text, counted, wantHeader, wantText, wantCounted)
				}
			}
		})
	}
}
