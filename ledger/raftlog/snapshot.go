package raftlog

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotMagic begins a local snapshot; the last byte is its version.
const snapshotMagic = "seqlogs\x01"

// snapshotPayload is all that a local snapshot holds. The state itself is in
// the machine's store, which is why a snapshot is taken only after Checkpoint.
type snapshotPayload struct {
	identity []byte
	// covered is the last command at or before the snapshot's own index. It may
	// be lower: Raft's no-ops and barriers take indexes that the machine never
	// sees, so that no state store could ever reach the snapshot's index itself.
	covered Position
}

func (p snapshotPayload) encode() []byte {
	b := []byte(snapshotMagic)
	b = binary.BigEndian.AppendUint64(b, p.covered.Index)
	b = binary.BigEndian.AppendUint64(b, p.covered.Term)
	return append(b, p.identity...)
}

func decodeSnapshot(b []byte) (snapshotPayload, error) {
	const head = len(snapshotMagic) + 16
	if len(b) <= head || len(b) > head+maxIdentityBytes || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return snapshotPayload{}, fmt.Errorf("raftlog: not a snapshot of this version (%d bytes)", len(b))
	}
	at := b[len(snapshotMagic):]
	return snapshotPayload{
		identity: b[head:],
		covered:  Position{Index: binary.BigEndian.Uint64(at), Term: binary.BigEndian.Uint64(at[8:])},
	}, nil
}

// snapshotTmp ends the name of a snapshot that is being written, as
// raft.FileSnapshotStore has it.
const snapshotTmp = ".tmp"

// snapshotMetadata is the file of a snapshot that says where it stands.
const snapshotMetadata = "meta.json"

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
	err = fmt.Errorf("raftlog: write a snapshot below %s: %w", s.dir, err)
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

// checkSnapshotMetadata refuses a snapshot whose metadata changed at rest. Raft
// passes over one that it cannot read, and takes any index that it can read:
// one that is too high makes it leave out the entries before. The metadata has
// no checksum, but the name of the directory says the same.
//
// It returns what a removal has left that did not come to its end. Only that may
// lack its metadata: the store removes a snapshot when there are keptSnapshots
// newer ones.
func checkSnapshotMetadata(dir string) (leftovers []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]snapshotName, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() && !strings.HasSuffix(e.Name(), snapshotTmp) {
			names = append(names, parseSnapshotName(e.Name()))
		}
	}
	slices.SortFunc(names, func(a, b snapshotName) int { return slices.Compare(b.numbers[:], a.numbers[:]) })
	whole := 0
	for _, name := range names {
		err := checkMetadata(dir, name.text)
		switch {
		case err == nil:
			whole++
		case errors.Is(err, fs.ErrNotExist) && whole >= keptSnapshots:
			leftovers = append(leftovers, filepath.Join(dir, name.text))
		default:
			return nil, err
		}
	}
	return leftovers, nil
}

// snapshotName is the name of a snapshot, with its term, index and time: what
// the store orders them by.
type snapshotName struct {
	text    string
	numbers [3]uint64
}

// parseSnapshotName takes what is no number for zero, which makes it the oldest.
func parseSnapshotName(text string) snapshotName {
	name := snapshotName{text: text}
	for i, part := range strings.SplitN(text, "-", len(name.numbers)) {
		name.numbers[i], _ = strconv.ParseUint(part, 10, 64)
	}
	return name
}

// checkMetadata compares a snapshot's metadata with its name.
func checkMetadata(dir, id string) error {
	name := filepath.Join(dir, id, snapshotMetadata)
	content, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var meta struct {
		raft.SnapshotMeta
		CRC []byte
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields() // a field whose name changed would count as zero
	if err := decoder.Decode(&meta); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if meta.Version != 1 || meta.ID != id || !strings.HasPrefix(meta.ID, fmt.Sprintf("%d-%d-", meta.Term, meta.Index)) {
		return fmt.Errorf("%s contradicts the directory's name: version %d, id %q, term %d, index %d",
			name, meta.Version, meta.ID, meta.Term, meta.Index)
	}
	if meta.ConfigurationIndex < 1 || meta.ConfigurationIndex > meta.Index {
		// Raft would wait for ever for members that it does not know.
		return fmt.Errorf("%s: its members are of index %d, and it is at %d", name, meta.ConfigurationIndex, meta.Index)
	}
	return nil
}

// readSnapshot returns the newest local snapshot, or a nil meta when there is
// none.
func readSnapshot(store raft.SnapshotStore) (*raft.SnapshotMeta, snapshotPayload, error) {
	metas, err := store.List()
	if err != nil || len(metas) == 0 {
		return nil, snapshotPayload{}, err
	}
	meta, body, err := store.Open(metas[0].ID)
	if err != nil {
		return nil, snapshotPayload{}, err
	}
	b, err := io.ReadAll(io.LimitReader(body, 1<<10))
	if err := errors.Join(err, body.Close()); err != nil {
		return nil, snapshotPayload{}, err
	}
	payload, err := decodeSnapshot(b)
	return meta, payload, err
}
