package admission

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/internal/durable"
)

// The accounts count what each actor has stored, in bytes of disk; the caller of Stored says how much that is. They are
// stored in a file beside the ledger, which is written some seconds after the first change and when the server has
// drained. A killed server loses the counts since the last write of the file, so quotas are slightly larger than
// configured; the ledger itself loses nothing. A restored backup has no such file and counts from zero.
//
// The file is text: a line with the format and the SHA-256 of the rest, then a line for each actor with its bytes and
// its name. Actors are visible ASCII.

const (
	accountsFormat = "seqledger stored bytes 1 "
	// accountsEvery is how long a change waits before the file is written.
	accountsEvery = 5 * time.Second
	// maxAccounts bounds the actors with separate accounts. Further actors are counted together, under otherActors.
	maxAccounts = 1 << 16
	otherActors = "*"
	// finishBytes is how much more a full actor may store to finish what it has begun. It is bounded, because the keys
	// of a million small reservations could be finished with a mebibyte each.
	finishBytes = 64 << 20
)

// account counts the bytes that one actor has stored.
type account struct{ bytes atomic.Int64 }

// accounts are the accounts of all actors.
type accounts struct {
	path   string // empty: in memory alone
	logger *slog.Logger

	total  atomic.Int64 // of all
	dirty  atomic.Bool  // a write of the file is due
	saving sync.Mutex   // held while the file is written; taken before mu

	mu    sync.Mutex
	known map[string]*account
	// timer is nil until the first change, so that a server that counts nothing writes no file.
	timer  *time.Timer
	closed bool
}

func openAccounts(path string, logger *slog.Logger) (*accounts, error) {
	a := &accounts{path: path, logger: logger, known: make(map[string]*account)}
	if path == "" {
		return a, nil
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err == nil {
		err = a.parse(content)
	}
	if err != nil {
		return nil, fmt.Errorf("stored bytes of each credential: %w", err)
	}
	return a, nil
}

// parse reads the content of the file.
func (a *accounts) parse(content []byte) error {
	damaged := fmt.Errorf("%s is damaged; remove it to count from zero, or put it back from a copy", a.path)
	head, rest, _ := bytes.Cut(content, []byte("\n"))
	digest := sha256.Sum256(rest)
	if string(head) != accountsFormat+hex.EncodeToString(digest[:]) {
		return damaged
	}
	for lines := bufio.NewScanner(bytes.NewReader(rest)); lines.Scan(); {
		number, actor, ok := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil || n < 0 || actor == "" {
			return damaged
		}
		stored := new(account)
		stored.bytes.Store(n)
		a.total.Add(n)
		a.known[actor] = stored
	}
	return nil
}

// of returns the account of a share.
func (a *accounts) of(s *Share) *account {
	if found := s.account.Load(); found != nil {
		return found
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	actor := s.actor
	if _, found := a.known[actor]; !found && len(a.known) >= maxAccounts {
		actor = otherActors
	}
	found := a.known[actor]
	if found == nil {
		found = new(account)
		a.known[actor] = found
	}
	s.account.Store(found)
	return found
}

// full reports whether a party has used up its stored bytes, and as many more. An actor that has stored nothing is not
// full on a tight disk: there may be nothing yet of which to have a part.
func (a *accounts) full(p Party, level int32, more int64) bool {
	stored := a.of(p.Share).bytes.Load() - more
	if quota := int64(p.Limits.StoredBytes); quota > 0 {
		return stored >= quota
	}
	return level == diskTight && stored > 0 && stored >= a.total.Load()/shares
}

// add counts bytes that were committed.
func (a *accounts) add(s *Share, n int64) {
	a.of(s).bytes.Add(n)
	a.total.Add(n)
	a.touch()
}

// touch records that an account has changed, and schedules a write of the file. It does not wait for one.
func (a *accounts) touch() {
	if a.path == "" || a.dirty.Swap(true) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.timer = time.AfterFunc(accountsEvery, a.saveLater) // close stops it, or waits for it
	}
}

func (a *accounts) saveLater() {
	a.saving.Lock()
	defer a.saving.Unlock()
	a.mu.Lock()
	closed := a.closed
	a.mu.Unlock()
	if closed {
		return
	}
	if err := a.save(); err != nil {
		a.logger.Error("the stored bytes of each credential could not be written down", "file", a.path, "error", err)
	}
}

// close writes the file for the last time.
func (a *accounts) close() error {
	a.saving.Lock()
	defer a.saving.Unlock()
	a.mu.Lock()
	closed, timer := a.closed, a.timer
	a.closed = true
	a.mu.Unlock()
	if closed || timer == nil {
		return nil
	}
	timer.Stop()
	if err := a.save(); err != nil {
		return fmt.Errorf("stored bytes of each credential: %w", err)
	}
	return nil
}

// save replaces the file. saving is held.
func (a *accounts) save() error {
	a.dirty.Store(false) // before the accounts are read, so that no change is missed
	var rest bytes.Buffer
	a.mu.Lock()
	for _, actor := range slices.Sorted(maps.Keys(a.known)) {
		fmt.Fprintf(&rest, "%d %s\n", a.known[actor].bytes.Load(), actor)
	}
	a.mu.Unlock()
	digest := sha256.Sum256(rest.Bytes())
	content := append([]byte(accountsFormat+hex.EncodeToString(digest[:])+"\n"), rest.Bytes()...)
	return durable.WriteFile(a.path, content) // the directory has one server, and so one that writes this name
}
