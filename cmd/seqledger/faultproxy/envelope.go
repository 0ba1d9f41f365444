package faultproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// HeaderBytes is the length of what precedes each message of a stream: a byte of flags and four of length.
	HeaderBytes = 5
	// MaxMessageBytes bounds a message. It is more than the server takes, so that the server refuses what is too long,
	// and not the proxy.
	MaxMessageBytes = 8 << 20
)

// ReadEnvelope reads one message of a stream, header and all. The error is io.EOF at the end of the stream and
// io.ErrUnexpectedEOF within a message.
func ReadEnvelope(r io.Reader) ([]byte, error) {
	header := make([]byte, HeaderBytes)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(header[1:])
	if length > MaxMessageBytes {
		return nil, fmt.Errorf("a message of %d bytes, at most %d are expected", length, MaxMessageBytes)
	}
	envelope := append(header, make([]byte, length)...)
	_, err := io.ReadFull(r, envelope[HeaderBytes:])
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // a truncated message is not the end
	}
	return envelope, err
}
