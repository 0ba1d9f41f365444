package redis_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

// A list contains the records of its scope, even if the same database holds other keys, and other stores whose prefixes
// the scan pattern must not match.
func TestList(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	must.Do(t, connect(t, server).Set(t.Context(), "other", "value", 0).Err())
	for _, prefix := range []string{"plain", "p*", "[p]", `\p`} {
		storetest.RunList(t, open(t, server.URL, redis.Options{Prefix: prefix}))
	}
}

// A list with more records than the server scans in a step contains each record once.
func TestListOfMany(t *testing.T) {
	t.Parallel()
	const many = 1500
	s := open(t, servertest.Redis(t, "--appendfsync", "no").URL, redis.Options{})
	for i := range many {
		reserve(t, s, fmt.Sprintf("k%d", i))
	}
	seen := map[[32]byte]bool{}
	for r, err := range s.List(t.Context(), &idempotency.ListRequest{Scope: key("").Scope}) {
		must.Do(t, err)
		if seen[r.KeyHash] {
			t.Errorf("%x is listed twice", r.KeyHash)
		}
		seen[r.KeyHash] = true
	}
	if len(seen) != many {
		t.Errorf("%d records are listed, of %d", len(seen), many)
	}
}

// A value that is not a record is reported, and so is an unreachable server.
func TestListFails(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	s := open(t, server.URL, redis.Options{})
	reserve(t, s, "k")
	client := connect(t, server)
	names := must.Get(client.Keys(t.Context(), "{idempotency}:record:*").Result())(t)
	must.Equal(t, len(names), 1)
	list := func() (last error) {
		for _, err := range s.List(t.Context(), &idempotency.ListRequest{Scope: key("").Scope}) {
			last = err
		}
		return last
	}
	must.Do(t, list())
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte("k")))
	must.Do(t, client.HSet(t.Context(), names[0], "record", "damaged").Err())
	if err := list(); !errors.Is(err, idempotency.ErrDamaged) || !strings.Contains(err.Error(), hash) {
		t.Errorf("want the damaged record, got %v", err)
	}
	must.Do(t, client.HSet(t.Context(), names[0], "description", "{}").Err())
	check.Is(t, list(), idempotency.ErrDamaged, "want the damaged description")
	server.Kill()
	if list() == nil {
		t.Error("a list without a server has no error")
	}
}
