package servertest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/seqledger/seqledger/internal/testkit/process"
)

// Postgres starts a new PostgreSQL with an empty database. settings are of the form name=value.
func Postgres(t testing.TB, settings ...string) *Server {
	t.Helper()
	postgres, err := process.FindPostgres()
	if errors.Is(err, process.ErrNotInstalled) {
		missing(t, "PostgreSQL", "apt-get install postgresql")
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, "postgres", postgres.User)
	s.children = true
	if err := initPostgres(t.Context(), postgres, s.Dir); err != nil {
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

// initialized is the files of a new PostgreSQL. initdb takes a second of a processor, so it runs once in a process.
var initialized struct {
	sync.Mutex
	files fstest.MapFS
}

// initPostgres makes the files of a server in dir, which postgres.User owns.
func initPostgres(ctx context.Context, postgres *process.Postgres, dir string) error {
	initialized.Lock()
	defer initialized.Unlock()
	if initialized.files == nil {
		if err := postgres.Init(ctx, dir, "test", "--no-sync"); err != nil {
			return err
		}
		files, err := filesOf(dir)
		initialized.files = files
		return err
	}
	if err := os.CopyFS(dir, initialized.files); err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		if err == nil && postgres.User != nil {
			err = os.Lchown(path, int(postgres.User.Uid), int(postgres.User.Gid))
		}
		return err
	})
}

// filesOf reads all files below dir.
func filesOf(dir string) (fstest.MapFS, error) {
	files := fstest.MapFS{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		file := &fstest.MapFile{Mode: entry.Type()}
		if !entry.IsDir() {
			if file.Data, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		name, err := filepath.Rel(dir, path)
		files[filepath.ToSlash(name)] = file
		return err
	})
	return files, err
}

// PgBouncer starts a PgBouncer in transaction mode before a PostgreSQL.
func PgBouncer(t testing.TB, postgres *Server) *Server {
	t.Helper()
	path := process.Find("pgbouncer", "/usr/sbin/pgbouncer")
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
