package ledger

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

func keyedCommand(l *Ledger, key string, attempt byte) *machine.KeyedCommand {
	return &machine.KeyedCommand{
		ID: machine.KeyedID{Scope: machine.Scope{Organization: "acme"}, Principal: "user:1",
			Key: sha256.Sum256([]byte(key))},
		Actor: "client:test", MaxKeys: 1_000,
		Command: keyed.Command{
			Kind: keyed.Reserve, AttemptID: keyed.AttemptID{attempt, 1}, ValidUntil: l.clock.now() + int64(time.Minute),
			Lease: int64(time.Minute), TTL: int64(time.Hour),
		},
	}
}

func ownedCommand(c *machine.KeyedCommand, kind keyed.Kind, token uint64, content []byte) *machine.KeyedCommand {
	owned := *c
	owned.Command = keyed.Command{Kind: kind, AttemptID: c.AttemptID, Token: token, Lease: int64(time.Minute),
		Response: content, Data: content}
	return &owned
}

func mustKeyed(t *testing.T, l *Ledger, c *machine.KeyedCommand, want machine.Code) machine.Outcome {
	t.Helper()
	out := must.Get(l.Keyed(t.Context(), c, 0, nil))(t)
	must.Equal(t, out.Code, want, "command %d: %v", c.Kind)
	return out
}

// A waiting Reserve ends in every way in which a reservation can: its owner gives
// it up, its lease ends, the waiter's time is over, the ledger drains.
func TestWaitingReserveEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(l *Ledger, owner *machine.KeyedCommand, token uint64) error
		want machine.Code
	}{
		"completed": {func(l *Ledger, c *machine.KeyedCommand, token uint64) error {
			_, err := l.Keyed(context.Background(), ownedCommand(c, keyed.Complete, token, nil), 0, nil)
			return err
		}, machine.Keyed(keyed.Replay)},
		"released": {func(l *Ledger, c *machine.KeyedCommand, token uint64) error {
			_, err := l.Keyed(context.Background(), ownedCommand(c, keyed.Release, token, nil), 0, nil)
			return err
		}, machine.Keyed(keyed.Acquired)},
		"rejected": {func(l *Ledger, c *machine.KeyedCommand, token uint64) error {
			_, err := l.Keyed(context.Background(), ownedCommand(c, keyed.Reject, token, nil), 0, nil)
			return err
		}, machine.Keyed(keyed.Replay)},
		"closed": {func(l *Ledger, _ *machine.KeyedCommand, _ uint64) error { return l.Close() },
			machine.Keyed(keyed.InFlight)},
		"failed": {func(l *Ledger, _ *machine.KeyedCommand, _ uint64) error {
			l.fail(errors.New("a disk that fails"))
			return nil
		}, machine.Keyed(keyed.InFlight)},
		"drained": {func(l *Ledger, _ *machine.KeyedCommand, _ uint64) error {
			return l.Drain(context.Background())
		}, machine.Keyed(keyed.InFlight)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := openTest(t, Options{})
			owner := keyedCommand(l, "k", 1)
			token := mustKeyed(t, l, owner, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
			result := make(chan machine.Outcome)
			go func() { // ends with its answer; joined by the receive
				out, err := l.Keyed(context.Background(), keyedCommand(l, "k", 2), time.Hour, nil)
				if err != nil && !errors.Is(err, ErrDraining) {
					t.Error(err)
				}
				result <- out
			}()
			for l.keyedCounters.waited.Load() == 0 { // until it waits
				runtime.Gosched()
			}
			must.Do(t, test.end(l, owner, token))
			check.Equal(t, (<-result).Code, test.want)
			if n := l.Stats().Keyed.Waited; n != 1 || l.keys.len() != 0 {
				t.Errorf("%d calls have waited, and %d still do", n, l.keys.len())
			}
		})
	}
	l := openTest(t, Options{})
	mustKeyed(t, l, keyedCommand(l, "k", 1), machine.Keyed(keyed.Acquired))
	check.Equal(t, must.Get(l.Keyed(t.Context(), keyedCommand(l, "k", 2), time.Millisecond, nil))(t).Code,
		machine.Keyed(keyed.InFlight), "after the wait: %v")
	// A lease that ends on an idle ledger, whatever its policy says.
	for policy, want := range map[keyed.Policy]machine.Code{keyed.BecomeIndeterminate: machine.Keyed(keyed.Unknown),
		keyed.TakeOver: machine.Keyed(keyed.Acquired)} {
		key := fmt.Sprint("policy ", policy)
		owner := keyedCommand(l, key, 1)
		owner.Lease, owner.Policy = int64(20*time.Millisecond), policy
		mustKeyed(t, l, owner, machine.Keyed(keyed.Acquired))
		if out, err := l.Keyed(t.Context(), keyedCommand(l, key, 2), time.Minute, nil); err != nil || out.Code != want {
			t.Errorf("%s: %v, %v, want %v", key, out.Code, err, want)
		}
	}
}

// An eviction pass that ends a lease wakes whatever waits for its key.
func TestEvictionWakesWaiters(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{Config: machine.Config{EvictionInterval: 1}})
	owner := keyedCommand(l, "k", 1)
	owner.Lease = 1 // over with the next command
	mustKeyed(t, l, owner, machine.Keyed(keyed.Acquired))
	key := string(owner.ID.TableKey())
	waiting := l.keys.join(key)
	defer l.keys.leave(key, waiting)
	mustKeyed(t, l, keyedCommand(l, "another", 1), machine.Keyed(keyed.Acquired)) // its pass
	<-waiting.next
	mustKeyed(t, l, keyedCommand(l, "k", 2), machine.Keyed(keyed.Unknown))
}

// The calls that wait are bounded, for a key and in all.
func TestWaitersAreBounded(t *testing.T) {
	t.Parallel()
	w := waiters[string]{perKey: 2, total: 3}
	a1, a2, b1 := w.join("a"), w.join("a"), w.join("b")
	if a1 == nil || a2 == nil || b1 == nil || w.join("a") != nil || w.join("c") != nil {
		t.Error("the bounds do not hold")
	}
	w.leave("a", a1)
	if w.join("a") == nil {
		t.Error("a place that was left is not given again")
	}
	w.wake(func(yield func(string)) { yield("a"); yield("x") })
	<-a2.next
	select {
	case <-b1.next:
		t.Error("another key's event wakes")
	default:
	}
	w.close()
	<-b1.next
	w.leave("a", a2)
	w.leave("a", a2)
	w.leave("b", b1)
	if w.len() != 0 || len(w.waiting) != 0 {
		t.Errorf("%d calls wait for %d keys", w.len(), len(w.waiting))
	}
	<-w.join("late").next
}

// A Reserve beyond the bound of waiters is refused if it would have to wait, and answered if not.
func TestTooManyWaiters(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	l.keys.perKey = 1
	owner := keyedCommand(l, "k", 1)
	token := mustKeyed(t, l, owner, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
	waiting := l.keys.join(string(owner.ID.TableKey()))
	defer l.keys.leave(string(owner.ID.TableKey()), waiting)
	if out, err := l.Keyed(t.Context(), keyedCommand(l, "k", 2), time.Hour, nil); !errors.Is(err, ErrTooManyWaiters) {
		t.Errorf("one waiter too many: %v, %v", out.Code, err)
	}
	mustKeyed(t, l, keyedCommand(l, "k", 2), machine.Keyed(keyed.InFlight))
	mustKeyed(t, l, ownedCommand(owner, keyed.Complete, token, nil), machine.Keyed(keyed.OK))
	check.Equal(t, must.Get(l.Keyed(t.Context(), keyedCommand(l, "k", 2), time.Hour, nil))(t).Code,
		machine.Keyed(keyed.Replay), "a result that is there: %v")
}

// A reservation on an idle ledger keeps ledger time going, so that no pause counts
// as an outage.
func TestReservationsKeepTime(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{idleInterval: time.Hour})
	check.Equal(t, l.dueTicks(leaseInterval), 0, "%d ticks are due without a reservation")
	owner := keyedCommand(l, "k", 1)
	token := mustKeyed(t, l, owner, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
	check.Equal(t, l.dueTicks(leaseInterval-1), 0, "%d ticks are due too early")
	check.Equal(t, l.dueTicks(leaseInterval), 1, "%d ticks are due")
	mustKeyed(t, l, ownedCommand(owner, keyed.Complete, token, nil), machine.Keyed(keyed.OK))
	check.Equal(t, l.dueTicks(leaseInterval), 0, "%d ticks are due, and nothing is reserved any more")
}

func jobWrite() *machine.KeyedWrite {
	return &machine.KeyedWrite{
		ID: machine.KeyedID{Scope: machine.Scope{Organization: "acme"}, Namespace: "jobs", Principal: "user:1",
			Key: sha256.Sum256([]byte("job"))},
		Actor: "client:test", TTL: int64(time.Hour), MaxKeys: 10,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("run")}},
	}
}

// Keyed writes commit once, through restarts, and are read back with their key.
func TestKeyedWriteOnce(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	w := jobWrite()
	indexes := make(chan uint64, 32)
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			out, err := l.WriteKeyed(t.Context(), w, nil)
			if err != nil || out.Code != machine.Committed && out.Code != machine.Replayed {
				t.Error(out.Code, err)
			}
			indexes <- out.Receipt.Index
		})
	}
	group.Wait()
	close(indexes)
	first := <-indexes
	for index := range indexes {
		if index != first {
			t.Errorf("receipts at %d and %d", first, index)
		}
	}
	var k *machine.KeyedRecord
	err := l.ViewNow(t.Context(), func(v machine.View, now int64) (err error) {
		k, err = v.Keyed(&w.ID, now)
		return err
	})
	if err != nil || k.State != keyed.Written || k.Token != first {
		t.Errorf("%+v, %v", k, err)
	}
	other := *w
	other.Operations = []machine.Operation{{Kind: machine.OpAppend, Value: []byte("run something else")}}
	check.Equal(t, must.Get(l.WriteKeyed(t.Context(), &other, nil))(t).Code, machine.IdempotencyKeyReused,
		"another write under the key: %v")
}

// A response that is gone since its record was looked at is not an empty response: the command is
// decided again.
func TestAResponseThatIsGone(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	c := keyedCommand(l, "k", 1)
	out, err := l.Keyed(t.Context(), c, 0, nil)
	must.Do(t, err)
	done := ownedCommand(c, keyed.Complete, out.Keyed.Record.Token, make([]byte, 5_000))
	must.Get(l.Keyed(t.Context(), done, 0, nil))(t)
	var seen machine.Outcome
	err = l.ViewNow(t.Context(), func(v machine.View, now int64) (err error) {
		seen, _, err = v.AnswerKeyed(keyedCommand(l, "k", 2), now)
		return err
	})
	if err != nil || seen.Code != machine.Keyed(keyed.Replay) {
		t.Fatal(seen.Code, err)
	}
	if whole, err := l.readAttachments(t.Context(), &seen); !whole || err != nil ||
		len(seen.Keyed.Record.Response) != 5_000 {
		t.Error("the response is there:", whole, err)
	}
	purge := &machine.KeyedCommand{ID: c.ID, Actor: c.Actor, Command: keyed.Command{Kind: keyed.Purge}}
	must.Get(l.Keyed(t.Context(), purge, 0, nil))(t)
	if whole, err := l.readAttachments(t.Context(), &seen); whole || err != nil {
		t.Error("a response that is gone:", whole, err)
	}
}

// What a finished record answers costs no log entry, however often it is asked. The commands of an owner
// go into the log without a look at the state, and are decided there as the state would have it.
func TestWhatGoesIntoTheLog(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	c := keyedCommand(l, "k", 1)
	token := mustKeyed(t, l, c, machine.Keyed(keyed.Acquired)).Keyed.Record.Token
	expect := func(what string, more uint64, do func()) {
		t.Helper()
		before := l.Stats().Commands
		do()
		check.Equal(t, l.Stats().Commands-before, more, "%s: %d commands", what)
	}
	expect("a Reserve of a key that is pending", 0, func() {
		check.Equal(t, mustKeyed(t, l, keyedCommand(l, "k", 2), machine.Keyed(keyed.InFlight)).Keyed.Record.ID, c.ID,
			"the outcome's record is that of %v")
	})
	expect("a Heartbeat, and a Complete with another token", 2, func() {
		mustKeyed(t, l, ownedCommand(c, keyed.Heartbeat, token, nil), machine.Keyed(keyed.OK))
		mustKeyed(t, l, ownedCommand(c, keyed.Complete, token+1, []byte("wrong")), machine.Keyed(keyed.LeaseLost))
	})
	done := ownedCommand(c, keyed.Complete, token, []byte("done"))
	expect("a Complete", 1, func() { mustKeyed(t, l, done, machine.Keyed(keyed.OK)) })
	expect("what a finished record answers", 0, func() {
		for range 3 {
			mustKeyed(t, l, done, machine.Keyed(keyed.OK))
			other := ownedCommand(c, keyed.Complete, token, []byte("other"))
			mustKeyed(t, l, other, machine.Keyed(keyed.AlreadyCompleted))
			mustKeyed(t, l, ownedCommand(c, keyed.Heartbeat, token, nil), machine.Keyed(keyed.LeaseLost))
			out := mustKeyed(t, l, keyedCommand(l, "k", 3), machine.Keyed(keyed.Replay))
			if string(out.Keyed.Record.Response) != "done" || out.Keyed.Record.ID != c.ID {
				t.Errorf("a replay: %+v", out.Keyed.Record)
			}
		}
	})
}

// A caller that is gone may leave its command to an admission that proposes it later. It is then still
// that command, whatever other calls have done meanwhile.
func TestACommandOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	l := openTest(t, Options{})
	gone := errors.New("the caller is gone")
	var later func(context.Context) (machine.Outcome, error)
	_, err := l.Keyed(t.Context(), keyedCommand(l, "first", 1), 0, func(
		_ context.Context, propose func(context.Context) (machine.Outcome, error),
	) (machine.Outcome, error) {
		later = propose
		return machine.Outcome{}, gone
	})
	must.Is(t, err, gone)
	for i := range 10 {
		mustKeyed(t, l, keyedCommand(l, fmt.Sprint("another ", i), 2), machine.Keyed(keyed.Acquired))
	}
	if out, err := later(t.Context()); err != nil || out.Code != machine.Keyed(keyed.Acquired) {
		t.Fatalf("%v, %v, want the first command's own reservation", out.Code, err)
	}
	mustKeyed(t, l, keyedCommand(l, "first", 3), machine.Keyed(keyed.InFlight))
}
