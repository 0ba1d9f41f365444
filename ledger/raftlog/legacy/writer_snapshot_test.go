package legacy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

func (p snapshotPayload) encode() []byte {
	b := []byte(snapshotMagic)
	b = binary.BigEndian.AppendUint64(b, p.covered.Index)
	b = binary.BigEndian.AppendUint64(b, p.covered.Term)
	return append(b, p.identity...)
}

// durableSnapshots adds to raft.FileSnapshotStore what it leaves to the file
// system. It syncs a snapshot's files, but not their names.
type durableSnapshots struct {
	raft.SnapshotStore
	dir  string
	sync func(dir string) error
	fail func(error) // told the first error of a snapshot that is being written; nil while none is written

	// The last one that was begun, and when, in milliseconds. Only Create uses them, which Raft calls
	// in one goroutine.
	index, term uint64
	began       int64
}

// failed makes an error final, like one of the log itself: what a failed sync
// has left in the system's cache must not be counted on by a later snapshot.
func (s *durableSnapshots) failed(err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("legacy: write a snapshot below %s: %w", s.dir, err)
	s.fail(err)
	return err
}

// Create implements raft.SnapshotStore.
func (s *durableSnapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	// The name of a snapshot has its term, its index and a millisecond. One of the same place in the same
	// millisecond could not get its name, which would stop the log.
	for index == s.index && term == s.term && time.Now().UnixMilli() == s.began {
		<-time.After(time.Millisecond)
	}
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	s.index, s.term, s.began = index, term, time.Now().UnixMilli()
	if err != nil {
		return nil, s.failed(err)
	}
	return &durableSink{SnapshotSink: sink, store: s}, nil
}

type durableSink struct {
	raft.SnapshotSink
	store  *durableSnapshots
	closed bool
}

// Write implements raft.SnapshotSink.
func (s *durableSink) Write(b []byte) (int, error) {
	n, err := s.SnapshotSink.Write(b)
	return n, s.store.failed(err)
}

// Close implements raft.SnapshotSink. Raft cuts the log off when it returns nil.
// Raft calls it a second time, after Persist.
func (s *durableSink) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	// Before it gets its final name, because a power loss might otherwise leave
	// a newest snapshot without its files, with which the log does not open.
	if err := s.store.sync(filepath.Join(s.store.dir, s.ID()+snapshotTmp)); err != nil {
		return s.store.failed(errors.Join(err, s.Cancel()))
	}
	if err := s.SnapshotSink.Close(); err != nil {
		return s.store.failed(err)
	}
	// The store has synced the new name, though not on every system, and has
	// removed older snapshots since.
	return s.store.failed(s.store.sync(s.store.dir))
}
