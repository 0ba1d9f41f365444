package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
)

// check refuses a server or a cluster on which two owners could run. Every new connection passes checkServer, those
// that check makes too.
func check(ctx context.Context, client redis.UniversalClient, o Options) error {
	switch client := client.(type) {
	case *redis.Client:
		return checkReplicas(ctx, client, o)
	case *redis.ClusterClient:
		return checkCluster(ctx, client, o)
	}
	return fmt.Errorf("a %T does not keep all keys of a store on one server", client)
}

// checkCluster checks every master, because the keys of a store may move to any of them.
func checkCluster(ctx context.Context, cluster *redis.ClusterClient, o Options) error {
	if options := cluster.Options(); options.ReadOnly || options.RouteByLatency || options.RouteRandomly {
		return errors.New("a replica may answer with an old record (read_only, route_by_latency, " +
			"route_randomly), so that two owners would run")
	}
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		if err := checkReplicas(ctx, node, o); err != nil {
			return fmt.Errorf("the node %s: %w", node.Options().Addr, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// This fails if no node holds the slot, or if the server is not in a cluster.
	return cluster.Exists(ctx, "{"+o.Prefix+"}").Err()
}

// checkReplicas checks that a master has as many replicas as a change waits for. Later the change itself shows it.
func checkReplicas(ctx context.Context, client *redis.Client, o Options) error {
	info, err := infoOf(ctx, client)
	if err != nil {
		return err
	}
	if replicas, _ := strconv.Atoi(info["connected_slaves"]); replicas < o.MinReplicas {
		return fmt.Errorf("the server has %d replicas, and min_replicas is %d", replicas, o.MinReplicas)
	}
	return nil
}

// infoOf returns what a server tells about itself.
func infoOf(ctx context.Context, client redis.Cmdable) (map[string]string, error) {
	text, err := client.Info(ctx).Result()
	if err != nil {
		return nil, err
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info, nil
}

// refuse returns an error that wraps two errors, because go-redis unwraps one that wraps a single error.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", idempotency.ErrRefused, fmt.Errorf(format, args...))
}

// checkServer checks the server of a new connection, which must or must not be part of a cluster. A server on which
// two owners could run has answered: without it the work must not run either.
func checkServer(ctx context.Context, client *redis.Conn, inCluster bool) (warning string, err error) {
	info, err := infoOf(ctx, client)
	if err != nil {
		return "", err
	}
	var major, minor int
	_, _ = fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor)
	switch {
	case major < 6 || major == 6 && minor < 2:
		return "", refuse("redis %s is too old: 6.2 and later", info["redis_version"])
	case info["role"] != "master" && !inCluster: // which sends commands on to the master
		return "", errors.New("the server is a replica, which cannot store anything")
	case info["cluster_enabled"] == "1" && !inCluster:
		return "", refuse("the server is part of a cluster: its URL begins with redis-cluster://")
	case info["maxmemory_policy"] != "noeviction":
		return "", refuse("the server forgets keys when its memory is full (maxmemory-policy %s), so that work "+
			"would run twice: it must be noeviction", info["maxmemory_policy"])
	}
	return mayLose(ctx, client, info["aof_enabled"] == "1"), nil
}

// mayLose describes what a crash of a server or a power failure may lose, if anything.
func mayLose(ctx context.Context, client redis.Cmdable, hasFile bool) string {
	if !hasFile {
		return "the Redis has no append-only file: a crash loses keys since its last snapshot, whose work may run " +
			"again; set appendonly yes and appendfsync always"
	}
	switch policy, err := client.ConfigGet(ctx, "appendfsync").Result(); {
	case err != nil: // managed services forbid the command
		return "whether the Redis syncs what it acknowledges is not known; with appendfsync everysec a loss of power " +
			"loses keys of the last two seconds, whose work may run again"
	case policy["appendfsync"] != "always":
		return "a loss of power loses the last keys, whose work may run again; set appendfsync always, in place of " +
			policy["appendfsync"]
	}
	return ""
}
