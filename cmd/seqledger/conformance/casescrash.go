package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// mostCrashes bounds how often a client is killed: most clients send fewer than ten messages for four writes.
const mostCrashes = 64

// crashes returns a case that kills the client at its first message, restarts it, kills it at its second message, and
// so on, until the client ends before it has sent that many. The kill comes before the server gets the message or
// before the client gets the answer.
func crashes(after bool) func(b *bed) error {
	return func(b *bed) error {
		if err := eachCrash(func(step int) (bool, error) { return crash(b, step, after) }); err != nil {
			return err
		}
		return b.audit()
	}
}

// eachCrash calls crash with each step, until nothing is killed any more.
func eachCrash(crash func(step int) (killed bool, err error)) error {
	for step := 1; step <= mostCrashes; step++ {
		killed, err := crash(step)
		if err != nil {
			return fmt.Errorf("killed at message %d: %w", step, err)
		}
		if !killed {
			return nil
		}
	}
	return fmt.Errorf("the client sends more than %d messages for four writes, and was not killed at the last of them",
		mostCrashes-1)
}

// crash runs the client, kills it at message number step, and then runs it to the end. killed is false if the client
// sent fewer messages.
func crash(b *bed, step int, after bool) (killed bool, err error) {
	if err := b.spawn(); err != nil {
		return false, err
	}
	client, hit, n := b.client, make(chan struct{}), 0
	kill := func() {
		b.trail.note("the client is killed at its message %d", step)
		close(hit)
		client.Kill()
	}
	b.proxy.setPlan(func(string) fault {
		if n++; n != step {
			return fault{}
		}
		if after {
			return fault{kind: lose, after: kill}
		}
		return fault{kind: drop, before: kill}
	})
	b.tellOpen()
	b.submitMany(4)
	if err = b.settle(); err == nil {
		err = b.finish()
	}
	b.proxy.setPlan(nil)
	select {
	case <-hit:
		client.Kill() // waits until the process has ended
	default:
		return false, err
	}
	if err := b.open(); err != nil {
		return true, err
	}
	if err := b.settle(); err != nil {
		return true, err
	}
	return true, b.finish()
}

// crashAtRandom kills the client at random times while messages meet random faults.
func crashAtRandom(b *bed) error {
	rounds := 25
	if b.options.Short {
		rounds = 6
	}
	// Two sources, because the proxy draws from other goroutines.
	choices, kills := rand.New(rand.NewPCG(b.options.Seed, 1)), rand.New(rand.NewPCG(b.options.Seed, 2))
	b.proxy.setPlan(func(string) fault {
		kinds := []kind{drop, lose, hold, twice}
		if i := choices.IntN(16); i < len(kinds) {
			return fault{kind: kinds[i]}
		}
		return fault{}
	})
	for range rounds {
		if err := b.open(); err != nil {
			return err
		}
		b.submitMany(20)
		if !pause(b.ctx, time.Duration(kills.IntN(100))*time.Millisecond) {
			return context.Cause(b.ctx)
		}
		b.kill()
	}
	if err := b.open(); err != nil {
		return err
	}
	if err := b.settleTo(committed, b.books.order...); err != nil {
		return err
	}
	b.proxy.setPlan(nil)
	return b.conclude()
}
