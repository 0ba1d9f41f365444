package legacy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"

	"github.com/seqledger/seqledger/ledger/internal/boltpage"
)

// checkIndex looks through all of wal-meta.db before bbolt does. bbolt panics on
// some damaged pages, in goroutines of Raft and raft-wal, too, which nothing can
// recover, and takes all memory on others. raft-wal takes an index without segments
// for a new log, and deletes every segment that the index does not name.
func checkIndex(dir string) error {
	content, err := os.ReadFile(filepath.Join(dir, metadb.FileName))
	if err != nil {
		return err
	}
	file := bytes.NewReader(content)
	meta, err := boltpage.ReadMeta(file)
	if err != nil {
		return err
	}
	size := meta.Pages * uint64(meta.PageSize)
	if meta.Pages > uint64(len(content)) || size > uint64(len(content)) {
		return fmt.Errorf("cut off: it has %d bytes, and %d are in use", len(content), size)
	}
	if _, err := boltpage.CheckFreeList(file, meta); err != nil {
		return err
	}
	pages := boltpage.New(content[:size], int(meta.PageSize))
	if err := pages.Check(meta, true); err != nil {
		return err
	}
	stable, err := records(pages.Buckets(meta.Root), metadb.StableBucket, stableKeys...)
	if err != nil {
		return err
	}
	listed, err := records(pages.Buckets(meta.Root), metadb.MetaBucket, metadb.MetaKey)
	if err != nil {
		return err
	}
	segments, err := decodeSegments(listed[metadb.MetaKey])
	if err != nil {
		return fmt.Errorf("list of segments: %w", err)
	}
	noted := string(stable[string(keySegmentInUse)])
	if noted != "" && !slices.ContainsFunc(segments,
		func(s types.SegmentInfo) bool { return segment.FileName(s) == noted }) {
		// Its number has changed, in the list or here. raft-wal would make a new one.
		return fmt.Errorf("segment %s has acknowledged entries, and is not in the list of segments", noted)
	}
	return nil
}

// stableKeys are all records of the stable store: Raft's own and ours. One whose key
// changed would count as absent.
var stableKeys = []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand", string(keyIdentity), string(keySegmentInUse)}

// records returns all records of a bucket, which may have these keys and no others.
func records(buckets boltpage.Bucket, name string, keys ...string) (map[string][]byte, error) {
	bucket, found, err := buckets.Bucket([]byte(name))
	if err == nil && !found {
		err = errors.New("it is missing")
	}
	all := map[string][]byte{}
	if err == nil {
		cursor := bucket.Cursor()
		var key, value []byte
		for key, value, err = cursor.Seek(nil); key != nil && err == nil; key, value, err = cursor.Next() {
			if !slices.Contains(keys, string(key)) {
				err = fmt.Errorf("unknown key %q", key)
				break
			}
			all[string(key)] = value
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %q: %w", name, err)
	}
	return all, nil
}

// decodeSegments refuses a list of segments that is not as raft-wal writes it.
func decodeSegments(encoded []byte) ([]types.SegmentInfo, error) {
	var state types.PersistentState
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.DisallowUnknownFields() // a field whose name changed would count as zero
	err := decoder.Decode(&state)
	if err != nil {
		return nil, err
	}
	if len(state.Segments) == 0 {
		return nil, errors.New("it is empty")
	}
	last := len(state.Segments) - 1
	for i, s := range state.Segments {
		sealed := !s.SealTime.IsZero()
		switch {
		case s.ID >= state.NextSegmentID:
			err = fmt.Errorf("the next one is %d", state.NextSegmentID)
		case s.MinIndex < s.BaseIndex || i > 0 && s.MinIndex != s.BaseIndex:
			err = fmt.Errorf("it begins at index %d, and its entries at %d", s.BaseIndex, s.MinIndex)
		case sealed != (i < last) || sealed != (s.IndexStart > 0) || sealed != (s.MaxIndex > 0):
			err = fmt.Errorf("it is sealed at %v, with the last index %d and its own index at %d", s.SealTime,
				s.MaxIndex, s.IndexStart)
		case i < last && state.Segments[i+1].BaseIndex != s.MaxIndex+1:
			err = fmt.Errorf("it ends at index %d, and the next one begins at %d", s.MaxIndex,
				state.Segments[i+1].BaseIndex)
		}
		if err != nil {
			return nil, fmt.Errorf("segment %d: %w", s.ID, err)
		}
	}
	return state.Segments, nil
}
