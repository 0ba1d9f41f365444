package s3_test

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestSilentStore: a store that falls silent, before an answer or in the middle of one, is not waited for for good.
func TestSilentStore(t *testing.T) {
	t.Parallel()
	target := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, "/there"):
			w.Header().Set("Content-Length", "100")
			return
		case r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, "/absent"):
			w.WriteHeader(http.StatusNotFound)
			return
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/there"):
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write(make([]byte, 10))
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is seen
		<-r.Context().Done()
	})
	f := must.Get(target.Open(t.Context(), "there"))(t)
	target.SetPatience(50 * time.Millisecond)
	content := []byte("content")
	for what, err := range map[string]error{
		"open": check.Err(target.Open(t.Context(), "silent")),
		"read": check.Err(f.ReadAt(make([]byte, 100), 0)),
		"list": check.Err(target.List(t.Context(), "")),
		"put": target.Put(t.Context(), "absent", bytes.NewReader(content), int64(len(content)),
			sha256.Sum256(content)),
	} {
		if err == nil || !strings.Contains(err.Error(), "has not answered") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
