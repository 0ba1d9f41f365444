package admission

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// Every refusal says whose bound it is, which one, and that nothing was done.
func TestRefusalsExplainThemselves(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for b := Bound(0); b < boundCount; b++ {
		for _, o := range table[b].owners {
			text := (&Refusal{Bound: b, Owner: o}).Error()
			if !strings.Contains(text, "nothing was done") || strings.Contains(text, "of ;") ||
				strings.Contains(text, "of  (") {
				t.Errorf("%s of %s: %s", b, o, text)
			}
			if names := o == OfCredential; names && !strings.Contains(text, "("+b.String()+")") {
				t.Errorf("%s of %s does not name its field: %s", b, o, text)
			}
			seen[o.String()] = true
		}
	}
	for _, owner := range []Owner{OfServer, OfCredential, OfAddress, OfConnection} {
		if !seen[owner.String()] {
			t.Errorf("no bound has the owner %s", owner)
		}
	}
	disk := (&Refusal{Bound: DiskReserve}).Error()
	if !strings.Contains(disk, "free space") || strings.Contains(disk, "credential") {
		t.Error(disk)
	}
}

// A file of stored bytes that cannot be written is an error at the end and in the log meanwhile, and costs no counts:
// the next write of the file has them all.
func TestStoredBytesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	must.Do(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "STORED")
	synctest.Test(t, func(t *testing.T) {
		c := newController(t, Options{Shares: true, StoredFile: path})
		p := partyOf(c, "client:a", Limits{})
		must.Do(t, os.Rename(dir, dir+".away")) // as a file system that has gone
		c.Stored(p, 10)
		<-time.After(accountsEvery)
		synctest.Wait()
		check.Equal(t, c.StoredBytes(p), 10, "%d bytes are counted")
		must.Do(t, os.Rename(dir+".away", dir))
		c.Stored(p, 5)
		<-time.After(accountsEvery)
		synctest.Wait()
		again := newController(t, Options{Shares: true, StoredFile: path})
		check.Equal(t, again.StoredBytes(partyOf(again, "client:a", Limits{})), 15, "%d bytes are written down")
		c.Stored(p, 1)
		must.Do(t, os.Rename(dir, dir+".away"))
		if err := c.Close(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "stored bytes") {
			t.Errorf("a file that cannot be written at the end: %v", err)
		}
	})
}

// A line that no server wrote is damage, although the checksum of the file is right.
func TestStoredBytesOfNoServer(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"", "7", "x client:a", "-1 client:a", "7 ", " client:a"} {
		path := filepath.Join(t.TempDir(), "STORED")
		must.Do(t, os.WriteFile(path, storedFile(line+"\n"), 0o600))
		_, err := New(Options{Shares: true, StoredFile: path})
		check.ErrorContains(t, err, path, "%q", line)
	}
	path := filepath.Join(t.TempDir(), "STORED")
	must.Do(t, os.WriteFile(path, storedFile("7 client:a\n"), 0o600)) // the control
	c := newController(t, Options{Shares: true, StoredFile: path})
	check.Equal(t, c.StoredBytes(partyOf(c, "client:a", Limits{})), 7, "%d bytes are stored")
}

// storedFile is a file of stored bytes with these lines, as a server writes it.
func storedFile(lines string) []byte {
	digest := sha256.Sum256([]byte(lines))
	return []byte(accountsFormat + hex.EncodeToString(digest[:]) + "\n" + lines)
}

// No request waits beyond the bound of waiters, and each that leaves makes room.
func TestWaitersOfACredential(t *testing.T) {
	t.Parallel()
	c := newController(t, Options{Shares: true})
	p := partyOf(c, "a", Limits{Waiters: 2})
	var leave []func()
	for range 2 {
		done, ok := c.Waiter(p)
		if !ok {
			t.Fatal("there is room, and no request may wait")
		}
		leave = append(leave, done)
	}
	if _, ok := c.Waiter(p); ok {
		t.Error("a third may wait")
	}
	if _, ok := c.Waiter(partyOf(c, "b", Limits{Waiters: 2})); !ok {
		t.Error("another credential may not wait")
	}
	leave[0]()
	if _, ok := c.Waiter(p); !ok {
		t.Error("room that was left is not taken")
	}
	check.Equal(t, fmt.Sprint(c.Gauges().Requests, c.Gauges().Streams, c.Gauges().DiskLevel), "0 0 0",
		"the gauges are %s")
}
