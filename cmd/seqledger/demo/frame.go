package demo

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
)

// A frame is an envelope of Connect: a byte of flags, four bytes of length, the
// message.
const (
	frameHeader = 5
	maxFrame    = 8 << 20 // more than the server takes
)

// readFrame reads one frame, header and all. io.EOF says that there is no more.
func readFrame(r io.Reader) ([]byte, error) {
	header := make([]byte, frameHeader)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(header[1:])
	if length > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes, at most %d are expected", length, maxFrame)
	}
	frame := append(header, make([]byte, length)...)
	_, err := io.ReadFull(r, frame[frameHeader:])
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // a truncated frame is not the end
	}
	return frame, err
}

// decodeFrame decodes the message of a frame. It leaves m empty for the last frame of a stream,
// which has flags and no message.
func decodeFrame(frame []byte, m proto.Message) error {
	if frame[0] != 0 {
		return nil
	}
	return proto.Unmarshal(frame[frameHeader:], m)
}
