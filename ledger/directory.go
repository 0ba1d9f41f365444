package ledger

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"
)

// A data directory holds:
//
//	LOCK      flock of the process that has it open
//	LEDGER    the marker: written last at creation, so that a directory
//	          without it was never used
//	CREATING  there only while the directory is being created
//	state.db  the state (package boltstore)
//	log/      the replicated log (package raftlog)
//
// Creation is CREATING, state.db, log, LEDGER, then CREATING is removed. A
// crash in between leaves CREATING without LEDGER: nothing can have been
// acknowledged, so the parts are removed and creation begins again.
//
// A restore does the same, and CREATING says so: only another restore begins
// that again. A start that did would put an empty ledger in the place of the
// one that was to be restored.
const (
	lockName     = "LOCK"
	markerName   = "LEDGER"
	creatingName = "CREATING"
	stateName    = "state.db"
	logName      = "log"
	newSuffix    = ".new-" // of a state file that is not whole

	// formatVersion is the version of everything in the directory. See
	// FORMAT.md.
	formatVersion = 1
)

// origin is what a directory is made from; CREATING holds it.
type origin string

const (
	created  origin = ""
	restored origin = "restore\n"
)

// directory is an open data directory.
type directory struct {
	path     string
	lock     *flock.Flock
	identity []byte // 16 random bytes that its parts bear
	fresh    bool   // being created
}

type marker struct {
	Format    int    `json:"format"`
	Directory string `json:"directory"` // identity in hex
	Node      string `json:"node"`
}

// openDirectory locks a data directory, which is made if need be, and finds out
// whether it is to be created. Only a directory that is to be created can be
// restored.
func openDirectory(path string, from origin) (*directory, error) {
	if err := makeDirectory(path); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	// Before the lock, which would leave a file in a directory that is refused.
	// Whether a restore was interrupted or goes on is known with the lock alone.
	if err := (&directory{path: path}).inspect(from); err != nil && !errors.Is(err, ErrRestoring) {
		return nil, err
	}
	d, err := lockDirectory(path)
	if err != nil {
		return nil, err
	}
	if err = d.inspect(from); err == nil {
		err = d.prepare(from)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// lockLedger locks a directory that holds a ledger and is only to be read.
func lockLedger(path string) (*directory, error) {
	// Before the lock, which would leave a file in a directory that is refused.
	if err := (&directory{path: path}).mustBeLedger(); err != nil {
		return nil, err
	}
	d, err := lockDirectory(path)
	if err != nil {
		return nil, err
	}
	if err := d.mustBeLedger(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// makeDirectory is os.MkdirAll that makes the new names durable: a directory
// whose name is lost takes everything in it along.
func makeDirectory(path string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil {
		return mustBeDirectory(path, info)
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := makeDirectory(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return (&directory{path: parent}).sync()
}

func mustBeDirectory(path string, info os.FileInfo) error {
	if !info.IsDir() {
		return fmt.Errorf("%s is a file and no directory", path)
	}
	return nil
}

func lockDirectory(path string) (*directory, error) {
	d := &directory{path: path, lock: flock.New(filepath.Join(path, lockName), flock.SetPermissions(0o600))}
	locked, err := d.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock of data directory %s: %w", path, err)
	}
	if !locked {
		return nil, fmt.Errorf("%w: %s", ErrInUse, path)
	}
	return d, nil
}

// mustBeLedger reads the marker of a directory that is only to be looked at.
func (d *directory) mustBeLedger() error {
	info, err := os.Stat(d.path)
	if err == nil {
		err = mustBeDirectory(d.path, info)
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	_, err = os.Stat(d.file(markerName))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is not a seqledger data directory: it has no file %s", d.path, markerName)
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return d.readMarker()
}

// inspect refuses a directory that is not the ledger's. It changes nothing.
func (d *directory) inspect(from origin) error {
	d.fresh = false
	if _, err := os.Stat(d.file(markerName)); err == nil {
		if from == restored {
			return fmt.Errorf("%s holds a ledger already; restore into an absent or empty directory", d.path)
		}
		return d.readMarker()
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("data directory: %w", err)
	}
	d.fresh = true
	begun, err := os.ReadFile(d.file(creatingName))
	switch {
	case err != nil, origin(begun) != created && origin(begun) != restored:
		return d.mustBeEmpty()
	case origin(begun) == restored && from != restored:
		return fmt.Errorf("%w: %s", ErrRestoring, d.path)
	}
	return nil
}

// prepare removes what a crash has left in a locked directory, and begins the
// creation of a new one.
func (d *directory) prepare(from origin) error {
	if !d.fresh {
		return d.removeLeftovers(creatingName) // of a crash between the last two steps
	}
	// CREATING itself stays until the new one takes its place: a restore that
	// is killed here must not leave what looks empty.
	if err := d.removeLeftovers(stateName, logName); err != nil {
		return err
	}
	d.identity = make([]byte, 16)
	if _, err := rand.Read(d.identity); err != nil {
		return fmt.Errorf("random identity: %w", err)
	}
	return d.writeFile(creatingName, []byte(from))
}

// mustBeEmpty keeps a mistyped path from being filled with a ledger, and a
// ledger that lost its marker from being overwritten.
func (d *directory) mustBeEmpty() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	for _, e := range entries {
		// A crash may have left the temporary file of the first step, and a file
		// system of its own begins with lost+found.
		ours := e.Name() == lockName || strings.HasPrefix(e.Name(), "."+creatingName+"-")
		if !ours && e.Name() != "lost+found" {
			return fmt.Errorf("%s is not a seqledger data directory: it has no file %s but it holds %q; "+
				"name an empty directory, or restore this one from a backup", d.path, markerName, e.Name())
		}
	}
	return nil
}

func (d *directory) readMarker() error {
	b, err := os.ReadFile(d.file(markerName))
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	var m marker
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("%s is damaged: %w; restore the directory from a backup", d.file(markerName), err)
	}
	if m.Format != formatVersion {
		return fmt.Errorf("%s has format version %d and this program reads version %d; use the seqledger that wrote it",
			d.path, m.Format, formatVersion)
	}
	d.identity, err = hex.DecodeString(m.Directory)
	if err != nil || len(d.identity) != 16 {
		return fmt.Errorf("%s is damaged: %q is no directory id; restore the directory from a backup",
			d.file(markerName), m.Directory)
	}
	// It has no checksum, so that whatever else it says can only be damage.
	if want, err := d.marker(); err != nil || !bytes.Equal(b, want) {
		return errors.Join(fmt.Errorf("%s is damaged: it is %q and should be %q; restore the directory from a backup",
			d.file(markerName), b, want), err)
	}
	return nil
}

// marker returns the one form of this directory's marker.
func (d *directory) marker() ([]byte, error) {
	b, err := json.Marshal(marker{Format: formatVersion, Directory: hex.EncodeToString(d.identity), Node: d.nodeID()})
	return append(b, '\n'), err
}

// finish makes a created directory a ledger.
func (d *directory) finish() error {
	b, err := d.marker()
	if err != nil {
		return err
	}
	if err := d.writeFile(markerName, b); err != nil {
		return err
	}
	d.fresh = false
	return d.remove(creatingName)
}

// nodeID returns the name of this node among the voters.
func (d *directory) nodeID() string { return hex.EncodeToString(d.identity) }

func (d *directory) file(name string) string { return filepath.Join(d.path, name) }

// writeFile makes a file appear whole or not at all.
func (d *directory) writeFile(name string, content []byte) (err error) {
	f, err := os.CreateTemp(d.path, "."+name+"-*")
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

func (d *directory) remove(names ...string) error {
	for _, name := range names {
		if err := os.RemoveAll(d.file(name)); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	}
	return d.sync()
}

// removeLeftovers removes names, and the temporary files that a crash during
// the creation may have left.
func (d *directory) removeLeftovers(names ...string) error {
	entries, err := os.ReadDir(d.path) // no Glob: the path is no pattern
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	for _, e := range entries {
		for _, prefix := range []string{"." + creatingName + "-", "." + markerName + "-", stateName + newSuffix} {
			if strings.HasPrefix(e.Name(), prefix) {
				names = append(names, e.Name())
			}
		}
	}
	return d.remove(names...)
}

// sync makes names that were added or removed durable.
func (d *directory) sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync of %s: %w", d.path, err)
	}
	return nil
}

func (d *directory) close() error { return d.lock.Close() }
