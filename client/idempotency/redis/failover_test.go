package redis_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	driver "github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// fill makes a client have so many connections, which are idle.
func fill(t *testing.T, c *driver.Client, n int) {
	t.Helper()
	for range n {
		conn := c.Conn()
		defer func() { _ = conn.Close() }() // gives it back
		must.Do(t, conn.Ping(t.Context()).Err())
	}
}

// No call fails when the address of a master moves: the connections to the old one, which became a replica, are left,
// whatever it says.
func TestFailOver(t *testing.T) {
	t.Parallel()
	for name, demote := range map[string]func(old *driver.Client, next *servertest.Server) error{
		"READONLY": func(old *driver.Client, next *servertest.Server) error {
			host, port, _ := net.SplitHostPort(next.Address)
			return old.ReplicaOf(t.Context(), host, port).Err()
		},
		"MASTERDOWN": func(old *driver.Client, _ *servertest.Server) error {
			if err := old.ConfigSet(t.Context(), "replica-serve-stale-data", "no").Err(); err != nil {
				return err
			}
			return old.ReplicaOf(t.Context(), "127.0.0.1", "1").Err() // no master is there
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := servertest.Redis(t)
			next := replicate(t, old)
			p := storefaults.Start(t, old.Address)
			client := driver.NewClient(&driver.Options{Addr: p.Address, MaxRetries: -1, PoolSize: 8})
			t.Cleanup(func() { _ = client.Close() })
			s := must.Get(redis.New(t.Context(), client, redis.Options{}))(t)
			t.Cleanup(func() { _ = s.Close() })
			fill(t, client, 8)
			must.Do(t, connect(t, next).ReplicaOf(t.Context(), "NO", "ONE").Err())
			must.Do(t, demote(connect(t, old), next))
			p.Lead(next.Address)
			direct := open(t, next.URL, redis.Options{})
			var calls sync.WaitGroup
			for i := range 16 {
				// Ends with its call; the Wait below joins it.
				calls.Go(func() {
					if _, err := idempotency.Do(t.Context(), s, key(fmt.Sprint(i)), succeed); err != nil {
						t.Error(err)
					}
					done, err := idempotency.Do(t.Context(), direct, key(fmt.Sprint(i)), succeed)
					if err != nil || !done.Replayed {
						t.Errorf("the new master: %+v, %v", done, err)
					}
				})
			}
			calls.Wait()
		})
	}
}

// Each new connection is checked: a server may come back with another policy, or as a replica.
func TestServerThatComesBackChanged(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	s := open(t, server.URL, redis.Options{})
	admin := connect(t, server)
	must.Get(idempotency.Do(t.Context(), s, key("before"), succeed))(t)
	for name, c := range map[string]struct {
		change, back []any
		says         string
		refused      bool // and is not silent: a route that is open runs nothing
	}{
		"evicts": {
			[]any{"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"},
			[]any{"CONFIG", "SET", "maxmemory-policy", "noeviction"}, "noeviction", true,
		},
		"replica": {[]any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}, "is a replica", false},
	} {
		do := func(command ...any) {
			t.Helper()
			must.Do(t, admin.Do(t.Context(), command...).Err(), "%v", command)
		}
		do(c.change...)
		do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		_, err := idempotency.Do(t.Context(), s, key(name), succeed)
		if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, idempotency.ErrRefused) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
		do(c.back...)
		must.Do(t, check.Err(idempotency.Do(t.Context(), s, key(name), succeed)), "after %s", name)
	}
}
