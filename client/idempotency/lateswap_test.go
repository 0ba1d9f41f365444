package idempotency_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// slowNetwork is a database whose swaps arrive when the test decides. It deletes a value as soon as it may.
type slowNetwork struct {
	mu      sync.Mutex
	values  map[string]keptValue
	version int
	token   uint64
	waiting map[int]chan struct{} // swaps in flight, by caller

	highest map[string]uint64 // highest token that a key's record has had
	wrong   string
}

type keptValue struct {
	bytes   []byte
	version string
	until   time.Time
}

// callerOf is the context key of the caller's number.
type callerOf struct{}

func (n *slowNetwork) get(key string) keptValue {
	if v := n.values[key]; v.until.IsZero() || time.Now().Before(v.until) {
		return v
	}
	delete(n.values, key)
	return keptValue{}
}

func (n *slowNetwork) Load(_ context.Context, key idempotency.Key) ([]byte, string, time.Time, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.get(key.Name)
	return v.bytes, v.version, time.Now(), nil
}

func (n *slowNetwork) CompareAndSwap(
	ctx context.Context, key idempotency.Key, version string, value []byte, keepUntil, deadline time.Time,
) (bool, error) {
	caller, _ := ctx.Value(callerOf{}).(int)
	arrives := make(chan struct{})
	n.mu.Lock()
	n.waiting[caller] = arrives
	n.mu.Unlock()
	<-arrives
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.get(key.Name).version != version || time.Now().After(deadline) {
		return false, nil
	}
	n.version++
	n.values[key.Name] = keptValue{value, strconv.Itoa(n.version), keepUntil}
	r, err := idempotency.ListedAs(value, time.Now())
	switch {
	case err != nil:
		n.wrong = err.Error()
	case r != nil && r.Token < n.highest[key.Name]:
		n.wrong = fmt.Sprintf("token %d after %d", r.Token, n.highest[key.Name])
	case r != nil:
		n.highest[key.Name] = r.Token
	}
	return true, nil
}

func (n *slowNetwork) NextToken(context.Context) (uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.token++
	return n.token, nil
}

// deliver lets a caller's swap arrive, if one is in flight.
func (n *slowNetwork) deliver(caller int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if arrives := n.waiting[caller]; arrives != nil {
		close(arrives)
		delete(n.waiting, caller)
	}
}

// lateCaller repeatedly reserves a key and finishes it.
type lateCaller struct {
	validity, lease, ttl time.Duration
}

func (c lateCaller) run(ctx context.Context, t *testing.T, s idempotency.Store) {
	for ctx.Err() == nil {
		r := &idempotency.ReserveRequest{
			Key: idempotency.RecordKey{Key: "k"}, AttemptID: idempotency.NewAttemptID(),
			ValidUntil: time.Now().Add(c.validity), Lease: c.lease, TTL: c.ttl, OnLeaseExpired: idempotency.TakeOver,
		}
		answer, err := s.Reserve(ctx, r)
		if err != nil {
			return // the test is over
		}
		if answer.Outcome != idempotency.Acquired {
			<-time.After(time.Second)
			continue
		}
		if now := time.Now(); now.After(r.ValidUntil) || !now.Before(answer.LeaseExpires) {
			t.Errorf("a reservation at %v that is valid until %v, with a lease until %v", now, r.ValidUntil,
				answer.LeaseExpires)
		}
		owner := &idempotency.Ownership{Key: r.Key, Token: answer.Token, AttemptID: r.AttemptID}
		if _, err := s.Complete(ctx, owner, idempotency.Result{}); err != nil {
			return
		}
	}
}

// The token of a key never decreases, and no reservation begins after its validity, however late swaps arrive and
// although the store deletes records as soon as it may.
func TestLateSwaps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		seconds := func(name string, least, most int) time.Duration {
			return time.Duration(rapid.IntRange(least, most).Draw(rt, name)) * time.Second
		}
		callers := rapid.SliceOfN(rapid.Custom(func(*rapid.T) lateCaller {
			return lateCaller{seconds("validity", 1, 300), seconds("lease", 1, 120), seconds("TTL", 1, 5)}
		}), 2, 4).Draw(rt, "callers")
		// A move delivers a caller's swap or lets seconds pass.
		moves := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) int {
			if rapid.IntRange(0, 9).Draw(rt, "pass") == 0 {
				return rapid.IntRange(100, 400).Draw(rt, "seconds")
			}
			return rapid.IntRange(0, len(callers)-1).Draw(rt, "arrives")
		}), 20, 80).Draw(rt, "moves")
		must.Equal(rt, playLate(t, callers, moves), "")
	})
}

func playLate(t *testing.T, callers []lateCaller, moves []int) (wrong string) {
	synctest.Test(t, func(t *testing.T) {
		n := &slowNetwork{
			values: map[string]keptValue{}, waiting: map[int]chan struct{}{}, highest: map[string]uint64{},
		}
		s := idempotency.NewStore(n)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for i, c := range callers {
			// Ends with ctx, once its swap has arrived; the Wait below joins it.
			group.Go(func() { c.run(context.WithValue(ctx, callerOf{}, i), t, s) })
		}
		for _, m := range moves {
			synctest.Wait()
			if m >= 100 {
				<-time.After(time.Duration(m) * time.Second)
			} else {
				n.deliver(m)
				<-time.After(time.Second)
			}
		}
		cancel()
		ended := make(chan struct{})
		// Ends with the callers.
		go func() {
			group.Wait()
			close(ended)
		}()
		for running := true; running; {
			synctest.Wait()
			for i := range callers {
				n.deliver(i)
			}
			select {
			case <-ended:
				running = false
			case <-time.After(time.Second):
			}
		}
		wrong = n.wrong
	})
	return wrong
}
