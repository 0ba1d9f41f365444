package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

//go:embed postgres.sql
var postgresSchema string

const (
	postgresSettings = "fsync=on synchronous_commit=on full_page_writes=on shared_buffers=512MB max_wal_size=4GB; " +
		"one PL/pgSQL function, one round trip; pipelined: pgx batches, one transaction each"
	postgresKeyed = "INSERT of a unique key ON CONFLICT DO NOTHING, then UPDATE of its result, a transaction each. " +
		"Does not do: no lease, so that the key of a caller that dies stays reserved; no fencing token; no request hash"
	postgresWrite = "SELECT outcome, transaction FROM write_once($1, $2, $3, $4, $5)"
)

// postgres is a PostgreSQL server.
type postgres struct {
	child

	installed *process.Postgres
}

func newPostgres() system {
	p := new(postgres)
	p.launch = p.run
	return p
}

func findPostgres() (string, error) {
	installed, err := process.FindPostgres()
	if err != nil {
		return "", err
	}
	return installed.Version()
}

func (p *postgres) start(ctx context.Context, dir string) (err error) {
	if p.installed, err = process.FindPostgres(); err != nil {
		return err
	}
	// Its user must reach its directory through ours.
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		return err
	}
	if err := p.installed.Init(ctx, dir, "bench"); err != nil {
		return err
	}
	if err := p.child.start(ctx, dir); err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, p.address)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, postgresSchema)
	return errors.Join(err, c.Close(ctx))
}

// run starts the server and waits until it answers.
func (p *postgres) run(ctx context.Context) error {
	address, err := freeport.Address()
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(address) // our own
	p.address = "postgres://bench@" + address + "/postgres?sslmode=disable"
	command := p.installed.Command(p.dir, port, "fsync=on", "synchronous_commit=on",
		"full_page_writes=on", "shared_buffers=512MB", "max_wal_size=4GB", "max_connections=300")
	if p.process, err = process.Launch(command, p.dir+".log", p.installed.User); err != nil {
		return err
	}
	p.process.Signal = syscall.SIGINT // fast: does not wait for its clients
	return p.process.Ready(ctx, func(ctx context.Context) error {
		c, err := pgx.Connect(ctx, p.address)
		if err != nil {
			return err
		}
		return c.Close(ctx)
	})
}

func (p *postgres) connect(ctx context.Context, at placement) (conn, error) {
	if at.pipelined {
		return connectPostgresPipelines(ctx, p.address, at.connections)
	}
	config, err := pgxpool.ParseConfig(p.address)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = int32(at.connections), int32(at.connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &postgresPool{pool}, nil
}

// postgresPool makes each call on a connection of a pool.
type postgresPool struct{ pool *pgxpool.Pool }

func (p *postgresPool) do(ctx context.Context, j *job, _ bool) (answer, error) {
	return postgresAnswer(p.pool.QueryRow(ctx, postgresWrite, postgresArguments(j)...))
}

func (p *postgresPool) once(ctx context.Context, key string, work func() []byte) (result []byte, err error) {
	reserved, err := p.pool.Exec(ctx, "INSERT INTO keyed VALUES ($1) ON CONFLICT DO NOTHING RETURNING key", key)
	if err != nil {
		return nil, err
	}
	if reserved.RowsAffected() == 0 {
		err = p.pool.QueryRow(ctx, "SELECT result FROM keyed WHERE key = $1", key).Scan(&result)
		if err == nil && result == nil {
			err = errPending
		}
		return result, err
	}
	result = work()
	_, err = p.pool.Exec(ctx, "UPDATE keyed SET result = $2 WHERE key = $1", key, result)
	return result, err
}

func (p *postgresPool) close() error {
	p.pool.Close()
	return nil
}

func postgresArguments(j *job) []any {
	hash := j.hash()
	return []any{j.client(), int64(j.sequence), j.key(), hash[:], j.payload}
}

// postgresAnswer reads the one row of a call.
func postgresAnswer(row pgx.Row) (answer, error) {
	var outcome int
	var transaction *int64
	if err := row.Scan(&outcome, &transaction); err != nil {
		return answer{}, err
	}
	const committed, replayed = 1, 2
	if outcome != committed && outcome != replayed || transaction == nil {
		return answer{}, fmt.Errorf("refused with outcome %d of postgres.sql", outcome)
	}
	return answer{reply: fmt.Sprint(*transaction), replayed: outcome == replayed}, nil
}

// postgresPipelines are connections with many calls in one batch each.
type postgresPipelines struct {
	batchers
	connections []*pgx.Conn
}

func connectPostgresPipelines(ctx context.Context, address string, n int) (conn, error) {
	p := &postgresPipelines{}
	for range n {
		c, err := pgx.Connect(ctx, address)
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.connections = append(p.connections, c)
		p.batchers = append(p.batchers, newBatcher(func(calls []*call) { sendPostgres(ctx, c, calls) }))
	}
	return p, nil
}

// sendPostgres sends calls in one transaction, which is one durable step for all
// of them: refusals are rows and so do not undo the others.
func sendPostgres(ctx context.Context, c *pgx.Conn, calls []*call) {
	var batch pgx.Batch
	for _, one := range calls {
		batch.Queue(postgresWrite, postgresArguments(one.job)...)
	}
	results := c.SendBatch(ctx, &batch)
	for _, one := range calls {
		one.answer, one.err = postgresAnswer(results.QueryRow())
	}
	// The commit comes last, because before it no answer counts.
	if err := results.Close(); err != nil {
		for _, one := range calls {
			one.err = errors.Join(one.err, err)
		}
	}
}

func (p *postgresPipelines) close() error {
	p.batchers.close()
	var err error
	for _, c := range p.connections {
		err = errors.Join(err, c.Close(context.Background()))
	}
	return err
}
