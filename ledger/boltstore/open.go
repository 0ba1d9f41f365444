package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/internal/pagesum"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	formatMagic   = "seqledger state\n"
	formatVersion = 1

	// lockTimeout is long enough for a process that is just exiting and short
	// enough that an operator sees the answer at once.
	lockTimeout = 250 * time.Millisecond

	adviceRestore = "restore the data directory from a backup"
	otherProgram  = "a bbolt file of some other program; correct the path, or " + adviceRestore + " if it is right"
)

// The store's own bucket and its records.
var (
	controlBucket = []byte("seqledger")
	keyFormat     = []byte("format")
	keyIdentity   = []byte("identity")
	keyApplied    = []byte("applied")
	// keyBlocks is where the blocks end that applied covers: a blockfile.Mark.
	keyBlocks = []byte("blocks")
	// keyStart is where the blocks begin: a blockfile.Start, or empty if none have been dropped.
	keyStart = []byte("start")
	// keyJournal has 1 while the file has a journal and 0 otherwise. It is always there and must agree with the bucket,
	// so that the loss of either is noticed.
	keyJournal = []byte("journal")
)

// Options says how to open a store.
type Options struct {
	// Create makes the file if there is none. Otherwise a missing file is
	// refused, because an empty state with a truncated log would be taken for
	// the real one.
	Create bool
	// Identity of the data directory, not empty. It is stored at creation and
	// must be the same at every later opening, so that files of two
	// directories cannot be mixed up.
	Identity []byte
	// Yield is called by Flush now and then, with how long they have
	// worked since the last time; nil for no pauses. A flush of hundreds of
	// thousands of records keeps a processor busy for seconds, and an Update
	// beside it would take longer. Update and View go on meanwhile.
	Yield func(worked time.Duration)
	// Advanced is called by an Update, and by a View for which one may wait, each time that it has read or written a
	// record beyond memory: the disk is slow, perhaps, and does not hang. It must not block; may be nil.
	Advanced func()
	// SealBytes is the length at which the block files of a new state are sealed, in
	// bytes; default [blockfile.DefaultSealBytes]. Only tests give another.
	SealBytes int64
	// StepBytes is how many bytes of pages a transaction of a Flush changes in a file of more than 128 MiB; default
	// 64 MiB. Only tests give another, which is for smaller files, too; their journal has short records.
	StepBytes int64
	// NoPageSums opens the file without the checksums of its pages, for a copy that is about to
	// be checked record by record and adopted.
	NoPageSums bool
	// NoSync leaves out every fsync. For tests only: a crash of the machine
	// destroys the file.
	NoSync bool

	archive func(blockfile.Disk) blockfile.Disk // see OpenWithArchive
}

// Open opens the state for reading and writing and keeps it locked until
// Close. Errors name the path, the defect and what to do: [ErrLocked],
// [ErrForeign], [ErrVersion], [machine.ErrCorrupt], or [io/fs.ErrNotExist]. It
// reads a few pages and the list of free ones, not the data.
func Open(path string, o Options) (*Store, error) {
	if len(o.Identity) == 0 {
		return nil, fmt.Errorf("open %s: no identity given", path)
	}
	if o.Create {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if err := create(path, o); err != nil {
				return nil, err
			}
		}
	}
	return open(path, o, false)
}

// OpenReadOnly opens the state for an offline check: View works, and so does
// Update, so that a log can be replayed on it, but what it changes stays in
// memory and Flush is refused. Several processes may do so at once, but none
// while another one has it open for writing. Damage that a View meets does not
// stop a read-only store.
func OpenReadOnly(path string, identity []byte) (*Store, error) {
	return open(path, Options{Identity: identity}, true)
}

// OpenWithArchive is OpenReadOnly with dropped block files: given the disk of the present files, disk returns one that
// also has the dropped ones.
func OpenWithArchive(path string, identity []byte, disk func(blockfile.Disk) blockfile.Disk) (*Store, error) {
	return open(path, Options{Identity: identity, archive: disk}, true)
}

func open(path string, o Options, readOnly bool) (*Store, error) {
	if _, err := checkFile(path); err != nil {
		return nil, err
	}
	s := &Store{
		path: path, readOnly: readOnly, memory: newPool(), yield: o.Yield, advanced: o.Advanced,
		stepBytes: defaultStepBytes, journalFrom: defaultJournalFrom, journalRun: defaultJournalRun,
	}
	if s.advanced == nil {
		s.advanced = func() {}
	}
	s.active = s.newOverlay()
	if o.StepBytes != 0 {
		s.stepBytes, s.journalFrom, s.journalRun = o.StepBytes, 0, 256
	}
	if err := s.openBolt(o); err != nil {
		return nil, err
	}
	sums := &pagesum.Options{Identity: o.Identity, ReadOnly: readOnly, NoSync: o.NoSync}
	if o.NoPageSums {
		sums = nil
	}
	meta, err := s.checkPages(sums)
	if err == nil {
		err = s.load(o)
	}
	if err == nil && !readOnly && !o.NoSync {
		err = s.settle(meta)
	}
	if err == nil && !readOnly {
		err = s.blocks.RemoveDropped() // not before it is settled where they begin
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// openBolt opens and locks the file. bbolt panics on a list of free pages that
// makes no sense.
func (s *Store) openBolt(o Options) (err error) {
	mapped, err := reserve(s.path, mapSize())
	if err != nil {
		return fmt.Errorf("size of the state file: %w", err)
	}
	s.mapped = int64(mapped)
	options := boltOptions(o, s.readOnly)
	options.InitialMmapSize = mapped
	options.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		// Without O_CREATE: a file that has just vanished must not come back
		// empty.
		file, err := os.OpenFile(name, flag&^os.O_CREATE, mode)
		s.file = file
		return file, err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			// bbolt is gone with its lock on the file; only our handle is left
			// to release it. An error of that would hide the damage.
			_ = abandon(s.file)
			err = fmt.Errorf("%s: %w: bbolt: %v; "+adviceRestore, s.path, machine.ErrCorrupt, p)
		}
	}()
	s.bolt, err = bbolt.Open(s.path, 0o600, options)
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("%s: %w; stop it first", s.path, ErrLocked)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum),
		errors.Is(err, bolterrors.ErrVersionMismatch):
		return fmt.Errorf("%s: %w: bbolt: %w; "+adviceRestore, s.path, machine.ErrCorrupt, err)
	case errors.Is(err, syscall.ENOMEM):
		return fmt.Errorf("%s: the system does not map the state file: it takes %d bytes of address space, which "+
			"is no memory; let this process have that much more of it (ulimit -v, LimitAS= of systemd): %w",
			s.path, mapped, err)
	case err != nil:
		return fmt.Errorf("open %s: %w", s.path, err)
	}
	s.pageSize = s.bolt.Info().PageSize
	return nil
}

func boltOptions(o Options, readOnly bool) *bbolt.Options {
	return &bbolt.Options{
		Timeout:  lockTimeout,
		ReadOnly: readOnly,
		NoSync:   o.NoSync,
		// The list of free pages is kept in the file: rebuilding it would read
		// the whole file at every start.
		NoFreelistSync: false,
		FreelistType:   bbolt.FreelistMapType,
		NoStatistics:   true, // a lock on every read transaction, for nothing
	}
}

// mapSize is how much address space to reserve for a file at least, in bytes. Mapping
// a grown file anew waits for all reads to end, and holds up new ones, so the
// map is made large at once: it costs nothing where it is not used.
func mapSize() int {
	if strconv.IntSize < 64 || runtime.GOOS == "windows" {
		return 0 // too little address space; Windows extends the file to the map
	}
	gib := 1 << 30
	return 16 * gib
}

// create makes an empty state under a temporary name and links it to path when it is complete and synced, so that a
// crash never leaves half a file there and two processes cannot both create it.
func create(path string, o Options) error {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, filepath.Base(path)+".new-*")
	if err != nil {
		return fmt.Errorf("create the state: %w", err)
	}
	// Whatever happens the temporary name goes; a file that stays is harmless.
	defer func() { _ = os.Remove(temp.Name()) }()
	if err := temp.Close(); err != nil {
		return fmt.Errorf("create the state: %w", err)
	}
	if err := initialize(temp.Name(), o); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the state: %w", err)
	}
	if o.NoSync {
		return nil
	}
	if err := durable.SyncDir(dir); err != nil {
		return fmt.Errorf("sync the data directory: %w", err)
	}
	return nil
}

// initialize fills an empty file with the buckets and the control records.
func initialize(path string, o Options) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: lockTimeout, NoSync: o.NoSync, FreelistType: bbolt.FreelistMapType,
	})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucket(controlBucket); err != nil {
			return err
		}
		return errors.Join(
			putTables(tx),
			putControl(tx, keyIdentity, o.Identity),
			putApplied(tx, Position{}),
			putControl(tx, keyBlocks, firstMark(o).Append(nil)),
			putControl(tx, keyStart, nil),
			putControl(tx, keyJournal, []byte{0}),
		)
	})
	return errors.Join(err, db.Close())
}

// putTables makes the tables, and says which format they have.
func putTables(tx *bbolt.Tx) error {
	for table := range machine.Table(machine.TableCount) {
		if !table.InStateFile() {
			continue
		}
		if _, err := tx.CreateBucket(bucketName(table)); err != nil {
			return fmt.Errorf("table %d: %w", table, err)
		}
	}
	return putControl(tx, keyFormat, binary.LittleEndian.AppendUint32([]byte(formatMagic), formatVersion))
}

// change runs fn on the file and commits.
func (s *Store) change(fn func(tx *bbolt.Tx) error) error {
	_, err := s.transact(fn)
	return err
}

// settle makes sure that the checkpoint just read is on disk, by writing its meta
// page once more. After a failed fsync the page may be in the system's cache but not
// on disk, marked clean, and a restarted process would see a checkpoint that the
// disk does not have: the next flush would then overwrite pages that the checkpoint
// on disk still needs. Writing the same bytes again makes both agree. If that is
// torn by a crash the other meta page counts, and nothing of it has been touched.
func (s *Store) settle(meta boltpage.Meta) error {
	page := make([]byte, meta.PageSize)
	if _, err := s.file.ReadAt(page, meta.Offset); err != nil {
		return fmt.Errorf("%s: read the meta page: %w", s.path, err)
	}
	if _, err := s.file.WriteAt(page, meta.Offset); err != nil {
		return fmt.Errorf("%s: rewrite the meta page: %w", s.path, err)
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("%s: sync the meta page: %w", s.path, err)
	}
	return nil
}

// load checks the control records and takes over what they say.
func (s *Store) load(o Options) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	tx, err := s.begin(false)
	if err != nil {
		return fmt.Errorf("%s: %w; "+adviceRestore, s.path, err)
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }()
	c, err := readControl(tx, o.Identity)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.positions.applied, s.positions.checkpoint = c.applied, c.applied
	if c.journal {
		if s.frozen, err = s.loadJournal(tx); err != nil {
			return fmt.Errorf("%s: %w; "+adviceRestore, s.path, err)
		}
		s.unmerged = true
		s.measure()
	}
	if c.sealed, err = s.sealedFiles(tx, max(c.start.Number, 1), c.mark.Number); err != nil {
		return fmt.Errorf("%s: %w; "+adviceRestore, s.path, err)
	}
	if err := s.openBlocks(c, o); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	return nil
}

// control is what the store's own records say.
type control struct {
	journal bool // the file has a journal of changes that are not yet in all of their tables
	applied Position
	mark    blockfile.Mark
	start   blockfile.Start
	sealed  []blockfile.SealedFile // as far as they are recorded
}

// readControl reads the control records once format and identity are right; any
// identity is for nil.
func readControl(tx *bbolt.Tx, identity []byte) (c control, err error) {
	defer recoverDamage(controlTable, nil, &err)
	version, bucket, err := readFormat(tx)
	if err != nil {
		return control{}, err
	}
	if err := format.Check(version, formatVersion); err != nil {
		return control{}, err
	}
	stored, err := getControl(bucket, keyIdentity, -1)
	if err != nil {
		return control{}, err
	}
	if identity != nil && !bytes.Equal(stored, identity) {
		return control{}, fmt.Errorf("%w: it has identity %x, this directory %x; "+
			"put the right file back or restore from a backup", ErrForeign, stored, identity)
	}
	applied, err := getControl(bucket, keyApplied, 16)
	if err != nil {
		return control{}, err
	}
	mark, err := getControl(bucket, keyBlocks, -1)
	if err != nil {
		return control{}, err
	}
	if c.mark, err = blockfile.DecodeMark(mark); err != nil {
		return control{}, fmt.Errorf("control record %q: %w; "+adviceRestore, keyBlocks, err)
	}
	if c.start, err = readStart(bucket); err != nil {
		return control{}, err
	}
	journal, err := getControl(bucket, keyJournal, 1)
	if err != nil {
		return control{}, err
	}
	if c.journal = journal[0] == 1; c.journal != (tx.Bucket(journalBucket) != nil) {
		err := damaged(controlTable, keyJournal, "it says that the file has a journal: %t, and there is one: %t",
			c.journal, !c.journal)
		return control{}, fmt.Errorf("control record %q: %w; "+adviceRestore, keyJournal, err)
	}
	c.applied.Index = binary.LittleEndian.Uint64(applied)
	c.applied.Term = binary.LittleEndian.Uint64(applied[8:])
	return c, nil
}

func readStart(bucket *bbolt.Bucket) (s blockfile.Start, err error) {
	start, err := getControl(bucket, keyStart, -1)
	if err != nil || len(start) == 0 {
		return s, err
	}
	if s, err = blockfile.DecodeStart(start); err != nil {
		return s, fmt.Errorf("control record %q: %w; "+adviceRestore, keyStart, err)
	}
	return s, nil
}

// readFormat returns the format version of a file, and the bucket of the control records.
func readFormat(tx *bbolt.Tx) (version uint32, bucket *bbolt.Bucket, err error) {
	if bucket = tx.Bucket(controlBucket); bucket == nil {
		return 0, nil, fmt.Errorf("%w: %s", ErrForeign, otherProgram)
	}
	format, err := getControl(bucket, keyFormat, len(formatMagic)+4)
	if err != nil {
		return 0, nil, err
	}
	if string(format[:len(formatMagic)]) != formatMagic {
		return 0, nil, fmt.Errorf("%w: %s", ErrForeign, otherProgram)
	}
	return binary.LittleEndian.Uint32(format[len(formatMagic):]), bucket, nil
}

// getControl returns a control record of the given size, or any for -1.
func getControl(bucket *bbolt.Bucket, key []byte, size int) ([]byte, error) {
	value, err := unseal(controlTable, key, bucket.Get(key))
	if err == nil && size >= 0 && len(value) != size {
		err = damaged(controlTable, key, "%d bytes, expected %d", len(value), size)
	}
	if err != nil {
		return nil, fmt.Errorf("control record %q: %w; "+adviceRestore, key, err)
	}
	return value, nil
}

// putControl stores a control record.
func putControl(tx *bbolt.Tx, key, value []byte) error {
	bucket := tx.Bucket(controlBucket)
	if bucket == nil {
		return damaged(controlTable, key, "the store's own bucket is missing")
	}
	if err := bucket.Put(key, sealed(controlTable, key, value)); err != nil {
		return fmt.Errorf("control record %q: %w", key, err)
	}
	return nil
}
