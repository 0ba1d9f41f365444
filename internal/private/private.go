// Package private keeps what the programs write from other users of the machine: files have the mode 0600 and
// directories 0700, whatever the umask is.
package private

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
)

// File and Directory are the modes of what is written.
const (
	File      fs.FileMode = 0o600
	Directory fs.FileMode = 0o700
)

// Create is os.Create with the mode File.
func Create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, File)
}

// Narrow takes the rights of other users from a file or directory that is being opened to be written, and from
// everything in it, and logs that it did. A file system that has no modes, or an owner who is another user, is a
// warning: the caller can do without. Symbolic links in a directory are left alone.
func Narrow(logger *slog.Logger, path string) {
	if runtime.GOOS == "windows" { // it has no such modes
		return
	}
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return // who opens it says why
	}
	var narrowed, failed tally
	_ = filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error { // the function returns no error
		var info fs.FileInfo
		if err == nil {
			info, err = e.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone meanwhile
		}
		if err != nil {
			failed.add(name, err)
			return nil
		}
		mode := info.Mode()
		if !mode.IsRegular() && !mode.IsDir() || mode.Perm()&^Directory == 0 {
			return nil
		}
		if err := os.Chmod(name, mode.Perm()&Directory); err != nil {
			failed.add(name, err)
			return nil
		}
		narrowed.add(name, nil)
		return nil
	})
	if narrowed.n > 0 {
		logger.Warn("other users could read or change files; the modes are narrowed to 0600, of directories to 0700",
			"files", narrowed.n, "first", narrowed.first)
	}
	if failed.n > 0 {
		logger.Warn("the modes of files could not be narrowed; other users may read or change them",
			"files", failed.n, "first", failed.first, "error", failed.err)
	}
}

// tally counts files, and has the first one.
type tally struct {
	n     int
	first string
	err   error
}

func (t *tally) add(name string, err error) {
	if t.n == 0 {
		t.first, t.err = name, err
	}
	t.n++
}
