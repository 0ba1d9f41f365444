package upgrade

import (
	"encoding/binary"
	"io"
)

// StreamBody is a body of Connect's streaming protocol that ends with the envelope that ends the stream, while Connect
// reads on to the end of the connection or of the HTTP answer. A WebSocket stays open for the other direction. Some
// proxies end the answer to a bidirectional stream only when the request has ended, and the request ends only when the
// stream is known to have ended, because each would wait for the other.
type StreamBody struct {
	io.ReadCloser

	header [headerBytes]byte
	have   int    // of the header
	left   uint32 // of the message after it
	over   bool
}

// Read implements io.Reader.
func (b *StreamBody) Read(p []byte) (int, error) {
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
			b.over = b.header[0]&flagEnd != 0
		}
	}
	return n, err
}
