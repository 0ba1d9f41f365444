package server

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// largeWrites sends many large writes at once over one connection.
func largeWrites(t *testing.T, api seqledgerv1connect.LedgerServiceClient, n, size int) <-chan error {
	t.Helper()
	payload := incompressible(size)
	ctx := soon(t)
	ended := make(chan error, n)
	for i := range n {
		w := appends(payload).Writes[0]
		w.ClientId = fmt.Sprint("large-", i)
		go func() { // ends with the answer; the caller receives from ended
			_, err := api.Write(ctx, connect.NewRequest(w))
			ended <- err
		}()
	}
	return ended
}

// mustBeQueueFull checks that an error says to come back, and when.
func mustBeQueueFull(t *testing.T, err error) {
	t.Helper()
	e, _, retry := details(t, err)
	if e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL || retry.GetRetryDelay().AsDuration() != roomRetry ||
		connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Fatalf("want QUEUE_FULL and when to come back, got %v, %v", err, retry)
	}
}

// TestLargeWritesShareAConnection: large writes that wait for room leave the
// others on their connection a part of its window. What may not wait is refused
// at once, and what waits is committed when there is room.
func TestLargeWritesShareAConnection(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	api := serveTest(t, s)
	small := appends(strings.Repeat("x", freeBytes/2)).Writes[0]
	if _, err := api.Write(soon(t), connect.NewRequest(small)); err != nil { // opens the connection
		t.Fatal(err)
	}
	if !s.arriving.room.TryAcquire(maxArrivingBytes) {
		t.Fatal("the room must be empty")
	}
	const writes, size = 40, streamWindow + 1
	const mayWait = maxWaitingBytes / streamWindow
	ended := largeWrites(t, api, writes, size)
	for range writes - mayWait {
		mustBeQueueFull(t, <-ended)
	}
	if n := s.open.count(); n != 1 {
		t.Error("the client must use one connection, not", n)
	}
	small.Sequence = 2
	if _, err := api.Write(soon(t), connect.NewRequest(small)); err != nil {
		t.Fatal("a small write on the same connection:", err)
	}
	s.arriving.room.Release(maxArrivingBytes)
	for range mayWait {
		if err := <-ended; err != nil {
			t.Error("a write that waited for room:", err)
		}
	}
	if !s.arriving.waiting.TryAcquire(maxWaitingBytes) {
		t.Error("somebody still waits")
	}
}

// TestMediumWritesWait: more writes of some kilobytes than a connection has
// streams wait for each other, and none is refused.
func TestMediumWritesWait(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	api := serveTest(t, s)
	const writes = maxConcurrentStreams + 50
	ended := largeWrites(t, api, writes, 2*freeBytes)
	for range writes {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestUnread: what a request that waits may have sent meanwhile.
func TestUnread(t *testing.T) {
	t.Parallel()
	late := newLateness(bodyTimeout, func() {})
	defer late.close()
	for name, test := range map[string]struct {
		body meteredBody
		want int64
	}{
		"small":          {meteredBody{wire: 9_000}, 9_000},
		"large":          {meteredBody{wire: 1 << 30}, streamWindow},
		"unknown":        {meteredBody{wire: -1}, streamWindow},
		"in an envelope": {meteredBody{wire: -1, enveloped: true, left: 9_000}, 9_000},
		"of a stream":    {meteredBody{wire: -1, enveloped: true, left: 9_000, late: late}, streamWindow},
	} {
		if got := test.body.unread(); got != test.want {
			t.Errorf("%s: %d bytes, want %d", name, got, test.want)
		}
	}
}

// zipped compresses a text.
func zipped(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReadsTakeSmallRequests: a read that waits keeps its request, so that it
// must be small, however it comes.
func TestReadsTakeSmallRequests(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	message, err := proto.Marshal(&seqledgerv1.GetEntityRequest{
		Scope: &seqledgerv1.Scope{Organization: "a"}, Key: strings.Repeat("k", maxReadRequestBytes),
	})
	if err != nil {
		t.Fatal(err)
	}
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
		s.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "65536") {
			t.Error(name, w.Code, w.Body)
		}
	}
	body := append([]byte{0, 0, 2, 0, 0}, bytes.Repeat([]byte(" "), 2*maxReadRequestBytes)...)
	for _, procedure := range []string{seqledgerv1connect.LedgerServiceWatchProcedure, seqledgerv1connect.AdminServiceBackupProcedure} {
		r := httptest.NewRequest(http.MethodPost, "http://localhost"+procedure, bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/connect+json")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if !strings.Contains(w.Body.String(), "65536") {
			t.Error(procedure, w.Code, w.Body)
		}
	}
}

// TestCompressedWritesTakeRoom: a small compressed body may become a large
// message, so that it waits like one.
func TestCompressedWritesTakeRoom(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	// Only what is refused at once tells, without a wait, that room was asked for.
	if !s.arriving.room.TryAcquire(maxArrivingBytes) || !s.arriving.waiting.TryAcquire(maxWaitingBytes) {
		t.Fatal("the room must be empty")
	}
	text := []byte(`{"scope":{"organization":"a"},"clientId":"c","sequence":"1","operations":[{"append":{}}]}`)
	send := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "http://localhost"+seqledgerv1connect.LedgerServiceWriteProcedure, bytes.NewReader(zipped(t, text)))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Content-Encoding", "gzip")
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	if w := send(); w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "QUEUE_FULL") {
		t.Error("without room:", w.Code, w.Body)
	}
	s.arriving.room.Release(maxArrivingBytes)
	if w := send(); w.Code != http.StatusOK {
		t.Error("with room:", w.Code, w.Body)
	}
	if !s.arriving.room.TryAcquire(maxArrivingBytes) {
		t.Error("the room is not given back")
	}
}

// TestContentTypesAreWords: their case says nothing.
func TestContentTypesAreWords(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	for kind, want := range map[string]bool{
		"application/connect+proto": true, "Application/Connect+Proto": true, "APPLICATION/GRPC": true, "application/proto": false,
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x"))
		r.Header.Set("Content-Type", kind)
		s.metered(1<<20, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if body, ok := r.Body.(*meteredBody); !ok || body.enveloped != want {
				t.Errorf("%s: enveloped must be %t", kind, want)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
	}
}
