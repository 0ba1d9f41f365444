package servertest

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/internal/testkit/process"
)

// redisBin is read at the start, because tests of commands clear such variables.
var redisBin = os.Getenv("REDIS_BIN")

// redisProgram returns the program of a Redis or a Valkey: REDIS_BIN, if that variable is set.
func redisProgram(t testing.TB) string {
	t.Helper()
	if redisBin != "" {
		return redisBin
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path := process.Find(name, ""); path != "" {
			return path
		}
	}
	missing(t, "Redis", "apt-get install redis-server")
	return ""
}

// Redis starts a new Redis that syncs every command. settings are further arguments, such as --appendfsync everysec.
func Redis(t testing.TB, settings ...string) *Server {
	t.Helper()
	path := redisProgram(t)
	return redisServer(t, "redis", func(s *Server) *exec.Cmd {
		return exec.Command(path, append([]string{"--port", s.port(), "--bind", "127.0.0.1", "--dir", s.Dir,
			"--appendonly", "yes", "--appendfsync", "always", "--save", "",
			"--repl-diskless-sync-delay", "0", "--daemonize", "no"}, settings...)...)
	})
}

// RedisSentinel starts a Sentinel with a configuration, which it changes.
func RedisSentinel(t testing.TB, config string) *Server {
	t.Helper()
	path := redisProgram(t)
	return redisServer(t, "sentinel", func(s *Server) *exec.Cmd {
		return exec.Command(path, config, "--sentinel", "--port", s.port(), "--bind", "127.0.0.1", "--dir", s.Dir)
	})
}

// redisServer starts a server that answers a PING.
func redisServer(t testing.TB, name string, command func(s *Server) *exec.Cmd) *Server {
	t.Helper()
	s := newServer(t, name, nil)
	s.URL = "redis://" + s.Address + "/0"
	s.command = func() *exec.Cmd { return command(s) }
	client := redis.NewClient(&redis.Options{Addr: s.Address, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	s.answers = func(ctx context.Context) error { return client.Ping(ctx).Err() }
	s.Start()
	return s
}
