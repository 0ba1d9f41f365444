package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The number of tracked actors is bounded, and an active one is not dropped.
func TestRegistryIsBounded(t *testing.T) {
	t.Parallel()
	var r Registry
	busy, err := r.Of("busy")
	must.Do(t, err)
	busy.used[Requests].TryAcquire(1, 1)
	for i := range maxRememberedActors + 5 {
		share := must.Get(r.Of(fmt.Sprint(i)))(t)
		must.Equal(t, must.Get(r.Of(fmt.Sprint(i)))(t), share, "an actor has two shares: %v")
	}
	if again, err := r.Of("busy"); err != nil || again != busy || len(r.known) > maxRememberedActors {
		t.Errorf("%d actors, and the one at work is forgotten: %t, %v", len(r.known), again != busy, err)
	}
	for name, share := range r.known {
		share.used[Streams].TryAcquire(1, 1)
		_ = name
	}
	for i := 0; err == nil; i++ {
		var share *Share
		if share, err = r.Of(fmt.Sprint("more ", i)); err == nil {
			share.used[Streams].TryAcquire(1, 1)
		}
	}
	check.Is(t, err, ErrTooManyCallers)
}

// Each bound of the table is held, for a share and for the whole, and what one credential uses of it another one does
// not miss.
func TestEveryBoundOfAShareHolds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bound Bound
		// use uses a part of the share, of which there are two, until the test ends.
		limits Limits
		use    func(ctx context.Context, c *Controller, p Party) error
	}{
		"requests": {Requests, Limits{Requests: 2}, func(ctx context.Context, c *Controller, p Party) error {
			_, err := c.Request(ctx, p)
			return err
		}},
		"a look at the metrics": {Requests, Limits{Requests: 2},
			func(ctx context.Context, c *Controller, p Party) error {
				_, err := c.OwnRequest(ctx, p)
				return err
			}},
		"requests a second": {RequestsPerSecond, Limits{RequestsPerSecond: 2},
			func(ctx context.Context, c *Controller, p Party) error {
				leave, err := c.Request(ctx, p)
				if err == nil {
					leave()
				}
				return err
			}},
		"streams": {Streams, Limits{Streams: 2}, func(ctx context.Context, c *Controller, p Party) error {
			_, err := c.Stream(ctx, p)
			return err
		}},
		"answers": {AnswerBytes, Limits{MessageBytes: MinMessageBytes},
			func(ctx context.Context, c *Controller, p Party) error {
				_, err := c.Answer(ctx, p, MinMessageBytes/4)
				return err
			}},
		"writes a second": {WritesPerSecond, Limits{WritesPerSecond: 2},
			func(ctx context.Context, c *Controller, p Party) error {
				done, err := c.Write(ctx, p, Work{Writes: 1, Bytes: 10})
				if err == nil {
					done()
				}
				return err
			}},
		"writes in the engine": {QueuedBytes, Limits{}, func(ctx context.Context, c *Controller, p Party) error {
			_, err := c.Write(ctx, p, Work{Writes: 1, Bytes: maxQueuedBytes/2 - CommandOverhead})
			return err
		}},
		"stored bytes": {StoredBytes, Limits{StoredBytes: 2}, func(ctx context.Context, c *Controller, p Party) error {
			done, err := c.Write(ctx, p, Work{Writes: 1, Bytes: 1})
			if err == nil {
				done()
				c.Stored(p, 1)
			}
			return err
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newController(t, Options{Shares: true})
			p, other := partyOf(c, "a", test.limits), partyOf(c, "b", test.limits)
			for range 2 {
				must.Do(t, test.use(t.Context(), c, p), "%s: within the share", name)
			}
			refused := mustRefuse(t, test.use(t.Context(), c, p), test.bound, OfCredential)
			mustCount(t, c, test.bound, OfCredential, 1)
			must.Do(t, test.use(t.Context(), c, other), "%s: another credential", name)
			if test.bound == RequestsPerSecond || test.bound == WritesPerSecond {
				<-time.After(refused.RetryAfter)
				must.Do(t, test.use(t.Context(), c, p), "%s: at the time that was said", name)
			}
			if refused.Error() == "" {
				t.Error("a refusal says nothing")
			}
		})
	}
}

// What four credentials may use by default is the whole, and a fifth is refused by it.
func TestDefaultsSuitFour(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Shares: true, Requests: 8, Streams: 8, Connections: 8})
	for i := range 4 {
		p := partyOf(c, fmt.Sprint(i), Limits{})
		for range 2 {
			_, request := c.Request(t.Context(), p)
			_, stream := c.Stream(t.Context(), p)
			_, answer := c.Answer(t.Context(), p, p.Limits.MessageBytes/4)
			_, read := c.Read(t.Context(), p, false)
			must.Do(t, errors.Join(request, stream, answer, read), "%v", i)
		}
		_, err := c.Request(t.Context(), p)
		mustRefuse(t, err, Requests, OfCredential)
		_, err = c.Stream(t.Context(), p)
		mustRefuse(t, err, Streams, OfCredential)
		_, err = c.Answer(t.Context(), p, p.Limits.MessageBytes/4)
		mustRefuse(t, err, AnswerBytes, OfCredential)
		if p.Limits.Reads != maxReads/4 || p.Limits.WritesPerSecond != 25_000 || p.Limits.Connections != 2 {
			t.Errorf("%+v", p.Limits)
		}
	}
	fifth := partyOf(c, "5", Limits{})
	_, err := c.Request(t.Context(), fifth)
	mustRefuse(t, err, Requests, OfServer)
	_, err = c.Stream(t.Context(), fifth)
	mustRefuse(t, err, Streams, OfServer)
	_, err = c.Answer(t.Context(), fifth, 1<<20)
	mustRefuse(t, err, AnswerBytes, OfServer)
	must.Do(t, check.Err(c.Answer(t.Context(), fifth, smallAnswer)), "a small answer needs no room")
	used := &fifth.Share.used
	if used[Requests].Used() != 0 || used[Streams].Used() != 0 || used[AnswerBytes].Used() != 0 {
		t.Error("what the whole has refused is still counted")
	}
}

// Without shares all callers have the whole, and nothing is counted for one of them.
func TestWithoutShares(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Requests: 2, Streams: 2, Connections: 2})
	p := c.Party(nil, Limits{Requests: 1})
	for range 2 {
		must.Get(c.Request(t.Context(), p))(t)
	}
	_, err := c.Request(t.Context(), p)
	mustRefuse(t, err, Requests, OfServer)
	for range 300_000 {
		must.Get(c.Write(t.Context(), p, Work{Writes: 1, Bytes: 1 << 20}))(t)
	}
	must.Do(t, check.Err(c.OwnRequest(t.Context(), p)), "a look at the metrics of a server that is full")
	if c.Stored(p, 5); c.StoredBytes(p) != 0 {
		t.Error("bytes are counted for nobody")
	}
}

// The reads of one credential wait for each other, and not those of another one.
func TestReadsWaitForTheirOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p, other := partyOf(c, "a", Limits{Reads: 1}), partyOf(c, "b", Limits{})
		done := must.Get(c.Read(t.Context(), p, false))(t)
		waited := make(chan struct{})
		go func() { // ends with done; received below
			next, err := c.Read(t.Context(), p, false)
			check.Is(t, err, nil)
			next()
			close(waited)
		}()
		synctest.Wait()
		if leave, err := c.Read(t.Context(), other, false); err != nil {
			t.Error(err)
		} else {
			leave()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		check.Is(t, check.Err(c.Read(ctx, p, false)), context.DeadlineExceeded, "a second read at once")
		done()
		done() // gives nothing back that is not its own
		<-waited
		if c.used[Reads].Used() != 0 || p.Share.used[Reads].Used() != 0 {
			t.Error("places are not given back")
		}
		for range maxReads {
			must.Do(t, c.used[Reads].Acquire(t.Context(), 1, maxReads))
		}
		full, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := c.Read(full, other, false); !errors.Is(err, context.DeadlineExceeded) ||
			other.Share.used[Reads].Used() != 0 {
			t.Error("a server whose places are all taken:", err)
		}
	})
}

// A credential builds one large answer at a time, which does not keep its small ones waiting, and large answers leave a
// processor to everything else.
func TestLargeReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p := partyOf(c, "a", Limits{})
		done := must.Get(c.Read(t.Context(), p, true))(t)
		refuse := func(p Party, large bool) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			leave, err := c.Read(ctx, p, large)
			if err == nil {
				leave()
			}
			return err
		}
		check.Is(t, refuse(p, true), context.DeadlineExceeded, "a second large read of a credential at once")
		must.Do(t, refuse(p, false), "a small read beside a large one")
		for i := range maxLargeWork() - 1 {
			must.Get(c.Read(t.Context(), partyOf(c, fmt.Sprint("b", i), Limits{}), true))(t)
		}
		last := partyOf(c, "c", Limits{})
		if err := refuse(last, true); !errors.Is(err, context.DeadlineExceeded) ||
			last.Share.used[LargeReads].Used() != 0 {
			t.Error("a large read that leaves no processor to others:", err)
		}
		done()
		if err := refuse(last, true); err != nil || c.used[LargeReads].Used() != maxLargeWork()-1 {
			t.Error("after one has ended:", err)
		}
		whole := newController(t, Options{})
		for range maxLargeWork() {
			must.Do(t, check.Err(whole.Read(t.Context(), whole.Party(nil, Limits{}), true)), "without credentials")
		}
	})
}

// A stream's writes wait for the pace and the room of their credential, and the wait for the pace ends when the stream
// does.
func TestWritesOfAStreamWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p := partyOf(c, "a", Limits{WritesPerSecond: 10})
		began := time.Now()
		for range 4 {
			done := must.Get(c.AwaitWrite(t.Context(), nil, p, Work{Writes: 10, Bytes: 100}))(t)
			done()
		}
		check.Equal(t, time.Since(began), 3*time.Second, "forty writes at ten a second took: %v")
		hurry := make(chan struct{})
		close(hurry)
		began = time.Now()
		done := must.Get(c.AwaitWrite(t.Context(), hurry, p, Work{Writes: 100, Bytes: maxQueuedBytes}))(t)
		check.Equal(t, time.Since(began), 0, "a stream that ends: %v")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		check.Is(t, check.Err(c.AwaitWrite(ctx, hurry, p, Work{Writes: 1, Bytes: 1})), context.DeadlineExceeded,
			"there is no room")
		done()
		done = must.Get(c.AwaitWrite(t.Context(), hurry, p, Work{Writes: 1, Bytes: 1}))(t)
		done()
		check.Equal(t, p.Share.used[QueuedBytes].Used(), 0, "not all is given back: %v")
	})
}

// Writes of a stream that are refused because of what is stored are slowed like others.
func TestRefusedWritesOfAStreamAreSlowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p := partyOf(c, "a", Limits{WritesPerSecond: 10, StoredBytes: 1})
		c.Stored(p, 1)
		began := time.Now()
		for range 4 {
			_, err := c.AwaitWrite(t.Context(), nil, p, Work{Writes: 10, Bytes: 100})
			mustRefuse(t, err, StoredBytes, OfCredential)
		}
		check.Equal(t, time.Since(began), 3*time.Second, "forty writes at ten a second took: %v")
	})
}

// An answer that would have no room is refused before it is made, and none of it is taken.
func TestMayAnswer(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Shares: true})
	p := partyOf(c, "a", Limits{})
	must.Do(t, c.MayAnswer(t.Context(), p, p.Limits.MessageBytes),
		"a share of which nothing is used has room for one of any size")
	must.Get(c.Answer(t.Context(), p, p.Limits.MessageBytes/4))(t)
	must.Do(t, c.MayAnswer(t.Context(), p, p.Limits.MessageBytes/4), "half of it is free")
	mustRefuse(t, c.MayAnswer(t.Context(), p, p.Limits.MessageBytes/4+1), AnswerBytes, OfCredential)
	check.Equal(t, p.Share.used[AnswerBytes].Used(), int64(p.Limits.MessageBytes)/2, "in use: %v")
}

// A message of a stream waits until those before it are read.
func TestAwaitAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true})
		p := partyOf(c, "a", Limits{})
		size := p.Limits.MessageBytes / 2
		release, ok := c.TryAnswer(p, size)
		if !ok {
			t.Fatal("there is room")
		}
		if _, ok := c.TryAnswer(p, size); ok {
			t.Error("there is no room any more")
		}
		waited := make(chan error, 1)
		go func() { // ends with release; received below
			release, err := c.AwaitAnswer(t.Context(), p, size)
			if err == nil {
				release()
			}
			waited <- err
		}()
		synctest.Wait()
		release()
		must.Do(t, <-waited)
		c.used[AnswerBytes].TryAcquire(maxMessageBytes, maxMessageBytes)
		_, err := c.AwaitAnswer(t.Context(), p, size)
		mustRefuse(t, err, AnswerBytes, OfServer)
		check.Equal(t, p.Share.used[AnswerBytes].Used(), 0, "what the whole has refused is still counted: %v")
		if _, ok := c.TryAnswer(p, size); ok {
			t.Error("the whole has no room")
		}
	})
}
