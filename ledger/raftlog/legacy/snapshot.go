package legacy

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

func decodeSnapshot(b []byte) (snapshotPayload, error) {
	const head = len(snapshotMagic) + 16
	if len(b) <= head || len(b) > head+maxIdentityBytes || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return snapshotPayload{}, fmt.Errorf("legacy: not a snapshot of this version (%d bytes)", len(b))
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
	// The bound is above the longest payload, so that a longer file is refused and never read whole.
	b, err := io.ReadAll(io.LimitReader(body, 1<<10))
	if err := errors.Join(err, body.Close()); err != nil {
		return nil, snapshotPayload{}, err
	}
	payload, err := decodeSnapshot(b)
	return meta, payload, err
}

// openSnapshots removes what a crash left of a snapshot, and refuses damaged ones.
func openSnapshots(o *Options) (*raft.FileSnapshotStore, error) {
	// What a crash left of a snapshot is of no use, and nothing else removes it.
	left, err := os.ReadDir(filepath.Join(o.Dir, snapshotDir)) // not Glob: the path is used literally
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	for _, e := range left {
		if strings.HasSuffix(e.Name(), snapshotTmp) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(o.Dir, snapshotDir, e.Name())))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("legacy: %w", err)
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(o.Dir, keptSnapshots, newHclog(o.Logger, "raft"))
	if err != nil {
		return nil, fmt.Errorf("legacy: %w", err)
	}
	// The store syncs neither its directory's name nor, here, the removals. The
	// log is cut off on the word of what is in it: it must not vanish as a whole.
	path := filepath.Join(o.Dir, snapshotDir)
	if err := errors.Join(o.sync(path), o.sync(o.Dir)); err != nil {
		return nil, err
	}
	leftovers, err := checkSnapshotMetadata(path)
	if err != nil {
		return nil, damage(o.Dir, err, "the metadata of a snapshot is damaged")
	}
	for _, name := range leftovers {
		// The store does not see it, and so would never remove it.
		if err := os.RemoveAll(name); err != nil {
			return nil, fmt.Errorf("legacy: remove what is left of an old snapshot: %w", err)
		}
	}
	return store, nil
}
