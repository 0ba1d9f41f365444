package servertest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// shared is the PostgreSQL of [Database], and how many tests use it.
var shared struct {
	sync.Mutex
	*Server
	life  *life
	users int
	made  int
}

// life is a testing.TB that ends when its end is called, and not with the test that began it.
type life struct {
	testing.TB

	ends []func()
}

func (l *life) Cleanup(f func())       { l.ends = append(l.ends, f) }
func (*life) Context() context.Context { return context.Background() }
func (*life) Failed() bool             { return false }

func (l *life) end() {
	for _, end := range slices.Backward(l.ends) {
		end()
	}
}

// Database returns the URL of a new database. The tests that run at the same time share its server: one that stops or
// watches a server takes a [Postgres].
func Database(t testing.TB) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	shared.users++
	t.Cleanup(func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.users--; shared.users == 0 {
			shared.life.end()
			shared.Server = nil
		}
	})
	if shared.Server == nil {
		shared.life = &life{TB: t}
		shared.Server = Postgres(shared.life)
	}
	conn, err := pgx.Connect(t.Context(), shared.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	shared.made++
	name := fmt.Sprint("test", shared.made)
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return strings.Replace(shared.URL, "/postgres?", "/"+name+"?", 1)
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
