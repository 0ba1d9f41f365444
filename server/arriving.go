package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// A message is in memory as it arrives, decoded, and encoded for the log. The
// limit of one message times the limit of requests would be a hundred
// gigabytes, therefore large ones wait until there is memory for them. Room is
// taken for a whole message before it is read, so that those who have some
// never wait for each other; small messages need none, so that ordinary
// requests get through while large ones wait.
//
// What a request that waits has sent already fills the window of its HTTP/2
// connection. If those that wait could fill it, those that have room would never
// get the rest of theirs. Therefore only so much may wait; what is beyond is
// refused at once.

const (
	// maxArrivingBytes is room for five of the largest messages.
	maxArrivingBytes = 128 << 20
	// freeBytes is the size up to which a message needs no room.
	freeBytes = 4 << 10
	// prefixBytes stand before each message of a stream, and of gRPC: a flag and
	// the length.
	prefixBytes = 5
	// maxWaitingBytes is how much may lie unread while it waits for room. It
	// leaves every connection a part of its window, even if all of it is on one.
	maxWaitingBytes = connectionWindow - 8*streamWindow
	// roomTimeout is how long a request that is no stream waits for room.
	roomTimeout = 10 * time.Second
	// roomRetry is when to come back after a refusal. The largest message takes
	// about as long to arrive.
	roomRetry = 500 * time.Millisecond
)

// noRoomError refuses a message of which nothing has been decoded.
func noRoomError() error {
	return withDetails(connect.CodeResourceExhausted, &seqledgerv1.WriteError{
		Code:       seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL,
		Message:    "the server is receiving as much as it may: send it again later, or less at a time",
		RetryAfter: durationpb.New(roomRetry),
	})
}

// tooLargeError refuses a message that has more bytes than any write may have. Connect's
// own answer, resource_exhausted, would have it sent again later, for ever.
func tooLargeError(largest int64) error {
	field := &machine.FieldError{Field: "operations", Problem: fmt.Sprintf("must be fewer: a message has at most %d bytes", largest)}
	return withDetails(connect.CodeInvalidArgument, &seqledgerv1.WriteError{
		Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT,
		Message: fieldMessage(field), Field: field.Field,
	})
}

// arriving is the room for large messages.
type arriving struct {
	room    *semaphore.Weighted
	waiting *semaphore.Weighted // of unread bytes whose messages wait for room
	held    atomic.Int64        // bytes, for the metrics
}

func newArriving() *arriving {
	return &arriving{room: semaphore.NewWeighted(maxArrivingBytes), waiting: semaphore.NewWeighted(maxWaitingBytes)}
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
	ofWrites bool  // see tooLargeError
	held     int64 // of the room

	enveloped bool
	prefix    [prefixBytes]byte
	have      int   // of the prefix
	left      int64 // of a message in an envelope
	needs     int64 // room for it, to be taken before it is read

	length     int64 // of a body that is one message, decompressed
	read       int64
	wire       int64 // bytes of the body as it is sent; negative when unknown
	compressed bool  // there is no telling how much comes of a body that is one message

	// restart gives the rest of the body its whole time again after a wait for
	// room; nil for streams.
	restart func()
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
	if b.read += int64(n); b.ofWrites && b.read > b.largest && !b.compressed {
		b.release()
		return 0, tooLargeError(b.largest)
	}
	if b.held == 0 && n > 0 && (b.compressed || b.read > freeBytes) {
		if err := b.take(weightOf(b.length)); err != nil {
			return 0, err
		}
	}
	// The queue of the ledger bounds what comes of it; but what is compressed
	// unfolds only after its end (see releaseDecoded).
	if err != nil && (!b.compressed || err != io.EOF) {
		b.release()
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
			size := int64(binary.BigEndian.Uint32(b.prefix[1:]))
			if b.ofWrites && size > b.largest {
				return 0, tooLargeError(b.largest) // Connect looks at an error only when the prefix is not whole
			}
			b.open(b.prefix[0], size)
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
	if b.left -= int64(n); err != nil && b.left > 0 {
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

// take takes room, and waits for it if it may.
func (b *meteredBody) take(weight int64) error {
	if !b.arriving.room.TryAcquire(weight) {
		if err := b.wait(weight); err != nil {
			return err
		}
	}
	b.held = weight
	b.arriving.held.Add(weight)
	if b.late != nil {
		b.late.expect()
	}
	return nil
}

// wait takes room once there is some.
func (b *meteredBody) wait(weight int64) error {
	unread := b.unread()
	if !b.arriving.waiting.TryAcquire(unread) {
		return noRoomError()
	}
	defer b.arriving.waiting.Release(unread)
	ctx := b.ctx
	if b.late == nil { // whoever waits for an answer should hear soon
		limited, cancel := context.WithTimeout(ctx, roomTimeout)
		defer cancel()
		ctx = limited
	}
	if b.arriving.room.Acquire(ctx, weight) != nil {
		return noRoomError()
	}
	if b.restart != nil {
		b.restart()
	}
	return nil
}

// unread is how many bytes may arrive while nobody reads.
func (b *meteredBody) unread() int64 {
	switch {
	case b.late != nil: // other messages may follow
		return streamWindow
	case b.enveloped:
		return min(b.left, streamWindow)
	case b.wire < 0:
		return streamWindow
	default:
		return min(b.wire, streamWindow)
	}
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

// metered makes large requests wait for room. largest is what one message may
// have, decompressed.
func (s *Server) metered(largest int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &meteredBody{
			ReadCloser: r.Body, ctx: r.Context(), arriving: s.arriving, largest: int64(largest),
			length: r.ContentLength, wire: r.ContentLength,
			ofWrites: r.URL.Path == seqledgerv1connect.LedgerServiceWriteProcedure ||
				r.URL.Path == seqledgerv1connect.LedgerServiceWriteStreamProcedure,
		}
		kind := strings.ToLower(r.Header.Get("Content-Type"))
		b.enveloped = strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+")
		encoding := r.Header.Get("Content-Encoding")
		b.compressed = encoding != "" && !strings.EqualFold(encoding, "identity")
		if b.length < 0 || b.length > b.largest || b.compressed {
			b.length = b.largest
		}
		defer b.release()
		if b.compressed {
			r = r.WithContext(context.WithValue(r.Context(), compressedKey{}, b))
		}
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

// compressedKey finds the body of a compressed request in its context.
type compressedKey struct{}

// releaseDecoded gives the room of a compressed request back once it is decoded.
func releaseDecoded(ctx context.Context) {
	if b, ok := ctx.Value(compressedKey{}).(*meteredBody); ok {
		b.release()
	}
}
