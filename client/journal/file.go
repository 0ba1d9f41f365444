package journal

import (
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// Options configures a File. The zero value is useful.
type Options struct {
	// MaxBytes bounds the file; 0 means 64 MiB. A quarter of it may be live:
	// writes that are under way, or whose outcome waits to be acknowledged.
	// Beyond that a Writer's Submit waits.
	//
	// A stream that has had a session stays in the file until Forget, with its
	// name and up to 100 bytes, and does not count as live. As long as all
	// streams together take no more than an eighth of MaxBytes, the file stays
	// below MaxBytes; what they take beyond that it exceeds it by at most twice.
	MaxBytes int64
	// MustExist refuses to create the file. A program that knows that it has
	// had a journal sets it: a journal that was lost would look like one that
	// never held a write, and what it held would be sent a second time.
	MustExist bool
	// RememberTags is how long a tag stays in use after its write is acknowledged; 0
	// means 24 hours, negative not at all. A program that is run again, and submits
	// under the same tag what it has paid, is refused with ErrTagInUse meanwhile.
	// Tags take at most MaxBytes/32, 32 bytes each and their own; beyond that the
	// oldest are forgotten, so what a program must know for ever it notes itself.
	RememberTags time.Duration

	storage storage
}

const (
	defaultMaxBytes = 64 << 20
	minMaxBytes     = 16 << 10
	limitMaxBytes   = 1 << 30
)

// File is a journal in a file. One process has it open; any number of Writers
// of that process share it, and one fsync makes durable whatever they have
// appended until then. It is safe for concurrent use.
type File struct {
	path    string
	options Options
	storage storage
	lock    *flock.Flock
	torn    int64

	mu   sync.Mutex
	cond sync.Cond // broadcast when a flush ends
	// streams by name; numbers counts those that the current file has named.
	streams map[Name]*stream
	numbers uint64
	// buffer holds the group to be written next, with room for its header.
	// Its bound: writes in it count as live, and each has few other records.
	buffer, spare []byte
	// appended and durable count records.
	appended, durable uint64
	flushing          bool
	// live is the cost of all entries, freed is closed when it shrinks.
	live  int
	freed chan struct{}
	// tags are the remembered tags, the oldest first; tagBytes is what they take.
	tags     []rememberedTag
	tagBytes int
	err      error // sticky
	closed   bool

	// Touched by whoever flushes, and by Open and Close, alone.
	current file
	salt    uint64
	size    int64 // of the groups
	// rewritten is what size was after the last rewrite.
	rewritten int64
	// allocated is the size of the file: zeros follow the groups.
	allocated int64
}

// Open opens the journal at path and creates it if need be. It keeps others out
// with a lock on path+".lock", which stays there; symbolic links in path are
// followed first. The content is read, checked
// and written into a new file, so that a torn group at the end is gone and
// everything that was read is known to be on disk.
//
// Errors: ErrLocked, ErrMissing, a [*DamageError], or what the file system
// says.
func Open(path string, options Options) (*File, error) {
	switch {
	case options.MaxBytes == 0:
		options.MaxBytes = defaultMaxBytes
	case options.MaxBytes < minMaxBytes || options.MaxBytes > limitMaxBytes:
		return nil, fmt.Errorf("journal: Options.MaxBytes is %d, must be 0 or %d to %d", options.MaxBytes, minMaxBytes, limitMaxBytes)
	}
	if options.RememberTags == 0 {
		options.RememberTags = defaultRememberTags
	}
	// Not relative, because the process may change its directory.
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if path, err = resolve(path); err != nil {
		return nil, err
	}
	f := &File{path: path, options: options, storage: options.storage,
		streams: make(map[Name]*stream), freed: make(chan struct{})}
	f.cond.L = &f.mu
	if f.storage == nil {
		f.storage = disk{}
	}
	f.lock = flock.New(path+".lock", flock.SetPermissions(0o600))
	locked, err := f.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("journal %s: cannot be locked: %w", path, err)
	}
	if !locked {
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrLocked, path), f.lock.Close())
	}
	if err := f.load(); err != nil {
		return nil, errors.Join(err, f.lock.Close())
	}
	return f, nil
}

// resolve follows symbolic links, because the lock and the rename are of a
// name: by another name the same journal would be open twice, and the rename
// would put a file in the place of the link.
func resolve(path string) (string, error) {
	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		return target, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("journal: %w", err)
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("%w: %s is a symbolic link to nothing; remove it or bring back what it names", ErrMissing, path)
	}
	return path, nil // to be created
}

// load reads what there is and writes it anew.
func (f *File) load() error {
	content, err := f.storage.read(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.options.MustExist:
		return fmt.Errorf("%w: %s; if it was lost, find out from the ledger what was written before you begin a new one", ErrMissing, f.path)
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("journal %s: %w", f.path, err)
	default:
		good, err := replay(f.path, content, f.streams)
		if err != nil {
			return err
		}
		f.torn = int64(written(content)) - min(good, int64(written(content)))
	}
	for _, s := range f.streams {
		f.live += s.live
	}
	f.takeOverTags()
	content = f.snapshot()
	if err := f.replace(content); err != nil {
		return fmt.Errorf("journal %s: cannot be written: %w", f.path, err)
	}
	return nil
}

// replay applies the records of a whole file to streams and returns where the
// good groups end.
func replay(path string, content []byte, streams map[Name]*stream) (int64, error) {
	numbered := make(map[uint64]*stream)
	return scan(path, content, func(_ int64, body []byte) error {
		records, err := decodeGroup(body)
		if err != nil {
			return err
		}
		for i := range records {
			r := &records[i]
			s := numbered[r.number]
			switch {
			case r.Kind == kindStream && (s != nil || streams[r.name] != nil):
				return fmt.Errorf("stream %d is named twice", r.number)
			case r.Kind == kindStream:
				numbered[r.number] = newStream(r.name, r.number)
				streams[r.name] = numbered[r.number]
			case s == nil:
				return fmt.Errorf("a record of stream %d, which has no name", r.number)
			default:
				if err := s.apply(&r.Record); err != nil {
					return fmt.Errorf("stream %d (client id %q): %w", r.number, s.name.ClientID, err)
				}
			}
		}
		return nil
	})
}

// Torn returns how many bytes at the end of the file Open did not take over,
// because a crash had interrupted their being written. Nothing in them had been
// sent.
func (f *File) Torn() int64 { return f.torn }

// Streams returns what the journal holds, in the order of the names.
func (f *File) Streams() []State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return states(f.streams)
}

func states(streams map[Name]*stream) []State {
	var all []State
	for _, s := range streams {
		if !s.empty() {
			all = append(all, s.state())
		}
	}
	slices.SortFunc(all, func(a, b State) int { return a.Name.compare(b.Name) })
	return all
}

// Claim gives a stream to a Writer, until Release, and returns what the journal
// holds of it. ErrClaimed says that another has it.
func (f *File) Claim(name Name) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.usable(); err != nil {
		return State{}, err
	}
	s := f.streams[name]
	if s == nil {
		f.numbers++
		s = newStream(name, f.numbers)
		f.streams[name] = s
	}
	if s.claimed {
		return State{}, fmt.Errorf("%w: %s", ErrClaimed, name)
	}
	s.claimed = true
	return s.state(), nil
}

// Release ends a claim. What the stream has in the journal stays.
func (f *File) Release(name Name) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streams[name]; s != nil {
		s.claimed = false
	}
}

// Append takes a record of a claimed stream. It does not wait for the disk:
// Sync does. An error says that the record was not taken and never will be in
// the file: ErrFull and ErrTooLarge (of a KindWrite alone), ErrTagInUse,
// ErrFailed, ErrClosed, or that the record contradicts the stream's state.
func (f *File) Append(name Name, record Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.usable(); err != nil {
		return err
	}
	s := f.streams[name]
	if s == nil || !s.claimed {
		return fmt.Errorf("journal: stream %s is not claimed", name)
	}
	if record.Kind == KindWrite {
		// First, because no room will come for a tag that waits for its own
		// acknowledgement.
		if err := f.checkTag(s, record.Tag); err != nil {
			return fmt.Errorf("journal: stream %s: %w", name, err)
		}
		if err := f.room(&record); err != nil {
			return err
		}
	}
	if record.Kind == KindAcknowledged {
		return f.remember(s, &record)
	}
	return f.append(s, &record)
}

// append makes a change and queues its record. mu is held.
func (f *File) append(s *stream, record *Record) error {
	before := s.live
	if err := s.apply(record); err != nil {
		return fmt.Errorf("journal: stream %s: %w", s.name, err)
	}
	f.live += s.live - before
	if s.live < before {
		close(f.freed)
		f.freed = make(chan struct{})
	}
	if len(f.buffer) == 0 {
		f.buffer = append(f.buffer, make([]byte, groupHeader)...)
	}
	if !s.written {
		f.buffer = appendStream(f.buffer, s.number, s.name)
		s.written = true
	}
	f.buffer = appendRecord(f.buffer, s.number, record)
	f.appended++
	return nil
}

// room checks the bound. mu is held.
func (f *File) room(r *Record) error {
	if r.Reserve < 0 || r.Reserve > maxReserve {
		return fmt.Errorf("journal: a write reserves %d bytes, at most %d are allowed", r.Reserve, maxReserve)
	}
	e := Entry{Key: r.Key, Tag: r.Tag, Request: r.Request, Reserve: r.Reserve}
	limit := f.liveLimit()
	switch cost := e.cost(); {
	case cost > limit:
		return fmt.Errorf("%w: it needs %d bytes, and a quarter of MaxBytes is %d", ErrTooLarge, cost, limit)
	case f.live+cost > limit:
		return fmt.Errorf("%w: %d of %d live bytes are taken", ErrFull, f.live, limit)
	}
	return nil
}

func (f *File) liveLimit() int { return int(f.options.MaxBytes / 4) }

// Freed returns a channel that is closed the next time room becomes free. Ask
// for it before the Append that may meet ErrFull, so that no moment is missed.
func (f *File) Freed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.freed
}

// Forget gives up the unsettled writes of a stream and its session, durably.
// The application calls it when it has taken those writes over from an
// UnsettledError: none of them is sent again, and the next Writer of the stream
// takes it over from whoever has it. Outcomes that wait to be acknowledged
// stay. The stream must not be claimed.
func (f *File) Forget(name Name) error {
	f.mu.Lock()
	s := f.streams[name]
	switch {
	case f.usable() != nil:
		defer f.mu.Unlock()
		return f.usable()
	case s == nil:
		f.mu.Unlock()
		return nil
	case s.claimed:
		f.mu.Unlock()
		return fmt.Errorf("%w: close the Writer of %s before its writes are forgotten", ErrClaimed, name)
	}
	if open := s.open(); len(open) > 0 {
		if err := f.append(s, &Record{Kind: KindDropped, ID: open[0].ID}); err != nil {
			f.mu.Unlock()
			return err
		}
	}
	err := f.append(s, &Record{Kind: KindHead, Head: Head{NextID: s.head.NextID}})
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.Sync()
}

// usable says why nothing can be appended any more. mu is held.
func (f *File) usable() error {
	if f.closed {
		return ErrClosed
	}
	return f.err
}

// Close writes what is not yet on disk and gives up the lock. Writers should be
// closed first; one that is not ends at its next write.
func (f *File) Close() error {
	err := f.Sync()
	f.mu.Lock()
	for f.flushing {
		f.cond.Wait()
	}
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	f.mu.Unlock()
	return errors.Join(err, f.current.Close(), f.lock.Close())
}

// newSalt returns eight random bytes.
func newSalt() uint64 {
	var b [8]byte
	// crypto/rand.Read never fails: it ends the program instead.
	_, _ = cryptorand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
