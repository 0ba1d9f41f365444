package redis

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seqledger/seqledger/client/idempotency"
)

// The defaults of Options.
const (
	DefaultPrefix         = "idempotency"
	DefaultReplicaTimeout = time.Second
)

// readTimeout is how long an answer may take in addition to the wait for replicas.
const readTimeout = 3 * time.Second

// Options configure a store. The zero value is usable.
type Options struct {
	// Prefix is the beginning of all key names, in braces; empty means DefaultPrefix. Stores with different prefixes
	// share nothing.
	Prefix string
	// MinReplicas is how many replicas must have a change before it counts. If a change does not reach them within
	// ReplicaTimeout, the call returns an error, and the change may or may not be stored.
	MinReplicas int
	// ReplicaTimeout is at least a millisecond; 0 means 1 s. The read timeout of a client passed to New must be longer.
	ReplicaTimeout time.Duration
	// MaxOpen is how many keys of one principal, in one scope, may be pending or have an unknown outcome; 0 means no
	// limit. A reservation beyond it is refused with an [idempotency.QuotaError]. The script that stores a reservation
	// counts, so the limit is exact and costs no round trip.
	MaxOpen int
	// Logger may be nil. It never receives a key or a principal.
	Logger *slog.Logger
}

// Store keeps records in Redis. It is safe for concurrent use.
type Store struct {
	idempotency.Resolver

	backend *backend
	owned   redis.UniversalClient // nil if the caller owns the client
}

// Open connects to a server, or a cluster. The URL is of the form redis://USER:PASSWORD@HOST:PORT/DB, or
// redis-cluster://USER:PASSWORD@HOST:PORT,HOST:PORT with some of a cluster's nodes; rediss and rediss-cluster are for
// TLS. Its parameters are those of go-redis, plus prefix, min_replicas, replica_timeout and max_open, which set the
// options of these names. An error does not contain the password.
func Open(ctx context.Context, address string, o Options) (*Store, error) {
	client, o, err := connect(address, o)
	if err != nil {
		return nil, err
	}
	s, err := New(ctx, client, o)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	s.owned = client
	return s, nil
}

// New returns a store that uses the caller's client. The caller closes the client after the store. The client is a
// [*redis.Client], possibly from Sentinel ([redis.NewFailoverClient]), or a [*redis.ClusterClient]. The client is
// responsible for what happens while a cluster's keys move or its nodes fail, and ends a call with the deadline of its
// context only with ContextTimeoutEnabled among its options, as [Open] sets it. It must not read from replicas. New
// adds a check to the OnConnect of the client's options, for the connections that it makes afterwards: call New before
// the client has other users.
func New(ctx context.Context, client redis.UniversalClient, o Options) (*Store, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if strings.ContainsAny(o.Prefix, "{}") {
		return nil, errors.New("the prefix of keys must have no braces")
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = DefaultReplicaTimeout
	}
	if o.MinReplicas < 0 || o.MaxOpen < 0 || o.ReplicaTimeout < time.Millisecond {
		return nil, errors.New("min_replicas and max_open must not be negative, and replica_timeout at least 1ms")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	connections := &connections{options: o}
	connections.guard(client)
	if err := check(ctx, client, o); err != nil {
		return nil, err
	}
	tag := "{" + o.Prefix + "}:"
	b := &backend{
		client: client, connections: connections,
		records: tag + "record:", open: tag + "open:", counter: tag + "tokens",
		channel: tag + "changed", minReplicas: o.MinReplicas, replicaTimeout: o.ReplicaTimeout, maxOpen: o.MaxOpen,
	}
	b.listener = newListener(client, b.channel)
	return &Store{Resolver: idempotency.NewStore(b), backend: b}, nil
}

// Close stops the store's background work and waits for it.
func (s *Store) Close() error {
	s.backend.listener.Close()
	if s.owned != nil {
		return s.owned.Close()
	}
	return nil
}
