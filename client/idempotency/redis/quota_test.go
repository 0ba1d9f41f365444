package redis_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

func TestQuota(t *testing.T) {
	t.Parallel()
	storetest.RunQuota(t, open(t, servertest.Redis(t).URL+"?max_open=2", redis.Options{}))
}

// The suite on a store with a quota, which must not count too many keys.
func TestSuiteWithQuota(t *testing.T) {
	t.Parallel()
	shared := open(t, servertest.Redis(t).URL, redis.Options{MaxOpen: 1_000_000})
	storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
}

// Concurrent reservations see each other, because the script that stores them counts.
func TestQuotaIsExact(t *testing.T) {
	t.Parallel()
	const most, callers = 5, 32
	s := open(t, servertest.Redis(t).URL, redis.Options{MaxOpen: most})
	var acquired atomic.Int32
	var group sync.WaitGroup
	for range callers {
		// Ends with its call; the Wait below joins it.
		group.Go(func() {
			r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{
				Key: key(idempotency.NewKey("k", 1)), AttemptID: idempotency.NewAttemptID(),
			})
			_, refused := errors.AsType[*idempotency.QuotaError](err)
			switch {
			case err == nil && r.Outcome == idempotency.Acquired:
				acquired.Add(1)
			case !refused:
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	group.Wait()
	if n := acquired.Load(); n != most {
		t.Errorf("%d keys are open, of %d", n, most)
	}
}

// Keys that a process without a quota reserved count in a process that has one.
func TestQuotaOfOthers(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	without := open(t, server.URL, redis.Options{})
	owner := reserve(t, without, "a")
	reserve(t, without, "b")
	with := open(t, server.URL, redis.Options{MaxOpen: 2})
	request := &idempotency.ReserveRequest{Key: key("c"), AttemptID: idempotency.NewAttemptID()}
	_, err := with.Reserve(t.Context(), request)
	if _, refused := errors.AsType[*idempotency.QuotaError](err); !refused {
		t.Fatalf("want a refusal by the quota, got %v", err)
	}
	if a, err := without.Complete(t.Context(), owner, idempotency.Result{}); err != nil || a.Outcome != idempotency.OK {
		t.Fatalf("%+v, %v", a, err)
	}
	if r, err := with.Reserve(t.Context(), request); err != nil || r.Outcome != idempotency.Acquired {
		t.Errorf("%+v, %v", r, err)
	}
}

// Keys that Redis has deleted by itself no longer count, and the set of open keys disappears with the last of them.
func TestQuotaExpires(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	s := open(t, server.URL, redis.Options{MaxOpen: 2})
	reserve(t, s, "a")
	client := connect(t, server)
	sets := must.Get(client.Keys(t.Context(), "{idempotency}:open:*").Result())(t)
	must.Equal(t, len(sets), 1)
	records := must.Get(client.Keys(t.Context(), "{idempotency}:record:*").Result())(t)
	must.Equal(t, len(records), 1)
	set, record := client.PExpireTime(t.Context(), sets[0]), client.PExpireTime(t.Context(), records[0])
	if set.Err() != nil || set.Val() != record.Val() || set.Val() <= 0 {
		t.Errorf("the set is kept until %v, and the record until %v", set, record)
	}
	reserve(t, s, "b")
	// As if weeks had passed: the times of the members are in the past.
	members := must.Get(client.ZRange(t.Context(), sets[0], 0, -1).Result())(t)
	must.Equal(t, len(members), 2)
	past := float64(time.Now().Add(-time.Minute).UnixMilli())
	for _, member := range members {
		must.Do(t, client.Do(t.Context(), "ZADD", sets[0], past, member).Err())
	}
	reserve(t, s, "c")
	check.Equal(t, client.ZCard(t.Context(), sets[0]).Val(), 1, "%d keys are counted, of 1")
}

// A key that is remembered for longer than its outcome is open counts for no longer than that.
func TestQuotaOfRemembered(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	s := open(t, server.URL, redis.Options{MaxOpen: 1})
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{
		Key: key("a"), AttemptID: idempotency.NewAttemptID(), ForgetAfter: idempotency.Never,
	})
	if err != nil || r.Outcome != idempotency.Acquired {
		t.Fatalf("%+v, %v", r, err)
	}
	client := connect(t, server)
	sets := must.Get(client.Keys(t.Context(), "{idempotency}:open:*").Result())(t)
	members := must.Get(client.ZRangeWithScores(t.Context(), sets[0], 0, -1).Result())(t)
	if until := time.UnixMilli(int64(members[0].Score)); until.After(time.Now().Add(31 * 24 * time.Hour)) {
		t.Errorf("a key whose outcome is unknown for 30 days counts until %v", until)
	}
}
