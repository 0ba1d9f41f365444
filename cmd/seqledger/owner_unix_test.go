//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/server/auth"
)

// TestAppendKeepsTheOwner: root adds a key to a file that the server's user can read, and that
// user must be able to read it afterwards.
func TestAppendKeepsTheOwner(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may give a file away")
	}
	path := filepath.Join(t.TempDir(), "auth.yaml")
	for _, id := range []string{"first", "second"} {
		_, hash, err := auth.NewKey(id)
		must.Do(t, err)
		must.Do(t, appendKey(path, &auth.Entry{ID: id, Hash: hash, Role: "reader", Scopes: []string{"*"}}))
		if id == "first" {
			must.Do(t, os.Chown(path, 12_345, 23_456))
			must.Do(t, os.Chmod(path, 0o640))
		}
	}
	info := must.Get(os.Stat(path))(t)
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid != 12_345 || stat.Gid != 23_456 || info.Mode().Perm() != 0o640 {
		t.Errorf("the file has %+v and the mode %s", stat, info.Mode())
	}
}

// TestAppendRefusesToTakeAFile: a user who may not keep the owner changes nothing.
func TestAppendRefusesToTakeAFile(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 {
		t.Skip("root may give every file away")
	}
	path := filepath.Join(t.TempDir(), "auth.yaml")
	foreign := must.Get(os.Stat("/"))(t)
	if err := replaceFile(path, nil, []byte("keys:\n"), foreign); err == nil {
		t.Error("a file of another user was replaced")
	}
	check.Equal(t, len(must.Get(filepath.Glob(filepath.Join(filepath.Dir(path), "*")))(t)), 0, "left behind: %v")
}
