package gateway

import (
	"io"
	"net/http"
	"runtime"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
)

// zeros is a body of n zero bytes. half is called once, when half of them have been read.
type zeros struct {
	n, left int64
	half    func()
}

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	if z.left > z.n/2 && z.left-n <= z.n/2 {
		z.half()
	}
	z.left -= n
	clear(p[:n])
	return int(n), nil
}

// The gateway streams bodies in bounded memory: in both directions without a key, and also with a key if the route
// compares no request bodies. The test does not run in parallel, because it measures the heap of the process.
func TestBodiesPassInBoundedMemory(t *testing.T) { //nolint:paralleltest // As the comment says.
	size := int64(128 << 20)
	if testing.Short() {
		size = 32 << 20
	}
	const most = 8 << 20 // bytes, for the buffers in between
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var before uint64
	check := func(where string) func() {
		return func() {
			if now := heap(); now > before+most {
				t.Errorf("half of the %s has passed, and the heap has grown by %d MiB", where, (now-before)>>20)
			}
		}
	}
	base, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n != size && n != 0 {
			t.Errorf("the service got %d bytes, %v", n, err)
		}
		if n, err := io.Copy(w, &zeros{size, size, check("response")}); n != size {
			t.Errorf("the service sent %d bytes, %v", n, err)
		}
	}), func(s *Settings) { s.Fingerprint = "none" })
	before = heap()
	for name, test := range map[string]struct {
		key  string
		body io.Reader
	}{
		"without a key":           {"", &zeros{size, size, check("request")}},
		"with a key":              {`"both"`, &zeros{size, size, check("request with a key")}},
		"with a key, of response": {`"response"`, http.NoBody},
	} {
		answer, err := http.DefaultClient.Do(newRequest(t, http.MethodPost, base, test.key, test.body))
		if err != nil {
			t.Fatal(name, err)
		}
		n, err := io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if n != size || err != nil || (test.key != "") != (answer.Header.Get(idempotency.HeaderReplayed) == "false") {
			t.Errorf("%s: %d bytes, %v, %v", name, n, err, answer.Header)
		}
	}
	status, _, text := send(t, http.MethodPost, base, `"response"`, "")
	if p := problemOf(t, text); status != http.StatusGone || p.Code != string(idempotency.CodeNotRetained) {
		t.Errorf("the repeat of a response that is not kept: %d %s", status, text)
	}
}
