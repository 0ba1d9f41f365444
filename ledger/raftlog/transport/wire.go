package transport

import (
	"fmt"

	"connectrpc.com/connect"
)

// frame is the payload of one send on a stream: messages encoded by core.AppendMessage.
type frame struct{ bytes []byte }

// codec passes frames through unchanged.
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

// Unmarshal implements connect.Codec. It copies data, because the library reuses it.
func (codec) Unmarshal(data []byte, message any) error {
	f, ok := message.(*frame)
	if !ok {
		return fmt.Errorf("transport: %T is no frame", message)
	}
	f.bytes = append([]byte(nil), data...)
	return nil
}

// options returns the options of both sides.
func options() connect.Option {
	return connect.WithOptions(connect.WithCodec(codec{}), connect.WithReadMaxBytes(maxFrameBytes))
}

// By default Connect compresses what a server sends, small messages included, if the client accepts it. That took a
// fifth of a follower's processor time and saved about ten bytes a message.
var (
	serverUncompressed = connect.WithCompression("gzip", nil, nil)
	clientUncompressed = connect.WithAcceptCompression("gzip", nil, nil)
)
