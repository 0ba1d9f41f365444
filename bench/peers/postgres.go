package main

import (
	"context"
	_ "embed"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

//go:embed postgres.sql
var postgresSchema string

const postgresWrite = "SELECT outcome, transaction FROM write_once($1, $2, $3, $4, $5)"

var postgresOptions = []string{
	"fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=512MB", "max_wal_size=4GB",
}

func postgresVersion() (string, error) {
	installed, err := process.FindPostgres()
	if err != nil {
		return "", err
	}
	return installed.Version()
}

// postgres is a PostgreSQL server.
type postgres struct{ url string }

func (p *postgres) launch(ctx context.Context, dir string) ([]*process.Process, error) {
	installed, err := process.FindPostgres()
	if err != nil {
		return nil, err
	}
	if p.url == "" {
		// Its user must reach its directory through ours.
		err := errors.Join(os.Chmod(filepath.Dir(dir), 0o711), installed.Init(ctx, dir, "bench"))
		if err != nil {
			return nil, err
		}
	}
	address, err := freeport.Address()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address) // our own
	p.url = "postgres://bench@" + address + "/postgres?sslmode=disable"
	command := installed.Command(dir, port, append(postgresOptions, "max_connections=300")...)
	return launchOther(ctx, command, installed.User, dir, func(ctx context.Context) error {
		c, err := pgx.Connect(ctx, p.url)
		if err != nil {
			return err
		}
		_, err = c.Exec(ctx, postgresSchema)
		return errors.Join(err, c.Close(ctx))
	})
}

func (p *postgres) connect(ctx context.Context, at placement) (conn, error) {
	config, err := pgxpool.ParseConfig(p.url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = int32(at.connections), int32(at.connections)
	c := new(postgresConn)
	if c.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	c.pipelines = newBatchers(at, func(calls []*call) { c.send(ctx, calls) })
	return c, nil
}

// postgresConn makes each call on a connection of a pool, or many calls in a batch.
type postgresConn struct {
	pool      *pgxpool.Pool
	pipelines batchers // empty if calls are not pipelined
}

func (c *postgresConn) do(ctx context.Context, j *job, _ bool) (answer, error) {
	if len(c.pipelines) > 0 {
		return c.pipelines.do(ctx, j)
	}
	return postgresAnswer(c.pool.QueryRow(ctx, postgresWrite, postgresArguments(j)...))
}

// send sends calls in one transaction, which is one durable step for all of them: refusals are rows and so do not undo
// the others.
func (c *postgresConn) send(ctx context.Context, calls []*call) {
	var batch pgx.Batch
	for _, one := range calls {
		batch.Queue(postgresWrite, postgresArguments(one.job)...)
	}
	results := c.pool.SendBatch(ctx, &batch)
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

func postgresArguments(j *job) []any {
	hash := j.hash()
	return []any{j.client(), int64(j.sequence), j.key(), hash[:], j.payload}
}

// postgresAnswer reads the one row of a call.
func postgresAnswer(row pgx.Row) (answer, error) {
	var outcome, transaction int64
	err := row.Scan(&outcome, &transaction) // which also fails for a refusal, which has no transaction
	return decided(outcome, strconv.FormatInt(transaction, 10), err)
}

func (c *postgresConn) once(ctx context.Context, key string, work func() []byte) (result []byte, err error) {
	reserved, err := c.pool.Exec(ctx, "INSERT INTO keyed VALUES ($1) ON CONFLICT DO NOTHING RETURNING key", key)
	if err != nil {
		return nil, err
	}
	if reserved.RowsAffected() == 0 {
		err = c.pool.QueryRow(ctx, "SELECT result FROM keyed WHERE key = $1", key).Scan(&result)
		if err == nil && result == nil {
			err = errPending
		}
		return result, err
	}
	result = work()
	_, err = c.pool.Exec(ctx, "UPDATE keyed SET result = $2 WHERE key = $1", key, result)
	return result, err
}

func (c *postgresConn) close() error {
	c.pipelines.close()
	c.pool.Close()
	return nil
}
