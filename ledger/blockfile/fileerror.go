package blockfile

import (
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/internal/format"
)

const adviceRestore = "restore the data directory from a backup"

// FileError reports a defect of a file, its path, and what to do.
type FileError struct {
	Number uint64
	Place  Place
	Offset int64 // of the byte in question; 0 for none
	Err    error
}

// Place is where a file is that is not in the directory of the ledger, and what to do when it is damaged. The zero
// Place is that directory.
type Place struct{ Where, Advice string }

// Placer is a Disk that has files of several directories.
type Placer interface {
	// Place returns where a file is, or should be if it is missing.
	Place(name string) Place
}

// Error implements error.
func (e *FileError) Error() string {
	text, advice := "block file "+Name(e.Number), adviceRestore
	if e.Place != (Place{}) {
		text, advice = text+" "+e.Place.Where, e.Place.Advice
	}
	if e.Offset > 0 {
		text = fmt.Sprintf("%s, byte %d", text, e.Offset)
	}
	if errors.Is(e.Err, format.ErrVersion) { // which is no damage
		return fmt.Sprintf("%s: %v", text, e.Err)
	}
	return fmt.Sprintf("%s: %v; %s", text, e.Err, advice)
}

// Unwrap returns the defect.
func (e *FileError) Unwrap() error { return e.Err }

// fileError makes an error of a file on a disk.
func fileError(d Disk, number uint64, err error) *FileError {
	wrong := &FileError{Number: number, Err: err}
	if s, ok := d.(*scratch); ok {
		d = s.Disk
	}
	if p, ok := d.(Placer); ok {
		wrong.Place = p.Place(Name(number))
	}
	return wrong
}

// wrong makes an error of a file.
func (f *Files) wrong(number uint64, err error) error { return fileError(f.disk, number, err) }

// wrongAt makes an error of a place in a file.
func (f *Files) wrongAt(number uint64, offset int64, err error) error {
	wrong := fileError(f.disk, number, err)
	wrong.Offset = offset
	return wrong
}
