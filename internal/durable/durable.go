// Package durable makes files and names that a loss of power leaves.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/internal/private"
)

// Suffix ends the name of a file that WriteFile has not finished.
const Suffix = ".new"

// WriteFile makes a file appear with all of its content, in place of an earlier one, or not at all. Two callers must
// not write a file together.
func WriteFile(path string, content []byte) error {
	f, err := private.Create(path + Suffix)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync() // before it gets the name
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name())) // otherwise a full disk would collect them
	}
	return SyncDir(filepath.Dir(path))
}

// MakeDirectory makes a directory and its parents, unless they are there, with names that are durable, because a
// directory whose name is lost takes everything in it along.
func MakeDirectory(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is a file and no directory", path)
		}
		return nil
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := MakeDirectory(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, private.Directory); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// SyncDir makes names durable that were added to a directory, changed or removed.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
