// Package durable makes files and names that a loss of power leaves.
package durable

import (
	"errors"
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

// SyncDir makes names durable that were added to a directory, changed or removed.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
