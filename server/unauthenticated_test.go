package server

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/admission"
)

// newGuardedServer returns a server that asks for a credential, and one.
func newGuardedServer(t *testing.T, o Options) (s *Server, key string) {
	t.Helper()
	guarded := newKeyedServer(t, o, map[string]string{"root": `role: admin, scopes: ["*"], client_ids: ["*"]`})
	return guarded.Server, guarded.keys["root"]
}

// deadlines records the deadlines of a response.
type deadlines struct {
	*httptest.ResponseRecorder

	read, write []time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error {
	d.write = append(d.write, t)
	return nil
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read = append(d.read, t)
	return nil
}

// A caller that is not admitted has some seconds for its answer, and for the body, which is dropped.
func TestUnauthenticatedRequestsHaveLittleTime(t *testing.T) {
	t.Parallel()
	s, key := newGuardedServer(t, Options{MaxRequests: 4})
	const write = seqledgerv1connect.LedgerServiceWriteProcedure
	for name, test := range map[string]struct {
		method, path, key string
		full              bool
		refused           bool
	}{
		"no credential":    {http.MethodPost, write, "", false, true},
		"a wrong one":      {http.MethodPost, write, key + "x", false, true},
		"nothing there":    {http.MethodPost, "/nothing", "", false, true},
		"alive":            {http.MethodGet, "/healthz", "", false, true},
		"metrics":          {http.MethodGet, "/metrics", "", false, true},
		"full":             {http.MethodPost, write, key, true, true},
		"a write":          {http.MethodPost, write, key, false, false},
		"metrics of a key": {http.MethodGet, "/metrics", key, false, false},
	} {
		d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), test.method, test.path, strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		if test.key != "" {
			r.Header.Set("Authorization", "Bearer "+test.key)
		}
		leave := func() {}
		if test.full {
			c, err := s.options.Auth.Authenticate(r.Header)
			if err == nil {
				leave, err = s.admission.Request(t.Context(), s.admission.Party(c.Share(), c.Limits()))
			}
			must.Do(t, err)
		}
		s.handler.ServeHTTP(d, r)
		leave()
		if test.full && d.Code != http.StatusTooManyRequests {
			t.Error("a credential that has as many requests as it may is answered with", d.Code)
		}
		if len(d.write) == 0 || len(d.read) == 0 || d.write[0].IsZero() || d.read[0].IsZero() {
			t.Fatalf("%s: the deadlines are %v and %v", name, d.write, d.read)
		}
		first, last := d.write[0], d.write[len(d.write)-1]
		if long := last.Sub(first) > time.Minute; long == test.refused {
			t.Errorf("%s: has until %s for its answer, at first until %s", name, last, first)
		}
		if test.refused && len(d.read) != 1 && name != "alive" {
			t.Errorf("%s: has %v for its body", name, d.read)
		}
	}
}

// deafConnection returns an HTTP/2 connection whose client takes no data, and which has sent n requests.
func deafConnection(t *testing.T, address, procedure, kind, body string, n int) {
	t.Helper()
	conn := must.Get(net.Dial("tcp", address))(t)
	t.Cleanup(func() { _ = conn.Close() })
	go func() { _, _ = io.Copy(io.Discard, conn) }() // ends when the connection is closed
	frame := func(kind, flags byte, id int, payload string) string {
		size := len(payload)
		return string([]byte{byte(size >> 16), byte(size >> 8), byte(size), kind, flags, 0, 0, byte(id >> 8),
			byte(id)}) +
			payload
	}
	var headers string
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", procedure}, {":authority", "localhost"},
		{"content-type", kind},
	} { // each a literal that is not indexed
		headers += string([]byte{0, byte(len(field[0]))}) + field[0] + string([]byte{byte(len(field[1]))}) + field[1]
	}
	const noWindow = "\x00\x04\x00\x00\x00\x00" // SETTINGS_INITIAL_WINDOW_SIZE
	text := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, noWindow)
	for i := range n {
		text += frame(1, 4, 2*i+1, headers) + frame(0, 1, 2*i+1, body)
	}
	must.Get(io.WriteString(conn, text))(t)
}

// TestEndOfStreamIsTimed: a client that does not read the end of a stream is disconnected, like one that does not read
// a message.
func TestEndOfStreamIsTimed(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{Logger: slog.New(slog.DiscardHandler)})
	s.stall = 20 * time.Millisecond
	const n = 20
	procedure := seqledgerv1connect.LedgerServiceWatchProcedure
	deafConnection(t, serveAddress(t, s), procedure, "application/connect+json", enveloped(0, "{}"), n)
	want := fmt.Sprintf("seqledger_requests_total{code=\"invalid_argument\",procedure=%q} %d\n", procedure, n)
	for ctx := soon(t); ; {
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/metrics", http.NoBody))
		if strings.Contains(w.Body.String(), want) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the requests have not arrived:", w.Body)
		}
	}
	must.Do(t, s.admission.AwaitRequests(soon(t)), "places are kept")
}

// openWithoutRequest opens a stream over HTTP/1.1 whose request never comes.
func openWithoutRequest(t *testing.T, s *Server, procedure string) net.Conn {
	t.Helper()
	conn := must.Get(net.Dial("tcp", serveAddress(t, s)))(t)
	t.Cleanup(func() { _ = conn.Close() })
	must.Get(io.WriteString(conn, "POST "+procedure+" HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Type: application/connect+json\r\nContent-Length: 100\r\n\r\n"))(t)
	return conn
}

// TestStreamsNeedTheirRequest: a client that opens a Watch or a Backup without sending the request is disconnected, at
// once when the server drains.
func TestStreamsNeedTheirRequest(t *testing.T) {
	t.Parallel()
	for _, procedure := range []string{seqledgerv1connect.LedgerServiceWatchProcedure,
		seqledgerv1connect.AdminServiceBackupProcedure} {
		s := newTestServer(t, Options{})
		s.late = 20 * time.Millisecond
		conn := openWithoutRequest(t, s, procedure)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // like soon
		must.Do(t, check.Err(conn.Read(make([]byte, 1))), "%s: want an answer", procedure)
		if err := s.admission.AwaitStreams(soon(t)); err != nil {
			t.Error(procedure, "keeps its place:", err)
		}
		s = newTestServer(t, Options{})
		openWithoutRequest(t, s, procedure)
		for ctx := soon(t); s.admission.Gauges().Streams == 0 && ctx.Err() == nil; {
			<-time.After(time.Millisecond)
		}
		if err := s.Drain(soon(t)); err != nil {
			t.Error(procedure, "holds up a drain:", err)
		}
	}
}

// TestReflectionTakesNoRoom: reflection does not wait for writers, nor writers for reflection.
func TestReflectionTakesNoRoom(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, Options{})
	useUpMessageBytes(t, s)
	const fileContainingSymbol = 4
	message := protowire.AppendTag(nil, fileContainingSymbol, protowire.BytesType)
	message = protowire.AppendString(message, strings.Repeat("x", 10<<10))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	url := "http://" + serveAddress(t, s) + "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
	r := must.Get(http.NewRequestWithContext(soon(t), http.MethodPost, url,
		bytes.NewReader([]byte(enveloped(0, string(message))))))(t)
	r.Header.Set("Content-Type", "application/grpc")
	answer := must.Get(transport.RoundTrip(r))(t)
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || len(body) == 0 || answer.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("got %q, %v, %v %v", body, err, answer.Header, answer.Trailer)
	}
}

// useUpMessageBytes takes all room for messages of more than a few KiB.
func useUpMessageBytes(t *testing.T, s *Server) {
	t.Helper()
	for _, size := range []int{6 << 20, 5 << 10} {
		for err := error(nil); err == nil; {
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", size)))
			body := s.admission.NewBody(r, s.party(t.Context()), admission.BodyOptions{
				Largest: 6 << 20, Compressed: true, Refused: func(err error) error { return err },
			})
			t.Cleanup(body.Release)
			_, err = io.Copy(io.Discard, body)
		}
	}
}

func enveloped(flags byte, content string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(content)))) + content
}

// TestHealthChecksAreVisits: one whose body does not arrive is bounded as package admission bounds visits, to its end.
func TestHealthChecksAreVisits(t *testing.T) {
	t.Parallel()
	s, _ := newGuardedServer(t, Options{})
	conn := must.Get(net.Dial("tcp", serveAddress(t, s)))(t)
	defer conn.Close()
	must.Get(io.WriteString(conn, "POST /grpc.health.v1.Health/Check HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Type: application/proto\r\nContent-Length: 100\r\n\r\n"))(t)
	for _, want := range []int64{1, 0} {
		for ctx := soon(t); s.admission.Gauges().Visits != want; {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%d visits, want %d", s.admission.Gauges().Visits, want)
			}
		}
		_ = conn.Close()
	}
}
