package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// check refuses a server or a cluster on which two owners could run, and logs what it may lose.
func check(ctx context.Context, client redis.UniversalClient, o Options) error {
	switch client := client.(type) {
	case *redis.Client:
		warning, err := checkServer(ctx, client, o, false)
		warn(ctx, o, warning)
		return err
	case *redis.ClusterClient:
		return checkCluster(ctx, client, o)
	}
	return fmt.Errorf("a %T does not keep all keys of a store on one server", client)
}

// warn logs what a server may lose, if anything.
func warn(ctx context.Context, o Options, warning string) {
	if warning != "" {
		o.Logger.WarnContext(ctx, warning)
	}
}

// checkCluster checks every master, because the keys of a store may move to any of them.
func checkCluster(ctx context.Context, cluster *redis.ClusterClient, o Options) error {
	if options := cluster.Options(); options.ReadOnly || options.RouteByLatency || options.RouteRandomly {
		return errors.New("a replica may answer with an old record (read_only, route_by_latency, " +
			"route_randomly), so that two owners would run")
	}
	var mu sync.Mutex
	warnings := map[string]bool{}
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		warning, err := checkServer(ctx, node, o, true)
		if err != nil {
			return fmt.Errorf("the node %s: %w", node.Options().Addr, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if !warnings[warning] {
			warnings[warning] = true
			warn(ctx, o, warning)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// This fails if no node holds the slot, or if the server is not in a cluster.
	return cluster.Exists(ctx, "{"+o.Prefix+"}").Err()
}

// checkServer checks one server, which must or must not be part of a cluster.
func checkServer(ctx context.Context, client *redis.Client, o Options, inCluster bool) (warning string, err error) {
	text, err := client.Info(ctx).Result()
	if err != nil {
		return "", err
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	var major, minor int
	_, _ = fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor)
	replicas, _ := strconv.Atoi(info["connected_slaves"])
	switch {
	case major < 6 || major == 6 && minor < 2:
		return "", fmt.Errorf("redis %s is too old: 6.2 and later", info["redis_version"])
	case info["role"] != "master":
		return "", errors.New("the server is a replica, which cannot store anything")
	case info["cluster_enabled"] == "1" && !inCluster:
		return "", errors.New("the server is part of a cluster: its URL begins with redis-cluster://")
	case info["maxmemory_policy"] != "noeviction":
		return "", fmt.Errorf("the server forgets keys when its memory is full (maxmemory-policy %s), so that work "+
			"would run twice: it must be noeviction", info["maxmemory_policy"])
	case replicas < o.MinReplicas:
		return "", fmt.Errorf("the server has %d replicas, and min_replicas is %d", replicas, o.MinReplicas)
	}
	return mayLose(ctx, client, info["aof_enabled"] == "1"), nil
}

// mayLose describes what a crash of a server or a power failure may lose, if anything.
func mayLose(ctx context.Context, client *redis.Client, hasFile bool) string {
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
