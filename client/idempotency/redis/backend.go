package redis

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
	"github.com/seqledger/seqledger/client/idempotency/internal/waiters"
)

//go:embed load.lua
var loadText string

//go:embed swap.lua
var swapText string

//go:embed token.lua
var tokenText string

//go:embed confirm.lua
var confirmText string

var loadScript, swapScript, tokenScript = redis.NewScript(loadText), redis.NewScript(swapText),
	redis.NewScript(tokenText)

// backend is an idempotency.Backend.
type backend struct {
	client      redis.UniversalClient // a *redis.Client or *redis.ClusterClient
	connections *connections          // of the client
	// Names of keys. The first two are prefixes.
	records, open, counter, channel string

	minReplicas    int
	replicaTimeout time.Duration
	maxOpen        int // Options.MaxOpen

	listener *waiters.Listener
}

// node returns a client of the one server that holds all keys of the store. In a cluster the server may change.
func (b *backend) node(ctx context.Context) (*redis.Client, error) {
	if cluster, ok := b.client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, b.counter)
	}
	return b.client.(*redis.Client), nil
}

// findMaster makes the next calls ask the cluster which node holds the keys, because a failed call may mean that the
// node has changed. The cluster's client asks only every ten seconds.
func (b *backend) findMaster(ctx context.Context) {
	if cluster, ok := b.client.(*redis.ClusterClient); ok {
		cluster.ReloadState(ctx)
	}
}

// Load implements idempotency.Backend. It is the first call of every command.
func (b *backend) Load(
	ctx context.Context, key idempotency.Key,
) (record []byte, version string, now time.Time, err error) {
	var answer []any
	err = b.do(ctx, true, func() (err error) {
		answer, err = loadScript.Run(ctx, b.client, []string{b.records + key.Name}).Slice()
		return err
	})
	if err != nil {
		return nil, "", time.Time{}, refused(err)
	}
	return decodeLoad(answer)
}

// decodeLoad decodes the answer of load.lua.
func decodeLoad(answer []any) (record []byte, version string, now time.Time, err error) {
	if len(answer) != 4 {
		return nil, "", time.Time{}, fmt.Errorf("load.lua answered %d values", len(answer))
	}
	text, _ := answer[2].(string)
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, "", time.Time{}, fmt.Errorf("the server's time: %w", err)
	}
	text, _ = answer[3].(string)
	micros, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, "", time.Time{}, fmt.Errorf("the server's time: %w", err)
	}
	now = time.Unix(seconds, micros*1000)
	version, hasVersion := answer[0].(string)
	value, hasRecord := answer[1].(string)
	switch {
	case hasVersion && hasRecord && version != "":
		return []byte(value), version, now, nil
	case !hasVersion && !hasRecord:
		return nil, "", now, nil
	}
	return nil, "", time.Time{}, fmt.Errorf("%w: a record in Redis has no version", idempotency.ErrDamaged)
}

// CompareAndSwap implements idempotency.Backend.
func (b *backend) CompareAndSwap(
	ctx context.Context, key idempotency.Key, version string, record []byte, keepUntil, deadline time.Time,
) (bool, error) {
	d := describe.Of(key.Record)
	text, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	keys := []string{b.records + key.Name, b.counter, b.openOf(d)}
	keep := keepUntil.UnixMilli() + 1 // rounded up, so never too early
	state, until := openState(record)
	arguments := []any{version, record, keep, b.channel, key.Name, text, state, b.maxOpen, deadline.UnixMicro(), until}
	if b.minReplicas == 0 {
		var n int
		err := b.do(ctx, false, func() (err error) {
			n, err = swapScript.Run(ctx, b.client, keys, arguments...).Int()
			return err
		})
		return swapped(n, err, b.maxOpen)
	}
	return b.swapAndWait(ctx, keys, arguments)
}

// swapAndWait swaps, and waits for the replicas.
func (b *backend) swapAndWait(ctx context.Context, keys []string, arguments []any) (bool, error) {
	n, err, reached := b.evalAndWait(ctx, swapText, keys, arguments)
	if done, err := swapped(n, err, b.maxOpen); err != nil || !done {
		return false, err
	}
	return reached == nil, reached
}

// Confirm implements idempotency.Confirmer. Without replicas to wait for, the result of a Load is already as durable as
// it gets.
func (b *backend) Confirm(ctx context.Context, key idempotency.Key, version string) (bool, error) {
	if b.minReplicas == 0 {
		return true, nil
	}
	n, err, reached := b.evalAndWait(ctx, confirmText, []string{b.records + key.Name}, []any{version})
	if err != nil || n != 1 {
		return false, quota(err)
	}
	return reached == nil, reached
}

// evalAndWait runs a script that writes if it returns 1, and waits for the replicas. reached is an error unless enough
// replicas have the write.
func (b *backend) evalAndWait(
	ctx context.Context, text string, keys []string, arguments []any,
) (n int, err, reached error) {
	var wait *redis.Cmd
	err = b.do(ctx, false, func() error {
		node, err := b.node(ctx)
		if err != nil {
			return err
		}
		// WAIT covers what its own connection has written; a pipeline uses one connection for all its commands. The
		// script's text is sent each time, because a missing script would be noticed too late.
		pipeline := node.Pipeline()
		script := pipeline.Eval(ctx, text, keys, arguments...)
		wait = pipeline.Do(ctx, "WAIT", b.minReplicas, b.replicaTimeout.Milliseconds())
		_, _ = pipeline.Exec(ctx) // each command has its own error
		n, err = script.Int()
		return err
	})
	if err != nil {
		return n, err, err
	}
	replicas, reached := wait.Int64()
	if reached == nil && replicas < int64(b.minReplicas) {
		reached = fmt.Errorf("a change has reached %d replicas within %v, of %d", replicas, b.replicaTimeout,
			b.minReplicas)
	}
	return n, err, reached
}

// swapped interprets the answer of swap.lua.
func swapped(n int, err error, maxOpen int) (bool, error) {
	if err == nil && n == overQuota {
		return false, &idempotency.QuotaError{Cause: fmt.Errorf("%w: %d", idempotency.ErrOpenKeys, maxOpen)}
	}
	return n == 1, quota(err)
}

// quota turns the error of a write to a server whose memory is full into a QuotaError. Nothing was written.
func quota(err error) error {
	if err != nil && strings.HasPrefix(err.Error(), "OOM ") {
		return &idempotency.QuotaError{RetryAfter: time.Second, Cause: err}
	}
	return refused(err)
}

// refused marks an error by which the server denies a user its access or a command: it has answered, and will answer so
// again.
func refused(err error) error {
	if err == nil {
		return nil
	}
	for _, code := range []string{"NOAUTH ", "NOPERM ", "WRONGPASS ", "WRONGTYPE "} {
		if strings.HasPrefix(err.Error(), code) {
			return fmt.Errorf("%w: %w", idempotency.ErrRefused, err)
		}
	}
	return err
}

// NextToken implements idempotency.TokenSource.
func (b *backend) NextToken(ctx context.Context) (uint64, error) {
	var text string
	err := b.do(ctx, false, func() (err error) {
		text, err = tokenScript.Run(ctx, b.client, []string{b.counter}).Text()
		return err
	})
	if err != nil {
		return 0, quota(err)
	}
	return strconv.ParseUint(text, 10, 64)
}

// Changed implements idempotency.Notifier.
func (b *backend) Changed(ctx context.Context, key idempotency.Key, version string) error {
	return b.listener.Changed(ctx, key.Name, func() (bool, error) {
		var current string
		err := b.do(ctx, true, func() (err error) {
			current, err = b.client.HGet(ctx, b.records+key.Name, "version").Result()
			return err
		})
		if errors.Is(err, redis.Nil) {
			return true, nil
		}
		return current != version, err
	})
}
