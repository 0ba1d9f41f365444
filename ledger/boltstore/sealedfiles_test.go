package boltstore

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// recordedFiles returns what the state file records of sealed files.
func recordedFiles(t testing.TB, s *Store) (files []blockfile.SealedFile) {
	t.Helper()
	tx, err := s.begin(false)
	must.Do(t, err)
	files, err = s.sealedFiles(tx, 0, math.MaxUint64)
	must.Do(t, errors.Join(err, tx.Rollback()))
	return files
}

// TestSealedFilesAreRecorded: after a flush the state file has a record of each sealed file that it covers, no others,
// and none of a file that was dropped.
func TestSealedFilesAreRecorded(t *testing.T) {
	t.Parallel()
	s := fresh(t)
	check := func(what string) {
		t.Helper()
		if got, want := recordedFiles(t, s), s.SealedBlocks(); !slices.Equal(got, want) || len(want) == 0 {
			t.Errorf("%s: the records are %v, want %v", what, got, want)
		}
	}
	apply(t, s, 40)
	flush(t, s)
	check("after a flush")
	apply(t, s, 60)
	check("before the next one")
	flush(t, s)
	check("after it")
	if n, err := s.DropBlocks(30); n == 0 || err != nil {
		t.Fatal(n, err)
	}
	check("after a drop")
	must.Do(t, s.Close())
	s = reopen(t, s.path)
	check("at a start")
	if s.recorded != s.durable.Number-1 {
		t.Errorf("files are recorded up to %d of %d", s.recorded, s.durable.Number-1)
	}
}

// TestRecordsOfFilesAreMadeAgain: a file may lack the records of some block files, or
// of all. It opens, and the next flush makes them.
func TestRecordsOfFilesAreMadeAgain(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(tx *bbolt.Tx) error{
		"all":    func(tx *bbolt.Tx) error { return tx.DeleteBucket(filesBucket) },
		"first":  func(tx *bbolt.Tx) error { return tx.Bucket(filesBucket).Delete(fileKey(1)) },
		"middle": func(tx *bbolt.Tx) error { return tx.Bucket(filesBucket).Delete(fileKey(3)) },
	} {
		s := fresh(t)
		apply(t, s, 60)
		flush(t, s)
		must.Do(t, s.Close())
		db, err := bbolt.Open(s.path, 0o600, nil)
		if err == nil {
			err = errors.Join(db.Update(change), db.Close(), os.Remove(SumsPath(s.path)))
		}
		must.Do(t, err)
		s = reopen(t, s.path)
		wantState(t, s.View, 60)
		apply(t, s, 61)
		flush(t, s)
		if got, want := recordedFiles(t, s), s.SealedBlocks(); !slices.Equal(got, want) {
			t.Errorf("without %s: the records are %v, want %v", what, got, want)
		}
	}
}

// TestExchangedFileIsNoticed: a start that does not open a recorded file notices in time that it is another one, of the
// same directory, length and indexes: when it is read, and when the scrub comes to it.
func TestExchangedFileIsNoticed(t *testing.T) {
	t.Parallel()
	s, other := fresh(t), fresh(t)
	apply(t, s, 60)
	flush(t, s)
	must.Do(t, s.Close())
	for i := range uint64(60) { // other records of the same lengths
		must.Do(t, other.Update(next(other), func(tx machine.Tx) error {
			return tx.Put(machine.TableBlocks, blockKey(i+1), []byte(strings.ToUpper(fmt.Sprintf("block %d", i+1))))
		}))
	}
	flush(t, other)
	const number = 2
	name := blockfile.Name(number)
	b, err := os.ReadFile(filepath.Join(BlocksOf(other.path), name))
	if err == nil {
		err = os.WriteFile(filepath.Join(BlocksOf(s.path), name), b, 0o600)
	}
	must.Do(t, err)
	for what, read := range map[string]func(s *Store) error{
		"a read": func(s *Store) error {
			return s.ViewBlocks(func(r machine.Reader) error {
				_, err := r.Get(machine.TableBlocks, blockKey(s.SealedBlocks()[number-1].Last))
				return err
			})
		},
		"the scrub": func(s *Store) (err error) {
			for from := uint64(0); err == nil; {
				if from, _, err = s.ScrubBlocks(from, 1); from == 0 {
					break
				}
			}
			return err
		},
	} {
		s, err := Open(s.path, Options{Identity: testIdentity, NoSync: true})
		must.Do(t, err)
		err = read(s)
		if !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), name) || s.Err() == nil {
			t.Errorf("%s: %v", what, err)
		}
		must.Do(t, s.Close())
	}
}
