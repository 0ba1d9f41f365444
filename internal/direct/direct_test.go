package direct

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// service answers each write with a receipt of its sequence, and ends the stream
// with what ends says of a client id.
type service struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler
	ends map[string]error
}

type bidi = connect.BidiStream[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse]

func (s *service) WriteStream(ctx context.Context, stream *bidi) error {
	for {
		frame, err := stream.Receive()
		if err != nil {
			return nil
		}
		response := new(seqledgerv1.WriteStreamResponse)
		for _, w := range frame.GetWrites() {
			if end, ok := s.ends[w.GetClientId()]; ok {
				return end
			}
			response.Results = append(response.Results, &seqledgerv1.WriteResult{
				Result: &seqledgerv1.WriteResult_Receipt{
					Receipt: &seqledgerv1.Receipt{Sequence: w.GetSequence(), Replayed: Given(ctx)}},
			})
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// serve starts the service behind Handler and returns the URL of WriteStream.
func serve(t *testing.T, s *service, closed context.Context) string {
	t.Helper()
	path, handler := seqledgerv1connect.NewLedgerServiceHandler(s)
	mux := http.NewServeMux()
	mux.Handle(path, Handler(closed, handler))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + seqledgerv1connect.LedgerServiceWriteStreamProcedure
}

func open(t *testing.T, url string) *Stream {
	t.Helper()
	s, err := Open(t.Context(), NewTransport(new(http.Transport)), url, nil, prototest.Codec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func frameOf(client string, sequences ...uint64) *seqledgerv1.WriteStreamRequest {
	frame := new(seqledgerv1.WriteStreamRequest)
	for _, n := range sequences {
		frame.Writes = append(frame.Writes, &seqledgerv1.WriteRequest{ClientId: client, Sequence: n})
	}
	return frame
}

func sequences(r *seqledgerv1.WriteStreamResponse) (all []uint64) {
	for _, result := range r.GetResults() {
		all = append(all, result.GetReceipt().GetSequence())
	}
	return all
}

// TestMessagesBothWays: each frame is answered, also those longer than any buffer,
// and the handler knows that the connection is the stream's.
func TestMessagesBothWays(t *testing.T) {
	t.Parallel()
	s := open(t, serve(t, new(service), t.Context()))
	long := make([]uint64, 30_000)
	for i := range long {
		long[i] = uint64(i) + 1
	}
	for _, want := range [][]uint64{{1}, {2, 3}, long, {4}} {
		if err := s.Send(frameOf("c", want...)); err != nil {
			t.Fatal(err)
		}
		response := new(seqledgerv1.WriteStreamResponse)
		if err := s.Receive(response); err != nil || !slices.Equal(sequences(response), want) {
			t.Fatalf("%d results and %v, want %d", len(response.GetResults()), err, len(want))
		}
		if !response.GetResults()[0].GetReceipt().GetReplayed() {
			t.Error("the handler does not know that the connection is the stream's")
		}
	}
}

// TestEndsOfAStream: the client learns how the server has ended it, details
// included, and that the server itself said so.
func TestEndsOfAStream(t *testing.T) {
	t.Parallel()
	refused := connect.NewError(connect.CodeResourceExhausted, errors.New("not now"))
	detail, err := connect.NewErrorDetail(
		&seqledgerv1.WriteError{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING})
	if err != nil {
		t.Fatal(err)
	}
	refused.AddDetail(detail)
	url := serve(t, &service{ends: map[string]error{"orderly": nil, "refused": refused}}, t.Context())

	s := open(t, url)
	if err := s.Send(frameOf("orderly", 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Receive(new(seqledgerv1.WriteStreamResponse)); !errors.Is(err, io.EOF) {
		t.Errorf("%v at an orderly end, want io.EOF", err)
	}

	s = open(t, url)
	if err := s.Send(frameOf("refused", 1)); err != nil {
		t.Fatal(err)
	}
	err = s.Receive(new(seqledgerv1.WriteStreamResponse))
	var got *connect.Error
	if !errors.As(err, &got) || got.Code() != connect.CodeResourceExhausted || got.Message() != "not now" ||
		!connect.IsWireError(err) {
		t.Fatalf("%v, want the server's error", err)
	}
	if len(got.Details()) != 1 {
		t.Fatalf("%d details", len(got.Details()))
	}
	value, err := got.Details()[0].Value()
	if e, ok := value.(*seqledgerv1.WriteError); err != nil || !ok ||
		e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING {
		t.Errorf("the detail is %v, %v", value, err)
	}
}

// TestTheEndReachesAClientThatIsSending: the server ends the stream while more
// comes than it reads; closing the connection at once would throw the end away.
func TestTheEndReachesAClientThatIsSending(t *testing.T) {
	t.Parallel()
	refused := connect.NewError(connect.CodeUnavailable, errors.New("away"))
	s := open(t, serve(t, &service{ends: map[string]error{"c": refused}}, t.Context()))
	sent := make(chan struct{})
	// Ends when the server has closed its side; the test waits for it.
	go func() {
		defer close(sent)
		for range 200 {
			if s.Send(frameOf("c", make([]uint64, 1000)...)) != nil {
				return
			}
		}
	}()
	if err := s.Receive(new(seqledgerv1.WriteStreamResponse)); err == nil || !strings.Contains(err.Error(), "away") {
		t.Errorf("%v, want the end of the stream", err)
	}
	_ = s.Close()
	<-sent
}

// TestServersThatDoNotSwitch are told by their status.
func TestServersThatDoNotSwitch(t *testing.T) {
	t.Parallel()
	path, plain := seqledgerv1connect.NewLedgerServiceHandler(new(service))
	mux := http.NewServeMux()
	mux.Handle(path, plain)
	for name, test := range map[string]struct {
		handler http.Handler
		status  int
	}{
		"without the protocol": {mux, http.StatusHTTPVersionNotSupported},
		"unauthorized":         {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }), 401},
		"success": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "welcome to our web site")
		}), 200},
		"another protocol": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "websocket")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
		}), 101},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.handler)
			t.Cleanup(server.Close)
			url := server.URL + seqledgerv1connect.LedgerServiceWriteStreamProcedure
			_, err := Open(t.Context(), NewTransport(new(http.Transport)), url, nil, prototest.Codec{})
			var refused *RefusedError
			if !errors.As(err, &refused) || refused.Status != test.status {
				t.Errorf("%v, want status %d", err, test.status)
			}
		})
	}
}

// askWith asks for the connection by a request that was changed, and returns the
// answer.
func askWith(t *testing.T, url string, change func(r *http.Request)) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", Protocol)
	r.Header.Set("Content-Type", contentType)
	change(r)
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// TestOthersPass: requests that do not ask for the connection go on as they were.
func TestOthersPass(t *testing.T) {
	t.Parallel()
	url := serve(t, new(service), t.Context())
	for name, change := range map[string]func(r *http.Request){
		"no upgrade":       func(r *http.Request) { r.Header.Del("Upgrade") },
		"another upgrade":  func(r *http.Request) { r.Header.Set("Upgrade", "h2c") },
		"a part of it":     func(r *http.Request) { r.Header.Set("Upgrade", Protocol+"-2, x-"+Protocol) },
		"no connection":    func(r *http.Request) { r.Header.Del("Connection") },
		"gRPC":             func(r *http.Request) { r.Header.Set("Content-Type", "application/grpc+proto") },
		"another encoding": func(r *http.Request) { r.Header.Set("Content-Type", "application/connect+json") },
		"GET":              func(r *http.Request) { r.Method = http.MethodGet },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if askWith(t, url, change).StatusCode == http.StatusSwitchingProtocols {
				t.Error("the protocol was switched")
			}
		})
	}
}

// TestListsAreUnderstood: a proxy may join or add lines, and a client that offers several
// protocols gets this one.
func TestListsAreUnderstood(t *testing.T) {
	t.Parallel()
	url := serve(t, new(service), t.Context())
	for name, change := range map[string]func(r *http.Request){
		"in one line":       func(r *http.Request) { r.Header.Set("Connection", "keep-alive,\tUPGRADE") },
		"in two lines":      func(r *http.Request) { r.Header["Connection"] = []string{"keep-alive", "Upgrade"} },
		"several protocols": func(r *http.Request) { r.Header.Set("Upgrade", "websocket, "+Protocol) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			response := askWith(t, url, change)
			if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Upgrade") != Protocol {
				t.Errorf("status %d, upgrade %q", response.StatusCode, response.Header.Get("Upgrade"))
			}
		})
	}
}

// TestClosedEndsConnections that are idle, and their handlers.
func TestClosedEndsConnections(t *testing.T) {
	t.Parallel()
	closed, end := context.WithCancel(t.Context())
	s := open(t, serve(t, new(service), closed))
	end()
	if err := s.Receive(new(seqledgerv1.WriteStreamResponse)); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("%v, want a connection that has ended", err)
	}
}

// TestAStreamEndsWithItsContext although the transport has handed the connection
// over.
func TestAStreamEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Open(ctx, NewTransport(new(http.Transport)), serve(t, new(service), t.Context()), nil, prototest.Codec{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	cancel()
	if err := s.Receive(new(seqledgerv1.WriteStreamResponse)); err == nil {
		t.Error("a message after the end")
	}
}

// TestOverTLS: a transport that was made for HTTP/2 offers HTTP/1.1 here, because
// nothing else can switch.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	path, handler := seqledgerv1connect.NewLedgerServiceHandler(new(service))
	mux := http.NewServeMux()
	mux.Handle(path, Handler(t.Context(), handler))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	config := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = nil
	transport := NewTransport(&http.Transport{Protocols: protocols, TLSClientConfig: config})
	s, err := Open(t.Context(), transport,
		server.URL+seqledgerv1connect.LedgerServiceWriteStreamProcedure, nil, prototest.Codec{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Send(frameOf("c", 7)); err != nil {
		t.Fatal(err)
	}
	response := new(seqledgerv1.WriteStreamResponse)
	if err := s.Receive(response); err != nil || !slices.Equal(sequences(response), []uint64{7}) {
		t.Errorf("%v, %v", response, err)
	}
}
