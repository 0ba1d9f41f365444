package rpc

import (
	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Stream is one WriteStream over any kind of connection. One goroutine sends and one receives.
type Stream interface {
	Send(next *message.Frame) error
	Receive() (*seqledgerv1.WriteStreamResponse, error)
	CloseRequest() error
	CloseResponse() error
}

var _ Stream = (*connect.BidiStreamForClient[message.Frame, seqledgerv1.WriteStreamResponse])(nil)

// UpgradedStream is a WriteStream on an upgraded connection.
type UpgradedStream struct {
	stream *upgrade.ClientConn
}

// Send implements Stream.
func (u UpgradedStream) Send(next *message.Frame) error { return u.stream.Send(next) }

// Receive implements Stream.
func (u UpgradedStream) Receive() (*seqledgerv1.WriteStreamResponse, error) {
	response := new(seqledgerv1.WriteStreamResponse)
	return response, u.stream.Receive(response)
}

// CloseRequest implements Stream. Because nothing is in flight any more, or its answers are no
// longer wanted, both directions end.
func (u UpgradedStream) CloseRequest() error { return u.stream.Close() }

// CloseResponse implements Stream.
func (u UpgradedStream) CloseResponse() error { return nil }
