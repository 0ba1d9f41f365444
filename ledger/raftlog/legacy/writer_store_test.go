package legacy

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// guardedStore stands between Raft and the disk and makes the first error
// final. It implements raft.LogStore, raft.StableStore and
// raft.MonotonicLogStore.
//
// Where Raft passes an error on, it gets the error. Where Raft answers an error
// with a panic (term, vote, reading a committed entry), the calling goroutine
// ends instead, because a panic would take the whole process down before it can
// say why, and going on is not an option. runtime.Goexit runs the goroutine's
// deferred calls, so that Raft fails its proposals and Shutdown can join it.
// Open calls NewRaft from a goroutine of its own for the same reason.
type guardedStore struct {
	disk   diskStore
	failed func() error // the sticky error, or nil
	fail   func(error)  // makes an error sticky and shuts Raft down, does not wait

	bytes      atomic.Int64 // entry bytes stored since the last truncation
	stored     func(bytes int, took time.Duration)
	configured func([]byte) // told each membership before it is stored
	rewound    func()       // told when the end of the log is cut off
}

// IsMonotonic implements raft.MonotonicLogStore: raft-wal takes no gaps.
func (s *guardedStore) IsMonotonic() bool { return true }

// check makes err sticky and returns the error that the caller must see.
func (s *guardedStore) check(doing string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("legacy: %s: %w", doing, err)
	s.fail(err)
	return err
}

// StoreLog implements raft.LogStore.
func (s *guardedStore) StoreLog(entry *raft.Log) error { return s.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (s *guardedStore) StoreLogs(entries []*raft.Log) error {
	if err := s.failed(); err != nil {
		return err
	}
	size := 0
	for _, e := range entries {
		size += entrySize(e)
		if e.Type == raft.LogConfiguration {
			// Raft goes by a membership from the moment it is in the log, so
			// it must be known here at least as early.
			s.configured(e.Data)
		}
	}
	began := time.Now()
	if err := s.check("store entries", s.disk.StoreLogs(entries)); err != nil {
		return err
	}
	s.stored(size, time.Since(began))
	s.bytes.Add(int64(size))
	return nil
}

// DeleteRange implements raft.LogStore.
func (s *guardedStore) DeleteRange(lowest, highest uint64) error {
	if err := s.failed(); err != nil {
		return err
	}
	if last, err := s.disk.LastIndex(); err == nil && highest >= last {
		s.rewound()
	}
	return s.check("truncate the log", s.disk.DeleteRange(lowest, highest))
}

// FirstIndex implements raft.LogStore.
func (s *guardedStore) FirstIndex() (uint64, error) {
	if err := s.failed(); err != nil {
		return 0, err
	}
	i, err := s.disk.FirstIndex()
	return i, s.check("read the first index", err)
}

// LastIndex implements raft.LogStore.
func (s *guardedStore) LastIndex() (uint64, error) {
	if err := s.failed(); err != nil {
		return 0, err
	}
	i, err := s.disk.LastIndex()
	return i, s.check("read the last index", err)
}

// GetLog implements raft.LogStore. An entry that is not there is an answer and
// no failure: followers are asked for entries that were truncated.
func (s *guardedStore) GetLog(index uint64, entry *raft.Log) error {
	s.exitIfFailed()
	err := getVerified(s.disk, index, entry)
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	s.exitIf(s.check(fmt.Sprintf("read entry %d", index), err))
	return nil
}

// Set implements raft.StableStore.
func (s *guardedStore) Set(key, value []byte) error {
	s.exitIfFailed()
	s.exitIf(s.check("store Raft's vote", s.disk.Set(key, value)))
	return nil
}

// SetUint64 implements raft.StableStore.
func (s *guardedStore) SetUint64(key []byte, value uint64) error {
	s.exitIfFailed()
	s.exitIf(s.check("store Raft's term", s.disk.SetUint64(key, value)))
	return nil
}

// Get implements raft.StableStore.
func (s *guardedStore) Get(key []byte) ([]byte, error) {
	if err := s.failed(); err != nil {
		return nil, err
	}
	value, err := s.disk.Get(key)
	return value, s.check("read Raft's vote", err)
}

// GetUint64 implements raft.StableStore.
func (s *guardedStore) GetUint64(key []byte) (uint64, error) {
	if err := s.failed(); err != nil {
		return 0, err
	}
	value, err := s.disk.GetUint64(key)
	return value, s.check("read Raft's term", err)
}

func (s *guardedStore) exitIfFailed() { s.exitIf(s.failed()) }

func (s *guardedStore) exitIf(err error) {
	if err != nil {
		runtime.Goexit()
	}
}
