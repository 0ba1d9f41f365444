package redis_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	driver "github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

// anyKey is in the slot of a store's keys.
const anyKey = "{idempotency}"

// The suite on a cluster of three masters, and the other features that use a cluster's client: lists, quotas, and the
// wait for replicas.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := servertest.RedisCluster(t, 3)
	shared := open(t, cluster.URL, redis.Options{})
	t.Run("Suite", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
	})
	t.Run("SuiteWithReplicas", func(t *testing.T) {
		t.Parallel()
		longOnly(t)
		s := open(t, cluster.URL+"/0?prefix=replicas&min_replicas=1&replica_timeout=30s", redis.Options{})
		storetest.Run(t, func(*testing.T) idempotency.Store { return s })
	})
	t.Run("List", func(t *testing.T) {
		t.Parallel()
		for _, prefix := range []string{"a", "b", "c", "d"} { // these are on several masters
			storetest.RunList(t, open(t, cluster.URL+"?prefix="+prefix, redis.Options{}))
		}
	})
	t.Run("Quota", func(t *testing.T) {
		t.Parallel()
		storetest.RunQuota(t, open(t, cluster.URL+"?prefix=quota&max_open=2", redis.Options{}))
	})
}

// longOnly skips a test under -short, because a cluster takes seconds to form.
func longOnly(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: -short has one cluster")
	}
}

// await retries a call until it is answered: a client learns of a new master from failing calls.
func await[T any](t *testing.T, call func(ctx context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		answer, err := call(ctx)
		if err == nil {
			return answer
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// A master is killed, and its replica takes over. What the replica had survives; what it did not have is lost, as
// documented, and nothing else is. Tokens grow, and the owner of a lost reservation no longer owns its key.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	longOnly(t)
	cluster := servertest.RedisCluster(t, 3)
	master, replica := cluster.Of(anyKey)
	s := open(t, cluster.URL, redis.Options{})
	careful := open(t, cluster.URL, redis.Options{MinReplicas: 1, ReplicaTimeout: 30 * time.Second})
	must.Get(idempotency.Do(t.Context(), careful, key("before"), succeed))(t)
	pending := reserve(t, careful, "pending")
	hasty := open(t, cluster.URL, redis.Options{MinReplicas: 1, ReplicaTimeout: 50 * time.Millisecond})
	// From now on the replica receives nothing: it is paused, and its connection is broken.
	replica.Pause()
	must.Do(t, connect(t, master).Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err())
	lost := reserve(t, s, "lost")
	request := &idempotency.ReserveRequest{Key: key("careful"), AttemptID: idempotency.NewAttemptID()}
	if r, err := hasty.Reserve(t.Context(), request); err == nil {
		t.Errorf("a reservation that no replica has: %+v", r)
	}
	master.Kill()
	replica.Continue()
	cluster.Promote(replica)

	done := await(t, func(ctx context.Context) (*idempotency.Done, error) {
		return idempotency.Do(ctx, s, key("before"), succeed)
	})
	if !done.Replayed {
		t.Errorf("what the replica had: %+v", done)
	}
	late := await(t, func(ctx context.Context) (*redis.Store, error) { // it first tries a dead node
		return redis.Open(ctx, "redis-cluster://"+master.Address+","+replica.Address, redis.Options{})
	})
	t.Cleanup(func() { _ = late.Close() })
	if r, err := late.Get(t.Context(), &pending.Key); err != nil || r.Token != pending.Token {
		t.Errorf("Get by a client that came later: %+v, %v", r, err)
	}
	check.Is(t, check.Err(s.Get(t.Context(), &lost.Key)), idempotency.ErrNotFound, "what the replica did not have")
	if next := reserve(t, s, "lost"); next.Token <= lost.Token {
		t.Errorf("token %d after %d", next.Token, lost.Token)
	}
	for owner, want := range map[*idempotency.Ownership]idempotency.Outcome{
		pending: idempotency.OK, lost: idempotency.LeaseLost,
	} {
		a, err := s.Complete(t.Context(), owner, idempotency.Result{})
		if err != nil || a.Outcome != want {
			t.Errorf("Complete of %s: %+v, %v; want %v", owner.Key.Key, a, err, want)
		}
	}
}

// The slot of a store's keys moves to another master while there are owners. Some calls fail meanwhile; otherwise the
// owners do not notice.
func TestClusterMoves(t *testing.T) {
	t.Parallel()
	longOnly(t)
	cluster := servertest.RedisCluster(t, 3)
	from, _ := cluster.Of(anyKey)
	to := cluster.Masters[0]
	if to == from {
		to = cluster.Masters[1]
	}
	plain := open(t, cluster.URL, redis.Options{})
	waiting := open(t, cluster.URL, redis.Options{MinReplicas: 1, ReplicaTimeout: 30 * time.Second})
	owners := map[*idempotency.Ownership]*redis.Store{
		reserve(t, plain, "plain"): plain, reserve(t, waiting, "waiting"): waiting,
	}
	cluster.Move(anyKey, to, func() {
		// The record has not moved yet.
		for owner, s := range owners {
			if r, err := s.Get(t.Context(), &owner.Key); err != nil || r.Token != owner.Token {
				t.Errorf("Get: %+v, %v", r, err)
			}
		}
	})
	for owner, s := range owners {
		a := await(t, func(ctx context.Context) (*idempotency.Answer, error) {
			return s.Complete(ctx, owner, idempotency.Result{})
		})
		if a.Outcome != idempotency.OK {
			t.Errorf("Complete of %s: %+v", owner.Key.Key, a)
		}
		if next := reserve(t, s, "next-"+owner.Key.Key); next.Token <= owner.Token {
			t.Errorf("token %d after %d", next.Token, owner.Token)
		}
	}
}

// A cluster on which two owners could run is refused. What a cluster may lose is logged once.
func TestClusterRefusals(t *testing.T) {
	t.Parallel()
	longOnly(t)
	cluster := servertest.RedisCluster(t, 3)
	var log bytes.Buffer
	open(t, cluster.URL, redis.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if log.Len() > 0 {
		t.Errorf("the log is %q", log.String())
	}
	alone := servertest.Redis(t)
	for name, c := range map[string]struct{ url, want string }{
		"a node alone":   {"redis://" + cluster.Masters[0].Address, "redis-cluster://"},
		"no cluster":     {"redis-cluster://" + alone.Address, ""},
		"reads replicas": {cluster.URL + "?read_only=true", "replica"},
		"routes":         {cluster.URL + "?route_randomly=true", "replica"},
		"latency":        {cluster.URL + "?route_by_latency=true", "replica"},
		"few replicas":   {cluster.URL + "?min_replicas=2", "min_replicas"},
		"database":       {cluster.URL + "/1", "database 0"},
		"no node":        {"redis-cluster:///", "no node"},
		"open":           {cluster.URL + "?max_open=-1", "max_open"},
		"no number":      {cluster.URL + "?max_open=many", "max_open"},
	} {
		s, err := redis.Open(t.Context(), c.url, redis.Options{})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ring := driver.NewRing(&driver.RingOptions{Addrs: map[string]string{"a": alone.Address}})
	t.Cleanup(func() { _ = ring.Close() })
	if _, err := redis.New(t.Context(), ring, redis.Options{}); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("a ring: %v", err)
	}
	for _, node := range cluster.Masters {
		must.Do(t, connect(t, node).ConfigSet(t.Context(), "appendfsync", "everysec").Err())
	}
	open(t, cluster.URL, redis.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if n := strings.Count(log.String(), "everysec"); n != 1 {
		t.Errorf("the log has %d warnings: %q", n, log.String())
	}
	last := connect(t, cluster.Masters[2])
	must.Do(t, last.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	if _, err := redis.Open(t.Context(), cluster.URL, redis.Options{}); err == nil ||
		!strings.Contains(err.Error(), "noeviction") {
		t.Errorf("a node that evicts: %v", err)
	}
}
