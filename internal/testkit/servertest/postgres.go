package servertest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seqledger/seqledger/bench/harness"
)

// Postgres starts a new PostgreSQL with an empty database. settings are of the form name=value.
func Postgres(t testing.TB, settings ...string) *Server {
	t.Helper()
	postgres, err := harness.FindPostgres()
	if errors.Is(err, harness.ErrNotInstalled) {
		missing(t, "PostgreSQL", "apt-get install postgresql")
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, "postgres", postgres.User)
	s.children = true
	if err := postgres.Init(t.Context(), s.Dir, "test", "--no-sync"); err != nil {
		t.Fatal(err)
	}
	s.URL = "postgres://test@" + s.Address + "/postgres?sslmode=disable"
	s.command = func() *exec.Cmd {
		return postgres.Command(s.Dir, s.port(), append([]string{"shared_buffers=32MB", "max_connections=200"},
			settings...)...)
	}
	s.answers = func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.URL)
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}
	s.Start()
	return s
}

// PgBouncer starts a PgBouncer in transaction mode before a PostgreSQL.
func PgBouncer(t testing.TB, postgres *Server) *Server {
	t.Helper()
	path := harness.Find("pgbouncer", "/usr/sbin/pgbouncer")
	if path == "" {
		missing(t, "PgBouncer", "apt-get install pgbouncer")
	}
	s := newServer(t, "pgbouncer", postgres.user)
	config := filepath.Join(s.Dir, "pgbouncer.ini")
	text := "[databases]\n* = host=127.0.0.1 port=" + postgres.port() + " user=test\n" +
		"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = " + s.port() + "\nunix_socket_dir =\n" +
		"auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s.URL = "postgres://test@" + s.Address + "/postgres?sslmode=disable"
	s.command = func() *exec.Cmd { return exec.Command(path, config) }
	s.answers = s.dials
	s.Start()
	return s
}
