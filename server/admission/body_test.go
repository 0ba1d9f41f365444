package admission

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// newController returns a controller with shares and the default totals.
func newController(t testing.TB, o Options) *Controller {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	c := must.Get(New(o))(t)
	return c
}

// partyOf returns the party of an actor with these limits.
func partyOf(c *Controller, actor string, l Limits) Party { return c.Party(newShare(actor), l) }

// newBody returns a body with this content.
func newBody(c *Controller, p Party, enveloped bool, content io.Reader) *Body {
	r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(content))
	return c.NewBody(r, p, BodyOptions{
		Largest: 6 << 20, Enveloped: enveloped, Refused: func(err error) error { return err },
	})
}

func enveloped(flags byte, content string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(content)))) + content
}

// mustRefuse checks that an error is the refusal of a bound.
func mustRefuse(t testing.TB, err error, b Bound, o Owner) *Refusal {
	t.Helper()
	var refused *Refusal
	if !errors.As(err, &refused) || refused.Bound != b || refused.Owner != o || refused.RetryAfter <= 0 {
		t.Fatalf("got %v (%+v), want the refusal of %s of the %s", err, refused, b, o)
	}
	return refused
}

// Each kind of message is charged for what has arrived of it, and all is given back.
func TestBodyIsChargedAsItArrives(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 100<<10)
	for name, test := range map[string]struct {
		enveloped, compressed bool
		content               string
		charged               int64 // when all of it has arrived
	}{
		"small body":            {false, false, "abc", 0},
		"large body":            {false, false, large, copies * 100 << 10},
		"small message":         {true, false, enveloped(0, "abc"), 0},
		"empty message":         {true, false, enveloped(0, ""), 0},
		"large message":         {true, false, enveloped(0, large), copies * 100 << 10},
		"behind a small one":    {true, false, enveloped(0, "abc") + enveloped(0, large), copies * 100 << 10},
		"behind a large one":    {true, false, enveloped(0, large) + enveloped(0, "abc"), 0},
		"compressed small body": {false, true, "abc", copies*unfolds*3 + 3},
		"compressed large body": {false, true, large, copies*6<<20 + 100<<10},
		"compressed message":    {true, false, enveloped(1, "abc"), copies*unfolds*3 + 3},
		"announced, not sent": {true, false, string([]byte{0, 0, 90, 0, 0}) + strings.Repeat("x", 5<<10),
			copies * 5 << 10},
	} {
		for _, size := range []int{1, 1_000, 1 << 20} {
			c := newController(t, Options{Shares: true})
			p := partyOf(c, "a", Limits{})
			b := newBody(c, p, test.enveloped, strings.NewReader(test.content))
			b.Compressed = test.compressed
			var got []byte
			var most int64
			for {
				buffer := make([]byte, size)
				n, err := b.Read(buffer)
				got = append(got, buffer[:n]...)
				most = max(most, p.Share.used[MessageBytes].Used())
				must.Equal(t, p.Share.used[MessageBytes].Used(), c.used[MessageBytes].Used(),
					"the share and the whole differ: %v")
				if !test.compressed && len(got) == len(test.content) && c.used[MessageBytes].Used() != test.charged &&
					err == nil && n > 0 {
					t.Errorf("%s in pieces of %d: %d bytes are charged, want %d", name, size,
						c.used[MessageBytes].Used(),
						test.charged)
				}
				if err != nil {
					check.Is(t, err, io.EOF, "%s", name)
					break
				}
			}
			if string(got) != test.content {
				t.Errorf("%s: %d bytes became %d", name, len(test.content), len(got))
			}
			if test.compressed && most != test.charged {
				t.Errorf("%s in pieces of %d: at most %d bytes were charged, want %d", name, size, most, test.charged)
			}
			b.Release()
			if p.Share.used[MessageBytes].Used() != 0 || c.used[MessageBytes].Used() != 0 {
				t.Errorf("%s: %d bytes are not given back", name, c.used[MessageBytes].Used())
			}
		}
	}
}

// TestDecodesInTurn: a credential decodes one large message at a time, and one that ends while it waits takes nothing.
func TestDecodesInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p := partyOf(c, "a", Limits{})
		first := must.Get(c.Decode(t.Context(), p))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		check.Is(t, check.Err(c.Decode(ctx, p)), context.DeadlineExceeded, "two large messages are decoded at once")
		first()
		first()
		second := must.Get(c.Decode(t.Context(), p))(t)
		if second(); c.Gauges().Decodes != 0 || p.Share.used[Decodes].Used() != 0 {
			t.Error("something is still in use")
		}
	})
}

// A request whose caller has used up its share is refused at once, small ones are not, and another caller's are not
// either.
func TestBodyBeyondTheShareIsRefused(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Shares: true})
	p, other := partyOf(c, "a", Limits{}), partyOf(c, "b", Limits{})
	if !p.Share.used[MessageBytes].TryAcquire(int64(p.Limits.MessageBytes), int64(p.Limits.MessageBytes)) {
		t.Fatal("the share must be free")
	}
	large := strings.Repeat("x", freeBytes+1)
	for _, wire := range []string{large, enveloped(0, large)} {
		_, err := io.ReadAll(newBody(c, p, wire != large, strings.NewReader(wire)))
		mustRefuse(t, err, MessageBytes, OfCredential)
		must.Do(t, check.Err(io.ReadAll(newBody(c, other, wire != large, strings.NewReader(wire)))), "another caller")
	}
	must.Do(t, check.Err(io.ReadAll(newBody(c, p, true, strings.NewReader(enveloped(0, "abc"))))), "a small message")
	check.Equal(t, refusals(c, MessageBytes, OfCredential), 2, "%d refusals are counted")
}

// A write for which the engine has no room is refused while it arrives.
func TestBodyOfAWriteIsRefusedEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testBodyOfAWriteIsRefusedEarly) // time stands still: a second's worth stays one
}

func testBodyOfAWriteIsRefusedEarly(t *testing.T) {
	c := newController(t, Options{Shares: true})
	p := partyOf(c, "a", Limits{})
	done := must.Get(c.Write(t.Context(), p, Work{Writes: 1, Bytes: maxQueuedBytes - 10<<10}))(t)
	read := func() (int, error) {
		content := strings.NewReader(strings.Repeat("x", 1<<20))
		b := newBody(c, p, false, content)
		b.Write = true
		_, err := io.ReadAll(b)
		b.Release()
		return 1<<20 - content.Len(), err
	}
	n, err := read()
	mustRefuse(t, err, QueuedBytes, OfCredential)
	if n > 64<<10 {
		t.Errorf("%d bytes were read before", n)
	}
	done()
	must.Do(t, check.Err(read()), "when there is room again")
	p.Share.writePace.take(1, p.Limits.WritesPerSecond, true)
	if wait := p.Share.writePace.take(3*p.Limits.WritesPerSecond, p.Limits.WritesPerSecond, true); wait <= 0 {
		t.Fatal("three seconds' worth of writes came at once")
	}
	n, err = read()
	mustRefuse(t, err, WritesPerSecond, OfCredential)
	if n > 64<<10 {
		t.Errorf("%d bytes were read before", n)
	}
}

func refusals(c *Controller, b Bound, o Owner) (n uint64) {
	c.Refusals(func(bound Bound, owner Owner, count uint64) {
		if bound == b && owner == o {
			n = count
		}
	})
	return n
}

// If all shares together exceed the total, the excess is refused, and what was taken from the share is released.
func TestBodyBeyondTheWholeIsRefused(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Shares: true})
	c.used[MessageBytes].TryAcquire(maxMessageBytes, maxMessageBytes)
	p := partyOf(c, "a", Limits{})
	_, err := io.ReadAll(newBody(c, p, false, strings.NewReader(strings.Repeat("x", freeBytes+1))))
	mustRefuse(t, err, MessageBytes, OfServer)
	check.Equal(t, p.Share.used[MessageBytes].Used(), 0, "the share is not given back: %v")
}

// Streams wait for room in the share of their credential, and go on when there is some.
func TestStreamWaitsForItsShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p := partyOf(c, "a", Limits{})
		limit := int64(p.Limits.MessageBytes)
		p.Share.used[MessageBytes].TryAcquire(limit, limit)
		b := newBody(c, p, true, strings.NewReader(enveloped(0, strings.Repeat("x", freeBytes+1))))
		stop := b.stream(t.Context(), BodyTimeout, func() { t.Error("the client has not stalled: we do not read") })
		ended := make(chan error, 1)
		go func() { // ends with the room; received below
			_, err := io.ReadAll(b)
			ended <- err
		}()
		<-time.After(10 * BodyTimeout)
		select {
		case err := <-ended:
			t.Error("it has not waited:", err)
		default:
		}
		p.Share.used[MessageBytes].Release(limit)
		must.Do(t, <-ended)
		stop()
		ctx, cancel := context.WithCancel(t.Context())
		p.Share.used[MessageBytes].TryAcquire(limit, limit)
		b = newBody(c, p, true, strings.NewReader(enveloped(0, strings.Repeat("x", freeBytes+1))))
		stop = b.stream(ctx, BodyTimeout, func() {})
		cancel()
		_, err := io.ReadAll(b)
		mustRefuse(t, err, MessageBytes, OfCredential)
		stop()
	})
}

// Streams that hold half a message each, and together all of the share, do not wait for each other for ever: one at a
// time continues.
func TestStreamsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p := partyOf(c, "a", Limits{MessageBytes: 1 << 20})
		content := enveloped(0, strings.Repeat("x", 256<<10))
		const streams = 8
		ended := make(chan error, streams)
		for range streams {
			reader, writer := io.Pipe()
			b := newBody(c, p, true, reader)
			stop := b.stream(t.Context(), BodyTimeout, func() { _ = reader.CloseWithError(errors.New("stalled")) })
			go func() { // sends half, and the rest when all have sent half; ends with the pipe
				half := len(content) / 2
				_, _ = io.WriteString(writer, content[:half])
				<-time.After(time.Second)
				_, _ = io.WriteString(writer, content[half:])
				_ = writer.Close()
			}()
			go func() { // ends with the content; received below
				_, err := io.Copy(io.Discard, b)
				b.Release()
				stop()
				ended <- err
			}()
		}
		for range streams {
			must.Do(t, <-ended)
		}
		if p.Share.used[MessageBytes].Used() != 0 || p.Share.overdraft.Used() != 0 || c.used[MessageBytes].Used() != 0 {
			t.Error("not all is given back")
		}
	})
}

// A client that does not send the rest of a large message is interrupted, and keeps no more than it has sent until
// then.
func TestStalledMessageIsInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p := partyOf(c, "a", Limits{})
		stalled := errors.New("stalled")
		reader, writer := io.Pipe()
		go func() { _, _ = io.WriteString(writer, enveloped(0, strings.Repeat("x", 100<<10))[:20<<10]) }()
		b := newBody(c, p, true, reader)
		stop := b.stream(t.Context(), BodyTimeout, func() { _ = reader.CloseWithError(stalled) })
		defer stop()
		began := time.Now()
		if _, err := io.ReadAll(iotest.OneByteReader(b)); !errors.Is(err, io.ErrClosedPipe) &&
			!errors.Is(err, stalled) {
			t.Error("got", err)
		}
		check.Equal(t, time.Since(began), BodyTimeout, "interrupted after: %v")
		check.Equal(t, c.used[MessageBytes].Used(), 0, "what has arrived is not given back: %v")
	})
}

// Whatever arrives in whatever pieces is handed on as it is, and all is given back.
func FuzzBody(f *testing.F) {
	f.Add([]byte(enveloped(0, "abc")+enveloped(1, "d")), uint8(3), true, false)
	f.Add([]byte(enveloped(0, strings.Repeat("x", 5_000))), uint8(255), true, false)
	f.Add([]byte{0, 255, 255, 255, 255, 1}, uint8(1), true, false)
	f.Add(bytes.Repeat([]byte("x"), 5_000), uint8(200), false, true)
	c := must.Get(New(Options{Shares: true, Logger: slog.New(slog.DiscardHandler)}))(f)
	f.Fuzz(func(t *testing.T, content []byte, piece uint8, envelopes, compressed bool) {
		p := partyOf(c, "a", Limits{})
		b := newBody(c, p, envelopes, bytes.NewReader(content))
		b.Compressed = compressed && !envelopes
		var got []byte
		buffer := make([]byte, int(piece)+1)
		for {
			n, err := b.Read(buffer)
			got = append(got, buffer[:n]...)
			if err != nil {
				break
			}
			if used := p.Share.used[MessageBytes].Used(); used < 0 || used > int64(p.Limits.MessageBytes) {
				t.Fatalf("%d bytes are charged", used)
			}
		}
		b.Release()
		if !bytes.Equal(got, content) || p.Share.used[MessageBytes].Used() != 0 {
			t.Errorf("%d bytes became %d, and %d are charged", len(content), len(got),
				p.Share.used[MessageBytes].Used())
		}
	})
}

// TestRefusedLargeWritesAreReadLater: a client that repeats large writes without a pause while they are refused makes
// the server read a bounded number of them.
func TestRefusedLargeWritesAreReadLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p, other := partyOf(c, "client:bad", Limits{}), partyOf(c, "client:good", Limits{})
		done := must.Get(c.Write(t.Context(), p, Work{Writes: 1, Bytes: maxQueuedBytes}))(t)
		attempt := func(p Party) error {
			b := newBody(c, p, false, strings.NewReader(strings.Repeat("x", 100<<10)))
			b.Write = true
			defer b.Release()
			_, err := io.ReadAll(b)
			return err
		}
		began := time.Now()
		for range largeRefusals {
			mustRefuse(t, attempt(p), QueuedBytes, OfCredential)
		}
		check.Equal(t, time.Since(began), 0, "a second's worth of refusals took %s")
		for range 5 * largeRefusals {
			mustRefuse(t, attempt(p), QueuedBytes, OfCredential)
		}
		if waited := time.Since(began); waited < 4*time.Second || waited > 6*time.Second {
			t.Errorf("five seconds' worth of refusals took %s", waited)
		}
		began = time.Now()
		if err := attempt(other); err != nil || time.Since(began) != 0 {
			t.Errorf("another credential waited %s, %v", time.Since(began), err)
		}
		done()
		// Whatever was refused, one wait is short, and a pause pays for all of it.
		for range 50 * largeRefusals {
			p.Share.refusedLarge()
		}
		began = time.Now()
		if err := attempt(p); err != nil || time.Since(began) > maxSlowed {
			t.Errorf("waited %s, %v", time.Since(began), err)
		}
		time.Sleep(2 * maxSlowed) //nolint:forbidigo // Under a simulated clock.
		began = time.Now()
		if err := attempt(p); err != nil || time.Since(began) != 0 || !p.Share.idle() {
			t.Errorf("after a pause: waited %s, %v, idle %t", time.Since(began), err, p.Share.idle())
		}
	})
}
