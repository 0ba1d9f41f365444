package datadir

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// WriteFile makes a file of the directory appear whole, durably, or not at all.
func (d *Directory) WriteFile(name string, content []byte) error { return d.writeFile(name, content) }

// RemoveFile removes a file of the directory durably.
func (d *Directory) RemoveFile(name string) error { return d.remove(name) }

// temporaryPrefix begins the name of a file that is not yet whole.
func temporaryPrefix(name string) string { return "." + name + "-" }

// writeFile makes a file appear whole or not at all.
func (d *Directory) writeFile(name string, content []byte) (err error) {
	f, err := os.CreateTemp(d.path, temporaryPrefix(name)+"*")
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", d.file(name), errors.Join(err, os.Remove(f.Name())))
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), d.file(name)); err != nil {
		return err
	}
	return d.sync()
}

func (d *Directory) remove(names ...string) error {
	for _, name := range names {
		if err := os.RemoveAll(d.file(name)); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	}
	return d.sync()
}

// RemoveUnfinished removes files that were never whole.
func (d *Directory) RemoveUnfinished() error { return d.removeLeftovers() }

// removeLeftovers removes names, and the temporary files that a crash may have left.
func (d *Directory) removeLeftovers(names ...string) error {
	entries, err := os.ReadDir(d.path) // not Glob: the path is used literally
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	for _, e := range entries {
		for _, name := range []string{creatingName, markerName, recoveringName, oldCopyName, TokenName, ArchiveName} {
			if strings.HasPrefix(e.Name(), temporaryPrefix(name)) {
				names = append(names, e.Name())
			}
		}
		for _, name := range []string{StateName, SumsName} {
			if strings.HasPrefix(e.Name(), name+newSuffix) {
				names = append(names, e.Name())
			}
		}
	}
	return d.remove(names...)
}

// sync makes names that were added or removed durable.
func (d *Directory) sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync of %s: %w", d.path, err)
	}
	return nil
}
