// Package storeurl opens the stores of idempotency keys that a URL names, for commands. Programs use the packages below
// client/idempotency themselves.
package storeurl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/client/idempotency/s3"
)

// Forms are the URLs that [Open] takes, for help texts.
const Forms = "postgres://…, redis://…, rediss://…, redis-cluster://…, rediss-cluster://…, s3://BUCKET/PREFIX, memory:"

// UnknownError is returned for a URL of no store.
type UnknownError struct{ Scheme string }

// Error implements error.
func (e *UnknownError) Error() string { return fmt.Sprintf("%q names no store: %s", e.Scheme, Forms) }

// kind is a kind of store.
type kind struct {
	open func(ctx context.Context, url string, o Options) (idempotency.Store, func() error, error)
	init func(ctx context.Context, url string) (text string, err error)
	// statements returns what init does, for people who do it by hand.
	statements func() string
}

var kinds = map[string]kind{
	"memory":         {open: openMemory},
	"postgres":       {openPostgres, initPostgres, postgresStatements},
	"postgresql":     {openPostgres, initPostgres, postgresStatements},
	"redis":          {open: openRedis},
	"rediss":         {open: openRedis},
	"redis-cluster":  {open: openRedis},
	"rediss-cluster": {open: openRedis},
	"s3":             {open: openS3, init: initS3},
}

// find returns the kind of a URL. Its error has no more of the URL than the scheme, because the rest may have a
// password.
func find(url string) (kind, error) {
	scheme, _, ok := strings.Cut(url, ":")
	k, known := kinds[scheme]
	if !ok || !known {
		return kind{}, &UnknownError{scheme}
	}
	return k, nil
}

// Check returns an [*UnknownError] for a URL of no store. It does not connect.
func Check(url string) error {
	_, err := find(url)
	return err
}

// MaxTTL returns the longest time for which the store of a URL keeps what has ended, or 0 if that is as long as it is
// asked to.
func MaxTTL(address string) time.Duration {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "s3" {
		return 0
	}
	if d, err := time.ParseDuration(u.Query().Get("max_ttl")); err == nil {
		return d
	}
	return s3.DefaultMaxTTL
}

// Options are what a URL does not say. Each counts for the stores that have it.
type Options struct {
	Logger          *slog.Logger
	MaxEntries      int           // of memory:; 0 means 100,000
	CleanupInterval time.Duration // of memory: and PostgreSQL; 0 means 10 s
}

// Open connects to a store. closing it ends its connections.
func Open(ctx context.Context, url string, log *slog.Logger) (s idempotency.Store, closing func() error, err error) {
	return OpenWith(ctx, url, Options{Logger: log})
}

// OpenWith is Open with options.
func OpenWith(ctx context.Context, url string, o Options) (s idempotency.Store, closing func() error, err error) {
	k, err := find(url)
	if err != nil {
		return nil, nil, err
	}
	return k.open(ctx, url, o)
}

// ErrNothingToInit is returned for stores that need no preparation.
var ErrNothingToInit = errors.New("this store needs no tables")

// Init makes what a store needs, and returns what else the operator should do.
func Init(ctx context.Context, url string) (text string, err error) {
	k, err := find(url)
	if err != nil {
		return "", err
	}
	if k.init == nil {
		return "", ErrNothingToInit
	}
	return k.init(ctx, url)
}

// Statements returns what Init does. It does not connect.
func Statements(url string) (string, error) {
	k, err := find(url)
	if err != nil {
		return "", err
	}
	if k.statements == nil {
		return "", ErrNothingToInit
	}
	return k.statements(), nil
}

func openMemory(_ context.Context, _ string, o Options) (idempotency.Store, func() error, error) {
	return idempotency.NewMemory(idempotency.MemoryOptions{
		MaxEntries: o.MaxEntries, CleanupInterval: o.CleanupInterval,
	}), func() error { return nil }, nil
}

func openPostgres(ctx context.Context, url string, o Options) (idempotency.Store, func() error, error) {
	s, err := postgres.Open(ctx, url, postgres.Options{Logger: o.Logger, CleanupInterval: o.CleanupInterval})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

func initPostgres(ctx context.Context, url string) (string, error) {
	return "-- what a role needs that uses the store\n" + postgres.Privileges("app"), postgres.Init(ctx, url)
}

func postgresStatements() string {
	return postgres.Schema() + "\n-- what a role needs that uses the store\n" + postgres.Privileges("app")
}

func openRedis(ctx context.Context, url string, o Options) (idempotency.Store, func() error, error) {
	logging.Disable() // the driver would write to standard error what the store's own errors say
	s, err := redis.Open(ctx, url, redis.Options{Logger: o.Logger})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

func openS3(ctx context.Context, url string, _ Options) (idempotency.Store, func() error, error) {
	s, err := s3.Open(ctx, url, s3.Options{})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

func initS3(ctx context.Context, url string) (string, error) { return s3.Init(ctx, url) }
