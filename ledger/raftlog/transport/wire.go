package transport

import (
	"fmt"

	"connectrpc.com/connect"
)

// frame is what one send on a stream carries: messages as core.AppendMessage writes them.
type frame struct{ bytes []byte }

// codec passes frames on as they are.
type codec struct{}

// Name implements connect.Codec. It is part of the content type.
func (codec) Name() string { return "raft" }

// Marshal implements connect.Codec.
func (codec) Marshal(message any) ([]byte, error) {
	f, ok := message.(*frame)
	if !ok {
		return nil, fmt.Errorf("transport: %T is no frame", message)
	}
	return f.bytes, nil
}

// Unmarshal implements connect.Codec. The library uses data again.
func (codec) Unmarshal(data []byte, message any) error {
	f, ok := message.(*frame)
	if !ok {
		return fmt.Errorf("transport: %T is no frame", message)
	}
	f.bytes = append([]byte(nil), data...)
	return nil
}

// options are those of both sides.
func options() connect.Option {
	return connect.WithOptions(connect.WithCodec(codec{}), connect.WithReadMaxBytes(maxFrameBytes))
}

// Connect compresses what a server sends when the client does not object, small messages above all: that
// took a fifth of a follower's processor time, for some ten bytes a message.
var (
	serverUncompressed = connect.WithCompression("gzip", nil, nil)
	clientUncompressed = connect.WithAcceptCompression("gzip", nil, nil)
)
