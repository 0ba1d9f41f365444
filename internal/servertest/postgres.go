package servertest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

const installPostgres = "apt-get install postgresql"

// Postgres starts a PostgreSQL of its own with an empty database. settings are of the form name=value.
func Postgres(t testing.TB, settings ...string) *Server {
	t.Helper()
	server, initdb := find("postgres", "/usr/lib/postgresql/*/bin/postgres"),
		find("initdb", "/usr/lib/postgresql/*/bin/initdb")
	if server == "" || initdb == "" {
		missing(t, "PostgreSQL", installPostgres)
	}
	s := newServer(t, "postgres", unprivileged(t))
	s.children = true
	command := exec.CommandContext(t.Context(), initdb, "-D", filepath.Join(s.Dir, "data"), "-A", "trust", "-U", "test",
		"-E", "UTF8", "--locale=C", "--no-sync")
	command.Dir = s.Dir
	command.SysProcAttr = &syscall.SysProcAttr{Credential: s.user}
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	s.URL = "postgres://test@" + s.Address + "/postgres?sslmode=disable"
	s.command = func() *exec.Cmd {
		arguments := []string{"-D", filepath.Join(s.Dir, "data"), "-p", s.port(), "-h", "127.0.0.1", "-k", "",
			"-c", "shared_buffers=32MB", "-c", "max_connections=200"}
		for _, setting := range settings {
			arguments = append(arguments, "-c", setting)
		}
		c := exec.Command(server, arguments...)
		c.Dir = s.Dir
		return c
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
	path := find("pgbouncer", "/usr/sbin/pgbouncer")
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
