package demo

import (
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
)

// decodeFrame decodes the message of a frame, which is an envelope of Connect. It leaves m empty for the last frame of
// a stream, which has flags and no message.
func decodeFrame(frame []byte, m proto.Message) error {
	if frame[0] != 0 {
		return nil
	}
	return proto.Unmarshal(frame[faultproxy.HeaderBytes:], m)
}
