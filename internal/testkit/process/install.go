package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Find returns the path of an installed program, or "". It prefers the last match of pattern, which may be empty, to
// the search path.
func Find(name, pattern string) string {
	if found, _ := filepath.Glob(pattern); len(found) > 0 { // an error is a bad pattern alone
		return slices.Max(found)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// Build builds seqledger from this source tree, also for a program of another module that depends on it.
func Build(ctx context.Context, path string) error {
	const module = "github.com/seqledger/seqledger"
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("go list: %w; the program is built from its source tree", err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", path, module+"/cmd/seqledger")
	build.Dir = strings.TrimSpace(string(root)) // its own module: another one may lack dependencies of the command
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// ErrNotInstalled is wrapped by the errors of programs that are not on this machine. Their texts say which package
// has them.
var ErrNotInstalled = errors.New("not installed")

// Unprivileged returns a user for servers that refuse to run as root, nil when this process is not root's.
func Unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUser := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGroup := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(errUser, errGroup)
	}
	return nil, fmt.Errorf("%w: neither a user postgres nor nobody, and root may not; apt-get install postgresql",
		ErrNotInstalled)
}

// Postgres is an installed PostgreSQL, the newest one.
type Postgres struct {
	// User is whose processes its servers are; nil is the user of this process.
	User *syscall.Credential

	server, initdb string
}

// FindPostgres looks where Debian keeps PostgreSQL, away from the path, and then in the path; only in the directory
// POSTGRES_BIN if that variable is set. The error wraps [ErrNotInstalled] if there is none.
func FindPostgres() (*Postgres, error) {
	p := &Postgres{
		server: Find("postgres", "/usr/lib/postgresql/*/bin/postgres"),
		initdb: Find("initdb", "/usr/lib/postgresql/*/bin/initdb"),
	}
	if dir := postgresBin; dir != "" {
		p.server, p.initdb = Find("", filepath.Join(dir, "postgres")), Find("", filepath.Join(dir, "initdb"))
	}
	if p.server == "" || p.initdb == "" {
		return nil, fmt.Errorf("%w: PostgreSQL; apt-get install postgresql", ErrNotInstalled)
	}
	var err error
	p.User, err = Unprivileged()
	return p, err
}

// postgresBin is read at the start, because tests of commands clear such variables.
var postgresBin = os.Getenv("POSTGRES_BIN")

// Version returns what the program says of itself.
func (p *Postgres) Version() (string, error) {
	out, err := exec.Command(p.server, "--version").Output()
	return strings.TrimSpace(string(out)), err
}

// Init makes the files of a server, with a database postgres, in the directory data below dir. dir becomes p.User's,
// who must be able to reach it. more are further arguments of initdb.
func (p *Postgres) Init(ctx context.Context, dir, superuser string, more ...string) error {
	if p.User != nil {
		if err := os.Chown(dir, int(p.User.Uid), int(p.User.Gid)); err != nil {
			return err
		}
	}
	command := exec.CommandContext(ctx, p.initdb, append([]string{
		"-D", filepath.Join(dir, "data"), "-A", "trust",
		"-U", superuser, "-E", "UTF8", "--locale=C",
	}, more...)...)
	command.Dir = dir
	command.SysProcAttr = &syscall.SysProcAttr{Credential: p.User}
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// Command is a server on the files that Init has made in dir, at a port of loopback, to be launched as p.User.
// settings are of the form name=value.
func (p *Postgres) Command(dir, port string, settings ...string) *exec.Cmd {
	arguments := []string{
		"-D", filepath.Join(dir, "data"), "-p", port, "-h", "127.0.0.1", "-k", "",
		"-c", "dynamic_shared_memory_type=mmap", // in dir: a server that is killed leaves nothing in /dev/shm
	}
	for _, setting := range settings {
		arguments = append(arguments, "-c", setting)
	}
	command := exec.Command(p.server, arguments...)
	command.Dir = dir
	return command
}
