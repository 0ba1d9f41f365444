package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A file is replaced as a whole, is its owner's alone, and leaves nothing beside it.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(path+Suffix, []byte("of a crash, and longer"), 0o600))
	for _, content := range []string{"first", "", "second"} {
		must.Do(t, WriteFile(path, []byte(content)))
		if got := must.Get(os.ReadFile(path))(t); string(got) != content {
			t.Errorf("%q, want %q", got, content)
		}
	}
	info := must.Get(os.Stat(path))(t)
	if names := must.Get(os.ReadDir(filepath.Dir(path)))(t); len(names) != 1 || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", names, info.Mode())
	}
}

// A file that cannot be replaced stays, and nothing is left beside it.
func TestWriteFileFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	must.Do(t, os.MkdirAll(filepath.Join(taken, "in it"), 0o700))
	if WriteFile(taken, []byte("x")) == nil || WriteFile(filepath.Join(dir, "none", "file"), nil) == nil {
		t.Error("a directory is replaced by a file, or one is made")
	}
	if names := must.Get(os.ReadDir(dir))(t); len(names) != 1 {
		t.Errorf("%v", names)
	}
	if SyncDir(filepath.Join(dir, "none")) == nil {
		t.Error("a directory that is not there is synced")
	}
}
