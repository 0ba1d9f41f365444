package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"

	"github.com/seqledger/seqledger/ledger/blockfile"
)

// Target keeps objects by names, whose parts are separated by slashes. A call may hang until its context ends, and on
// a file system even longer.
type Target interface {
	// Put makes an object of the first size bytes of r, whose SHA-256 is sum. It gets its name once it is durable and
	// was read back whole. If there is an object of this name already, that one stays, and Put succeeds.
	Put(ctx context.Context, name string, r io.ReaderAt, size int64, sum [sha256.Size]byte) error
	// Open opens an object to read it while ctx lasts. An absent one is fs.ErrNotExist.
	Open(ctx context.Context, name string) (blockfile.File, error)
	// List returns what is in a folder, whose name ends with a slash unless it is the empty one of the whole target.
	// All that it returns is durable. A folder that is absent is empty, a target that is absent an error.
	List(ctx context.Context, folder string) ([]Object, error)
	// Delete removes an object, or an empty folder, for good. It may be absent.
	Delete(ctx context.Context, name string) error
	// String names the target as an operator does.
	String() string
}

// Object is an object in a list, or a folder.
type Object struct {
	Name string // with that of its folder; of a folder it ends with a slash
	Size int64  // bytes
}

// readSmall reads an object of which the first most bytes matter.
func readSmall(ctx context.Context, t Target, name string, most int64) (content []byte, err error) {
	f, err := t.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	content = make([]byte, min(size, most)) // at once, because a bucket takes as long for few bytes as for many
	n, err := f.ReadAt(content, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return content[:n], err
}
