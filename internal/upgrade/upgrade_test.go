package upgrade

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// service answers each write with a receipt of its sequence, and ends the stream with what ends says of a client id.
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
					Receipt: &seqledgerv1.Receipt{Sequence: w.GetSequence(), Replayed: IsUpgraded(ctx)}},
			})
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// testLimit is larger than any envelope of these tests.
const testLimit = 1 << 20

func testOptions(closed context.Context) Options {
	return Options{Closed: closed, MaxMessageBytes: testLimit, PingEvery: PingEvery}
}

// serve starts the service behind Handler and returns the URL of WriteStream.
func serve(t *testing.T, s *service, closed context.Context) string {
	t.Helper()
	path, handler := seqledgerv1connect.NewLedgerServiceHandler(s)
	mux := http.NewServeMux()
	mux.Handle(path, Handler(testOptions(closed), handler))
	return newServer(t, mux) + seqledgerv1connect.LedgerServiceWriteStreamProcedure
}

func newServer(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func open(t *testing.T, url string) *ClientConn {
	t.Helper()
	s := must.Get(Dial(t.Context(), NewTransport(new(http.Transport)), url, nil, prototest.Codec{}))(t)
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

// TestMessagesBothWays: each frame is answered, also those longer than any buffer, and the handler knows that the
// connection is upgraded.
func TestMessagesBothWays(t *testing.T) {
	t.Parallel()
	s := open(t, serve(t, new(service), t.Context()))
	long := make([]uint64, 30_000)
	for i := range long {
		long[i] = uint64(i) + 1
	}
	for _, want := range [][]uint64{{1}, {2, 3}, long, {4}} {
		must.Do(t, s.Send(frameOf("c", want...)))
		response := new(seqledgerv1.WriteStreamResponse)
		if err := s.Receive(response); err != nil || !slices.Equal(sequences(response), want) {
			t.Fatalf("%d results and %v, want %d", len(response.GetResults()), err, len(want))
		}
		if !response.GetResults()[0].GetReceipt().GetReplayed() {
			t.Error("the handler does not know that the connection is upgraded")
		}
	}
}

// TestEndsOfAStream: the client learns how the server has ended it, details included, and that the server itself said
// so.
func TestEndsOfAStream(t *testing.T) {
	t.Parallel()
	refused := connect.NewError(connect.CodeResourceExhausted, errors.New("not now"))
	detail, err := connect.NewErrorDetail(
		&seqledgerv1.WriteError{Code: seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING})
	must.Do(t, err)
	refused.AddDetail(detail)
	url := serve(t, &service{ends: map[string]error{"orderly": nil, "refused": refused}}, t.Context())

	s := open(t, url)
	must.Do(t, s.Send(frameOf("orderly", 1)))
	if err := s.Receive(new(seqledgerv1.WriteStreamResponse)); !errors.Is(err, io.EOF) {
		t.Errorf("%v at an orderly end, want io.EOF", err)
	}

	s = open(t, url)
	must.Do(t, s.Send(frameOf("refused", 1)))
	err = s.Receive(new(seqledgerv1.WriteStreamResponse))
	var got *connect.Error
	if !errors.As(err, &got) || got.Code() != connect.CodeResourceExhausted || got.Message() != "not now" ||
		!connect.IsWireError(err) {
		t.Fatalf("%v, want the server's error", err)
	}
	must.Equal(t, len(got.Details()), 1, "%d details")
	value, err := got.Details()[0].Value()
	if e, ok := value.(*seqledgerv1.WriteError); err != nil || !ok ||
		e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING {
		t.Errorf("the detail is %v, %v", value, err)
	}
}

// TestTheEndReachesAClientThatIsSending: the server ends the stream while more comes than it reads; closing the
// connection at once would throw the end away.
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
		"unauthorized": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }),
			401},
		"success": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "welcome to our web site")
		}), 200},
		"another protocol": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "websocket")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
		}), 101},
		"another sub-protocol": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ws, err := websocket.Accept(w, r, nil); err == nil {
				_, _, _ = ws.Reader(r.Context())
			}
		}), 101},
		"elsewhere": {http.RedirectHandler("/", http.StatusTemporaryRedirect), http.StatusTemporaryRedirect},
		"without an end": {http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}), http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.handler)
			t.Cleanup(server.Close)
			url := server.URL + seqledgerv1connect.LedgerServiceWriteStreamProcedure
			_, err := Dial(t.Context(), NewTransport(new(http.Transport)), url, nil, prototest.Codec{})
			var refused *RefusedError
			if !errors.As(err, &refused) || refused.Status != test.status {
				t.Errorf("%v, want status %d", err, test.status)
			}
		})
	}
}

// askWith asks for the connection by a request that was changed, and returns the answer.
func askWith(t *testing.T, url string, change func(r *http.Request)) *http.Response {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	r.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, ProtocolHeader: {Protocol},
	}
	change(r)
	response := must.Get(http.DefaultTransport.RoundTrip(r))(t)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// TestOthersPass: requests that do not ask for the connection go on as they were.
func TestOthersPass(t *testing.T) {
	t.Parallel()
	url := serve(t, new(service), t.Context())
	for name, change := range map[string]func(r *http.Request){
		"no upgrade":      func(r *http.Request) { r.Header.Del("Upgrade") },
		"another upgrade": func(r *http.Request) { r.Header.Set("Upgrade", "h2c") },
		"a part of it":    func(r *http.Request) { r.Header.Set("Upgrade", "websocket-2, x-websocket") },
		"no connection":   func(r *http.Request) { r.Header.Del("Connection") },
		"POST":            func(r *http.Request) { r.Method = http.MethodPost },
		"another version": func(r *http.Request) { r.Header.Set("Sec-Websocket-Version", "8") },
		"no sub-protocol": func(r *http.Request) { r.Header.Del(ProtocolHeader) },
		"another one":     func(r *http.Request) { r.Header.Set(ProtocolHeader, Protocol+"-2, x-"+Protocol) },
		"an older client": func(r *http.Request) {
			r.Method, r.Header = http.MethodPost, http.Header{
				"Connection": {"Upgrade"}, "Upgrade": {"seqledger-direct"},
				"Content-Type": {"application/connect+proto"},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if askWith(t, url, change).StatusCode == http.StatusSwitchingProtocols {
				t.Error("the protocol was switched")
			}
		})
	}
}

// TestListsAreUnderstood: a proxy may join or add lines, and a client that offers several protocols gets this one.
func TestListsAreUnderstood(t *testing.T) {
	t.Parallel()
	url := serve(t, new(service), t.Context())
	for name, change := range map[string]func(r *http.Request){
		"in one line":           func(r *http.Request) { r.Header.Set("Connection", "keep-alive,\tUPGRADE") },
		"in two lines":          func(r *http.Request) { r.Header["Connection"] = []string{"keep-alive", "Upgrade"} },
		"several protocols":     func(r *http.Request) { r.Header.Set("Upgrade", "h2c, WebSocket") },
		"several sub-protocols": func(r *http.Request) { r.Header.Set(ProtocolHeader, "chat,\t"+Protocol) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			response := askWith(t, url, change)
			if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get(ProtocolHeader) != Protocol {
				t.Errorf("status %d, sub-protocol %q", response.StatusCode, response.Header.Get(ProtocolHeader))
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
	check.Equal(t, connect.CodeOf(s.Receive(new(seqledgerv1.WriteStreamResponse))), connect.CodeUnavailable,
		"%v, want a connection that has ended")
}

// TestAStreamEndsWithItsContext although the transport has handed the connection over.
func TestAStreamEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := must.Get(Dial(ctx, NewTransport(new(http.Transport)), serve(t, new(service), t.Context()), nil,
		prototest.Codec{}))(t)
	defer func() { _ = s.Close() }()
	cancel()
	if err := s.Receive(new(seqledgerv1.WriteStreamResponse)); err == nil {
		t.Error("a message after the end")
	}
}

// TestOverTLS: a transport that was made for HTTP/2 offers HTTP/1.1 here, because nothing else can switch.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	path, handler := seqledgerv1connect.NewLedgerServiceHandler(new(service))
	mux := http.NewServeMux()
	mux.Handle(path, Handler(testOptions(t.Context()), handler))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	config := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = nil
	transport := NewTransport(&http.Transport{Protocols: protocols, TLSClientConfig: config})
	s := must.Get(Dial(t.Context(), transport,
		server.URL+seqledgerv1connect.LedgerServiceWriteStreamProcedure, nil, prototest.Codec{}))(t)
	defer func() { _ = s.Close() }()
	must.Do(t, s.Send(frameOf("c", 7)))
	response := new(seqledgerv1.WriteStreamResponse)
	if err := s.Receive(response); err != nil || !slices.Equal(sequences(response), []uint64{7}) {
		t.Errorf("%v, %v", response, err)
	}
}

// page opens a WebSocket as a page does.
func page(t *testing.T, url string, o *websocket.DialOptions) *websocket.Conn {
	t.Helper()
	o.Subprotocols = []string{Protocol}
	ws, _, err := websocket.Dial(t.Context(), url, o)
	must.Do(t, err)
	t.Cleanup(func() { _ = ws.CloseNow() })
	return ws
}

// raw opens a WebSocket below which frames are written by hand.
func raw(t *testing.T, url string, frames ...[]byte) *websocket.Conn {
	t.Helper()
	connections := make(chan net.Conn, 1)
	ws := page(t, url, &websocket.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			connections <- c
			return c, err
		},
	}}})
	must.Get((<-connections).Write(slices.Concat(frames...)))(t)
	return ws
}

// received are the sequences of the next messages until the end of the stream, the contents of that, and the close
// code.
func received(t *testing.T, ws *websocket.Conn) (all []uint64, end string, code websocket.StatusCode) {
	t.Helper()
	for {
		kind, data, err := ws.Read(t.Context())
		if err != nil {
			return all, end, websocket.CloseStatus(err)
		}
		if kind != websocket.MessageBinary || len(data) < headerBytes || end != "" {
			t.Fatalf("%s %q behind %q", kind, data, end)
		}
		if data[0] == flagEnd {
			end = string(data[headerBytes:])
			continue
		}
		response := new(seqledgerv1.WriteStreamResponse)
		must.Do(t, proto.Unmarshal(data[headerBytes:], response))
		all = append(all, sequences(response)...)
	}
}

// TestFrames: envelopes come in messages and frames of any size, among control frames, and a malformed frame ends the
// connection with the code for it. What came before it is answered.
func TestFrames(t *testing.T) {
	t.Parallel()
	const normal, bad = websocket.StatusNormalClosure, websocket.StatusProtocolError
	frame, binary := prototest.Frame, byte(prototest.FrameBinary)
	one, two := prototest.Enveloped(frameOf("c", 1)), prototest.Enveloped(frameOf("c", 2))
	last := prototest.Envelope(flagEnd, []byte("{}"))
	end := frame(binary, last)
	first := frame(binary, one)
	tooLong := slices.Concat(first, frame(binary, prototest.Enveloped(frameOf("c", make([]uint64, testLimit/4)...))))
	for name, test := range map[string]struct {
		frames []byte
		want   []uint64
		end    string
		code   websocket.StatusCode
	}{
		"one each": {slices.Concat(first, frame(binary, two), end), []uint64{1, 2}, "{}", normal},
		"several":  {frame(binary, slices.Concat(one, two, last)), []uint64{1, 2}, "{}", normal},
		"fragments": {slices.Concat(frame(2, one[:3]), frame(0, one[3:8]), frame(0, nil), frame(0x80, one[8:]), end),
			[]uint64{1}, "{}", normal},
		"two messages": {slices.Concat(frame(binary, one[:7]), frame(binary, one[7:]), end), []uint64{1}, "{}",
			normal},
		"empty message": {slices.Concat(frame(binary, nil), first, end), []uint64{1}, "{}", normal},
		"control frames": {slices.Concat(frame(prototest.FramePong, []byte("unasked")), frame(2, one[:3]),
			frame(prototest.FramePing, []byte("x")), frame(prototest.FramePong, nil), frame(0x80, one[3:]), end),
			[]uint64{1}, "{}", normal},
		"closed in a message": {
			slices.Concat(first, frame(2, two[:7]), frame(prototest.FrameClose, []byte{3, 0xe8})), nil, "", normal},
		"text": {slices.Concat(first, frame(prototest.FrameText, two)), []uint64{1},
			"{}", websocket.StatusUnsupportedData},
		"too long":      {tooLong, []uint64{1}, "{}", websocket.StatusMessageTooBig},
		"continued":     {slices.Concat(frame(0x80, one)), nil, "", bad},
		"unfinished":    {slices.Concat(frame(2, one[:7]), frame(binary, two)), nil, "", bad},
		"unknown":       {frame(0x83, one), nil, "", bad},
		"compressed":    {frame(0xc2, one), nil, "", bad},
		"long control":  {frame(prototest.FramePing, make([]byte, 126)), nil, "", bad},
		"half a ping":   {frame(9, nil), nil, "", bad},
		"bad close":     {frame(prototest.FrameClose, []byte{0, 1}), nil, "", bad},
		"empty close":   {frame(prototest.FrameClose, nil), nil, "", websocket.StatusNoStatusRcvd},
		"after the end": {slices.Concat(first, end, frame(binary, two)), []uint64{1}, "{}", normal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ws := raw(t, serve(t, new(service), t.Context()), test.frames)
			all, end, code := received(t, ws)
			if name == "closed in a message" {
				all = nil // the answer may be sent before the close frame is read, or never
			}
			if !slices.Equal(all, test.want) || end != test.end || code != test.code {
				t.Errorf("%d, %s, %d; want %d, %s, %d", all, end, code, test.want, test.end, test.code)
			}
		})
	}
}

// TestPingsAreAnswered with their contents.
func TestPingsAreAnswered(t *testing.T) {
	t.Parallel()
	ws := page(t, serve(t, new(service), t.Context()), &websocket.DialOptions{})
	ctx := ws.CloseRead(t.Context()) // reads the pongs
	for range 3 {
		must.Do(t, ws.Ping(ctx))
	}
}
