package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

//go:embed write.lua
var redisWrite string

const redisSettings = "appendonly=yes appendfsync=always no rewrites of the file and no snapshots; one Lua script," +
	" one round trip"

const (
	redisKeyed = "SET NX of a random token, then a Lua script that sets the result if the token is still there. " +
		"Does not do: no lease, so that the key of a caller that dies stays reserved; the token has no order; no " +
		"request hash"
	// redisComplete replaces a token by a result. The first byte of a value says which it is.
	redisComplete = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end " +
		"redis.call('SET', KEYS[1], ARGV[2]) return 1"
)

// redisServer is a Redis server.
type redisServer struct{ child }

func newRedis() system {
	r := new(redisServer)
	r.launch = r.run
	return r
}

func findRedis() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errors.New("not found; on Debian: apt-get install redis-server")
	}
	out, err := exec.Command(path, "--version").Output()
	return strings.Join(strings.Fields(string(out))[:min(3, len(strings.Fields(string(out))))], " "), err
}

// run starts the server and waits until it has read its file.
func (r *redisServer) run(ctx context.Context) error {
	var err error
	if r.address, err = freeport.Address(); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(r.address) // our own
	command := exec.Command("redis-server", "--port", port, "--bind", host, "--dir", r.dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "",
		"--auto-aof-rewrite-percentage", "0", "--daemonize", "no")
	if r.process, err = process.Launch(command, r.dir+".log", nil); err != nil {
		return err
	}
	r.process.Signal = syscall.SIGTERM
	client := redis.NewClient(&redis.Options{Addr: r.address, MaxRetries: -1})
	defer client.Close() //nolint:errcheck // It was only asked.
	return r.process.Ready(ctx, func(ctx context.Context) error { return client.Ping(ctx).Err() })
}

func (r *redisServer) connect(ctx context.Context, at placement) (conn, error) {
	c := &redisConn{
		client: redis.NewClient(&redis.Options{
			Addr: r.address, PoolSize: at.connections, MinIdleConns: at.connections,
			// Many callers may wait for a connection; and a repeat by the client
			// itself would hide what went wrong.
			PoolTimeout: process.StartsWithin, ReadTimeout: process.StartsWithin, MaxRetries: -1,
		}),
		script: redis.NewScript(redisWrite), complete: redis.NewScript(redisComplete),
	}
	for _, script := range []*redis.Script{c.script, c.complete} {
		if err := script.Load(ctx, c.client).Err(); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	if at.pipelined {
		for range at.connections {
			c.pipelines = append(c.pipelines, newBatcher(func(calls []*call) { c.send(ctx, calls) }))
		}
	}
	return c, nil
}

// redisConn calls over a pool of connections, or in pipelines.
type redisConn struct {
	client    *redis.Client
	script    *redis.Script
	complete  *redis.Script
	pipelines batchers // empty if calls are not pipelined
}

func (c *redisConn) once(ctx context.Context, key string, work func() []byte) ([]byte, error) {
	const pending, done = "p", "d"
	token := pending + rand.Text()
	known, err := c.client.SetArgs(ctx, key, token, redis.SetArgs{Mode: "NX", Get: true}).Result()
	if err == nil {
		if result, ok := strings.CutPrefix(known, done); ok {
			return []byte(result), nil
		}
		return nil, errPending
	}
	if !errors.Is(err, redis.Nil) {
		return nil, err
	}
	result := work()
	stored, err := c.complete.EvalSha(ctx, c.client, []string{key}, token, append([]byte(done), result...)).Int()
	if err == nil && stored == 0 {
		err = errors.New("the reservation is lost")
	}
	return result, err
}

func redisArguments(j *job) ([]string, []any) {
	key, hash := j.key(), j.hash()
	return []string{j.client(), "log"}, []any{j.sequence, key[:], hash[:], j.payload}
}

func (c *redisConn) do(ctx context.Context, j *job, repeat bool) (answer, error) {
	if len(c.pipelines) > 0 {
		return c.pipelines.do(ctx, j, repeat)
	}
	keys, arguments := redisArguments(j)
	return redisAnswer(c.script.EvalSha(ctx, c.client, keys, arguments...))
}

// send sends calls in one pipeline.
func (c *redisConn) send(ctx context.Context, calls []*call) {
	pipeline := c.client.Pipeline()
	commands := make([]*redis.Cmd, len(calls))
	for i, one := range calls {
		keys, arguments := redisArguments(one.job)
		commands[i] = c.script.EvalSha(ctx, pipeline, keys, arguments...)
	}
	_, _ = pipeline.Exec(ctx) // each command has its own error
	for i, one := range calls {
		one.answer, one.err = redisAnswer(commands[i])
	}
}

func redisAnswer(command *redis.Cmd) (answer, error) {
	values, err := command.Slice()
	if err != nil {
		return answer{}, err
	}
	if len(values) != 2 {
		return answer{}, fmt.Errorf("write.lua answered %v", values)
	}
	outcome, _ := values[0].(int64)
	reply, _ := values[1].(string)
	const committed, replayed = 1, 2
	if outcome != committed && outcome != replayed || reply == "" {
		return answer{}, fmt.Errorf("refused with outcome %d of write.lua", outcome)
	}
	return answer{reply: reply, replayed: outcome == replayed}, nil
}

func (c *redisConn) close() error {
	c.pipelines.close()
	return c.client.Close()
}
