// Package datadir creates and opens data directories, and locks them.
//
// A data directory holds:
//
//	LOCK       flock of the process that has it open
//	LEDGER     the marker; written last at creation, so a directory without it was never used
//	CREATING   exists only while the directory is being created
//	state.db   the state (package boltstore)
//	state.sum  the checksums of its pages (package pagesum)
//	blocks/    the block files that belong to it (package blockfile)
//	log/       the replicated log (package raftlog)
//	ARCHIVE    the id of the archive
//	JOIN-TOKEN the secret that the nodes of a cluster share
//	RECOVERING exists only while a surviving node becomes a single-node ledger
//	OLD-COPY   the node has acknowledged more than the directory holds
//	incoming/  exists only while the state of another node replaces this one
//
// Creation is CREATING, state.db with its sums and blocks, log, LEDGER, then CREATING is removed. A
// crash in between leaves CREATING without LEDGER: nothing was acknowledged, so the parts are removed
// and creation starts over.
//
// A restore does the same, and CREATING says so: only another restore may start over. An ordinary
// start would put an empty ledger in place of the one to be restored.
//
// A node that can no longer follow the log gets the state of another node in incoming/. The file
// WHOLE in it is written last. Without WHOLE, a start removes incoming/ and keeps the current state;
// with it, a start moves the parts into their places.
package datadir

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
	"syscall"

	"github.com/gofrs/flock"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/ledger/internal/format"
)

const (
	// StateName is the name of the state file in a data directory.
	StateName = "state.db"
	// BlocksName is the name of the directory of the block files.
	BlocksName = "blocks"
	// SumsName is the name of the file with the checksums of the state file's pages.
	SumsName = "state.sum"
	// LogName is the name of the log's directory in a data directory.
	LogName = "log"
	// ArchiveName is the name of the file with the id of the ledger's archive.
	ArchiveName = "ARCHIVE"

	lockName     = "LOCK"
	markerName   = "LEDGER"
	creatingName = "CREATING"

	recoveringName = "RECOVERING"
	oldCopyName    = "OLD-COPY"
	newSuffix      = ".new-" // of an incomplete state file

	// formatVersion is the format of the directory as a whole. See FORMAT.md.
	formatVersion = 1

	identityBytes = 16
)

var (
	// ErrInUse says that another process has the data directory open.
	ErrInUse = errors.New("the data directory is in use by another process")
	// ErrRestoring says that a restore into the data directory did not reach its end.
	ErrRestoring = errors.New("a restore into the data directory was interrupted: run it again before anything else")
	// ErrJoining says that a directory is being made for a node that joins a cluster.
	ErrJoining = errors.New("the node has not joined its cluster yet: start it with --join again, " +
		"or empty the directory")
	// ErrRecovering means that a recovery was interrupted.
	ErrRecovering = errors.New("a recovery of the data directory was interrupted: run seqledger recover again before " +
		"anything else")
	// ErrOldCopy says that the node has acknowledged entries of the log that are not in the directory.
	ErrOldCopy = errors.New("the data directory is an old copy: the node has acknowledged writes that are not in it, " +
		"and a node that runs on it could help to lose them")
	// ErrClock says that the clock is too far ahead of the directory's last command to be right.
	ErrClock = errors.New("the clock is too far ahead of the ledger to be right")
)

// Origin is what a directory is made from; CREATING holds it.
type Origin string

// The origins of a directory.
const (
	Created  Origin = ""
	Restored Origin = "restore\n"
	// Joined is a directory that is made from the state of another node. In CREATING it is
	// followed by the nonce with which the node asks to join, in hex.
	Joined Origin = "join\n"
)

// originOf tells what the directory was to be made from whose CREATING has this content.
func originOf(creating []byte) (from Origin, known bool) {
	if strings.HasPrefix(string(creating), string(Joined)) {
		return Joined, true
	}
	from = Origin(creating)
	return from, from == Created || from == Restored
}

// Directory is a data directory that this process has locked until Close.
type Directory struct {
	path     string
	lock     *flock.Flock // nil: see lockToRead
	identity []byte       // identityBytes that its parts bear
	nonce    [16]byte     // of a node that joins
	node     uint64       // number in the cluster; 0: the first
	fresh    bool         // being created
}

type marker struct {
	Format    int    `json:"format"`
	Directory string `json:"directory"` // identity in hex
	Node      string `json:"node"`
	// ID is the id of the node in its cluster; it is left out for node 1.
	ID uint64 `json:"id,omitempty"`
}

// Open locks a data directory to use it. It makes the directory if need be, and
// finds out whether a ledger is to be created in it: see Fresh. Only a directory
// without a ledger can be restored.
func Open(path string, from Origin) (*Directory, error) {
	if err := durable.MakeDirectory(path); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	// Before the lock, because that would leave a file in a directory that is refused.
	// Only the lock tells whether a restore was interrupted or is still running.
	if err := (&Directory{path: path}).inspect(from); err != nil && !errors.Is(err, ErrRestoring) {
		return nil, err
	}
	d, err := lockIn(path)
	if err != nil {
		return nil, err
	}
	if err = d.inspect(from); err == nil {
		err = d.prepare(from)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// OpenLedger locks a directory that holds a ledger and is only to be read.
func OpenLedger(path string) (*Directory, error) {
	d, err := OpenSurvivor(path)
	if err != nil {
		return nil, err
	}
	if err := d.mustNotRecover(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// OpenSurvivor is OpenLedger for a directory that is recovered, or is looked at before. It takes one whose
// recovery was interrupted, too; see Recovering.
func OpenSurvivor(path string) (*Directory, error) {
	// Before the lock, because that would leave a file in a directory that is refused.
	if err := (&Directory{path: path}).mustBeLedger(); err != nil {
		return nil, err
	}
	d, err := lockToRead(path)
	if err != nil {
		return nil, err
	}
	if err := d.mustBeWhole(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// mustBeWhole reads the marker of a locked directory, and refuses one that another state is taking over. A
// replacement may have gone on until the lock was free.
func (d *Directory) mustBeWhole() error {
	if err := d.mustBeLedger(); err != nil {
		return err
	}
	whole, err := d.incomingIsWhole()
	if err == nil && whole {
		err = fmt.Errorf("%w: %s", ErrReplacing, d.path)
	}
	return err
}

// Recovering reports whether a recovery was begun that did not come to its end.
func (d *Directory) Recovering() (bool, error) { return exists(d.file(recoveringName)) }

// BeginRecovery notes durably that the directory is being recovered: until EndRecovery it can neither be started nor
// read.
func (d *Directory) BeginRecovery() error { return d.writeFile(recoveringName, nil) }

// EndRecovery notes durably that the recovery has come to its end. An old copy has become an independent ledger.
func (d *Directory) EndRecovery() error { return d.remove(oldCopyName, recoveringName) }

func (d *Directory) mustNotRecover() error {
	recovering, err := d.Recovering()
	if err == nil && recovering {
		err = fmt.Errorf("%w: %s", ErrRecovering, d.path)
	}
	return err
}

// MarkOldCopy notes durably that the directory is an old copy, which Open refuses.
func (d *Directory) MarkOldCopy() error { return d.writeFile(oldCopyName, nil) }

func (d *Directory) mustNotBeOldCopy() error {
	marked, err := exists(d.file(oldCopyName))
	if err == nil && marked {
		err = fmt.Errorf("%w: %s", ErrOldCopy, d.path)
	}
	return err
}

func lockIn(path string) (*Directory, error) {
	d := &Directory{path: path, lock: flock.New(filepath.Join(path, lockName), flock.SetPermissions(0o600))}
	locked, err := d.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock of data directory %s: %w", path, err)
	}
	if !locked {
		return nil, fmt.Errorf("%w: %s", ErrInUse, path)
	}
	return d, nil
}

// lockToRead is lockIn for a directory that is only read. On a file system that is mounted read-only a lock may be
// neither there nor made, and nothing that this process could disturb writes to the directory.
func lockToRead(path string) (*Directory, error) {
	d, err := lockIn(path)
	if errors.Is(err, syscall.EROFS) {
		return &Directory{path: path}, nil
	}
	return d, err
}

// mustBeLedger reads the marker of a directory that is only to be looked at.
func (d *Directory) mustBeLedger() error {
	info, err := os.Stat(d.path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is a file and no directory", d.path)
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
func (d *Directory) inspect(from Origin) error {
	d.fresh = false
	if _, err := os.Stat(d.file(markerName)); err == nil {
		if from == Restored {
			return fmt.Errorf("%s holds a ledger already; restore into an absent or empty directory", d.path)
		}
		if err := errors.Join(d.mustNotRecover(), d.mustNotBeOldCopy()); err != nil {
			return err
		}
		return d.readMarker()
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("data directory: %w", err)
	}
	d.fresh = true
	begun, err := os.ReadFile(d.file(creatingName))
	was, known := originOf(begun)
	switch {
	case err != nil, !known:
		return d.mustBeEmpty()
	case was == Restored && from != Restored:
		return fmt.Errorf("%w: %s", ErrRestoring, d.path)
	case was == Joined && from != Joined:
		return fmt.Errorf("%w: %s", ErrJoining, d.path)
	}
	return nil
}

// joinContent returns the content of CREATING for a node that joins: the existing nonce, or a new one, so that
// an interrupted start asks for the same place again.
func (d *Directory) joinContent() ([]byte, error) {
	content, err := os.ReadFile(d.file(creatingName))
	was, _ := originOf(content)
	if err != nil || was != Joined {
		if _, err := rand.Read(d.nonce[:]); err != nil {
			return nil, fmt.Errorf("random nonce: %w", err)
		}
		return fmt.Appendf([]byte(Joined), "%x\n", d.nonce), nil
	}
	text := strings.TrimSuffix(strings.TrimPrefix(string(content), string(Joined)), "\n")
	nonce, err := hex.DecodeString(text)
	if err != nil || len(nonce) != len(d.nonce) {
		return nil, fmt.Errorf("%s is damaged: empty the directory and join again", d.file(creatingName))
	}
	copy(d.nonce[:], nonce)
	return content, nil
}

// Nonce returns what a node that joins asks with. It is the same until the directory is made.
func (d *Directory) Nonce() [16]byte { return d.nonce }

// prepare removes what a crash has left in a locked directory, and begins the
// creation of a new one.
func (d *Directory) prepare(from Origin) error {
	if !d.fresh {
		if err := d.recoverIncoming(); err != nil {
			return err
		}
		return d.removeLeftovers(creatingName) // of a crash between the last two steps
	}
	// CREATING itself stays until the new one takes its place: a restore that
	// is killed here must not leave what looks empty.
	if err := d.removeLeftovers(StateName, SumsName, BlocksName, LogName); err != nil {
		return err
	}
	d.identity = make([]byte, identityBytes)
	if _, err := rand.Read(d.identity); err != nil {
		return fmt.Errorf("random identity: %w", err)
	}
	content := []byte(from)
	if from == Joined {
		var err error
		if content, err = d.joinContent(); err != nil {
			return err
		}
	}
	return d.writeFile(creatingName, content)
}

// mustBeEmpty keeps a mistyped path from being filled with a ledger, and a
// ledger that lost its marker from being overwritten.
func (d *Directory) mustBeEmpty() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	for _, e := range entries {
		// A crash may have left the temporary file of the first step, and the root of a
		// file system has lost+found.
		ours := e.Name() == lockName || strings.HasPrefix(e.Name(), temporaryPrefix(creatingName))
		if !ours && e.Name() != "lost+found" {
			return fmt.Errorf("%s is not a seqledger data directory: it has no file %s but it holds %q; "+
				"name an empty directory, or restore this one from a backup", d.path, markerName, e.Name())
		}
	}
	return nil
}

func (d *Directory) readMarker() error {
	b, err := os.ReadFile(d.file(markerName))
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	var m marker
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("%s is damaged: %w; restore the directory from a backup", d.file(markerName), err)
	}
	if err := format.Check(m.Format, formatVersion); err != nil {
		return fmt.Errorf("%s: %w", d.file(markerName), err)
	}
	d.node = m.ID
	d.identity, err = hex.DecodeString(m.Directory)
	if err != nil || len(d.identity) != identityBytes {
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
func (d *Directory) marker() ([]byte, error) {
	b, err := json.Marshal(marker{
		Format: formatVersion, Directory: hex.EncodeToString(d.identity), Node: d.NodeID(), ID: d.node,
	})
	return append(b, '\n'), err
}

// Finish makes a ledger of a directory that is being created. Everything in it
// must be durable by then, because the marker says that it is.
func (d *Directory) Finish() error {
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

// Path returns the path that the directory was opened by.
func (d *Directory) Path() string { return d.path }

// Fresh reports whether a ledger is being created in the directory.
func (d *Directory) Fresh() bool { return d.fresh }

// Identity returns the 16 random bytes that the parts of the directory bear.
func (d *Directory) Identity() []byte { return d.identity }

// NodeID returns the name of this node among the voters.
func (d *Directory) NodeID() string { return hex.EncodeToString(d.identity) }

// Node returns the number of this node in its cluster.
func (d *Directory) Node() uint64 { return max(1, d.node) }

// SetNode says which node of a cluster a directory is made for that is being created.
func (d *Directory) SetNode(id uint64) {
	if d.node = id; id == 1 {
		d.node = 0 // one form of each marker
	}
}

// State returns the path of the state file.
func (d *Directory) State() string { return d.file(StateName) }

// Blocks returns the path of the directory of the block files.
func (d *Directory) Blocks() string { return d.file(BlocksName) }

// Log returns the path of the log's directory.
func (d *Directory) Log() string { return d.file(LogName) }

func (d *Directory) file(name string) string { return filepath.Join(d.path, name) }

// Close gives the directory free.
func (d *Directory) Close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}
