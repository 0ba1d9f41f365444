package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"net"
	"os/exec"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

//go:embed write.lua
var redisWrite string

// redisComplete replaces a token by a result. The first byte of a value says which it is.
const redisComplete = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end " +
	"redis.call('SET', KEYS[1], ARGV[2]) return 1"

// redisServer is a Redis server.
type redisServer struct{ address string }

func (r *redisServer) launch(ctx context.Context, dir string) ([]*process.Process, error) {
	var err error
	if r.address, err = freeport.Address(); err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(r.address) // our own
	client := redis.NewClient(&redis.Options{Addr: r.address, MaxRetries: -1})
	defer client.Close() //nolint:errcheck // It was only asked.
	command := exec.Command("redis-server", "--port", port, "--bind", host, "--dir", dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "",
		"--auto-aof-rewrite-percentage", "0", "--daemonize", "no")
	return launchOther(ctx, command, nil, dir, func(ctx context.Context) error { return client.Ping(ctx).Err() })
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
	c.pipelines = newBatchers(at, func(calls []*call) { c.send(ctx, calls) })
	for _, script := range []*redis.Script{c.script, c.complete} {
		if err := script.Load(ctx, c.client).Err(); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// redisConn calls over a pool of connections, or in pipelines.
type redisConn struct {
	client           *redis.Client
	script, complete *redis.Script
	pipelines        batchers // empty if calls are not pipelined
}

func (c *redisConn) do(ctx context.Context, j *job, _ bool) (answer, error) {
	if len(c.pipelines) > 0 {
		return c.pipelines.do(ctx, j)
	}
	return redisAnswer(c.write(ctx, c.client, j))
}

func (c *redisConn) write(ctx context.Context, to redis.Scripter, j *job) *redis.Cmd {
	key, hash := j.key(), j.hash()
	return c.script.EvalSha(ctx, to, []string{j.client(), "log"}, j.sequence, key[:], hash[:], j.payload)
}

// send sends calls in one pipeline.
func (c *redisConn) send(ctx context.Context, calls []*call) {
	pipeline := c.client.Pipeline()
	commands := make([]*redis.Cmd, len(calls))
	for i, one := range calls {
		commands[i] = c.write(ctx, pipeline, one.job)
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
	outcome, _ := values[0].(int64)
	reply, _ := values[len(values)-1].(string)
	return decided(outcome, reply, nil)
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

func (c *redisConn) close() error {
	c.pipelines.close()
	return c.client.Close()
}
