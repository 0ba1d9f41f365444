package server

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"
	"golang.org/x/sync/semaphore"

	"github.com/seqledger/seqledger/ledger/machine"
)

// A message is in memory as it arrives, decoded, and encoded for the log. The
// limit of one message times the limit of requests would be a hundred
// gigabytes, therefore large ones wait until there is memory for them. Room is
// taken for a whole message before it is read, so that those who have some
// never wait for each other; small messages need none, so that ordinary
// requests get through while large ones wait.

const (
	// maxArrivingBytes is room for five of the largest messages.
	maxArrivingBytes = 128 << 20
	// freeBytes is the size up to which a message needs no room.
	freeBytes = 4 << 10
	// prefixBytes stand before each message of a stream, and of gRPC: a flag and
	// the length.
	prefixBytes = 5
)

var errTooMuchArriving = errors.New("the server is receiving as much as it may: send it again later, or less at a time")

// arriving is the room for large messages.
type arriving struct {
	room *semaphore.Weighted
	held atomic.Int64 // bytes, for the metrics
}

// weightOf returns about how much memory a message of a size takes: as it
// arrived, decoded and encoded again, and an operation for every four bytes.
func weightOf(size int64) int64 {
	const operationBytes = 256
	return min(3*size+min(size/4, maxFrameOperations+machine.MaxOperations)*operationBytes, maxArrivingBytes)
}

// meteredBody is a request's body that waits for room. It belongs to the
// goroutine that reads it.
type meteredBody struct {
	io.ReadCloser

	ctx      context.Context //nolint:containedctx // Read has none.
	arriving *arriving
	largest  int64 // that a message may be
	held     int64 // of the room

	enveloped bool
	prefix    [prefixBytes]byte
	have      int   // of the prefix
	left      int64 // of a message in an envelope
	needs     int64 // room for it, to be taken before it is read

	length int64 // of a body that is one message
	read   int64

	// late ends the wait for the rest of a large message of a stream; nil for
	// other requests, which readWithin ends.
	late *lateness
}

// Read implements io.Reader.
func (b *meteredBody) Read(p []byte) (int, error) {
	if b.enveloped {
		return b.readEnveloped(p)
	}
	n, err := b.ReadCloser.Read(p)
	if b.read += int64(n); b.read > freeBytes && b.held == 0 {
		if err := b.take(weightOf(b.length)); err != nil {
			return 0, err
		}
	}
	if err != nil {
		b.release() // the queue of the ledger bounds what comes of it
	}
	return n, err
}

// readEnveloped never reads beyond the end of a prefix or a message, so that it
// knows where the next begins.
func (b *meteredBody) readEnveloped(p []byte) (int, error) {
	if b.left == 0 {
		b.release()
		n, err := b.ReadCloser.Read(p[:min(len(p), prefixBytes-b.have)])
		copy(b.prefix[b.have:], p[:n])
		if b.have += n; b.have == prefixBytes {
			b.have = 0
			b.open(b.prefix[0], int64(binary.BigEndian.Uint32(b.prefix[1:])))
		}
		return n, err
	}
	if b.needs > 0 {
		if err := b.take(b.needs); err != nil {
			return 0, err
		}
		b.needs = 0
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	if b.left -= int64(n); err != nil {
		b.release() // the rest will not come
	}
	return n, err
}

// open begins a message.
func (b *meteredBody) open(flags byte, size int64) {
	const compressed = 1
	b.left, b.needs = size, 0
	if size = min(size, b.largest); flags&compressed != 0 {
		size = b.largest // there is no telling
	}
	if size > freeBytes {
		b.needs = weightOf(size)
	}
}

// take waits for room.
func (b *meteredBody) take(weight int64) error {
	ctx := b.ctx
	if b.late == nil { // whoever waits for an answer should hear soon
		limited, cancel := context.WithTimeout(ctx, bodyTimeout)
		defer cancel()
		ctx = limited
	}
	if err := b.arriving.room.Acquire(ctx, weight); err != nil {
		return connect.NewError(connect.CodeResourceExhausted, errTooMuchArriving)
	}
	b.held = weight
	b.arriving.held.Add(weight)
	if b.late != nil {
		b.late.expect()
	}
	return nil
}

// whole says that the message has arrived.
func (b *meteredBody) whole() {
	if b.late != nil {
		b.late.arrived()
	}
}

// release gives the room of a message back. It is called by the goroutine that
// reads, or after it has ended.
func (b *meteredBody) release() {
	if b.held > 0 {
		b.arriving.held.Add(-b.held)
		b.arriving.room.Release(b.held)
		b.held = 0
	}
}

// metered makes large requests wait for room.
func (s *Server) metered(next http.Handler) http.Handler {
	largest := int64(s.options.MaxRequestBytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &meteredBody{ReadCloser: r.Body, ctx: r.Context(), arriving: &s.arriving, largest: largest, length: r.ContentLength}
		kind := r.Header.Get("Content-Type")
		b.enveloped = strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+")
		if b.length < 0 || b.length > largest || r.Header.Get("Content-Encoding") != "" {
			b.length = largest
		}
		defer b.release()
		r.Body = b
		next.ServeHTTP(w, r)
	})
}
