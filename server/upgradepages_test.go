package server_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	"github.com/seqledger/seqledger/internal/upgrade"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// page opens a WebSocket as a page does.
func (h *harness) page(t *testing.T, o *websocket.DialOptions) *websocket.Conn {
	t.Helper()
	if o.Subprotocols == nil {
		o.Subprotocols = []string{upgrade.Protocol}
	}
	ws, _, err := websocket.Dial(within(t), h.url+seqledgerv1connect.LedgerServiceWriteStreamProcedure, o)
	must.Do(t, err)
	t.Cleanup(func() { _ = ws.CloseNow() })
	ws.SetReadLimit(-1) // a browser has none: all answers that wait may come in one message
	return ws
}

func sendMessage(t *testing.T, ws *websocket.Conn, data []byte) {
	t.Helper()
	must.Do(t, ws.Write(within(t), websocket.MessageBinary, data))
}

// receiveMessage receives a message with one envelope, decodes it into m unless it is the end of the stream, and
// returns that.
func receiveMessage(ws *websocket.Conn, m proto.Message) (end string, err error) {
	_, data, err := ws.Read(context.Background())
	switch {
	case err != nil:
		return "", err
	case len(data) < 5 || int(binary.BigEndian.Uint32(data[1:]))+5 != len(data):
		return "", fmt.Errorf("%q is not one envelope", data)
	case data[0] == 2:
		return string(data[5:]), nil
	}
	return "", proto.Unmarshal(data[5:], m)
}

// TestAPageWrites: a page brings its key as a sub-protocol, because it cannot set headers. The key is not sent back and
// not logged.
func TestAPageWrites(t *testing.T) {
	t.Parallel()
	const origin = "https://app.example.com"
	g := guard(t, server.Options{CORSOrigins: []string{origin}}, nil)
	key := base64.RawURLEncoding.EncodeToString([]byte(g.keys["writer"]))
	ws := g.page(t, &websocket.DialOptions{
		HTTPHeader: http.Header{"Origin": {origin}}, Subprotocols: []string{upgrade.Protocol, "bearer." + key},
	})
	check.Equal(t, ws.Subprotocol(), upgrade.Protocol, "the sub-protocol is %q")
	m := new(seqledgerv1.WriteStreamResponse)
	sendMessage(t, ws, prototest.Enveloped(frameOf(writeOf("till-1", 1, appendOp("x")))))
	if end, err := receiveMessage(ws, m); err != nil || end != "" ||
		m.Results[0].GetReceipt().GetActor() != "client:writer" {
		t.Fatal(m, end, err)
	}
	sendMessage(t, ws, prototest.Envelope(2, []byte("{}")))
	check.Equal(t, must.Get(receiveMessage(ws, m))(t), "{}")
	if _, _, err := ws.Read(within(t)); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("%v, want a close frame", err)
	}
	if log := g.log.String(); strings.Contains(log, key) || strings.Contains(log, g.keys["writer"]) {
		t.Error("the log has the key")
	}
}

// upgradeStatus is the status of the answer to a request for an upgraded connection.
func (h *harness) upgradeStatus(t *testing.T, header http.Header) (status int, text string) {
	t.Helper()
	request := must.Get(http.NewRequestWithContext(within(t), http.MethodGet,
		h.url+seqledgerv1connect.LedgerServiceWriteStreamProcedure, http.NoBody))(t)
	request.Header = header
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13",
		"Sec-Websocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		header.Set(name, value)
	}
	response := must.Get(h.h1.Do(request))(t)
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return response.StatusCode, "" // its body is the stream
	}
	body := must.Get(io.ReadAll(response.Body))(t)
	return response.StatusCode, string(body)
}

// TestOriginsOfPages: a browser opens a WebSocket to any server without asking it first, so a page of another origin is
// refused. Programs send no origin.
func TestOriginsOfPages(t *testing.T) {
	t.Parallel()
	const app = "http://app.example.com"
	some, closed := startWith(t, server.Options{CORSOrigins: []string{app, "http://[::1]:3000"}}), start(t)
	open := startWith(t, server.Options{CORSOrigins: []string{"*"}})
	const yes, no = http.StatusSwitchingProtocols, http.StatusForbidden
	for name, test := range map[string]struct {
		h      *harness
		origin []string
		want   int
	}{
		"none":              {closed, nil, yes},
		"the server itself": {closed, []string{closed.url}, yes},
		"another":           {closed, []string{app}, no},
		"another port":      {closed, []string{"http://127.0.0.1:1"}, no},
		"opaque":            {closed, []string{"null"}, no},
		"empty":             {closed, []string{""}, no},
		"allowed":           {some, []string{app}, yes},
		"allowed address":   {some, []string{"http://[::1]:3000"}, yes},
		"another scheme":    {some, []string{"https://app.example.com"}, no},
		"longer":            {some, []string{app + ".example.org"}, no},
		"two":               {some, []string{app, "http://evil.example.com"}, no},
		"any":               {open, []string{app}, yes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{"Sec-Websocket-Protocol": {upgrade.Protocol}}
			if test.origin != nil {
				header["Origin"] = test.origin
			}
			if status, text := test.h.upgradeStatus(t, header); status != test.want ||
				status == no && !strings.Contains(text, "--cors-origin") {
				t.Errorf("%d %s, want %d", status, text, test.want)
			}
		})
	}
}

// TestCredentialsOfPages: one credential, in one place, that can be read.
func TestCredentialsOfPages(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	const protocol = upgrade.Protocol + ", "
	key := "bearer." + base64.RawURLEncoding.EncodeToString([]byte(g.keys["writer"]))
	for name, test := range map[string]struct {
		header http.Header
		want   int
	}{
		"good": {http.Header{"Sec-Websocket-Protocol": {protocol + key}}, http.StatusSwitchingProtocols},
		"in two lines": {http.Header{"Sec-Websocket-Protocol": {key, upgrade.Protocol}},
			http.StatusSwitchingProtocols},
		"and a header": {http.Header{"Sec-Websocket-Protocol": {protocol + key}, "Authorization": {"Bearer x"}},
			400},
		"twice":           {http.Header{"Sec-Websocket-Protocol": {protocol + key + ", " + key}}, 400},
		"padded":          {http.Header{"Sec-Websocket-Protocol": {protocol + key + "="}}, 400},
		"empty":           {http.Header{"Sec-Websocket-Protocol": {protocol + "bearer."}}, 400},
		"wrong":           {http.Header{"Sec-Websocket-Protocol": {protocol + "bearer.eHh4"}}, 401},
		"with a newline":  {http.Header{"Sec-Websocket-Protocol": {protocol + "bearer.eAp4"}}, 401},
		"none":            {http.Header{"Sec-Websocket-Protocol": {upgrade.Protocol}}, 401},
		"no sub-protocol": {http.Header{"Sec-Websocket-Protocol": {key}}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, text := g.upgradeStatus(t, test.header)
			if status != test.want || strings.Contains(text, strings.TrimPrefix(key, "bearer.")) {
				t.Errorf("%d %s, want %d", status, text, test.want)
			}
		})
	}
}

// TestMessagesThatAreRefused: the stream says what is wrong with a message, after what came before it is answered, and
// the close code says it to those who look at nothing else.
func TestMessagesThatAreRefused(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	h := startWith(t, server.Options{MaxRequestBytes: limit})
	first := prototest.Enveloped(frameOf(writeOf("c", 1, appendOp("x"))))
	large := prototest.Enveloped(frameOf(writeOf("c", 2, appendOp(strings.Repeat("x", limit*2/3)))))
	for name, test := range map[string]struct {
		kind websocket.MessageType
		data []byte
		want string
		code websocket.StatusCode
	}{
		"text": {websocket.MessageText, first, "must be binary", websocket.StatusUnsupportedData},
		"a large envelope": {websocket.MessageBinary, prototest.Envelope(0, make([]byte, limit+1)), "",
			websocket.StatusNormalClosure},
		"several envelopes": {websocket.MessageBinary, append(large, large...), "at most 1048581 bytes",
			websocket.StatusMessageTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ws := h.page(t, &websocket.DialOptions{})
			m := new(seqledgerv1.WriteStreamResponse)
			sendMessage(t, ws, first)
			if end, err := receiveMessage(ws, m); err != nil || m.Results[0].GetReceipt() == nil {
				t.Fatal(m, end, err)
			}
			_ = ws.Write(within(t), test.kind, test.data) // the server may not read all of it
			end, err := receiveMessage(ws, m)
			for err == nil && end == "" { // the first of several may be answered
				end, err = receiveMessage(ws, m)
			}
			if err != nil || !strings.Contains(end, `"invalid_argument"`) || !strings.Contains(end, test.want) {
				t.Errorf("%s, %v", end, err)
			}
			if _, _, err := ws.Read(within(t)); websocket.CloseStatus(err) != test.code {
				t.Errorf("%v, want close code %d", err, test.code)
			}
		})
	}
}
