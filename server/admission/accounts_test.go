package admission

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// What an actor has stored is there again after a restart.
func TestStoredBytesOutliveARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "STORED")
	want := map[string]int64{"client:a": 30, "user:someone else|x": 7}
	for restart := range 3 {
		c := newController(t, Options{Shares: true, StoredFile: path})
		for actor, bytes := range want {
			p := partyOf(c, actor, Limits{})
			check.Equal(t, c.StoredBytes(p), int64(restart)*bytes, "start %d: %s has stored %d bytes", restart, actor)
			c.Stored(p, int(bytes))
		}
		must.Do(t, errors.Join(c.Close(), c.Close()))
		c.Stored(partyOf(c, "client:a", Limits{}), 1_000) // after the end it is not written down
	}
	check.Equal(t, strings.Count(string(must.Get(os.ReadFile(path))(t)), "\n"), 3, "the file has %q")
	check.Equal(t, len(must.Get(filepath.Glob(path+"*"))(t)), 1, "files are left: %v")
}

// A killed server loses the counts of the last seconds, and no more.
func TestStoredBytesAreWrittenNowAndThen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "STORED")
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true, StoredFile: path})
		p := partyOf(c, "client:a", Limits{})
		for i := range 4 {
			c.Stored(p, 10)
			<-time.After(accountsEvery)
			synctest.Wait()
			again := newController(t, Options{Shares: true, StoredFile: path})
			check.Equal(t, again.StoredBytes(partyOf(again, "client:a", Limits{})), int64(i+1)*10,
				"after %d writes %d bytes are written down", i+1)
		}
		must.Do(t, c.Close())
	})
}

// While the file is written, on a disk that may hang, no caller of Stored waits, and what it adds is written next.
func TestStoredDoesNotWaitForTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "STORED")
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true, StoredFile: path})
		p := partyOf(c, "client:a", Limits{})
		c.accounts.saving.Lock()
		c.Stored(p, 10)
		<-time.After(accountsEvery)
		c.accounts.saving.Unlock()
		synctest.Wait()
		again := newController(t, Options{Shares: true, StoredFile: path})
		check.Equal(t, again.StoredBytes(partyOf(again, "client:a", Limits{})), 10, "%d bytes are written down")
		must.Do(t, c.Close())
	})
}

// A file that is not what was written is refused: with any bit flipped, and cut at any length.
func TestDamage_StoredBytes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "STORED")
	c := newController(t, Options{Shares: true, StoredFile: path})
	c.Stored(partyOf(c, "client:a", Limits{}), 12)
	must.Do(t, c.Close())
	good := must.Get(os.ReadFile(path))(t)
	for i := range 8 * len(good) {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		for _, content := range [][]byte{bad, good[:i/8]} {
			must.Do(t, os.WriteFile(path, content, 0o600))
			_, err := New(Options{Shares: true, StoredFile: path, Logger: slog.New(slog.DiscardHandler)})
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove it") {
				t.Errorf("%q: got %v", content, err)
			}
		}
	}
	t.Logf("damaged STORED: %d flipped bits and %d cuts, all refused", 8*len(good), len(good))
}

// What a credential may store is bounded by the auth file, or else by its part of everything once the disk is nearly
// full.
func TestStoredBytesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		free := uint64(1_000)
		c := newController(t, Options{Shares: true, DiskReserve: 100,
			Disk: func() (uint64, uint64, error) { return free, 10_000, nil }})
		quota, large, small := partyOf(c, "quota", Limits{StoredBytes: 50}), partyOf(c, "large",
			Limits{}), partyOf(c, "small", Limits{})
		store := func(p Party, bytes int) error {
			done, err := c.Write(t.Context(), p, Work{Writes: 1, Bytes: bytes})
			if err == nil {
				done()
				c.Stored(p, bytes)
			}
			return err
		}
		for range 5 {
			must.Do(t, errors.Join(store(quota, 10), store(large, 100), store(small, 1)))
		}
		mustRefuse(t, store(quota, 1), StoredBytes, OfCredential)
		if _, err := c.AwaitWrite(t.Context(), nil, quota, Work{Writes: 1, Bytes: 1}); err == nil {
			t.Error("a stream stores on")
		}
		must.Do(t, c.mayQueue(t.Context(), quota, 1), "a write that may be a repeat does not arrive")
		free = 199
		<-time.After(diskEvery)
		mustRefuse(t, store(large, 1), StoredBytes, OfCredential)
		must.Do(t, store(small, 1), "who has stored little may go on")
		free = 99
		<-time.After(diskEvery)
		mustRefuse(t, store(small, 1), DiskReserve, OfServer)
	})
}

// What was begun may be finished by a credential that may store nothing more, within a bound.
func TestWhatIsFinishedIsBounded(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Shares: true})
	p := partyOf(c, "quota", Limits{StoredBytes: 50, WritesPerSecond: 1 << 20})
	finish := func(bytes int) error {
		done, err := c.Write(t.Context(), p, Work{Writes: 1, Bytes: bytes, Finish: true})
		if err == nil {
			done()
			c.Stored(p, bytes)
		}
		return err
	}
	c.Stored(p, 50)
	if _, err := c.Write(t.Context(), p, Work{Writes: 1, Bytes: 1}); err == nil {
		t.Error("a full credential begins something")
	}
	for range finishBytes >> 20 {
		must.Do(t, finish(1<<20))
	}
	mustRefuse(t, finish(1), StoredBytes, OfCredential)
}

// What too many actors store is counted together.
func TestAccountsAreBounded(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Shares: true})
	for i := range maxAccounts + 10 {
		c.Stored(partyOf(c, fmt.Sprint("client:", i), Limits{}), 3)
	}
	check.Equal(t, len(c.accounts.known), maxAccounts+1, "%d accounts")
	check.Equal(t, c.accounts.known[otherActors].bytes.Load(), 30, "the others have stored %d bytes")
}
