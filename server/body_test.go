package server

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// deadlines records the deadlines of a response.
type deadlines struct {
	*httptest.ResponseRecorder
	set   []time.Time // for reads
	write []time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.write = append(d.write, t)
	return nil
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// TestReadWithinEndsWithTheBody: the deadline is for the body alone, and must
// be gone while the request is being answered.
func TestReadWithinEndsWithTheBody(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{"": 0, "some": 2} {
		d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		var got string
		handler := readWithin(time.Hour, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			got = string(text)
		}))
		handler.ServeHTTP(d, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body)))
		if got != body || len(d.set) != want {
			t.Fatalf("%q: read %q with the deadlines %v, want %d of them", body, got, d.set, want)
		}
		if want > 0 && (d.set[0].IsZero() || !d.set[1].IsZero()) {
			t.Error("want a deadline, then none:", d.set)
		}
	}
}

// TestReadWithinSlowBody: a client that promises a body and sends none of it
// must not keep its handler.
func TestReadWithinSlowBody(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	hs := httptest.NewServer(readWithin(10*time.Millisecond, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		ended <- err
	})))
	defer hs.Close()
	conn, err := net.Dial("tcp", hs.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("want the deadline, got", err)
	}
}

// TestUnaryBodiesAreTimed: every request gets a deadline, and one that was let
// in another. A stream that is refused keeps it.
func TestUnaryBodiesAreTimed(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	for procedure, want := range map[string]int{
		"/seqledger.v1.LedgerService/Write": 3, "/seqledger.v1.AdminService/UpdateConfig": 3,
		"/grpc.health.v1.Health/Check": 3, "/seqledger.v1.LedgerService/WriteStream": 1,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": 2,
	} {
		d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, procedure, strings.NewReader("{}"))
		r.Host = "localhost"
		r.Header.Set("Content-Type", "application/json")
		s.Handler().ServeHTTP(d, r)
		if last := d.write[len(d.write)-1]; last.IsZero() {
			t.Errorf("%s: the answer has no deadline", procedure)
		}
		if len(d.set) != want || d.set[0].IsZero() {
			t.Errorf("%s: got the deadlines %v, want %d", procedure, d.set, want)
		}
	}
}

// TestProbesPassTheGate: a server that is full is alive, and those who watch
// over it must see so.
func TestProbesPassTheGate(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{MaxRequests: 1})
	if !s.requests.enter(1) {
		t.Fatal("there must be room for one")
	}
	defer s.requests.leave()
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		r.Host = "localhost"
		s.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "no-store" {
			t.Error(path, w.Code, w.Header())
		}
	}
	if w := post(s.Handler(), "/grpc.health.v1.Health/Check", `{}`); w.Code != http.StatusOK {
		t.Error("the gRPC health check:", w.Code, w.Body)
	}
	if w := post(s.Handler(), "/nothing", `{}`); w.Code == http.StatusNotFound {
		t.Error("all else waits at the gate:", w.Code)
	}
	if n := s.probes.count(); n != 0 {
		t.Error("probes that have left and still count:", n)
	}
}
