package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

var testIdentity = []byte("0123456789abcdef")

// testSealBytes makes block files of a few records.
const testSealBytes = 300

// fresh creates a store in a directory of its own and closes it with the test.
func fresh(t testing.TB) *Store {
	t.Helper()
	return reopen(t, filepath.Join(t.TempDir(), "state.db"))
}

// reopen opens the store at path, creating it if need be.
func reopen(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(path, Options{Create: true, Identity: testIdentity, SealBytes: testSealBytes, NoSync: true})
	must.Do(t, err, "open")
	t.Cleanup(func() {
		check.Is(t, s.Close(), nil, "close")
	})
	return s
}

// next is the position after the store's applied one.
func next(s *Store) Position {
	at := s.Applied()
	return Position{Index: at.Index + 1, Term: at.Term}
}

// put applies one entry that stores key → value.
func put(t testing.TB, s *Store, table machine.Table, key, value string) {
	t.Helper()
	must.Do(t, s.Update(next(s), func(tx machine.Tx) error {
		return tx.Put(table, []byte(key), []byte(value))
	}), "put %q", key)
}

// remove applies one entry that deletes key.
func remove(t testing.TB, s *Store, table machine.Table, key string) {
	t.Helper()
	must.Do(t, s.Update(next(s), func(tx machine.Tx) error { return tx.Delete(table, []byte(key)) }), "delete %q", key)
}

func flush(t testing.TB, s *Store) {
	t.Helper()
	must.Do(t, s.Flush(), "flush")
}

// blockKey is a key as the machine makes it.
func blockKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

// get reads one key in a View of its own; absent is "<absent>".
func get(t testing.TB, s *Store, table machine.Table, key string) string {
	t.Helper()
	var got string
	must.Do(t, s.View(func(r machine.Reader) error {
		value, err := r.Get(table, []byte(key))
		got = show(value)
		return err
	}), "get %q", key)
	return got
}

func show(value []byte) string {
	if value == nil {
		return "<absent>"
	}
	return string(value)
}

// list reads a whole table through r as "key=value " in order.
func list(r machine.Reader, table machine.Table, from string) (string, error) {
	var out bytes.Buffer
	err := r.Ascend(table, []byte(from), func(key, value []byte) bool {
		fmt.Fprintf(&out, "%s=%s ", key, value)
		return true
	})
	return out.String(), err
}

// filled writes n records of about 100 bytes to the streams table of a new
// store, flushes and closes it, and returns the path.
func filled(t testing.TB, n int) string {
	t.Helper()
	s := fresh(t)
	must.Do(t, s.Update(Position{Index: 7, Term: 2}, func(tx machine.Tx) error {
		for i := range n {
			if err := tx.Put(machine.TableStreams, recordKey(i), recordValue(i)); err != nil {
				return err
			}
		}
		return nil
	}), "fill")
	flush(t, s)
	must.Do(t, s.Close(), "close")
	return s.path
}

func recordKey(i int) []byte { return fmt.Appendf(nil, "stream-%06d", i) }

func recordValue(i int) []byte {
	return append(fmt.Appendf(nil, "value-%06d-", i), bytes.Repeat([]byte{byte('a' + i%26)}, 88)...)
}

// edit changes the bytes of a file. The page checksums would notice it, so they go: what is below
// them is tested.
func edit(t testing.TB, path string, change func(b []byte) []byte) {
	t.Helper()
	if err := os.Remove(SumsPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	b := must.Get(os.ReadFile(path))(t)
	must.Do(t, os.WriteFile(path, change(b), 0o600))
}
