package legacy

import (
	"errors"
	"fmt"
	"github.com/hashicorp/raft"
	"log/slog"
	"math"
	"path/filepath"
	"sync"
	"time"
)

const (
	// trailingEntries stay in the log behind a truncation, so that it is never
	// empty after its first entry (an empty one is a lost one) and a follower
	// that is a moment behind still finds what it misses. Entries are batches of
	// writes and may be large, so there are few of them.
	trailingEntries = 64
	// soleTimeout is how long a sole voter that has lost its leadership waits for a
	// leader that cannot exist. At the start it does not wait; see campaign.
	soleTimeout = 50 * time.Millisecond
	// never is how often Raft looks by itself whether to take a snapshot.
	never = 10 * 365 * 24 * time.Hour
)

// Open opens the log, or makes one when Options.Create is set, and starts Raft.
// Committed entries reach Machine.Apply from then on; wait for Ready before the
// first proposal. A log that does not fit the state store is refused with a
// *DamageError.
func Open(o Options) (*Log, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	transport := o.Transport
	if transport == nil {
		_, transport = raft.NewInmemTransport(raft.ServerAddress(o.NodeID))
	}
	conf := raftConfig(&o)
	if o.Create {
		self := raft.Server{ID: conf.LocalID, Address: transport.LocalAddr(), Suffrage: raft.Voter}
		if err := create(&o, conf, transport, self); err != nil {
			return nil, err
		}
	}
	disk, err := openDisk(&o)
	if err != nil {
		return nil, err
	}
	l, err := start(&o, conf, disk, transport)
	if err != nil {
		return nil, errors.Join(err, disk.Close())
	}
	return l, nil
}

func raftConfig(o *Options) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(o.NodeID)
	c.Logger = newHclog(o.Logger, "raft")
	c.BatchApplyCh = true // otherwise Propose would wait for the disk
	c.MaxAppendEntries = queuedEntries
	c.TrailingLogs = trailingEntries
	c.SnapshotInterval = never // only Truncate takes one
	c.SnapshotThreshold = math.MaxUint64
	c.NoSnapshotRestoreOnStart = true // the state is in the machine's store already
	c.NoLegacyTelemetry = true
	// A node that was removed becomes a follower without a leader; its
	// operator stops it.
	c.ShutdownOnRemove = false
	return c
}

// start checks the log and starts Raft on it.
func start(o *Options, conf *raft.Config, disk diskStore, transport raft.Transport) (*Log, error) {
	store, err := openSnapshots(o)
	if err != nil {
		return nil, err
	}
	snapshots := &durableSnapshots{SnapshotStore: store, dir: filepath.Join(o.Dir, snapshotDir), sync: o.sync}
	found, err := inspect(o, disk, snapshots)
	if err != nil {
		return nil, err
	}
	sole := isSole(found.configuration, conf.LocalID)
	if sole {
		// campaign halves them
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 2*soleTimeout, 2*soleTimeout, soleTimeout
	} else if o.Transport == nil {
		return nil, damage(o.Dir, nil, "it names the members %+v, and node %q is not the only voter of them: "+
			"its newest snapshot or entry is damaged, or it is of a cluster, for which Options.Transport is needed",
			found.configuration.Servers, o.NodeID)
	}
	l := &Log{
		options:      *o,
		logger:       o.Logger,
		node:         conf.LocalID,
		stop:         make(chan struct{}),
		establishing: make(chan struct{}, 1),
	}
	l.close = sync.OnceValue(l.doClose)
	snapshots.fail = l.fail
	l.sole.Store(sole)
	l.store = &guardedStore{
		disk:       disk,
		failed:     l.failed,
		fail:       l.fail,
		stored:     o.Stored,
		configured: l.configured,
		rewound:    func() { l.sole.Store(false) },
	}
	l.store.bytes.Store(found.bytes)
	machine := &fsm{machine: o.Machine, identity: o.Identity, failed: l.failed, covered: found.covered}
	if err := l.run(conf, machine, snapshots, transport); err != nil {
		return nil, err
	}
	return l, nil
}

// run starts Raft. NewRaft gets a goroutine of its own, because guardedStore
// ends the goroutine that meets an error where Raft would panic.
func (l *Log) run(conf *raft.Config, machine raft.FSM, snapshots raft.SnapshotStore, transport raft.Transport) error {
	var node *raft.Raft
	err := errors.New("legacy: Raft did not start")
	var started sync.WaitGroup
	// Ends with NewRaft or with the first storage error; waited for right below.
	started.Go(func() { node, err = raft.NewRaft(conf, machine, l.store, l.store, snapshots, transport) })
	started.Wait()
	if failure := l.failed(); failure != nil && node == nil {
		return failure
	}
	if err == nil && l.sole.Load() {
		if err = campaign(node); err != nil {
			err = errors.Join(err, node.Shutdown().Error())
		}
	}
	if err != nil {
		return fmt.Errorf("legacy: %w", err)
	}
	l.mu.Lock()
	l.raft = node
	if l.failed() != nil {
		l.stopRaftLocked() // fail had no Raft to stop yet
	}
	l.mu.Unlock()
	return nil
}

// campaign makes a sole voter stand for election at once: it would find out by
// waiting that there is no leader, and serves no call meanwhile. Raft looks for
// its leader as soon as the time that it may be silent becomes shorter.
func campaign(node *raft.Raft) error {
	c := node.ReloadableConfig()
	c.HeartbeatTimeout /= 2
	c.ElectionTimeout /= 2
	return node.ReloadConfig(c)
}

// configured learns of a membership that is about to be in the log.
func (l *Log) configured(encoded []byte) {
	conf, err := decodeConfiguration(encoded)
	// In doubt the leadership is verified, which is always right.
	l.sole.Store(err == nil && isSole(conf, l.node))
}

// isSole tells whether node is the only voter of conf.
func isSole(conf raft.Configuration, node raft.ServerID) bool {
	voters, self := 0, false
	for _, s := range conf.Servers {
		if s.Suffrage == raft.Voter {
			voters++
			self = self || s.ID == node
		}
	}
	return voters == 1 && self
}

func (o *Options) validate() error {
	switch {
	case o.Dir == "":
		return errors.New("legacy: Options.Dir is empty")
	case o.NodeID == "":
		return errors.New("legacy: Options.NodeID is empty")
	case len(o.Identity) == 0 || len(o.Identity) > maxIdentityBytes:
		return fmt.Errorf("legacy: Options.Identity has %d bytes, want 1 to %d", len(o.Identity), maxIdentityBytes)
	case o.Machine == nil:
		return errors.New("legacy: Options.Machine is nil")
	case o.Create && o.Checkpoint != Position{}:
		// A state store that already holds commands belongs to some other log;
		// an empty log beside it would number new entries below the old ones.
		return fmt.Errorf("legacy: cannot create a log for a state store that is at %s", o.Checkpoint)
	case o.SegmentBytes != 0 && (o.SegmentBytes < 4<<10 || o.SegmentBytes > 1<<30):
		return fmt.Errorf("legacy: Options.SegmentBytes is %d, want 4096 to %d", o.SegmentBytes, 1<<30)
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Stored == nil {
		o.Stored = func(int, time.Duration) {}
	}
	return nil
}
