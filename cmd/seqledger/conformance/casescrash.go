package conformance

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
)

// mostCrashes bounds how often a client is killed: most clients send fewer than ten messages for four writes.
const mostCrashes = 64

// crashes returns a case that kills the client at its first message, restarts it, kills it at its second message, and
// so on, until the client ends before it has sent that many. The kill comes before the server gets the message or
// before the client gets the answer.
func crashes(after bool) func(b *bed) {
	return func(b *bed) {
		eachCrash(func(step int) bool { return crash(b, step, after) })
		b.audit()
	}
}

// eachCrash calls crash with each step, until nothing is killed any more.
func eachCrash(crash func(step int) (killed bool)) {
	for step := 1; step <= mostCrashes; step++ {
		killed := false
		if err := attempt(func() { killed = crash(step) }); err != nil {
			must(fmt.Errorf("killed at message %d: %w", step, err))
		}
		if !killed {
			return
		}
	}
	must(fmt.Errorf("the client sends more than %d messages for four writes, and was not killed at the last of them",
		mostCrashes-1))
}

// crash runs the client, kills it at message number step, and then runs it to the end. killed is false if the client
// sent fewer messages.
func crash(b *bed, step int, after bool) (killed bool) {
	b.spawn()
	client, hit, n := b.client, make(chan struct{}), 0
	kill := func() {
		b.trail.note("the client is killed at its message %d", step)
		close(hit)
		client.Kill()
	}
	b.proxy.setPlan(func(*message) fault {
		if n++; n != step {
			return fault{}
		}
		if after {
			return fault{Kind: faultproxy.Lose, After: kill}
		}
		return fault{Kind: faultproxy.Drop, Before: kill}
	})
	b.tellOpen()
	b.submitMany(4)
	err := attempt(func() {
		b.settle()
		b.finish()
	})
	b.proxy.setPlan(nil)
	select {
	case <-hit:
		client.Kill() // waits until the process has ended
	default:
		must(err)
		return false
	}
	b.open()
	b.settle()
	b.finish()
	return true
}

// crashAtRandom kills the client at random times while messages meet random faults.
func crashAtRandom(b *bed) {
	rounds := 25
	if b.options.Short {
		rounds = 6
	}
	// Two sources, because the proxy draws from other goroutines.
	choices, kills := rand.New(rand.NewPCG(b.options.Seed, 1)), rand.New(rand.NewPCG(b.options.Seed, 2))
	b.proxy.setPlan(func(*message) fault {
		kinds := []faultproxy.Kind{faultproxy.Drop, faultproxy.Lose, faultproxy.Hold, faultproxy.Twice}
		if i := choices.IntN(16); i < len(kinds) {
			return fault{Kind: kinds[i]}
		}
		return fault{}
	})
	for range rounds {
		b.open()
		b.submitMany(20)
		b.sleep(time.Duration(kills.IntN(100)) * time.Millisecond)
		b.kill()
	}
	b.open()
	b.settleTo(committed, b.books.order...)
	b.proxy.setPlan(nil)
	b.conclude()
}
