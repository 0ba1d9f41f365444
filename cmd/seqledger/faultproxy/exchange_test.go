package faultproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// received is what the server got of a forwarded request.
type received struct {
	path, body string
	length     int64
	header     http.Header
}

// TestExchange: the server gets the path, the query, the new body and the client's headers, without those that
// are about the client's connection; the answer comes back whole, also when it is an error's.
func TestExchange(t *testing.T) {
	t.Parallel()
	got := make(chan received, 1)
	server := listen(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		check.Is(t, err, nil)
		got <- received{r.URL.String(), string(body), r.ContentLength, r.Header}
		w.Header().Set("Kept", "yes")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "answer")
	})
	original := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://client.example/a/b?c=d",
		strings.NewReader("the client's body")))(t)
	for name, value := range map[string]string{
		"Authorization": "Bearer key", "Content-Type": "application/proto",
		"Content-Length": "17", "Connection": "Upgrade", "Upgrade": "websocket", "Te": "trailers",
		"Sec-Websocket-Key": "x", "Sec-Websocket-Version": "13",
	} {
		original.Header.Set(name, value)
	}
	reply, err := startProxy(t, server.Address, nil).exchange(t.Context(), original, []byte("other"))
	if err != nil || reply.status != http.StatusTeapot || reply.header.Get("Kept") != "yes" ||
		string(reply.body) != "answer" {
		t.Errorf("want the whole answer, got %+v (%v)", reply, err)
	}
	r := <-got
	if r.path != "/a/b?c=d" || r.body != "other" || r.length != 5 || r.header.Get("Authorization") != "Bearer key" ||
		r.header.Get("Content-Type") != "application/proto" {
		t.Errorf("want the request as it was, with its new body, got %+v", r)
	}
	for _, name := range []string{"Connection", "Upgrade", "Te", "Sec-Websocket-Key", "Sec-Websocket-Version"} {
		check.Equal(t, r.header.Get(name), "", "want no header %s, got %q", name)
	}
	if original.Header.Get("Upgrade") == "" {
		t.Error("exchange changed the client's request, which is sent again for a copy")
	}
}

// TestExchangeFails: an answer that breaks off is an error, and not a short answer.
func TestExchangeFails(t *testing.T) {
	t.Parallel()
	server := listen(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		Abort()
	})
	for _, backend := range []string{server.Address, "127.0.0.1:1"} {
		original := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))(t)
		reply, err := startProxy(t, backend, nil).exchange(t.Context(), original, nil)
		if err == nil || reply.status != 0 || reply.body != nil {
			t.Errorf("%s: want an error, got %+v", backend, reply)
		}
	}
}
