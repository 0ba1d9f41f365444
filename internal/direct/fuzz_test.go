package direct

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// canned is a connection whose other side has said everything already.
type canned struct{ *bytes.Reader }

func (canned) Write(p []byte) (int, error) { return len(p), nil }
func (canned) Close() error                { return nil }

// message is one as it stands on a connection.
func message(flags byte, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(body))), body...)
}

// FuzzReceive reads whatever a server may send. Every stream ends with an error
// that tells the client what to do, and no length becomes memory by itself.
func FuzzReceive(f *testing.F) {
	f.Add(message(0, ""))
	f.Add(append(message(0, "\x0a\x00"), message(flagEnd, "{}")...))
	f.Add(
		message(flagEnd,
			`{"error":{"code":"unavailable","message":"m","details":[{"type":"seqledger.v1.WriteError","value":"CAE"}]}}`))
	f.Add(message(flagEnd, `{"error":{"code":"no such","details":[{"type":"","value":"*"}]}}`))
	f.Add(message(flagCompressed, "x"))
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 3, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := newStream(t.Context(), canned{bytes.NewReader(data)}, prototest.Codec{})
		defer func() { _ = s.Close() }()
		for range len(data)/headerBytes + 1 {
			err := s.Receive(new(seqledgerv1.WriteStreamResponse))
			if err == nil {
				continue
			}
			if _, ok := errors.AsType[*connect.Error](err); !ok && !errors.Is(err, io.EOF) {
				t.Fatalf("%v is neither an error of the call nor its end", err)
			}
			if cap(s.in) > 2*len(data)+2*keptBytes {
				t.Fatalf("%d bytes of memory for %d of data", cap(s.in), len(data))
			}
			return
		}
		t.Fatal("more messages than bytes")
	})
}
