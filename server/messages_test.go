package server

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// zipped compresses a text.
func zipped(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must.Get(w.Write(text))(t)
	must.Do(t, w.Close())
	return b.Bytes()
}

// A read that waits keeps its request, so that it must be small, however it comes.
func TestReadsTakeSmallRequests(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	message := must.Get(proto.Marshal(&seqledgerv1.GetEntityRequest{
		Scope: &seqledgerv1.Scope{Organization: "a"}, Key: strings.Repeat("k", maxReadRequestBytes),
	}))(t)
	const get = seqledgerv1connect.LedgerServiceGetEntityProcedure
	query := "http://localhost" + get + "?connect=v1&encoding=proto&compression=gzip&base64=1&message=" +
		base64.RawURLEncoding.EncodeToString(zipped(t, message))
	requests := map[string]*http.Request{
		"plain":      httptest.NewRequest(http.MethodPost, "http://localhost"+get, bytes.NewReader(message)),
		"compressed": httptest.NewRequest(http.MethodPost, "http://localhost"+get, bytes.NewReader(zipped(t, message))),
		"GET":        httptest.NewRequest(http.MethodGet, query, http.NoBody),
	}
	requests["compressed"].Header.Set("Content-Encoding", "gzip")
	for name, r := range requests {
		r.Header.Set("Content-Type", "application/proto")
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		want := http.StatusTooManyRequests // Connect's own answer
		if name == "plain" {
			want = http.StatusBadRequest // which clients do not repeat
		}
		if w.Code != want || !strings.Contains(w.Body.String(), "65536") {
			t.Error(name, w.Code, w.Body)
		}
	}
	body := append([]byte{0, 0, 2, 0, 0}, bytes.Repeat([]byte(" "), 2*maxReadRequestBytes)...)
	for _, procedure := range []string{seqledgerv1connect.LedgerServiceWatchProcedure,
		seqledgerv1connect.AdminServiceBackupProcedure} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost"+procedure, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/connect+json")
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		if !strings.Contains(w.Body.String(), "65536") {
			t.Error(procedure, w.Code, w.Body)
		}
	}
}

// The case of a content type or encoding says nothing.
func TestKindsOfBodies(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]bool{
		"application/connect+proto": true, "Application/Connect+Proto": true,
		"APPLICATION/GRPC": true, "application/proto": false,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
		r.Header.Set("Content-Type", kind)
		check.Equal(t, isEnveloped(r), want, "%s: enveloped must be %t: %v", kind, want)
	}
	for encoding, want := range map[string]bool{"": false, "identity": false, "Identity": false, "gzip": true} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
		if encoding != "" {
			r.Header.Set("Content-Encoding", encoding)
		}
		check.Equal(t, isCompressed(r), want, "%q: compressed must be %t: %v", encoding, want)
	}
}

// What the compressor makes is read by every gzip, in whatever pieces it is written.
func TestCompressor(t *testing.T) {
	t.Parallel()
	text := []byte(strings.Repeat("a block is a block ", 10_000) + incompressible(100_000))
	for _, size := range []int{1, 1_000, compressPiece, len(text)} {
		var b bytes.Buffer
		w := must.Get(gzip.NewWriterLevel(&b, gzip.BestSpeed))(t)
		c := compressor{w}
		pieces := text
		if size == 1 {
			pieces = text[:1_000]
		}
		for rest := pieces; len(rest) > 0; {
			n := must.Get(c.Write(rest[:min(size, len(rest))]))(t)
			must.Equal(t, n, min(size, len(rest)))
			rest = rest[n:]
		}
		must.Do(t, c.Close())
		r := must.Get(gzip.NewReader(&b))(t)
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, pieces) {
			t.Errorf("in pieces of %d: %d bytes became %d, %v", size, len(pieces), len(got), err)
		}
	}
}

// An answer gives its place back when it is sent, and its memory at the end.
func TestReadAnswerLeavesItsPlace(t *testing.T) {
	t.Parallel()
	left, released := 0, 0
	h := answered(true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r.Context())
		c.work, c.memory = func() { left++ }, func() { released++ }
		if _, err := w.Write([]byte("x")); err != nil || left != 1 || released != 0 {
			t.Errorf("when it is sent: left %d, released %d, %v", left, released, err)
		}
		w.(http.Flusher).Flush()
	}))
	withCall(false, h).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	if left == 0 || released != 1 {
		t.Errorf("at the end: left %d, released %d", left, released)
	}
}
