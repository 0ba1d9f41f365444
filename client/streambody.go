package client

import (
	"encoding/binary"
	"io"
)

// streamBody is the body of a streaming answer in Connect's protocol: messages, each preceded
// by a byte of flags and its length. It ends with the message that ends the stream, while
// Connect reads on to the end of the HTTP answer. Some proxies end the answer to a
// bidirectional stream only when the request has ended, and the request ends only when the
// stream is known to have ended: each would wait for the other.
type streamBody struct {
	io.ReadCloser

	header [5]byte
	have   int    // of the header
	left   uint32 // of the message behind it
	over   bool
}

// endOfStream is the flag of the last message.
const endOfStream = 2

// Read implements io.Reader.
func (b *streamBody) Read(p []byte) (int, error) {
	if b.over {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p)
	for i := 0; i < n && !b.over; {
		if b.have < len(b.header) {
			b.header[b.have] = p[i]
			b.have++
			i++
			if b.have == len(b.header) {
				b.left = binary.BigEndian.Uint32(b.header[1:])
			}
		} else {
			some := min(n-i, int(b.left))
			b.left -= uint32(some)
			i += some
		}
		if b.have == len(b.header) && b.left == 0 {
			b.have = 0
			b.over = b.header[0]&endOfStream != 0
		}
	}
	return n, err
}
