package prototest

import (
	"encoding/binary"

	"google.golang.org/protobuf/proto"
)

// Upgrade is what a request for an upgraded connection has beside its first line and its host.
const Upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: seqledger.v1\r\n"

// The first byte of a WebSocket frame.
const (
	FrameContinued = 0x00 // the middle of a message
	FrameText      = 0x81
	FrameBegin     = 0x02 // the first frame of a binary message
	FrameBinary    = 0x82 // a whole binary message
	FrameLast      = 0x80 // the end of a message
	FrameClose     = 0x88
	FramePing      = 0x89
	FramePong      = 0x8a
)

// FrameHeader begins a client's frame of the given length. Its mask changes nothing.
func FrameHeader(first byte, length int) []byte {
	const masked, long, medium = 0x80, 127, 126
	header := []byte{first, masked}
	switch {
	case length < medium:
		header[1] |= byte(length)
	case length <= 0xffff:
		header[1] |= medium
		header = binary.BigEndian.AppendUint16(header, uint16(length))
	default:
		header[1] |= long
		header = binary.BigEndian.AppendUint64(header, uint64(length))
	}
	return append(header, 0, 0, 0, 0)
}

// Frame is a client's frame.
func Frame(first byte, payload []byte) []byte {
	return append(FrameHeader(first, len(payload)), payload...)
}

// Envelope is data in an envelope of Connect's streaming protocol.
func Envelope(flags byte, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data))), data...)
}

// Enveloped is a message in an envelope.
func Enveloped(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // a test has made it
	}
	return Envelope(0, data)
}
