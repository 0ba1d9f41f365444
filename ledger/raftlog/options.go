package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// Position is a position in the log. The zero Position is before the first entry.
type Position = segment.Position

// Entry is an entry of the log.
type Entry = segment.Entry

// IsCommand reports whether an entry is a command for the state machine.
func IsCommand(e *Entry) bool { return e.Kind == core.KindCommand && len(e.Data) > 0 }

// SameEntry reports whether two entries are the same.
func SameEntry(a, b *Entry) bool {
	return a.Index == b.Index && a.Term == b.Term && a.Kind == b.Kind && bytes.Equal(a.Data, b.Data)
}

// State is the Raft state that a log stores in addition to its entries.
type State = segment.State

// Role says which node leads, as far as this node knows.
type Role = core.Role

// Members are the nodes of a cluster.
type Members = core.Members

// DecodeMembers decodes members written by Members.Encode and returns the bytes after them.
func DecodeMembers(b []byte) (Members, []byte, error) { return core.DecodeMembers(b) }

// Machine is the state machine, with its store, to which the log applies entries.
type Machine interface {
	// Apply is called for each committed command after Options.Checkpoint, in log order, from one goroutine, also
	// during the replay at a start. Its result goes to the proposer. The machine reports a storage failure with
	// Log.Fail, which it may call from within Apply. entry must not be changed and may be retained.
	Apply(at Position, entry []byte) any
}

// Limits and defaults of the log.
const (
	// DefaultSegmentBytes is the size of one log file.
	DefaultSegmentBytes = segment.DefaultSegmentBytes
	// MaxEntryBytes is the maximum size of one proposed entry. Two such entries may be uncommitted at once.
	MaxEntryBytes = core.MaxUncommittedBytes / 2
)

// Options configures Open. Dir, Identity and Machine are required.
type Options struct {
	Dir      string // holds segments/; created if Create is set
	Identity []byte // 1–256 bytes that identify the data directory; must match at open

	// Create makes a new log with this node as its sole voter, and fails if Dir already holds one. Without Create the
	// log must exist.
	Create bool
	// Checkpoint is the position of the last command that the state store holds durably; zero for none.
	Checkpoint Position

	// Node is the id of this node. 0 means 1, the id of the node that created the ledger.
	Node uint64
	// Cluster lets other nodes join. If it is nil, this node is the sole voter and a log with other members is refused.
	Cluster *Cluster

	Machine Machine
	// Watch has the work that this node must do to serve. The log adds its own; the caller may add more, and the entry
	// being applied advances with Log.Advance. nil: only the log's own.
	Watch     *Watch
	Logger    *slog.Logger // nil: slog.Default()
	OnFailure func(error)  // called once with the first storage error; must not block; may be nil

	// Stored is called after each write of entries with their bytes and the time the write took, including the sync. It
	// must not block; may be nil.
	Stored func(bytes int, took time.Duration)

	// SegmentBytes is the size of one log file, 8 KiB to 1 GiB; zero means DefaultSegmentBytes. A change applies to
	// files created after it.
	SegmentBytes int

	// disk lets a test make the log's files fail, and step stop Alone between two steps.
	disk func(path string) segment.Disk
	step func() error
}

// Cluster configures how a log reaches the other nodes.
type Cluster struct {
	// Send takes messages for other nodes, in order. It must neither block nor call the log, and may lose messages.
	Send func([]*pb.Message)
	// Tick is the heartbeat interval; an election begins after ten to twenty intervals without a heartbeat. 0 means 50
	// ms.
	Tick time.Duration
}

func (o *Options) validate() error {
	switch {
	case o.Dir == "":
		return errors.New("raftlog: Options.Dir is empty")
	case o.Machine == nil:
		return errors.New("raftlog: Options.Machine is nil")
	case o.Create && o.Checkpoint != Position{}:
		// A state store that already holds commands belongs to another log. An empty log beside it would give new
		// entries lower indexes than the existing ones.
		return fmt.Errorf("raftlog: cannot create a log for a state store that is at %s", o.Checkpoint)
	case o.Cluster != nil && o.Cluster.Tick < 0:
		return fmt.Errorf("raftlog: Cluster.Tick is %v", o.Cluster.Tick)
	}
	o.setDefaults()
	return nil
}

// tick returns the heartbeat interval.
func (o *Options) tick() time.Duration {
	const usual = 50 * time.Millisecond
	if o.Cluster == nil || o.Cluster.Tick == 0 {
		return usual
	}
	return o.Cluster.Tick
}

func (o *Options) setDefaults() {
	if o.Node == 0 {
		o.Node = firstNode
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Watch == nil {
		o.Watch = NewWatch()
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	if o.Stored == nil {
		o.Stored = func(int, time.Duration) {}
	}
	if o.disk == nil {
		o.disk = segment.OpenDirectory
	}
	if o.step == nil {
		o.step = func() error { return nil }
	}
}
