package redis_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	driver "github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

func open(t testing.TB, url string, o redis.Options) *redis.Store {
	t.Helper()
	s := must.Get(redis.Open(t.Context(), url, o))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func connect(t *testing.T, server *servertest.Server) *driver.Client {
	t.Helper()
	c := driver.NewClient(&driver.Options{Addr: server.Address})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func key(text string) idempotency.RecordKey {
	return idempotency.RecordKey{Scope: idempotency.Scope{Organization: "acme"}, Namespace: "test", Key: text}
}

func succeed(context.Context, *idempotency.Owner) ([]byte, error) { return []byte("done"), nil }

// reserve reserves a key.
func reserve(t *testing.T, s idempotency.Store, k string) *idempotency.Ownership {
	t.Helper()
	request := &idempotency.ReserveRequest{Key: key(k), AttemptID: idempotency.NewAttemptID()}
	r := must.Get(s.Reserve(t.Context(), request))(t)
	must.Equal(t, r.Outcome, idempotency.Acquired, "Reserve of %s: %+v", k)
	return &idempotency.Ownership{Key: request.Key, Token: r.Token, AttemptID: request.AttemptID}
}

func TestSuite(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	shared := open(t, server.URL, redis.Options{})
	storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
}

func TestSuiteWithAReplica(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	replicate(t, server)
	shared := open(t, server.URL+"?min_replicas=1&replica_timeout=10s&prefix=other", redis.Options{})
	storetest.Run(t, func(*testing.T) idempotency.Store { return shared })
}

// replicate starts a replica and waits until the server counts it.
func replicate(t *testing.T, server *servertest.Server) *servertest.Server {
	t.Helper()
	host, port, _ := strings.Cut(server.Address, ":")
	replica := servertest.Redis(t, "--replicaof", host+" "+port)
	c := connect(t, server)
	for n := int64(0); n < 1; {
		n = must.Get(c.Wait(t.Context(), 1, time.Second).Result())(t)
	}
	return replica
}

// A server that could drop keys is refused.
func TestRefusals(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, "--maxmemory-policy", "volatile-lru")
	healthy := servertest.Redis(t)
	replica := replicate(t, healthy)
	for name, c := range map[string]struct{ url, want string }{
		"evicts":       {server.URL, "noeviction"},
		"replica":      {replica.URL, "replica"},
		"few replicas": {healthy.URL + "?min_replicas=2", "min_replicas"},
		"prefix":       {healthy.URL + "?prefix=%7Ba%7D", "braces"},
		"timeout":      {healthy.URL + "?replica_timeout=1us", "1ms"},
	} {
		s, err := redis.Open(t.Context(), c.url, redis.Options{})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Opening a store logs what the server may lose.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings []string
		want     string
	}{
		"always":   {nil, ""},
		"everysec": {[]string{"--appendfsync", "everysec"}, "everysec"},
		"none":     {[]string{"--appendonly", "no"}, "append-only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			open(t, servertest.Redis(t, c.settings...).URL,
				redis.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if (log.Len() > 0) != (c.want != "") || !strings.Contains(log.String(), c.want) {
				t.Errorf("the log is %q, want %q", log.String(), c.want)
			}
		})
	}
}

// A server without free memory accepts no keys, and changes nothing.
func TestFull(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	s := open(t, server.URL, redis.Options{})
	owner := reserve(t, s, "k")
	must.Do(t, connect(t, server).ConfigSet(t.Context(), "maxmemory", "1").Err())
	request := &idempotency.ReserveRequest{Key: key("new"), AttemptID: idempotency.NewAttemptID()}
	_, err := s.Reserve(t.Context(), request)
	if _, ok := errors.AsType[*idempotency.QuotaError](err); !ok {
		t.Errorf("Reserve: %v", err)
	}
	must.Do(t, connect(t, server).ConfigSet(t.Context(), "maxmemory", "0").Err())
	if a, err := s.Complete(t.Context(), owner, idempotency.Result{}); err != nil || a.Outcome != idempotency.OK {
		t.Errorf("Complete: %+v, %v", a, err)
	}
	check.Is(t, check.Err(s.Get(t.Context(), new(key("new")))), idempotency.ErrNotFound, "Get")
}

// With appendfsync always, what was acknowledged survives kill -9.
func TestKill(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	s := open(t, server.URL, redis.Options{})
	owner := reserve(t, s, "pending")
	must.Get(idempotency.Do(t.Context(), s, key("done"), succeed))(t)
	server.Kill()
	server.Start()
	if done, err := idempotency.Do(t.Context(), s, key("done"), succeed); err != nil || !done.Replayed {
		t.Errorf("%+v, %v", done, err)
	}
	if next := reserve(t, s, "new"); next.Token <= owner.Token {
		t.Errorf("token %d after %d", next.Token, owner.Token)
	}
	if a, err := s.Complete(t.Context(), owner, idempotency.Result{}); err != nil || a.Outcome != idempotency.OK {
		t.Errorf("Complete: %+v, %v", a, err)
	}
}

// A loss of power with appendfsync everysec takes the end of the append-only file. What was before the end is there, a
// late result settles a reservation that survived and not one that is lost, and tokens grow.
func TestLostEnd(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, "--auto-aof-rewrite-percentage", "0")
	s := open(t, server.URL, redis.Options{MaxOpen: 2})
	pending := reserve(t, s, "pending")
	files, _ := filepath.Glob(filepath.Join(server.Dir, "appendonlydir", "*.incr.aof")) // from Redis 7 on
	if len(files) == 0 {
		files = []string{filepath.Join(server.Dir, "appendonly.aof")}
	}
	whole := must.Get(os.Stat(files[0]))(t).Size()
	if a, err := s.Complete(t.Context(), pending, idempotency.Result{}); err != nil || a.Outcome != idempotency.OK {
		t.Fatalf("Complete: %+v, %v", a, err)
	}
	lost := reserve(t, s, "lost")
	server.Kill()
	must.Do(t, os.Truncate(files[0], whole))
	server.Start()
	r, err := s.Get(t.Context(), &pending.Key)
	if err != nil || r.State != idempotency.Pending || r.Token != pending.Token {
		t.Errorf("Get: %+v, %v", r, err)
	}
	check.Is(t, check.Err(s.Get(t.Context(), &lost.Key)), idempotency.ErrNotFound, "Get of what is lost")
	for owner, want := range map[*idempotency.Ownership]idempotency.Outcome{
		pending: idempotency.OK, lost: idempotency.LeaseLost,
	} {
		a, err := s.Complete(t.Context(), owner, idempotency.Result{})
		if err != nil || a.Outcome != want {
			t.Errorf("Complete of %s: %+v, %v; want %v", owner.Key.Key, a, err, want)
		}
	}
	if next := reserve(t, s, "next"); next.Token <= lost.Token {
		t.Errorf("token %d after %d", next.Token, lost.Token)
	}
}

// All keys of a store have one hash tag, and two prefixes share nothing.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	reserve(t, open(t, server.URL, redis.Options{}), "k")
	reserve(t, open(t, server.URL+"?prefix=shop", redis.Options{}), "k")
	names := must.Get(connect(t, server).Keys(t.Context(), "*").Result())(t)
	check.Equal(t, len(names), 6)
	for _, n := range names {
		if !strings.HasPrefix(n, "{shop}:") && !strings.HasPrefix(n, "{idempotency}:") {
			t.Errorf("a key is named %s", n)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	p := storefaults.Start(t, server.Address)
	storefaults.Run(t, p, open(t, strings.Replace(server.URL, server.Address, p.Address, 1), redis.Options{}))
}

// A reservation that arrives late creates no owner; its token would be lower than that of a later owner.
func TestLateSwap(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	p := storefaults.Start(t, server.Address)
	behind := open(t, strings.Replace(server.URL, server.Address, p.Address, 1)+"?pool_size=1", redis.Options{})
	c := connect(t, server)
	storefaults.LateSwap(t, p, behind, open(t, server.URL, redis.Options{}), func() {
		names, err := c.Keys(t.Context(), "{idempotency}:record:*").Result()
		if err == nil {
			err = c.Del(t.Context(), names...).Err()
		}
		check.Is(t, err, nil)
	}, func() time.Time {
		now, err := c.Time(t.Context()).Result()
		check.Is(t, err, nil)
		return now
	})
}

// A result that no replica has is visible. Its retry is not acknowledged before a replica has it.
func TestRepeatWaitsForTheReplica(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	replica := replicate(t, server)
	s := open(t, server.URL, redis.Options{MinReplicas: 1, ReplicaTimeout: 10 * time.Second})
	hasty := open(t, server.URL, redis.Options{MinReplicas: 1, ReplicaTimeout: 50 * time.Millisecond})
	done, released := reserve(t, s, "done"), reserve(t, s, "released")
	replica.Pause()
	for range 3 {
		result := idempotency.Result{Response: []byte("done")}
		if a, err := hasty.Complete(t.Context(), done, result); err == nil {
			t.Errorf("Complete without the replica: %+v", a)
		}
		if a, err := hasty.Release(t.Context(), released); err == nil {
			t.Errorf("Release without the replica: %+v", a)
		}
	}
	if r, err := hasty.Get(t.Context(), &done.Key); err != nil || r.State != idempotency.Committed {
		t.Errorf("the record is %+v, %v", r, err)
	}
	replica.Continue()
	for _, call := range []func() (*idempotency.Answer, error){
		func() (*idempotency.Answer, error) {
			return s.Complete(t.Context(), done, idempotency.Result{Response: []byte("done")})
		},
		func() (*idempotency.Answer, error) { return s.Release(t.Context(), released) },
	} {
		if a, err := call(); err != nil || a.Outcome != idempotency.OK {
			t.Errorf("%+v, %v", a, err)
		}
	}
	server.Kill()
	promoted := connect(t, replica)
	must.Do(t, promoted.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	after := open(t, replica.URL, redis.Options{})
	if r, err := after.Get(t.Context(), &done.Key); err != nil || r.State != idempotency.Committed {
		t.Errorf("on the replica the record is %+v, %v", r, err)
	}
}

// Tokens continue from the last one that a promoted replica has, although its clock is behind. Setting the counter
// simulates a server whose clock is ahead.
func TestTokensOfAReplicaThatIsBehind(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	replica := replicate(t, server)
	const ahead = uint64(4e15) // in the next century
	c := connect(t, server)
	must.Do(t, c.Set(t.Context(), "{idempotency}:tokens", ahead, 0).Err())
	s := open(t, server.URL, redis.Options{MinReplicas: 1, ReplicaTimeout: 10 * time.Second})
	before := reserve(t, s, "before")
	if before.Token <= ahead {
		t.Fatalf("token %d is not behind the counter", before.Token)
	}
	server.Kill()
	must.Do(t, connect(t, replica).Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	for _, k := range []string{"one", "two"} {
		next := reserve(t, open(t, replica.URL, redis.Options{}), k)
		if next.Token <= before.Token {
			t.Errorf("token %d after %d", next.Token, before.Token)
		}
		before = next
	}
}

func BenchmarkStore(b *testing.B) {
	server := servertest.Redis(b, "--auto-aof-rewrite-percentage", "0")
	c := driver.NewClient(&driver.Options{Addr: server.Address, PoolSize: 64})
	b.Cleanup(func() { _ = c.Close() })
	script := driver.NewScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
	store := open(b, server.URL+"?pool_size=64", redis.Options{})
	storetest.Benchmark(b, store, func(ctx context.Context, key string) error {
		return script.Run(ctx, c, []string{"bare:" + key}, "1").Err()
	})
}
