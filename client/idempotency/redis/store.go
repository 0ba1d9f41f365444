package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
)

// The values of Options that are left at zero.
const (
	DefaultPrefix         = "idempotency"
	DefaultReplicaTimeout = time.Second
)

// readTimeout is how long an answer may take beside the wait for replicas.
const readTimeout = 3 * time.Second

// Options configure a store. The zero value is usable.
type Options struct {
	// Prefix is the beginning of the names of all keys, in braces; empty means DefaultPrefix. Stores with
	// different prefixes share nothing.
	Prefix string
	// MinReplicas is how many replicas must have a change before it counts. A change that has not reached
	// them within ReplicaTimeout is an error, after which it may be stored or not.
	MinReplicas int
	// ReplicaTimeout is at least a millisecond; 0 means 1 s. A client that is given to New must wait longer
	// for an answer.
	ReplicaTimeout time.Duration
	// Logger may be nil. It never gets a key or a principal.
	Logger *slog.Logger
}

// Store keeps records in Redis. It is safe for concurrent use.
type Store struct {
	idempotency.Resolver

	backend *backend
	owned   *redis.Client // nil for the caller's
}

// Open connects to a server. The URL is of the form redis://USER:PASSWORD@HOST:PORT/DB, or rediss:// for
// TLS. Its parameters are those of go-redis, and prefix, min_replicas and replica_timeout, which set
// the options of these names. An error does not contain the password.
func Open(ctx context.Context, address string, o Options) (*Store, error) {
	options, o, err := parse(address, o)
	if err != nil {
		return nil, err
	}
	if options.ReadTimeout == 0 {
		options.ReadTimeout = readTimeout + max(o.ReplicaTimeout, DefaultReplicaTimeout)
	}
	client := redis.NewClient(options)
	s, err := New(ctx, client, o)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s.owned = client
	return s, nil
}

// parse returns the options of a URL.
func parse(address string, o Options) (*redis.Options, Options, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, o, errors.New("the URL of the Redis does not parse") // err contains the password
	}
	query := u.Query()
	if v := query.Get("prefix"); v != "" {
		o.Prefix = v
	}
	if v := query.Get("min_replicas"); v != "" {
		if o.MinReplicas, err = strconv.Atoi(v); err != nil {
			return nil, o, fmt.Errorf("min_replicas: %w", err)
		}
	}
	if v := query.Get("replica_timeout"); v != "" {
		if o.ReplicaTimeout, err = time.ParseDuration(v); err != nil {
			return nil, o, fmt.Errorf("replica_timeout: %w", err)
		}
	}
	for _, own := range []string{"prefix", "min_replicas", "replica_timeout"} {
		query.Del(own)
	}
	u.RawQuery = query.Encode()
	options, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, o, err
	}
	if options.MaxRetries == 0 {
		// The store repeats what may be repeated. A swap that go-redis repeats finds its own
		// version, and the call would be decided again.
		options.MaxRetries = -1
	}
	return options, o, nil
}

// New returns a store that uses the caller's client, which the caller closes after the store. A client of
// Sentinel ([redis.NewFailoverClient]) is one, too.
func New(ctx context.Context, client *redis.Client, o Options) (*Store, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if strings.ContainsAny(o.Prefix, "{}") {
		return nil, errors.New("the prefix of keys must have no braces")
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = DefaultReplicaTimeout
	}
	if o.MinReplicas < 0 || o.ReplicaTimeout < time.Millisecond {
		return nil, errors.New("min_replicas must not be negative, and replica_timeout at least 1ms")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := check(ctx, client, o); err != nil {
		return nil, err
	}
	tag := "{" + o.Prefix + "}:"
	b := &backend{
		client: client, records: tag + "record:", counter: tag + "tokens", channel: tag + "changed",
		minReplicas: o.MinReplicas, replicaTimeout: o.ReplicaTimeout,
	}
	b.listener = newListener(client, b.channel)
	return &Store{Resolver: idempotency.NewStore(b), backend: b}, nil
}

// Close ends what the store runs in the background, and waits for it.
func (s *Store) Close() error {
	s.backend.listener.Close()
	if s.owned != nil {
		return s.owned.Close()
	}
	return nil
}

// check refuses a server that cannot keep a store's promises, and logs what it may lose.
func check(ctx context.Context, client *redis.Client, o Options) error {
	text, err := client.Info(ctx).Result()
	if err != nil {
		return err
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
		return fmt.Errorf("redis %s is too old: 6.2 and later", info["redis_version"])
	case info["role"] != "master":
		return errors.New("the server is a replica, which cannot store anything")
	case info["redis_mode"] == "cluster":
		return errors.New("the server is part of a cluster, whose nodes a store does not follow")
	case info["maxmemory_policy"] != "noeviction":
		return fmt.Errorf("the server forgets keys when its memory is full (maxmemory-policy %s), so that work would "+
			"run twice: it must be noeviction", info["maxmemory_policy"])
	case replicas < o.MinReplicas:
		return fmt.Errorf("the server has %d replicas, and min_replicas is %d", replicas, o.MinReplicas)
	}
	if info["aof_enabled"] != "1" {
		o.Logger.Warn("the Redis has no append-only file: a crash loses keys since its last snapshot, whose work " +
			"may run again; set appendonly yes and appendfsync always")
		return nil
	}
	switch policy, err := client.ConfigGet(ctx, "appendfsync").Result(); {
	case err != nil: // managed services forbid the command
		o.Logger.Warn("whether the Redis syncs what it acknowledges is not known; with appendfsync everysec a loss " +
			"of power loses keys of the last two seconds, whose work may run again")
	case policy["appendfsync"] != "always":
		o.Logger.Warn("a loss of power loses the last keys, whose work may run again; set appendfsync always",
			"appendfsync", policy["appendfsync"])
	}
	return nil
}
