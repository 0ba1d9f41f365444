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
	// MaxBytes bounds the file; 0 means 64 MiB. At most a quarter may be live: writes that are
	// under way, or whose outcome is not yet acknowledged. Beyond that a Writer's Submit waits.
	//
	// A stream that has had a session stays in the file until Forget, with its name and up to 100 bytes, and does not
	// count as live. While all streams together take at most an eighth of MaxBytes, the file stays below MaxBytes. If
	// they take more, the file exceeds MaxBytes by at most twice the excess.
	MaxBytes int64
	// MustExist refuses to create the file. Set it if the program has had a journal before: a lost journal would
	// otherwise look like an empty one, and its writes would be sent a second time.
	MustExist bool
	// RememberTags is how long a tag stays in use after its write is acknowledged; 0 means 24 hours, negative not at
	// all. During that time a program that is run again, and submits a payment again under the same tag, gets
	// ErrTagInUse. Tags take at most MaxBytes/32, each 32 bytes plus its length; beyond that, and for no other reason,
	// the oldest are dropped. A clock that is ahead frees tags too early, until it is set right. A program must keep
	// its own record of anything that it needs for longer.
	RememberTags time.Duration

	storage storage
}

const (
	defaultMaxBytes = 64 << 20
	minMaxBytes     = 16 << 10
	limitMaxBytes   = 1 << 30
)

// File is a journal in a file. A lock keeps other processes out; any number of Writers of the process share it, and one
// fsync makes all their earlier records durable. It is safe for concurrent use.
type File struct {
	path    string
	options Options
	storage storage
	lock    *flock.Flock
	torn    int64

	mu   sync.Mutex
	cond sync.Cond // broadcast when a flush ends
	// streams has the streams by name; numbers counts those that the current file has named.
	streams map[Name]*stream
	numbers uint64
	// buffer holds the next group to be written, with room for its header. It is bounded
	// because its writes count as live, and each has few other records.
	buffer, spare []byte
	// appended and durable count records.
	appended, durable uint64
	flushing          bool
	// live is the cost of all entries, freed is closed when it shrinks.
	live  int
	freed chan struct{}
	// tags holds the remembered tags, the oldest first; tagBytes is their size.
	tags     []rememberedTag
	tagBytes int
	err      error // sticky
	closed   bool

	// Only the goroutine that flushes, and Open and Close, use these fields.
	current file
	salt    uint64
	size    int64 // of the groups
	// rewritten is the size after the last rewrite.
	rewritten int64
	// allocated is the size of the file: zeros follow the groups.
	allocated int64
}

// Open opens the journal at path and creates it if necessary. It follows symbolic links in path, and locks
// path+".lock", which is never removed, against other processes. It reads and checks the content and writes it into a
// new file, so that a torn group at the end is gone and everything that was read is known to be on disk.
//
// Errors: ErrLocked, ErrMissing, ErrVersion, a [*DamageError], or what the file system says.
func Open(path string, options Options) (*File, error) {
	switch {
	case options.MaxBytes == 0:
		options.MaxBytes = defaultMaxBytes
	case options.MaxBytes < minMaxBytes || options.MaxBytes > limitMaxBytes:
		return nil, fmt.Errorf("journal: Options.MaxBytes is %d, must be 0 or %d to %d",
			options.MaxBytes, minMaxBytes, limitMaxBytes)
	}
	if options.RememberTags == 0 {
		options.RememberTags = defaultRememberTags
	}
	// Make the path absolute, because the process may change its directory.
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

// resolve follows symbolic links, because the lock and the rename use the name: under another
// name the same journal could be opened twice, and the rename would replace the link by a file.
func resolve(path string) (string, error) {
	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		return target, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("journal: %w", err)
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("%w: %s is a symbolic link to a missing file; remove the link or restore the file",
			ErrMissing, path)
	}
	return path, nil // to be created
}

// load reads the journal and writes it anew.
func (f *File) load() error {
	content, err := f.storage.read(f.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.options.MustExist:
		return fmt.Errorf("%w: %s; if it was lost, find out from the ledger what was written before you begin a "+
			"new one", ErrMissing, f.path)
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

// replay applies the records of a whole file to streams and returns where the good groups end.
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

// Torn returns how many bytes Open dropped at the end of the file, because a crash had
// interrupted their write. Nothing in them had been sent.
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

// Claim reserves a stream for a Writer, until Release, and returns its state. The error is
// ErrClaimed if another Writer has it.
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

// Release ends a claim. The stream's state stays in the journal.
func (f *File) Release(name Name) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streams[name]; s != nil {
		s.claimed = false
	}
}

// Append adds a record of a claimed stream. It does not wait for the disk: Sync does. After an error the record is not
// in the file and never will be: ErrFull and ErrTooLarge (of a KindWrite alone), ErrTagInUse, ErrFailed, ErrClosed, or
// that the record contradicts the stream's state.
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
		// Check the tag first, because waiting for room does not help if the tag waits for its own acknowledgement.
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

// append applies a change and queues its record. mu is held.
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

// Freed returns a channel that is closed the next time room becomes free. Call it before an
// Append that may return ErrFull, so that no change is missed.
func (f *File) Freed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.freed
}

// Forget durably removes the unsettled writes of a stream and its session. Call it when the application has handled the
// writes of an UnsettledError: none of them is sent again, and the next Writer takes over the stream from its current
// session. Outcomes that are not yet acknowledged stay. The stream must not be claimed.
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

// usable returns why nothing can be appended any more, or nil. mu is held.
func (f *File) usable() error {
	if f.closed {
		return ErrClosed
	}
	return f.err
}

// Close writes what is not yet on disk and releases the lock. Close the Writers first; an open
// one ends at its next write.
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
