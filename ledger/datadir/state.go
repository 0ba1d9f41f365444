package datadir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/seqledger/seqledger/internal/private"
	"github.com/seqledger/seqledger/ledger/blockfile"
)

// MakeState makes the state of a directory that is being restored: fill writes its
// files, and prepare makes the state file the directory's own once all of them are on
// disk. Only then does that get its name, so that a crash leaves a whole one or none.
// Block files without a state file are ignored.
//
// fill calls open for one file after another: 0 is the state file, and every other
// number that of a block file.
func (d *Directory) MakeState(
	fill func(open func(file uint64) (io.Writer, error)) error, prepare func(path string) error,
) (err error) {
	if err := os.Mkdir(d.Blocks(), 0o700); err != nil {
		return fmt.Errorf("restored blocks: %w", err)
	}
	w := &stateWriter{directory: d}
	err = fill(w.open)
	if err = errors.Join(err, w.finish()); err == nil && w.state == "" {
		err = errors.New("restored state: there is none")
	}
	defer func() {
		if err != nil { // CREATING stays: the directory must not pass for an empty one
			_ = errors.Join(os.RemoveAll(w.state), os.RemoveAll(d.Blocks()))
		}
	}()
	if err != nil {
		return err
	}
	if err := (&Directory{path: d.Blocks()}).sync(); err != nil {
		return err
	}
	if err := prepare(w.state); err != nil {
		return err
	}
	if err := os.Rename(w.state, d.State()); err != nil {
		return fmt.Errorf("restored state: %w", err)
	}
	return d.sync()
}

// DropState removes what MakeState and the log have put into a directory that is not a ledger yet, so that it
// can be made again.
func (d *Directory) DropState() error { return d.remove(StateName, SumsName, BlocksName, LogName) }

// stateWriter makes the files of a state, one after another.
type stateWriter struct {
	directory *Directory
	state     string // the path of the state file for the time being
	current   *os.File
}

// open begins a file once the one before it is on disk.
func (w *stateWriter) open(file uint64) (_ io.Writer, err error) {
	if err := w.finish(); err != nil {
		return nil, err
	}
	d := w.directory
	if file > 0 {
		w.current, err = private.Create(filepath.Join(d.Blocks(), blockfile.Name(file)))
	} else if w.current, err = os.CreateTemp(d.path, StateName+newSuffix+"*"); err == nil {
		w.state = w.current.Name()
	}
	if err != nil {
		return nil, fmt.Errorf("restored state: %w", err)
	}
	return &steadyWriter{file: w.current}, nil
}

// steadyBytes is after how much a steadyWriter syncs.
const steadyBytes = 1 << 20

// steadyWriter syncs a large file as it is written. One sync at the end would delay every other sync on the disk, such
// as those of a ledger whose log is on it.
type steadyWriter struct {
	file     *os.File
	unsynced int
}

// Write implements io.Writer.
func (w *steadyWriter) Write(b []byte) (n int, err error) {
	n, err = w.file.Write(b)
	if w.unsynced += n; err == nil && w.unsynced >= steadyBytes {
		w.unsynced = 0
		err = w.file.Sync()
	}
	return n, err
}

func (w *stateWriter) finish() error {
	if w.current == nil {
		return nil
	}
	err := errors.Join(w.current.Sync(), w.current.Close())
	w.current = nil
	return err
}
