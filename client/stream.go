package client

import (
	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/upgrade"
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

// upgradedStream is a WriteStream on an upgraded connection.
type upgradedStream struct {
	stream *upgrade.ClientConn
}

// Send implements writeStream.
func (u upgradedStream) Send(next *message.Frame) error { return u.stream.Send(next) }

// Receive implements writeStream.
func (u upgradedStream) Receive() (*seqledgerv1.WriteStreamResponse, error) {
	response := new(seqledgerv1.WriteStreamResponse)
	return response, u.stream.Receive(response)
}

// CloseRequest implements writeStream. Nothing is in flight any more, or its answers are no
// longer wanted, so both directions end.
func (u upgradedStream) CloseRequest() error { return u.stream.Close() }

// CloseResponse implements writeStream.
func (u upgradedStream) CloseResponse() error { return nil }
