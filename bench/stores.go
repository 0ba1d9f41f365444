package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	driver "github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/seqledger/seqledger/bench/harness"
	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
	"github.com/seqledger/seqledger/client/idempotency/redis"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/load"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// storeRounds is how many rounds each side of a store is measured, in turns.
const storeRounds = 3

// storeBed is a store of idempotency keys, and its server.
type storeBed struct {
	*bed

	store idempotency.Store
	// bare is the least that the server does to store something: a statement, a script, a put, or a write.
	bare    func(ctx context.Context, key string) error
	process *harness.Process
}

// storeKinds start the server of a store for a number of callers.
var storeKinds = []struct {
	name  string
	start func(ctx context.Context, b *storeBed, callers int) error
}{
	{"ledger", startLedgerStore}, {"postgres", startPostgresStore}, {"redis", startRedisStore}, {"s3", startS3Store},
}

// storeRows are the rows of `bench stores`.
func storeRows() []row {
	var rows []row
	for _, kind := range storeKinds {
		for _, callers := range []int{1, 16, 64} {
			rows = append(rows, row{fmt.Sprintf("%s/%d", kind.name, callers),
				func(ctx context.Context, b *bed) ([]harness.Line, error) {
					s := &storeBed{bed: b}
					err := kind.start(ctx, s, callers)
					if errors.Is(err, harness.ErrNotInstalled) {
						return []harness.Line{told("skipped: "+err.Error(), "")}, nil
					}
					if err != nil {
						return nil, err
					}
					return measureStore(ctx, s, callers)
				}})
		}
	}
	return rows
}

// storeSides are measured in turns.
var storeSides = []string{"a reservation and its result", "the bare write"}

// measureStore measures a reservation and its result, of a key each, beside the bare write.
func measureStore(ctx context.Context, b *storeBed, callers int) ([]harness.Line, error) {
	rounds := make([][]harness.Values, len(storeSides))
	err := harness.Turns(scaled(b.o, storeRounds), len(storeSides), func(_, side int) error {
		measured, err := load.RunSome(ctx, load.Load{
			Workers: callers, Warmup: b.o.warmup / 4, Duration: b.o.duration / storeRounds,
			Meter: harness.Usage(b.dir, b.process.Tree()...),
		}, func(ctx context.Context, _ int) error {
			ctx = context.WithoutCancel(ctx) // what has begun is finished
			if side == 1 {
				return b.bare(ctx, rand.Text())
			}
			return reserveAndComplete(ctx, b.store)
		})
		if err == nil {
			rounds[side] = append(rounds[side], measured.Values())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var lines []harness.Line
	for side, name := range storeSides {
		v := harness.Medians(rounds[side])
		lines = append(lines, told(name+": a second", harness.Count(v["throughput_per_s"])),
			told(name+": p50, p99", milliseconds(v["p50_ms"])+", "+milliseconds(v["p99_ms"])),
			told(name+": the server's processor time", fmt.Sprintf("%.0f µs", v["cpu_us_per_write"])))
	}
	rate := func(side int) []float64 { return harness.Of(rounds[side], "throughput_per_s") }
	return append(lines, told("of the bare write's rate",
		fmt.Sprintf("%.2f", harness.Median(harness.Ratios(rate(0), rate(1)))))), nil
}

// reserveAndComplete is what an owner does, beside its work.
func reserveAndComplete(ctx context.Context, s idempotency.Store) error {
	key := idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "bench", Vault: "stores"}, Namespace: "bench", Key: rand.Text(),
	}
	request := &idempotency.ReserveRequest{Key: key, AttemptID: idempotency.NewAttemptID()}
	r, err := s.Reserve(ctx, request)
	if err != nil {
		return err
	}
	if r.Outcome != idempotency.Acquired {
		return fmt.Errorf("the outcome of Reserve is %v", r.Outcome)
	}
	owner := &idempotency.Ownership{Key: key, Token: r.Token, AttemptID: request.AttemptID}
	a, err := s.Complete(ctx, owner, idempotency.Result{Response: []byte(`{"charge":"ch_4711"}`)})
	if err == nil && a.Outcome != idempotency.OK {
		err = fmt.Errorf("the outcome of Complete is %v", a.Outcome)
	}
	return err
}

// launch starts the store's server, and returns its address.
func (b *storeBed) launch(
	ctx context.Context, credential *syscall.Credential, command func(host, port string) *exec.Cmd,
	ready func(ctx context.Context, address string) error,
) (address string, err error) {
	if address, err = freeport.Address(); err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if b.process, err = harness.Launch(command(host, port), filepath.Join(b.dir, "log"), credential); err != nil {
		return "", err
	}
	b.process.Signal = syscall.SIGINT
	b.later(b.process.Stop)
	return address, b.process.Ready(ctx, func(ctx context.Context) error { return ready(ctx, address) })
}

// startLedgerStore starts a seqledger server; its bare write is a unary one with a key.
func startLedgerStore(ctx context.Context, b *storeBed, _ int) error {
	if err := b.startServer(ctx); err != nil {
		return err
	}
	b.process = b.server.Process
	c, err := b.client(client.Options{})
	if err != nil {
		return err
	}
	b.store = idempotency.Ledger(c)
	b.bare = func(ctx context.Context, key string) error {
		_, err := c.Write(ctx, &seqledgerv1.WriteRequest{
			Scope: &seqledgerv1.Scope{Organization: "bench", Vault: "stores"}, Namespace: "bare", IdempotencyKey: key,
			Operations: []*seqledgerv1.Operation{op.Append([]byte(key))},
		})
		return err
	}
	return nil
}

// startPostgresStore starts a PostgreSQL; its bare write is a statement that inserts a row.
func startPostgresStore(ctx context.Context, b *storeBed, callers int) error {
	installed, err := harness.FindPostgres()
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "postgres")
	// PostgreSQL's user must reach its directory through ours.
	if err := errors.Join(os.Chmod(b.dir, 0o711), os.Mkdir(dir, 0o755), installed.Init(ctx, dir, "bench")); err != nil {
		return err
	}
	url := func(address string) string { return "postgres://bench@" + address + "/postgres?sslmode=disable" }
	address, err := b.launch(ctx, installed.User, func(_, port string) *exec.Cmd {
		return installed.Command(dir, port, "shared_buffers=512MB", "max_wal_size=4GB")
	}, func(ctx context.Context, address string) error {
		conn, err := pgx.Connect(ctx, url(address))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(url(address))
	if err != nil {
		return err
	}
	config.MaxConns = int32(callers)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // as the store sets it
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	b.later(func() error {
		pool.Close()
		return nil
	})
	if err := postgres.Init(ctx, url(address)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE bare (key text PRIMARY KEY)"); err != nil {
		return err
	}
	s, err := postgres.New(ctx, pool, postgres.Options{})
	if err != nil {
		return err
	}
	b.later(s.Close)
	b.store, b.bare = s, func(ctx context.Context, key string) error {
		_, err := pool.Exec(ctx, "INSERT INTO bare VALUES ($1::text)", key)
		return err
	}
	return nil
}

// startRedisStore starts a Redis that syncs what it acknowledges; its bare write is a script that sets a key.
func startRedisStore(ctx context.Context, b *storeBed, callers int) error {
	path := harness.Find("redis-server", "")
	if path == "" {
		return fmt.Errorf("%w: apt-get install redis-server", harness.ErrNotInstalled)
	}
	dir := b.dir
	address, err := b.launch(ctx, nil, func(host, port string) *exec.Cmd {
		return exec.Command(path, "--port", port, "--bind", host, "--dir", dir, "--appendonly", "yes", "--appendfsync",
			"always", "--save", "", "--auto-aof-rewrite-percentage", "0", "--daemonize", "no")
	}, func(ctx context.Context, address string) error {
		probe := driver.NewClient(&driver.Options{Addr: address})
		return errors.Join(probe.Ping(ctx).Err(), probe.Close())
	})
	if err != nil {
		return err
	}
	c := driver.NewClient(&driver.Options{Addr: address, PoolSize: callers})
	b.later(c.Close)
	s, err := redis.New(ctx, c, redis.Options{})
	if err != nil {
		return err
	}
	b.later(s.Close)
	script := driver.NewScript(`return redis.call('SET', KEYS[1], ARGV[1])`)
	b.store, b.bare = s, func(ctx context.Context, key string) error {
		return script.Run(ctx, c, []string{"bare:" + key}, "1").Err()
	}
	return nil
}

// startS3Store starts a versitygw; its bare write is a put.
func startS3Store(ctx context.Context, b *storeBed, _ int) error {
	path := harness.Find("versitygw", "bin/tools/versitygw")
	if path == "" {
		return fmt.Errorf("%w: make test-stores builds versitygw", harness.ErrNotInstalled)
	}
	data := filepath.Join(b.dir, "objects")
	if err := os.Mkdir(data, 0o755); err != nil {
		return err
	}
	if err := unix.Setxattr(data, "user.seqledger", []byte("1"), 0); err != nil {
		return fmt.Errorf("versitygw needs extended attributes in %s (-dir): %w", data, err)
	}
	address, err := b.launch(ctx, nil, func(host, port string) *exec.Cmd {
		return exec.Command(path, "--access", "bench", "--secret", "bench-secret", "--region", "us-east-1", "--port",
			net.JoinHostPort(host, port), "--quiet", "posix", data)
	}, func(ctx context.Context, address string) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return err
	}
	c := awss3.New(awss3.Options{
		BaseEndpoint: aws.String("http://" + address), UsePathStyle: true, Region: "us-east-1",
		Credentials:                credentials.NewStaticCredentialsProvider("bench", "bench-secret", ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	})
	bucket := aws.String("keys")
	if _, err := c.CreateBucket(ctx, &awss3.CreateBucketInput{Bucket: bucket}); err != nil {
		return err
	}
	s, err := s3.New(ctx, c, s3.Options{Bucket: *bucket})
	if err != nil {
		return err
	}
	b.store, b.bare = s, func(ctx context.Context, key string) error {
		_, err := c.PutObject(ctx, &awss3.PutObjectInput{
			Bucket: bucket, Key: aws.String("bare/" + key), Body: strings.NewReader("{}\n"),
			IfNoneMatch: aws.String("*"),
		})
		return err
	}
	return nil
}
