package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/host"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
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
	// Apply is called for each committed command entry behind Options.Checkpoint in log
	// order, from one goroutine, also while the log is replayed after a start. The result
	// goes to the proposer. A storage failure inside is reported with Log.Fail, which the
	// machine may call from within Apply. Entry must not be changed and may be kept.
	Apply(at Position, entry []byte) any
	// Checkpoint blocks until everything applied up to and including at is
	// durable in the machine's own store, because the log is truncated right
	// after. At is the position of a command that was passed to Apply. It runs beside
	// Apply, and must return when the machine's store fails.
	Checkpoint(at Position) error
}

// Limits and defaults of the log.
const (
	// DefaultSegmentBytes is the size of one log file.
	DefaultSegmentBytes = segment.DefaultSegmentBytes
	// MaxEntryBytes bounds one proposed entry.
	MaxEntryBytes = host.MaxEntryBytes
)

// Options configures Open. Dir, Identity and Machine are required.
type Options struct {
	Dir      string // holds segments/; made when Create is set
	Identity []byte // 1–256 bytes that name the data directory; must match at open

	// Create makes a new log with this node as its sole voter, and fails when
	// Dir holds one already. Without it everything must exist.
	Create bool
	// Checkpoint is the position of the last command that the state store holds
	// durably; zero for none.
	Checkpoint Position

	// Node is the id of this node; 0 means 1, that of the node which made the ledger.
	Node uint64
	// Cluster lets other nodes join. Nil: this node is the sole voter; a log with other
	// members is refused.
	Cluster *Cluster

	Machine   Machine
	Logger    *slog.Logger // nil: slog.Default()
	OnFailure func(error)  // told the first storage error, once; must not block; may be nil

	// Stored is told of each write of entries: their bytes and how long it took,
	// the sync included. It must not block; may be nil.
	Stored func(bytes int, took time.Duration)

	// SegmentBytes is the size of one log file, 8 KiB to 1 GiB; zero means
	// DefaultSegmentBytes. A change holds for the files made after it.
	SegmentBytes int

	// disk lets a test fail the files of the log, and step a conversion between its steps.
	disk func(path string) segment.Disk
	step func() error
}

// Cluster says how a log reaches the other nodes.
type Cluster struct {
	// Send takes messages for other nodes, in order; it must neither block nor call the
	// log, and may lose them.
	Send func([]*pb.Message)
	// Tick is the time between two heartbeats; an election begins after ten to twenty
	// without one. 0: 50 ms.
	Tick time.Duration
}

func (o *Options) validate() error {
	switch {
	case o.Dir == "":
		return errors.New("raftlog: Options.Dir is empty")
	case o.Machine == nil:
		return errors.New("raftlog: Options.Machine is nil")
	case o.Create && o.Checkpoint != Position{}:
		// A state store that already holds commands belongs to some other log;
		// an empty log beside it would number new entries below the old ones.
		return fmt.Errorf("raftlog: cannot create a log for a state store that is at %s", o.Checkpoint)
	}
	o.setDefaults()
	return nil
}

func (o *Options) setDefaults() {
	if o.Node == 0 {
		o.Node = firstNode
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.disk == nil {
		o.disk = segment.OpenDirectory
	}
	if o.step == nil {
		o.step = func() error { return nil }
	}
}
