package legacy

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
)

// Position is a place in the log. The zero Position is before the first entry.
type Position struct {
	Index uint64 // 1 for the first entry; every kind of entry counts
	Term  uint64 // Raft term in which a leader appended the entry
}

// String returns "index N of term T".
func (p Position) String() string { return fmt.Sprintf("index %d of term %d", p.Index, p.Term) }

// Machine is what the log drives: the state machine with its store.
type Machine interface {
	// Apply is called for each committed command entry in log order, from one
	// goroutine, also while the log is replayed after a start. The machine
	// itself skips positions at or below what it has applied, because a replay
	// begins wherever the log does. The result goes to the proposer. A storage
	// failure inside is reported with Log.Fail, which the machine may call from
	// within Apply. Entry must not be changed and may be kept.
	Apply(at Position, entry []byte) any
	// Checkpoint blocks until everything applied up to and including at is
	// durable in the machine's own store, because the log is truncated right
	// after. At is the position of a command that was passed to Apply, or
	// already in Options.Checkpoint. It runs beside Apply, and must return when
	// the machine's store fails.
	Checkpoint(at Position) error
}

// Limits and defaults of the log.
const (
	// queuedEntries is the most that was written to the disk at once.
	queuedEntries = 64
	// keptSnapshots is one more than needed: the newest may be half written.
	keptSnapshots = 2
	// DefaultSegmentBytes is the size of one log file.
	DefaultSegmentBytes = 64 << 20
	// MaxEntryBytes bounds one proposed entry. raft-wal reads back none above
	// 64 MiB, and keeps offsets in 32 bits, so that a segment with the 65 entries
	// that may overflow it in one write must stay below 4 GiB.
	MaxEntryBytes = 32 << 20
	// maxIdentityBytes bounds Options.Identity, which is stored twice.
	maxIdentityBytes = 256
)

// Options configures Open. Dir, NodeID, Identity and Machine are required.
type Options struct {
	Dir      string // holds wal/ and snapshots/; made when Create is set
	NodeID   string // name of this node in the cluster, stable for ever
	Identity []byte // 1–256 bytes that name the data directory; must match at open

	// Create makes a new log with this node as its sole voter, and fails when
	// Dir holds one already. Without it everything must exist.
	Create bool
	// Checkpoint is the position of the last command that the state store holds
	// durably; zero for none.
	Checkpoint Position

	Machine   Machine
	Logger    *slog.Logger // nil: slog.Default()
	OnFailure func(error)  // told the first storage error, once; must not block; may be nil

	// Stored is told of each write of entries: their bytes and how long it took,
	// fsync included. It must not block; may be nil.
	Stored func(bytes int, took time.Duration)

	// Transport connects the nodes; Close closes it if it has a Close method.
	// Nil means in process, which serves a sole voter only.
	Transport raft.Transport
	// SegmentBytes is the size of one log file, 4 KiB to 1 GiB; zero means
	// DefaultSegmentBytes. A change holds for the files made after it.
	SegmentBytes int

	// files and wrap let a test fail the disk below and the store above raft-wal;
	// synced tells it of each directory that was synced, and may fail that.
	files  types.VFS
	wrap   func(diskStore) diskStore
	synced func(dir string) error
}
