package admission

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"time"
)

// A message is in memory as it arrives, decoded, and encoded for the log. The limit of one message times the limit of
// requests would be a hundred gigabytes, so large messages are charged to their caller's share as they arrive:
// announced bytes that were not sent cost nothing.
//
// If the share is used up, a request is refused at once. A stream waits instead, which is flow control; it waits only
// for its own credential's messages. Streams that each hold half a message could wait for each other, so one of them
// may exceed the share (the overdraft), until its message is complete or its client has stalled.

const (
	// freeBytes is the size up to which a message is not charged.
	freeBytes = 4 << 10
	// prefixBytes is the size of the prefix of each message of a stream, and of gRPC: a flag and the length.
	prefixBytes = 5
	// copies is how often a message is in memory: as it arrived, decoded, and encoded for the log.
	copies = 3
	// unfolds is how many bytes one compressed byte may become, at most.
	unfolds = 1_032
)

// BodyOptions configure how a request's body is read.
type BodyOptions struct {
	// Largest is the maximum size of one message, decompressed.
	Largest int64
	// Enveloped reports whether the body is a sequence of messages, each after a prefix.
	Enveloped bool
	// Write reports whether the message is a call's only one, with one write or many. A write that would be refused at
	// its end is refused while it arrives, because reading it costs as much as a valid one.
	Write bool
	// Compressed reports whether a body with a single message is compressed.
	Compressed bool
	// TooLarge returns the error of a message that is larger than Largest, before it has arrived; nil leaves that to
	// the reader.
	TooLarge func() error
	// Refused returns what Read returns in place of a *Refusal.
	Refused func(error) error
}

// Body is the body of a request, charged as it arrives. It belongs to the goroutine that reads it.
type Body struct {
	io.ReadCloser
	BodyOptions

	ctx        context.Context //nolint:containedctx // Read has none.
	controller *Controller
	party      Party
	held       int64 // bytes that are charged
	overdraft  bool  // the budget of the party

	prefix [prefixBytes]byte
	have   int   // of the prefix
	left   int64 // of a message in an envelope
	size   int64 // of that message
	zipped bool  // whether it is compressed
	read   int64 // of the message so far

	// stall ends the wait for the rest of a large message of a stream; nil for other requests, which have a deadline
	// for all of their body.
	stall *StallTimer
}

// NewBody returns a request's body, charged to a party.
func (c *Controller) NewBody(r *http.Request, p Party, o BodyOptions) *Body {
	return &Body{ReadCloser: r.Body, BodyOptions: o, ctx: r.Context(), controller: c, party: p}
}

// stream marks the body as that of a stream, which waits until ctx ends where a request would be refused. interrupt
// ends a read if the rest of a large message does not arrive in time. stop must be called before the handler ends.
func (b *Body) stream(ctx context.Context, limit time.Duration, interrupt func()) (stop func()) {
	b.ctx, b.stall = ctx, NewStallTimer(limit, interrupt)
	return b.stall.Close
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if b.Enveloped {
		return b.readEnveloped(p)
	}
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if b.read > b.Largest && !b.Compressed && b.TooLarge != nil {
		b.Release()
		return 0, b.TooLarge()
	}
	if charged := b.charge(int64(n)); charged != nil {
		return 0, charged
	}
	if err == io.EOF && b.Compressed {
		if charged := b.unfold(); charged != nil {
			return 0, charged
		}
	}
	if err != nil && err != io.EOF {
		b.Release() // the rest will not arrive
	}
	return n, err
}

// readEnveloped never reads beyond the end of a prefix or a message, so it knows where the next one begins.
func (b *Body) readEnveloped(p []byte) (int, error) {
	if b.left == 0 {
		b.Release()
		n, err := b.ReadCloser.Read(p[:min(len(p), prefixBytes-b.have)])
		copy(b.prefix[b.have:], p[:n])
		if b.have += n; b.have == prefixBytes {
			const compressed = 1
			b.have, b.read = 0, 0
			b.size, b.zipped = int64(binary.BigEndian.Uint32(b.prefix[1:])), b.prefix[0]&compressed != 0
			if b.size > b.Largest && b.TooLarge != nil {
				return 0, b.TooLarge() // Connect checks an error only if the prefix is incomplete
			}
			if b.left = b.size; b.size > freeBytes && b.stall != nil {
				b.stall.Begin()
			}
		}
		return n, err
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	b.read += int64(n)
	if charged := b.charge(int64(n)); charged != nil {
		return 0, charged
	}
	if b.left == 0 && b.zipped {
		if charged := b.unfold(); charged != nil {
			return 0, charged
		}
	}
	if err != nil && b.left > 0 {
		b.Release() // the rest will not arrive
	}
	return n, err
}

// charge charges n bytes that have arrived, and those before them if they were free until now.
func (b *Body) charge(n int64) error {
	if b.read <= freeBytes || n == 0 {
		return nil
	}
	if b.held == 0 {
		n = b.read
	}
	return b.take(n)
}

// unfold charges the maximum decompressed size of a message of b.read bytes, which is in memory together with it.
func (b *Body) unfold() error {
	if n := copies*min(b.Largest, unfolds*b.read) + b.read - b.held; n > 0 {
		return b.hold(n)
	}
	return nil
}

// Grow charges the decoded size of a message beyond its encoded size: operations of a few bytes each take hundreds.
func (b *Body) Grow(bytes int64) error {
	if bytes <= freeBytes {
		return nil
	}
	return b.hold(bytes)
}

func (b *Body) take(n int64) error { return b.hold(copies * n) }

// hold takes n bytes of the party's share and of the total.
func (b *Body) hold(n int64) error {
	c, share := b.controller, b.party.Share
	if b.Write {
		if b.held == 0 {
			b.slow()
		}
		if err := c.mayQueue(b.ctx, b.party, b.read); err != nil {
			share.refusedLarge()
			return b.Refused(err)
		}
	}
	if !share.used[MessageBytes].TryAcquire(n, c.limit(b.party, MessageBytes)) {
		if err := b.wait(n); err != nil {
			return err
		}
	}
	if !c.used[MessageBytes].TryAcquire(n, c.total(MessageBytes)) {
		share.used[MessageBytes].Release(n)
		return b.refuse(OfServer)
	}
	b.held += n
	return nil
}

// slow waits while too many large writes of the credential were refused. Nothing is held yet.
func (b *Body) slow() {
	wait := b.party.Share.slowed()
	if wait == 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.ctx.Done():
	}
}

// wait takes n bytes of the party's share once they are available, or once this body gets the overdraft. Only the body
// of a stream waits.
func (b *Body) wait(n int64) error {
	share := b.party.Share
	if b.stall == nil {
		if b.Write && b.controller.shares {
			share.refusedLarge()
		}
		return b.refuse(b.controller.shareOwner())
	}
	if !b.overdraft {
		// The client does not stall while the server is not reading.
		if waiting := b.stall.Running(); waiting {
			b.stall.End()
			defer b.stall.Begin()
		}
		if b.held == 0 { // it holds no memory that another body waits for
			if share.used[MessageBytes].Acquire(b.ctx, n, b.controller.limit(b.party, MessageBytes)) != nil {
				return b.refuse(b.controller.shareOwner())
			}
			return nil
		}
		if share.overdraft.Acquire(b.ctx, 1, 1) != nil {
			return b.refuse(b.controller.shareOwner())
		}
		b.overdraft = true
	}
	share.used[MessageBytes].force(n)
	return nil
}

func (b *Body) refuse(o Owner) error {
	return b.Refused(b.controller.refuse(b.ctx, MessageBytes, o))
}

// Release releases a message's memory. It is called by the reading goroutine, or after that has ended.
func (b *Body) Release() {
	if b.held > 0 {
		b.controller.release(b.party, MessageBytes, b.held)
		b.held = 0
	}
	if b.overdraft {
		b.party.Share.overdraft.Release(1)
		b.overdraft = false
	}
}
