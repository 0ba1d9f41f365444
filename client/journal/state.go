package journal

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Entry is a write that the journal holds.
type Entry struct {
	// ID, Sequence, Key, Tag, Request and Reserve as in the Record.
	ID, Sequence uint64
	Key, Tag     string
	Request      []byte
	Reserve      int
	// Settled: the write is committed and not yet acknowledged; Receipt is the ledger's answer.
	Settled bool
	Receipt []byte
}

// cost is how many bytes of the journal e may need until it is removed.
func (e *Entry) cost() int {
	return entryOverhead + len(e.Key) + len(e.Tag) + len(e.Request) + max(e.Reserve, len(e.Receipt))
}

// entryOverhead is more than the numbers, lengths and group headers around an
// entry's own bytes, those of its later records included.
const entryOverhead = 192

// State is the state of one stream in the journal.
type State struct {
	// Name of the stream.
	Name Name
	// Head is the stream's state without its writes.
	Head Head
	// Entries in the order of their IDs. Those that are not settled come last
	// and have consecutive sequences, the last of them Head.NextSequence-1.
	Entries []Entry
	// Remembered are the tags of acknowledged writes, the oldest first. See
	// [Options].RememberTags for how long they are in use.
	Remembered []Tag
}

// Unsettled returns the entries that are not known to be committed.
func (s *State) Unsettled() []Entry {
	for i := range s.Entries {
		if !s.Entries[i].Settled {
			return s.Entries[i:]
		}
	}
	return nil
}

// stream is a State that changes, with indexes that make changes fast.
type stream struct {
	name    Name
	number  uint64
	head    Head
	claimed bool
	// written: the file has the record with the stream's number.
	written bool
	// settled holds the entries that wait for their acknowledgement, by ID. unsettled is a
	// queue that begins at unsettled[first].
	settled   map[uint64]*Entry
	unsettled []*Entry
	first     int
	// tags has the IDs of the entries with a tag. remembered has the time of acknowledgement of tags without an entry.
	tags       map[string]uint64
	remembered map[string]time.Time
	// live is the cost of all entries.
	live int
}

func newStream(name Name, number uint64) *stream {
	return &stream{
		name: name, number: number, settled: make(map[uint64]*Entry),
		tags: make(map[string]uint64), remembered: make(map[string]time.Time),
	}
}

// open returns the unsettled entries.
func (s *stream) open() []*Entry { return s.unsettled[s.first:] }

// state returns a copy for use without the lock.
func (s *stream) state() State {
	state := State{Name: s.name, Head: s.head}
	state.Head.Attempt = bytes.Clone(s.head.Attempt)
	for _, e := range s.settled {
		state.Entries = append(state.Entries, *e)
	}
	slices.SortFunc(state.Entries, func(a, b Entry) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range s.open() {
		state.Entries = append(state.Entries, *e)
	}
	state.Remembered = s.tagList()
	return state
}

// apply applies one record, both when it is appended and when it is read back. After an error,
// which means that the record contradicts the state, nothing has changed.
func (s *stream) apply(r *Record) error {
	switch r.Kind {
	case KindHead:
		return s.applyHead(r.Head)
	case KindWrite:
		return s.applyWrite(r)
	case KindSettled:
		return s.applySettled(r)
	case KindAcknowledged:
		e := s.settled[r.ID]
		if e == nil {
			return fmt.Errorf("acknowledges write %d, which is not settled and waiting", r.ID)
		}
		s.remove(e)
		return nil
	case KindDropped:
		return s.applyDropped(r.ID)
	case kindRemembered:
		return s.applyRemembered(r.tag)
	}
	return fmt.Errorf("a record of the unknown kind %d", r.Kind)
}

func (s *stream) applyHead(h Head) error {
	switch {
	case h.NextID < s.head.NextID:
		return fmt.Errorf("the next write's id goes back from %d to %d", s.head.NextID, h.NextID)
	case len(s.open()) > 0 && h.NextSequence != s.head.NextSequence:
		return fmt.Errorf("the next sequence becomes %d instead of %d while writes are unsettled", h.NextSequence,
			s.head.NextSequence)
	case h.Session != 0 && h.NextSequence == 0:
		return fmt.Errorf("session %d has no next sequence", h.Session)
	}
	s.head = h
	s.head.Attempt = bytes.Clone(h.Attempt)
	return nil
}

func (s *stream) applyWrite(r *Record) error {
	if r.ID != s.head.NextID {
		return fmt.Errorf("got write %d, want write %d", r.ID, s.head.NextID)
	}
	if r.Sequence != s.head.NextSequence || r.Sequence == 0 {
		return fmt.Errorf("got sequence %d, want sequence %d", r.Sequence, s.head.NextSequence)
	}
	if err := s.freeTag(r.Tag); err != nil {
		return err
	}
	if r.Tag != "" {
		s.tags[r.Tag] = r.ID
		delete(s.remembered, r.Tag) // its time had passed
	}
	e := &Entry{ID: r.ID, Sequence: r.Sequence, Key: r.Key, Tag: r.Tag, Request: r.Request, Reserve: r.Reserve}
	s.unsettled = append(s.unsettled, e)
	s.live += e.cost()
	s.head.NextID++
	s.head.NextSequence++
	return nil
}

// freeTag refuses a tag that the stream has. The empty tag is always free.
func (s *stream) freeTag(tag string) error {
	if _, used := s.tags[tag]; used {
		return fmt.Errorf("%w: %q", ErrTagInUse, tag)
	}
	return nil
}

func (s *stream) applySettled(r *Record) error {
	if len(s.open()) == 0 || s.open()[0].ID != r.ID {
		return fmt.Errorf("settles write %d, which is not the first unsettled one", r.ID)
	}
	e := s.open()[0]
	s.unsettled[s.first] = nil
	s.first++
	switch {
	case s.first == len(s.unsettled):
		s.unsettled, s.first = s.unsettled[:0], 0
	case s.first >= 64 && 2*s.first >= len(s.unsettled):
		// Move the queue down now and then, so that it takes at most twice the memory of its entries.
		n := copy(s.unsettled, s.unsettled[s.first:])
		clear(s.unsettled[n:])
		s.unsettled, s.first = s.unsettled[:n], 0
	}
	s.live -= e.cost()
	if e.Tag == "" {
		return nil
	}
	e.Settled, e.Receipt = true, r.Receipt
	s.live += e.cost()
	s.settled[e.ID] = e
	return nil
}

func (s *stream) applyDropped(id uint64) error {
	open := s.open()
	for i, e := range open {
		if e.ID != id {
			continue
		}
		for _, e := range open[i:] {
			s.forgetEntry(e)
		}
		clear(open[i:])
		s.unsettled = s.unsettled[:s.first+i]
		s.head.NextSequence = e.Sequence
		return nil
	}
	return fmt.Errorf("drops write %d, which is not unsettled", id)
}

// remove removes a settled entry.
func (s *stream) remove(e *Entry) {
	delete(s.settled, e.ID)
	s.forgetEntry(e)
}

func (s *stream) forgetEntry(e *Entry) {
	s.live -= e.cost()
	if e.Tag != "" {
		delete(s.tags, e.Tag)
	}
}

// empty reports whether the stream has nothing to store.
func (s *stream) empty() bool {
	return !s.claimed && s.head.Session == 0 && len(s.head.Attempt) == 0 &&
		len(s.settled) == 0 && len(s.open()) == 0 && len(s.remembered) == 0
}

// appendSnapshot encodes records that recreate the stream's state.
func (s *stream) appendSnapshot(b []byte) []byte {
	b = appendStream(b, s.number, s.name)
	state := s.state()
	// The head before an entry sets its position, because acknowledged entries leave gaps.
	at := Head{Ledger: s.head.Ledger, Session: s.head.Session}
	for i := range state.Entries {
		e := &state.Entries[i]
		if at.NextID != e.ID || at.NextSequence != e.Sequence {
			at.NextID, at.NextSequence = e.ID, e.Sequence
			b = appendRecord(b, s.number, &Record{Kind: KindHead, Head: at})
		}
		b = appendRecord(b, s.number, &Record{Kind: KindWrite, ID: e.ID, Sequence: e.Sequence,
			Key: e.Key, Tag: e.Tag, Request: e.Request, Reserve: e.Reserve})
		at.NextID++
		at.NextSequence++
		if e.Settled {
			b = appendRecord(b, s.number, &Record{Kind: KindSettled, ID: e.ID, Receipt: e.Receipt})
		}
	}
	for _, tag := range state.Remembered {
		b = appendRecord(b, s.number, &Record{Kind: kindRemembered, tag: tag})
	}
	return appendRecord(b, s.number, &Record{Kind: KindHead, Head: s.head})
}
