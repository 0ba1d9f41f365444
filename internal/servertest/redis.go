package servertest

import (
	"context"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/bench/harness"
)

// Redis starts a Redis of its own that syncs every command. settings are further arguments, such as
// --appendfsync everysec.
func Redis(t testing.TB, settings ...string) *Server {
	t.Helper()
	path := harness.Find("redis-server", "")
	if path == "" {
		path = harness.Find("valkey-server", "")
	}
	if path == "" {
		missing(t, "Redis", "apt-get install redis-server")
	}
	s := newServer(t, "redis", nil)
	s.URL = "redis://" + s.Address + "/0"
	s.command = func() *exec.Cmd {
		return exec.Command(path, append([]string{"--port", s.port(), "--bind", "127.0.0.1", "--dir", s.Dir,
			"--appendonly", "yes", "--appendfsync", "always", "--save", "",
			"--repl-diskless-sync-delay", "0", "--daemonize", "no"}, settings...)...)
	}
	client := redis.NewClient(&redis.Options{Addr: s.Address, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	s.answers = func(ctx context.Context) error { return client.Ping(ctx).Err() }
	s.Start()
	return s
}
