package main

import (
	"encoding/base64"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// nodeStream writes one message to a WriteStream as a browser does, half-closes the stream, and
// prints what it receives until the server closes the connection.
const nodeStream = `
const [url, request] = process.argv.slice(-2)
const envelope = (flags, data) => {
  const bytes = new Uint8Array(5 + data.length)
  bytes[0] = flags
  new DataView(bytes.buffer).setUint32(1, data.length)
  bytes.set(data, 5)
  return bytes
}
const ws = new WebSocket(url, ['seqledger.v1', 'bearer.' + Buffer.from('a key').toString('base64url')])
ws.binaryType = 'arraybuffer'
ws.onopen = () => {
  ws.send(envelope(0, Buffer.from(request, 'base64')))
  ws.send(envelope(2, Buffer.from('{}')))
}
ws.onmessage = (event) => console.log(Buffer.from(event.data).toString('base64'))
ws.onerror = (event) => console.log('error', event.message)
ws.onclose = (event) => console.log('closed', event.code, event.wasClean, ws.protocol)
`

// TestNodeWebSocket writes to a WriteStream with the WebSocket of Node, which is that of
// browsers.
func TestNodeWebSocket(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	var flags []string
	if exec.CommandContext(t.Context(), node, "-e", "WebSocket").Run() != nil {
		flags = []string{"--experimental-websocket"}
	}
	if err := exec.CommandContext(t.Context(), node, append(flags, "-e", "WebSocket")...).Run(); err != nil {
		t.Skip("node has no WebSocket: it is older than version 20.10")
	}
	s := serve(t)
	request := must.Get(proto.Marshal(&seqledgerv1.WriteStreamRequest{Writes: []*seqledgerv1.WriteRequest{{
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}, ClientId: "page", Sequence: 1,
		Operations: []*seqledgerv1.Operation{{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: []byte("x")},
		}}},
	}}}))(t)
	output, err := exec.CommandContext(t.Context(), node, append(flags, "--no-warnings", "-e", nodeStream, "--",
		"ws://"+s.address+"/seqledger.v1.LedgerService/WriteStream",
		base64.StdEncoding.EncodeToString(request))...).Output()
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if err != nil || len(lines) != 3 || lines[2] != "closed 1000 true seqledger.v1" {
		t.Fatalf("%v\n%s", err, output)
	}
	message, err := base64.StdEncoding.DecodeString(lines[0])
	if err != nil || len(message) < 5 || message[0] != 0 {
		t.Fatalf("%q, %v: want one envelope", message, err)
	}
	answer := new(seqledgerv1.WriteStreamResponse)
	if err := proto.Unmarshal(message[5:], answer); err != nil ||
		len(answer.Results) != 1 || answer.Results[0].GetReceipt().GetSequence() != 1 {
		t.Errorf("%v, %v", answer, err)
	}
	if end, err := base64.StdEncoding.DecodeString(lines[1]); err != nil || string(end) != "\x02\x00\x00\x00\x02{}" {
		t.Errorf("%q, %v: want the end of the stream", end, err)
	}
}
