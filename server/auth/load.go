package auth

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
)

// maxFileBytes is room for maxKeys entries.
const maxFileBytes = 16 << 20

// load reads an auth file and the JWKS file that it names, whose path is relative to it.
func load(path string, logger *slog.Logger) (*policy, error) {
	content, err := ReadFile(path, logger)
	if err != nil {
		return nil, &FileError{Path: path, Problem: err.Error()}
	}
	return parseFile(path, content, func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return ReadFile(name, logger)
	})
}

// ReadFile reads a file that decides who may do what. It refuses a file that other users may change, because they could
// give themselves access. It only warns about a file that others may read, because it has no secret: a hash of 256
// random bits is useless, and secrets that a cluster manager mounts are often readable.
func ReadFile(path string, logger *slog.Logger) (_ []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unwrapPath(err)
	}
	defer func() { _ = f.Close() }() // read only
	info, err := f.Stat()
	if err != nil {
		return nil, unwrapPath(err)
	}
	mode := info.Mode()
	switch {
	case !mode.IsRegular():
		return nil, errors.New("is not a regular file")
	case runtime.GOOS == "windows": // has no such bits
	case mode.Perm()&0o022 != 0:
		return nil, fmt.Errorf("may be changed by others than its owner (mode %04o): chmod go-w it", mode.Perm())
	case mode.Perm()&0o004 != 0 && logger != nil:
		logger.Warn("every user of this machine can read a file that says who may do what; chmod o-r it",
			"file", path, "mode", fmt.Sprintf("%04o", mode.Perm()))
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err == nil && len(content) > maxFileBytes {
		err = fmt.Errorf("has more than %d bytes", maxFileBytes)
	}
	return content, err
}

// unwrapPath drops the path from an error, which the message has already.
func unwrapPath(err error) error {
	if e, ok := err.(*fs.PathError); ok { //nolint:errorlint // os returns it unwrapped.
		return e.Err
	}
	return err
}
