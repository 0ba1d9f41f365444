package process

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// The newest of those that the pattern finds comes before the path.
func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, version := range []string{"13", "15"} {
		bin := filepath.Join(dir, version)
		must.Do(t, os.Mkdir(bin, 0o755))
		must.Do(t, os.WriteFile(filepath.Join(bin, "sh"), nil, 0o644))
	}
	check.Equal(t, Find("sh", filepath.Join(dir, "*", "sh")), filepath.Join(dir, "15", "sh"))
	check.Equal(t, filepath.Base(Find("sh", filepath.Join(dir, "*", "other"))), "sh",
		"want the one of the path: got %q")
	check.Equal(t, Find("no such program", ""), "", "found %s")
}

// A server of PostgreSQL gets the directory, the port and the settings that it was asked for.
func TestPostgresCommand(t *testing.T) {
	t.Parallel()
	p := &Postgres{server: "/bin/postgres"}
	command := p.Command("/some", "5432", "fsync=on", "max_connections=7")
	want := []string{"/bin/postgres", "-D", "/some/data", "-p", "5432", "-h", "127.0.0.1", "-k", "",
		"-c", "dynamic_shared_memory_type=mmap", "-c", "fsync=on", "-c", "max_connections=7"}
	if !slices.Equal(command.Args, want) || command.Dir != "/some" {
		t.Errorf("in %s: %q", command.Dir, command.Args)
	}
}

// What is not installed is told apart from what does not work.
func TestFindPostgres(t *testing.T) {
	t.Parallel()
	p, err := FindPostgres()
	if errors.Is(err, ErrNotInstalled) {
		t.Skip(err)
	}
	must.Do(t, err)
	if version, err := p.Version(); err != nil || version == "" {
		t.Errorf("version %q, %v", version, err)
	}
	if os.Geteuid() == 0 && (p.User == nil || p.User.Uid == 0) {
		t.Error("PostgreSQL would run as root")
	}
	dir := filepath.Join(t.TempDir(), "taken")
	must.Do(t, os.WriteFile(dir, nil, 0o644))
	if err := p.Init(t.Context(), dir, "test"); err == nil {
		t.Error("a file became a directory of PostgreSQL")
	}
}
