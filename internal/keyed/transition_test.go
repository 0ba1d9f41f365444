package keyed

import (
	"crypto/sha256"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

const (
	start  = int64(1_000_000 * time.Second)
	second = int64(time.Second)
	lease  = 60 * second
)

// key drives the record of one key.
type key struct {
	*testing.T
	r     *Record
	now   int64
	token uint64
	floor Moment // LeaseFloor and FloorSet
}

func newKey(t *testing.T) *key {
	t.Helper()
	return &key{T: t, now: start}
}

// do applies a command, expects the code, and checks the invariants that hold for every command.
func (k *key) do(c *Command, want Code) Outcome {
	k.Helper()
	k.token++
	var before *Record
	if k.r != nil {
		copied := *k.r
		before = &copied
	}
	at := Moment{Now: k.now, Token: k.token, LeaseFloor: k.floor.LeaseFloor, FloorSet: k.floor.FloorSet}
	next, out := Transition(k.r, c, at)
	if out.Code != want {
		k.Errorf("%s: code %d, want %d", describe(c), out.Code, want)
	}
	if k.r != nil && !reflect.DeepEqual(*k.r, *before) {
		k.Errorf("%s changed the record that it was given", describe(c))
	}
	if !out.Changed && !reflect.DeepEqual(next, k.r) {
		k.Errorf("%s: the record is another, and Changed is not set", describe(c))
	}
	if again, outAgain := Transition(k.r, c, at); outAgain != out || !reflect.DeepEqual(again, next) {
		k.Errorf("%s is decided in two ways", describe(c))
	}
	k.r = next
	return out
}

func describe(c *Command) string {
	return fmt.Sprintf("command %d of attempt %d", c.Kind, c.AttemptID[0])
}

func reserve(attempt byte) *Command {
	return &Command{
		Kind: Reserve, AttemptID: AttemptID{attempt}, ValidUntil: start + 1<<50, Lease: lease, TTL: 3600 * second,
		Fingerprint: Fingerprint{1, [32]byte{7}},
	}
}

func (c *Command) with(change func(c *Command)) *Command {
	changed := *c
	change(&changed)
	return &changed
}

func takingOver(c *Command) { c.Policy = TakeOver }

// owner returns a command of the attempt with a token.
func owner(kind Kind, attempt byte, token uint64) *Command {
	return &Command{Kind: kind, AttemptID: AttemptID{attempt}, Token: token, Lease: lease, Response: []byte("done")}
}

func TestOneOwnerFinishes(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	k.do(reserve(1), Acquired)
	if k.r.Token != 1 || k.r.Attempts != 1 || k.r.LeaseEnd != k.now+lease {
		t.Errorf("%+v", k.r)
	}
	check.Equal(t, k.do(reserve(2), InFlight).RetryAfter, time.Duration(lease), "retry after %v")
	k.now += second
	k.do(reserve(1), Acquired) // the answer was lost
	if k.r.Token != 1 || k.r.Attempts != 1 || k.r.LeaseEnd != k.now+lease {
		t.Errorf("after its repeat: %+v", k.r)
	}
	k.do(owner(Checkpoint, 1, 1).with(func(c *Command) { c.Data = []byte("half") }), OK)
	k.do(owner(Complete, 1, 1), OK)
	if k.r.State != Committed || string(k.r.Response) != "done" || k.r.Expires != k.now+3600*second ||
		k.r.Checkpoint != nil {
		t.Errorf("%+v", k.r)
	}
	k.do(reserve(2), Replay)
	k.do(reserve(1), Replay)
	k.do(owner(Complete, 1, 1), OK)
	k.do(owner(Complete, 1, 1).with(func(c *Command) { c.Response = []byte("other") }), AlreadyCompleted)
	k.do(owner(Reject, 1, 1), AlreadyCompleted)
	k.do(owner(Complete, 2, 2), LeaseLost)
	k.do(owner(Heartbeat, 1, 1), LeaseLost)
	k.do(owner(Release, 1, 1), LeaseLost)
	k.now = k.r.Expires
	k.do(reserve(3), Acquired)
	if k.r.State != Pending || k.r.Token <= 1 || k.r.Response != nil || k.r.ResponseSum != ([32]byte{}) {
		t.Errorf("%+v", k.r)
	}
}

func TestOrderOfReserve(t *testing.T) {
	t.Parallel()
	otherRequest := func(c *Command) { c.Fingerprint.Digest[0]++ }
	otherAlgorithm := func(c *Command) { c.Fingerprint.Algorithm++ }
	stale := func(c *Command) { c.ValidUntil = start - 1 }
	k := newKey(t)
	k.do(reserve(1).with(stale), Stale)
	if k.r != nil {
		t.Error("a stale Reserve has left a record")
	}
	k.do(reserve(1), Acquired)
	k.do(reserve(1).with(stale), Stale)
	k.do(reserve(2).with(otherRequest), Mismatch) // checked before in-flight
	k.do(reserve(2).with(otherAlgorithm), Mismatch)
	k.do(reserve(1).with(otherRequest), Mismatch) // the owner's own request, too
	k.do(reserve(2), InFlight)
	k.do(owner(Reject, 1, k.r.Token), OK)
	k.do(reserve(2).with(otherRequest), Mismatch)
	k.do(reserve(2), Replay)
	k.r = &Record{State: Written, Token: 9, Expires: start + second}
	k.do(reserve(2), Mismatch)
	if k.r.Incomparable(reserve(2).Fingerprint) {
		t.Error("a keyed write may be a reservation")
	}
}

// A lease that ends without a result leaves an unknown outcome. The owner or Resolve settles it; the work never runs
// again by itself.
func TestLeaseEndsIndeterminate(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(k *key, token uint64){
		"late Complete": func(k *key, token uint64) { k.do(owner(Complete, 1, token), OK) },
		"late Reject":   func(k *key, token uint64) { k.do(owner(Reject, 1, token), OK) },
		"Resolve": func(k *key, _ uint64) {
			k.do(&Command{Kind: Resolve, State: Committed, TTL: second, Response: []byte("found out")}, OK)
			k.do(&Command{Kind: Resolve, State: Rejected, TTL: second}, AlreadyCompleted)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKey(t)
			k.do(reserve(1), Acquired)
			token := k.r.Token
			k.do(&Command{Kind: Resolve, State: Committed}, NotFinal)
			k.do(&Command{Kind: Purge}, NotFinal)
			k.now += lease
			if out := k.do(reserve(2), Unknown); !out.Changed || k.r.State != Indeterminate || k.r.Token != token {
				t.Errorf("%+v %+v", out, k.r)
			}
			if out := k.do(reserve(3), Unknown); out.Changed {
				t.Error("the transition was made twice")
			}
			k.do(owner(Heartbeat, 1, token), LeaseLost)
			k.do(owner(Release, 1, token), LeaseLost)
			k.do(&Command{Kind: Purge}, NotFinal)
			settle(k, token)
			if !k.r.State.finished() {
				t.Errorf("%+v", k.r)
			}
			k.do(reserve(4), Replay)
			k.do(&Command{Kind: Purge}, OK)
			k.do(&Command{Kind: Purge}, NotFound)
			k.do(reserve(5), Acquired)
		})
	}
}

// Until another attempt challenges it, an ended lease can still be extended or used.
func TestUnchallengedOwner(t *testing.T) {
	t.Parallel()
	for _, policy := range []Policy{BecomeIndeterminate, TakeOver} {
		k := newKey(t)
		k.do(reserve(1).with(func(c *Command) { c.Policy = policy }), Acquired)
		k.now += lease + second
		k.do(owner(Complete, 1, 1), OK)
		if k.r.State != Committed {
			t.Errorf("policy %d: %+v", policy, k.r)
		}
	}
	k := newKey(t)
	k.do(reserve(1).with(takingOver), Acquired)
	k.now += lease + second
	k.do(owner(Heartbeat, 1, 1), OK)
	k.do(reserve(2).with(takingOver), InFlight)
	// With the other policy, time alone makes the outcome unknown.
	k = newKey(t)
	k.do(reserve(1), Acquired)
	k.now += lease
	k.do(owner(Heartbeat, 1, 1), LeaseLost)
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	k.do(reserve(1).with(takingOver), Acquired)
	k.do(owner(Checkpoint, 1, 1).with(func(c *Command) { c.Data = []byte("half") }), OK)
	k.now += lease
	k.do(reserve(2).with(takingOver).with(func(c *Command) { c.Fingerprint.Digest[0]++ }), Mismatch)
	k.do(reserve(2), Acquired) // from now on the new owner's policy applies
	if k.r.Token <= 1 || k.r.Attempts != 2 || string(k.r.Checkpoint) != "half" || k.r.Policy != BecomeIndeterminate {
		t.Errorf("%+v", k.r)
	}
	token := k.r.Token
	for _, kind := range []Kind{Complete, Reject, Release, Heartbeat, Checkpoint} {
		k.do(owner(kind, 1, 1), LeaseLost)
		k.do(owner(kind, 1, token), LeaseLost)
		k.do(owner(kind, 2, 1), LeaseLost)
	}
	k.do(reserve(1).with(takingOver), InFlight) // a copy, or an owner that has not noticed the takeover
	k.now += lease
	k.do(reserve(3), Unknown)
	k.do(owner(Complete, 2, token), OK)
}

// A record that stays unclaimed for a month has an unknown outcome.
func TestUnclaimed(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	k.do(reserve(1).with(takingOver), Acquired)
	k.now += lease + int64(UnclaimedTTL)
	k.do(reserve(2).with(takingOver).with(func(c *Command) { c.ValidUntil = k.now }), Unknown)
}

// However an attempt ended, a late copy of its Reserve owns nothing.
func TestLateCopies(t *testing.T) {
	t.Parallel()
	valid := func(c *Command) { c.ValidUntil = start + 300*second }
	brief := func(c *Command) { c.TTL = second }
	for name, end := range map[string]func(k *key){
		"released": func(k *key) { k.do(owner(Release, 1, 1), OK); k.do(owner(Release, 1, 1), OK) },
		"rejected": func(k *key) { k.do(owner(Reject, 1, 1), OK); k.now += second },
		"purged":   func(k *key) { k.do(owner(Complete, 1, 1), OK); k.do(&Command{Kind: Purge}, OK) },
		"taken over and released": func(k *key) {
			k.now += lease
			k.do(reserve(2).with(valid).with(takingOver), Acquired)
			k.do(owner(Release, 2, k.r.Token), OK)
		},
		"taken over and done": func(k *key) {
			k.now += lease
			k.do(reserve(2).with(valid).with(takingOver).with(brief), Acquired)
			k.do(owner(Complete, 2, k.r.Token), OK)
			k.now += second
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKey(t)
			k.do(reserve(1).with(valid).with(takingOver).with(brief), Acquired)
			end(k)
			if k.r.Live(k.now) {
				t.Fatalf("%+v is live", k.r)
			}
			k.do(reserve(1).with(valid).with(takingOver), LeaseLost)
			next, kept := Expire(k.r, Moment{Now: k.now})
			if !kept || next == nil {
				t.Fatal("the record was forgotten while a copy could come")
			}
			k.now = start + 300*second
			k.do(reserve(1).with(valid).with(takingOver), LeaseLost)
			k.now++
			k.do(reserve(1).with(valid).with(takingOver), Stale)
			k.do(reserve(9), Acquired)
		})
	}
}

// Once a record holds the maximum of past attempts, a Reserve waits until the oldest of them can have no more copies.
func TestPastAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	for i := range MaxPastAttempts {
		until := start + int64(i+1)*second*10
		k.do(reserve(byte(i)).with(func(c *Command) { c.ValidUntil = until }), Acquired)
		k.do(owner(Release, byte(i), k.r.Token), OK)
	}
	check.Equal(t, k.do(reserve(200), InFlight).RetryAfter, 10*time.Second, "retry after %v")
	k.now += 10*second + 1
	k.do(reserve(200), Acquired)
	check.Equal(t, len(k.r.Past), MaxPastAttempts-1, "%d past attempts")
}

// After an outage every running lease has some time left.
func TestLeaseFloor(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	k.do(reserve(1), Acquired)
	k.now += lease + 3600*second
	k.floor = Moment{LeaseFloor: k.now + int64(OutageGrace), FloorSet: k.now}
	check.Equal(t, k.do(reserve(2), InFlight).RetryAfter, OutageGrace, "retry after %v")
	k.do(owner(Heartbeat, 1, 1).with(func(c *Command) { c.Lease = second }), OK)
	check.Equal(t, k.r.LeaseEnd, k.floor.LeaseFloor, "a heartbeat has cut the lease to %d: %v", k.r.LeaseEnd-k.now)
	k.now += int64(OutageGrace)
	k.do(reserve(2), Unknown)
	// A lease that begins after the outage is not extended.
	k = newKey(t)
	k.floor = Moment{LeaseFloor: k.now + int64(OutageGrace), FloorSet: k.now}
	k.do(reserve(1).with(func(c *Command) { c.Lease = second }), Acquired)
	k.now += second
	k.do(reserve(2), Unknown)
}

func TestExpire(t *testing.T) {
	t.Parallel()
	at := func(now int64) Moment { return Moment{Now: now} }
	k := newKey(t)
	k.do(reserve(1).with(func(c *Command) { c.ValidUntil = start + second }), Acquired)
	if next, kept := Expire(k.r, at(k.now+lease-1)); !kept || next != k.r {
		t.Error("a running lease has expired")
	}
	next, kept := Expire(k.r, at(k.now+lease))
	if !kept || next.State != Indeterminate || next.Due(at(0)) != k.now+lease+int64(IndeterminateTTL) {
		t.Errorf("%+v", next)
	}
	if _, kept := Expire(next, at(next.Due(at(0))-1)); !kept {
		t.Error("an unknown outcome was forgotten too early")
	}
	if _, kept := Expire(next, at(next.Due(at(0)))); kept {
		t.Error("an unknown outcome is kept for ever")
	}
	k.do(owner(Complete, 1, 1), OK)
	if _, kept := Expire(k.r, at(k.r.Expires-1)); !kept {
		t.Error("a finished record was forgotten too early")
	}
	if _, kept := Expire(k.r, at(k.r.Expires)); kept {
		t.Error("a finished record is kept for ever")
	}
	if k.r.ResponseSize != 4 || k.r.ResponseSum != sha256.Sum256([]byte("done")) {
		t.Errorf("%+v", k.r)
	}
}

// A command on an absent key never returns an ownership.
func TestAbsent(t *testing.T) {
	t.Parallel()
	for _, kind := range []Kind{Complete, Reject, Release, Heartbeat, Checkpoint} {
		k := newKey(t)
		k.do(owner(kind, 1, 1), LeaseLost)
		if k.r != nil {
			t.Errorf("kind %d has made a record", kind)
		}
	}
	for _, kind := range []Kind{Resolve, Purge} {
		newKey(t).do(&Command{Kind: kind, State: Committed}, NotFound)
	}
	newKey(t).do(&Command{Kind: 99}, LeaseLost)
}

// An eviction pass at the last moment at which a copy is valid keeps the attempt.
func TestLastMomentOfACopy(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	until := start + 100*second
	first := reserve(1).with(func(c *Command) { c.ValidUntil, c.TTL = until, second })
	k.do(first, Acquired)
	k.do(owner(Complete, 1, 1).with(func(c *Command) { c.TTL = second }), OK)
	k.now = until
	if next, kept := Expire(k.r, Moment{Now: k.now}); !kept || next.Due(Moment{}) != until+1 {
		t.Errorf("a pass at that moment keeps %+v: %t", next, kept)
	}
	k.do(first, LeaseLost)
	if _, kept := Expire(k.r, Moment{Now: until + 1}); kept {
		t.Error("a pass behind it keeps the record")
	}
}

// A released attempt owns nothing for as long as its tombstone lasts, even if a copy of its Reserve is valid for longer
// than the first Reserve.
func TestTombstoneRefusesLaterCopies(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	k.do(reserve(1).with(func(c *Command) { c.ValidUntil = start + second }), Acquired)
	k.do(owner(Release, 1, 1), OK)
	k.now += int64(TombstoneTTL) - 1
	k.do(reserve(1), LeaseLost)
	k.do(reserve(2), Acquired)
}

// A lease that was set at a time in the future ends at once, or at the floor.
func TestLeaseOfAClockThatWasSetBack(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	k.now = start + 1_000_000*second
	k.do(reserve(1), Acquired)
	k.now, k.floor = start, Moment{LeaseFloor: start + 30*second, FloorSet: start + 1_000_000*second + 1}
	k.do(reserve(2), InFlight)
	k.now += 30 * second
	k.do(reserve(2), Unknown)
}

// A key that is remembered for longer than its result answers that the result has expired, and never runs again.
func TestExpiredNotForgotten(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * 3600 * second
	remembered := func(c *Command) { c.ForgetAfter = year }
	otherRequest := func(c *Command) { c.Fingerprint.Digest[0]++ }
	for name, finish := range map[string]struct {
		command *Command
		expires int64 // after it is finished
	}{
		"committed": {owner(Complete, 1, 1), 3600 * second},
		"rejected":  {owner(Reject, 1, 1), 3600 * second},
		"unknown":   {owner(Heartbeat, 1, 1).with(func(c *Command) { c.Lease = 0 }), int64(IndeterminateTTL)},
		"longer":    {owner(Complete, 1, 1).with(func(c *Command) { c.TTL = year - 1 }), year - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKey(t)
			k.do(reserve(1).with(remembered), Acquired)
			k.do(finish.command, OK)
			k.now += finish.expires
			tombstone := k.r.At(Moment{Now: k.now})
			if tombstone == nil || tombstone.State != Expired || tombstone.FreeAt() != start+year ||
				tombstone.Response != nil || tombstone.ResponseSize != 0 {
				t.Fatalf("what has expired is %+v", tombstone)
			}
			again := func(attempt byte) *Command {
				return reserve(attempt).with(func(c *Command) { c.ValidUntil = k.now })
			}
			if !k.do(again(2).with(otherRequest), Mismatch).Changed {
				t.Error("the record has kept its result")
			}
			if k.do(again(2), ResultExpired).Changed {
				t.Error("a record that has expired changes again")
			}
			k.do(owner(Complete, 1, 1), LeaseLost)
			k.do(owner(Release, 1, 1), LeaseLost)
			k.do(owner(Resolve, 1, 1).with(func(c *Command) { c.State = Committed }), ResultExpired)
			k.now = start + year - 1
			k.do(again(3), ResultExpired)
			k.now++
			k.do(again(4), Acquired)
		})
	}
}

// The pass that removes what has expired drops the result first, and the key when it is to be forgotten.
func TestExpireBeforeForget(t *testing.T) {
	t.Parallel()
	k := newKey(t)
	k.do(reserve(1).with(func(c *Command) { c.ForgetAfter, c.ValidUntil = int64(Never), start }), Acquired)
	k.do(owner(Complete, 1, 1), OK)
	due := k.r.Due(Moment{})
	check.Equal(t, due, k.r.Expires)
	next, kept := Expire(k.r, Moment{Now: due})
	if !kept || next.State != Expired || next.Response != nil || next.Due(Moment{}) != math.MaxInt64 {
		t.Fatalf("%+v, kept: %v", next, kept)
	}
	k.r, k.now = next, math.MaxInt64-1
	k.do(reserve(2).with(func(c *Command) { c.ValidUntil = math.MaxInt64 }), ResultExpired)
	k.do(owner(Purge, 1, 1), OK) // only an operator frees the key
	k.now = start
	k.do(reserve(2), Acquired)
}
