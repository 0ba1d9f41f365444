package idempotency

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/seqledger/seqledger/internal/durable"
	"github.com/seqledger/seqledger/internal/private"
)

// The limits of a journal.
const (
	journalEntries = 1024
	journalRetry   = 10 * time.Second // per store call
	journalFirst   = 100 * time.Millisecond
	journalMax     = 30 * time.Second
)

// ErrJournalFull is returned when a journal holds 1,024 results.
var ErrJournalFull = errors.New("idempotency: the journal is full")

// ErrJournalClosed is why a result is not kept by a journal after its Close.
var ErrJournalClosed = errors.New("idempotency: the journal is closed")

// Journal keeps the results of finished work while the store does not take them, and retries until it does, even after
// a restart. It is a locked directory with one file per result. The files contain keys and responses in clear text and
// are readable by their owner only. A journal holds at most 1,024 results of at most 1.4 MiB each.
//
// A result that the store refuses (its key belongs to another owner, or has another result, or the store does not know
// it, as one that the result was not for; or no store takes it, for example because it is too large) is logged and set
// aside: its file gets the suffix .refused and is not read again. Find out what became of its key. Then delete the
// file, or, if the journal was opened with the wrong store, name it .result again and open the journal with the right
// one. The last 1,024 are kept.
type Journal struct {
	store Store
	dir   string
	lock  *flock.Flock
	log   *slog.Logger
	// id is part of the name of every file, so that no two journals, of one process or of several, write the same one.
	id string

	mu     sync.Mutex
	files  map[string]bool // names; a result is read when it is offered
	next   uint64
	closed bool

	added  chan struct{} // holds a token if add has added an entry
	cancel context.CancelFunc
	done   chan struct{} // closed when the retries have ended
}

// journalEntry is a result waiting for the store.
type journalEntry struct {
	Kind   resultKind
	Owner  Ownership
	Result Result
}

// A file is the magic, the SHA-256 of the rest, and the entry as JSON.
const (
	journalMagic   = "seqledger result 1\n"
	journalSuffix  = ".result"
	journalRefused = ".refused" // of one that was set aside
)

// OpenJournal opens a directory, creating it if necessary, and starts to retry the results in it. The store must be the
// one that the results belong to. A damaged file is an error that names the file, because it holds the only copy of a
// result. The logger, which may be nil, records results that the store refuses.
func OpenJournal(dir string, store Store, logger *slog.Logger) (*Journal, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	private.Narrow(logger, dir)
	lock := flock.New(filepath.Join(dir, "lock"), flock.SetPermissions(private.File))
	if locked, err := lock.TryLock(); err != nil {
		return nil, fmt.Errorf("idempotency: the journal %s cannot be locked: %w", dir, err)
	} else if !locked {
		return nil, fmt.Errorf("idempotency: the journal %s is in use by another process", dir)
	}
	j := &Journal{
		store: store, dir: dir, lock: lock, log: logger, id: rand.Text(), files: map[string]bool{},
		added: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if err := j.load(); err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	var ctx context.Context
	ctx, j.cancel = context.WithCancel(context.Background())
	// Close ends this goroutine and waits for it.
	go j.retry(ctx)
	return j, nil
}

// Close ends the retries. Results that the store has not taken stay in the directory. Work that ends later finds the
// journal closed: the outcome of its key will be unknown.
func (j *Journal) Close() error {
	j.cancel()
	<-j.done
	j.mu.Lock()
	j.closed = true // before the lock is released and another process may use the directory
	j.mu.Unlock()
	return j.lock.Unlock()
}

// Len returns the number of waiting results.
func (j *Journal) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.files)
}

// load reads the directory and removes incompletely written files.
func (j *Journal) load() error {
	files, err := os.ReadDir(j.dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		path := filepath.Join(j.dir, file.Name())
		switch {
		case strings.HasSuffix(file.Name(), durable.Suffix):
			err = os.Remove(path)
		case strings.HasSuffix(file.Name(), journalSuffix):
			if _, err = readEntry(path); err == nil {
				j.files[file.Name()] = true
				j.count(file.Name())
			}
		case strings.HasSuffix(file.Name(), journalRefused):
			j.count(file.Name()) // so that later ones have later names
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// count makes the number of the next file higher than that of a file.
func (j *Journal) count(name string) {
	var n uint64
	if _, err := fmt.Sscanf(name, "%020d", &n); err == nil {
		j.next = max(j.next, n+1)
	}
}

func readEntry(path string) (*journalEntry, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	entry, err := decodeEntry(content)
	if err != nil {
		return nil, fmt.Errorf("idempotency: %s is damaged: %w; move it away to continue, and look up the outcome of "+
			"its key", path, err)
	}
	return entry, nil
}

func decodeEntry(content []byte) (*journalEntry, error) {
	rest, ok := bytes.CutPrefix(content, []byte(journalMagic))
	if !ok || len(rest) < sha256.Size {
		return nil, errors.New("it does not begin like a result")
	}
	if sum := sha256.Sum256(rest[sha256.Size:]); !bytes.Equal(sum[:], rest[:sha256.Size]) {
		return nil, errors.New("its checksum does not match")
	}
	entry := new(journalEntry)
	return entry, json.Unmarshal(rest[sha256.Size:], entry)
}

func (e *journalEntry) encode() ([]byte, error) {
	text, err := json.Marshal(e)
	sum := sha256.Sum256(text)
	return slices.Concat([]byte(journalMagic), sum[:], text), err
}

// add stores a result durably.
func (j *Journal) add(entry *journalEntry) error {
	content, err := entry.encode()
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.closed:
		return ErrJournalClosed
	case len(j.files) >= journalEntries:
		return ErrJournalFull
	}
	name := fmt.Sprintf("%020d-%s%s", j.next, j.id, journalSuffix)
	j.next++
	if err := durable.WriteFile(filepath.Join(j.dir, name), content); err != nil {
		return err
	}
	j.files[name] = true
	select {
	case j.added <- struct{}{}:
	default:
	}
	return nil
}

// retry offers the results to the store until ctx ends.
func (j *Journal) retry(ctx context.Context) {
	defer close(j.done)
	wait := journalFirst
	for {
		if j.round(ctx) {
			wait = journalFirst
		}
		timer := time.NewTimer(wait)
		if j.Len() == 0 {
			timer.Stop() // until there is something to do
		}
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			wait = min(journalMax, 2*wait)
		case <-j.added:
			timer.Stop()
		}
	}
}

// round offers every result to the store once, even if some fail, and reports whether the store took one.
func (j *Journal) round(ctx context.Context) (took bool) {
	j.mu.Lock()
	var names []string
	for name := range j.files {
		names = append(names, name)
	}
	j.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		if ctx.Err() != nil {
			return took
		}
		took = j.offer(ctx, name) || took
	}
	return took
}

// offer offers a result to the store, and reports whether it no longer waits. Every outcome is final: either the store
// now has the result, or it never takes it.
func (j *Journal) offer(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, journalRetry)
	defer cancel()
	entry, err := readEntry(filepath.Join(j.dir, name))
	if err != nil {
		j.log.ErrorContext(ctx, "a result in the journal cannot be read", "file", name, "error", err)
		return false
	}
	call := j.store.Complete
	if entry.Kind == resultRejected {
		call = j.store.Reject
	}
	answer, err := call(ctx, &entry.Owner, entry.Result)
	if _, invalid := errors.AsType[*InvalidError](err); invalid {
		return j.setAside(ctx, name, err.Error())
	}
	if err != nil {
		j.log.WarnContext(ctx, "a result waits in the journal for the store", "file", name, "error", err)
		return false
	}
	if answer.Outcome != OK {
		return j.setAside(ctx, name, answer.Outcome.String())
	}
	if err := os.Remove(filepath.Join(j.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	j.forget(name)
	return true
}

// forget stops the retries of a result.
func (j *Journal) forget(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.files, name)
}

// setAside keeps a result that the store refuses, without another try. It may be the only trace of work that was done,
// and the store may be the wrong one.
func (j *Journal) setAside(ctx context.Context, name, reason string) bool {
	aside := strings.TrimSuffix(name, journalSuffix)
	if _, err := os.Lstat(filepath.Join(j.dir, aside+journalRefused)); err == nil {
		aside += "-" + rand.Text() // a version before this one has counted from the beginning again
	}
	aside += journalRefused
	if err := os.Rename(filepath.Join(j.dir, name), filepath.Join(j.dir, aside)); err != nil {
		j.log.ErrorContext(ctx, "a result that the store refuses was not set aside", "file", name, "error", err)
		return false
	}
	j.log.ErrorContext(ctx, "a result was refused by the store and set aside", "file", aside, "reason", reason)
	j.forget(name)
	j.dropRefused(ctx)
	return true
}

// dropRefused removes the oldest of the results that were set aside, beyond as many as a journal holds.
func (j *Journal) dropRefused(ctx context.Context) {
	files, err := os.ReadDir(j.dir) // sorted, and so by number
	if err != nil {
		return
	}
	files = slices.DeleteFunc(files, func(f fs.DirEntry) bool { return !strings.HasSuffix(f.Name(), journalRefused) })
	for _, file := range files[:max(0, len(files)-journalEntries)] {
		if os.Remove(filepath.Join(j.dir, file.Name())) == nil {
			j.log.ErrorContext(ctx, "a result that was set aside is dropped, because there are too many",
				"file", file.Name())
		}
	}
}
