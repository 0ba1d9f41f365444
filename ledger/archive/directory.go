package archive

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/seqledger/seqledger/ledger/blockfile"
)

// Directory is a target in a directory of the system, by its path. The directory itself is never made: below a file
// system that is not mounted it would be the wrong one.
func Directory(path string) Target { return localTarget{onDisk{directory(path)}} }

// localTarget is a target in a directory of the system.
type localTarget struct{ onDisk }

// Path returns the path of the directory.
func (t localTarget) Path() string { return t.String() }

// Disk is the file system of a target. [Directory] uses the real one; the simulation has one that is away, full or
// dies.
type Disk interface {
	// Create makes a temporary file for an object, and returns its name: that of a folder, something that tells the
	// object, ".new-" and something else. It is written from the beginning to the end, because some mounted buckets
	// support nothing else.
	Create(object string) (w Writer, name string, err error)
	// Publish gives a temporary file the name of its object. If that exists, it stays, and the error is fs.ErrExist.
	Publish(temporary, object string) error
	Remove(name string) error
	// Sync makes the names in a folder, which may be absent, and in those above it durable.
	Sync(folder string) error
	Open(name string) (blockfile.File, error)
	// List returns what is in a folder as Target does.
	List(folder string) ([]Object, error)
	String() string
}

const (
	// temporaryMark follows the name of the object in that of a temporary file.
	temporaryMark = ".new-"
	// temporaryFolder is where a directory has them, below the id of the ledger: what killed processes have left is
	// found without a list of all objects.
	temporaryFolder = "new"
)

// Writer is a file that is being made.
type Writer interface {
	io.WriteCloser
	// Sync makes the contents durable.
	Sync() error
}

// OnDisk is a target on a disk.
func OnDisk(d Disk) Target { return onDisk{d} }

type onDisk struct{ disk Disk }

// String implements [Target].
func (t onDisk) String() string { return t.disk.String() }

// Open implements [Target].
func (t onDisk) Open(_ context.Context, name string) (blockfile.File, error) {
	return t.disk.Open(name)
}

// List implements [Target]. It syncs the names then, because those that another process makes, or had made before it
// was killed, may be in the cache alone.
func (t onDisk) List(_ context.Context, folder string) ([]Object, error) {
	found, err := t.disk.List(folder)
	if err == nil {
		err = t.disk.Sync(folder)
	}
	return found, err
}

// Delete implements [Target].
func (t onDisk) Delete(_ context.Context, name string) error {
	if err := t.disk.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return t.disk.Sync(path.Dir(name) + "/") // so that this object is gone before a later one
}

// Put implements [Target].
func (t onDisk) Put(
	ctx context.Context, name string, r io.ReaderAt, size int64, sum [sha256.Size]byte,
) error {
	folder := path.Dir(name) + "/"
	if t.exists(name) { // another node of the cluster was first
		return t.disk.Sync(folder)
	}
	w, temporary, err := t.disk.Create(name)
	if err != nil {
		return err
	}
	err = t.copy(w, readerWith{ctx, io.NewSectionReader(r, 0, size)})
	if err == nil {
		err = t.readBack(ctx, temporary, size, sum)
	}
	if err == nil {
		err = t.disk.Publish(temporary, name)
	}
	if err != nil {
		_ = t.disk.Remove(temporary) // a full disk needs its bytes
		if !t.exists(name) {
			return err
		}
	}
	t.removeTemporaries(temporary)
	return t.disk.Sync(folder)
}

// exists reports whether there is an object of a name. The process that made it may have removed the copy of this one.
func (t onDisk) exists(name string) bool {
	f, err := t.disk.Open(name)
	return err == nil && f.Close() == nil
}

// copy writes a file, and syncs it.
func (onDisk) copy(w Writer, in io.Reader) error {
	// Only the Write of w, because its ReadFrom would not use the buffer.
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, in, make([]byte, 256<<10))
	if err == nil {
		err = w.Sync()
	}
	return errors.Join(err, w.Close())
}

// readBack returns an error unless a file has the given content.
func (t onDisk) readBack(ctx context.Context, name string, size int64, sum [sha256.Size]byte) error {
	f, err := t.disk.Open(name)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(h, readerWith{ctx, io.NewSectionReader(f, 0, size)})
	if err == nil && [sha256.Size]byte(h.Sum(nil)) != sum {
		err = fmt.Errorf("%s: %s is not read as it was to be written", t, name)
	}
	return errors.Join(err, f.Close())
}

// removeTemporaries removes what killed processes have left of the object that a temporary file was for.
func (t onDisk) removeTemporaries(temporary string) {
	found, _ := t.disk.List(path.Dir(temporary) + "/") // the next time will do
	for _, o := range found {
		if strings.HasPrefix(o.Name, temporary[:strings.LastIndex(temporary, temporaryMark)+len(temporaryMark)]) {
			_ = t.disk.Remove(o.Name)
		}
	}
}

type readerWith struct {
	ctx context.Context //nolint:containedctx // It lives as long as one copy.
	io.Reader
}

// Read implements io.Reader.
func (r readerWith) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(b)
}

// directory is the Disk of the system.
type directory string

// String implements [Disk].
func (d directory) String() string { return string(d) }

func (d directory) path(name string) string {
	return filepath.Join(string(d), filepath.FromSlash(name))
}

// Create implements [Disk].
func (d directory) Create(object string) (Writer, string, error) {
	if _, err := os.Stat(string(d)); err != nil {
		return nil, "", err
	}
	ledger, rest, _ := strings.Cut(object, "/")
	folder := path.Join(ledger, temporaryFolder)
	err := errors.Join(os.MkdirAll(filepath.Dir(d.path(object)), 0o700), os.MkdirAll(d.path(folder), 0o700))
	if err != nil {
		return nil, "", err
	}
	f, err := os.CreateTemp(d.path(folder), strings.ReplaceAll(rest, "/", "_")+temporaryMark)
	if err != nil {
		return nil, "", err
	}
	return f, path.Join(folder, filepath.Base(f.Name())), nil
}

// Publish implements [Disk]. A file system without hard links gets the name by a rename, which does not see a file that
// another process makes at this instant.
func (d directory) Publish(temporary, object string) error {
	err := os.Link(d.path(temporary), d.path(object))
	if err == nil {
		return os.Remove(d.path(temporary))
	}
	if errors.Is(err, fs.ErrExist) {
		return err
	}
	if _, found := os.Lstat(d.path(object)); found == nil {
		return fs.ErrExist
	}
	return os.Rename(d.path(temporary), d.path(object))
}

// Remove implements [Disk]. A folder that something is in stays.
func (d directory) Remove(name string) error {
	err := os.Remove(d.path(name))
	if strings.HasSuffix(name, "/") && errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// Open implements [Disk].
func (d directory) Open(name string) (blockfile.File, error) {
	return blockfile.Directory{Path: string(d)}.OpenSealed(filepath.FromSlash(name))
}

// List implements [Disk].
func (d directory) List(folder string) (objects []Object, err error) {
	entries, err := os.ReadDir(d.path(folder))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(string(d))
		return nil, err
	}
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist): // a temporary file that has gone meanwhile
		case err != nil:
			return nil, err
		case e.IsDir():
			objects = append(objects, Object{Name: folder + e.Name() + "/"})
		default:
			objects = append(objects, Object{Name: folder + e.Name(), Size: info.Size()})
		}
	}
	return objects, err
}

// Sync implements [Disk]. Some mounted file systems cannot sync a directory; their names are durable when they return.
func (d directory) Sync(folder string) error {
	for at := path.Clean(folder); ; at = path.Dir(at) {
		f, err := os.Open(d.path(at))
		if errors.Is(err, fs.ErrNotExist) && at != "." {
			continue // nothing is in it yet
		}
		if err != nil {
			return err
		}
		if err = f.Sync(); errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrInvalid) ||
			errors.Is(err, syscall.EINVAL) {
			err = nil
		}
		if err = errors.Join(err, f.Close()); err != nil || at == "." {
			return err
		}
	}
}
