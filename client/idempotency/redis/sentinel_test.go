package redis_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	driver "github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// sentinel starts a Sentinel that watches a server, and that alone decides when the server is dead.
func sentinel(t *testing.T, server *servertest.Server) *servertest.Server {
	t.Helper()
	host, port, _ := strings.Cut(server.Address, ":")
	// Sentinel rewrites its configuration file.
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	text := "sentinel monitor keys " + host + " " + port + " 1\nsentinel down-after-milliseconds keys 1000\n" +
		"sentinel failover-timeout keys 5000\n"
	must.Do(t, os.WriteFile(config, []byte(text), 0o600))
	s := servertest.RedisSentinel(t, config)
	c := driver.NewSentinelClient(&driver.Options{Addr: s.Address})
	defer func() { _ = c.Close() }()
	for { // until it has found the replica
		replicas, err := c.Replicas(t.Context(), "keys").Result()
		if err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave" &&
			replicas[0]["master-link-status"] == "ok" {
			return s
		}
		if t.Context().Err() != nil {
			t.Fatal(replicas, err)
		}
	}
}

// A master is killed, and Sentinel promotes its replica. The Sentinel client continues there, and the changes that the
// store waited for survive.
func TestSentinel(t *testing.T) {
	t.Parallel()
	longOnly(t)
	server := servertest.Redis(t)
	replicate(t, server)
	watcher := sentinel(t, server)
	client := driver.NewFailoverClient(&driver.FailoverOptions{
		MasterName: "keys", SentinelAddrs: []string{watcher.Address}, MaxRetries: -1,
	})
	t.Cleanup(func() { _ = client.Close() })
	s := must.Get(redis.New(t.Context(), client, redis.Options{MinReplicas: 1}))(t)
	t.Cleanup(func() { _ = s.Close() })
	must.Get(idempotency.Do(t.Context(), s, key("done"), succeed))(t)
	pending := reserve(t, s, "pending")
	server.Kill()
	done := await(t, func(ctx context.Context) (*idempotency.Done, error) {
		return idempotency.Do(ctx, s, key("done"), succeed)
	})
	if !done.Replayed {
		t.Errorf("after the failover: %+v", done)
	}
	if r, err := s.Get(t.Context(), &pending.Key); err != nil || r.Token != pending.Token {
		t.Errorf("Get: %+v, %v", r, err)
	}
	// The new master has no replica, so this store changes nothing; a store that waits for no replica continues.
	if a, err := s.Complete(t.Context(), pending, idempotency.Result{}); err == nil {
		t.Errorf("Complete without a replica: %+v", a)
	}
	after := must.Get(redis.New(t.Context(), client, redis.Options{}))(t)
	t.Cleanup(func() { _ = after.Close() })
	check.Equal(t, must.Get(after.Complete(t.Context(), pending, idempotency.Result{}))(t).Outcome, idempotency.OK,
		"Complete: %+v")
	if next := reserve(t, after, "next"); next.Token <= pending.Token {
		t.Errorf("token %d after %d", next.Token, pending.Token)
	}
}
