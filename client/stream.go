package client

import (
	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/direct"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// writeStream is one WriteStream over any kind of connection. One goroutine sends and one
// receives.
type writeStream interface {
	Send(next *message.Frame) error
	Receive() (*seqledgerv1.WriteStreamResponse, error)
	CloseRequest() error
	CloseResponse() error
}

var _ writeStream = (*connect.BidiStreamForClient[message.Frame, seqledgerv1.WriteStreamResponse])(nil)

// dedicatedStream is a WriteStream on an upgraded connection.
type dedicatedStream struct {
	stream *direct.Stream
}

// Send implements writeStream.
func (d dedicatedStream) Send(next *message.Frame) error { return d.stream.Send(next) }

// Receive implements writeStream.
func (d dedicatedStream) Receive() (*seqledgerv1.WriteStreamResponse, error) {
	response := new(seqledgerv1.WriteStreamResponse)
	return response, d.stream.Receive(response)
}

// CloseRequest implements writeStream. Nothing is in flight any more, or its answers are no
// longer wanted, so both directions end.
func (d dedicatedStream) CloseRequest() error { return d.stream.Close() }

// CloseResponse implements writeStream.
func (d dedicatedStream) CloseResponse() error { return nil }
