package boltstore

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// A checkpoint records which of the block files it covers are sealed, so that a start need not open each of some
// hundred thousand. The records are in a separate bucket and change in the transaction that moves the mark or the
// start. They repeat what the files contain: a file without a record is read.

var filesBucket = []byte("files")

// filesTable is the number that the records are sealed under. Like controlTable it is that of no table.
const filesTable machine.Table = 254

// sealedFiles returns the records of files from one number up to another.
func (s *Store) sealedFiles(tx *bbolt.Tx, from, to uint64) (files []blockfile.SealedFile, err error) {
	defer recoverDamage(filesTable, nil, &err)
	bucket, found, err := s.pages(tx).Buckets(uint64(tx.Cursor().Bucket().Root())).Bucket(filesBucket)
	if err != nil || !found {
		return nil, pageDamage(filesTable, nil, err)
	}
	cursor, before := bucket.Cursor(), []byte(nil)
	key, value, err := cursor.Seek(fileKey(from))
	for ; key != nil && err == nil && bytes.Compare(key, fileKey(to)) < 0; key, value, err = cursor.Next() {
		if before != nil && bytes.Compare(before, key) >= 0 || len(key) != fileKeySize {
			return nil, damaged(filesTable, key, "it comes behind key %x", before)
		}
		content, err := unseal(filesTable, key, value)
		if err != nil {
			return nil, err
		}
		file, err := blockfile.DecodeSealed(binary.BigEndian.Uint64(key), content)
		if err != nil {
			return nil, err
		}
		files, before = append(files, file), key
	}
	return files, pageDamage(filesTable, before, err)
}

const fileKeySize = 8

func fileKey(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }

// lastRecorded returns the number up to which every file from a first one on is recorded.
func lastRecorded(files []blockfile.SealedFile, first uint64) uint64 {
	last := first - 1
	for _, f := range files {
		if f.Number != last+1 {
			break
		}
		last = f.Number
	}
	return last
}

// recordFiles records the sealed files up to a mark that have no record yet.
func (s *Store) recordFiles(tx *bbolt.Tx, mark blockfile.Mark) error {
	files := s.blocks.SealedFrom(s.recorded+1, mark.Number)
	if len(files) == 0 {
		return nil
	}
	guard, err := s.guardFiles(tx)
	if err != nil {
		return err
	}
	bucket, err := tx.CreateBucketIfNotExists(filesBucket)
	if err != nil {
		return fmt.Errorf("records of block files: %w", err)
	}
	bucket.FillPercent = 0.9 // they are appended, so that no key comes in between later
	for _, f := range files {
		key := fileKey(f.Number)
		if err := guard.check(key, false); err != nil {
			return err
		}
		if err := bucket.Put(key, sealed(filesTable, key, f.Append(nil))); err != nil {
			return fmt.Errorf("record of block file %d: %w", f.Number, err)
		}
	}
	return nil
}

// forgetFiles removes the records of the files before a number.
func (s *Store) forgetFiles(tx *bbolt.Tx, number uint64) error {
	bucket := tx.Bucket(filesBucket)
	if bucket == nil {
		return nil
	}
	files, err := s.sealedFiles(tx, 0, number)
	if err != nil {
		return err
	}
	guard, err := s.guardFiles(tx)
	if err != nil {
		return err
	}
	for _, f := range files {
		key := fileKey(f.Number)
		if err := guard.check(key, true); err != nil {
			return err
		}
		if err := bucket.Delete(key); err != nil {
			return fmt.Errorf("record of block file %d: %w", f.Number, err)
		}
	}
	return nil
}

// guardFiles returns the guard of the records as they are in the file; nil where there are none.
func (s *Store) guardFiles(tx *bbolt.Tx) (*leafGuard, error) {
	bucket, found, err := s.pages(tx).Buckets(uint64(tx.Cursor().Bucket().Root())).Bucket(filesBucket)
	if err != nil || !found {
		return nil, pageDamage(filesTable, nil, err)
	}
	return &leafGuard{table: filesTable, cursor: bucket.Cursor()}, nil
}
