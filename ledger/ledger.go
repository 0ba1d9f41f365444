package ledger

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/internal/private"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/read"
)

// Ledger is an open ledger. Its methods may be called from many goroutines.
type Ledger struct {
	// Reader has the reads: View, Blocks, Chain and others; see package read.
	*read.Reader

	// Set by Open, and constant afterwards.

	source    read.Source // what Reader reads
	options   Options
	directory *datadir.Directory
	store     *boltstore.Store
	log       *raftlog.Log
	cluster   *cluster.Driver
	watch     *raftlog.Watch
	logOpened time.Time // when its replay began

	machine *machine.Machine // guarded by the store's lock

	// These have their own locks.

	cache         *cache
	clock         clock
	heads         heads
	watchers      waiters[machine.Scope]
	keys          waiters[string] // for a reservation to end, by its key in the state
	counters      counters
	keyedCounters keyedCounters
	seeding       seeding
	archiver      archiver
	receipts      receipts
	probes        probes
	singles       sync.Pool // of submissions; see single

	pipeline
	upkeep
	life
}

// pipeline is what writes go through; see commit.go. The channels cutDue and drained are signals: see signal.
type pipeline struct {
	mu     sync.Mutex // guards engine
	engine *engine.Engine

	cutDue       chan struct{}      // see commitLoop
	drained      chan struct{}      // see Drain
	inFlight     chan inflightEntry // proposed and not yet answered, in the order of the log
	lastProposed atomic.Int64       // ledger time of the last proposed entry, Unix nanoseconds
	lacksRoom    atomic.Bool        // as the engine says
}

// upkeep is the work beside the way of writes; see jobs.go. The channels jobDue and historyDue are signals.
type upkeep struct {
	jobs    sync.Mutex // held while a job is done; guards removal
	removal removal

	working    *raftlog.Job              // see do
	jobHook    func(next engine.JobKind) // for tests
	jobDue     chan struct{}
	historyDue chan struct{}

	// Held by a send, with capacity 1.

	backups    chan struct{} // while a backup is made
	blockFiles chan struct{} // while block files are copied or removed
}

// life is the beginning and the end of a ledger; see Open, fail and Close.
type life struct {
	opened   atomic.Pointer[raftlog.Log] // log, for the applier, which may run before Open has returned
	replayed atomic.Bool
	draining atomic.Bool
	failure  atomic.Pointer[failure]
	failed   chan struct{} // closed with the first failure

	stop      context.CancelFunc // ends the loops
	stopping  context.Context    //nolint:containedctx // It is the ledger's life.
	loops     sync.WaitGroup
	answering sync.WaitGroup // the answer loop
	closeOnce sync.Once
	closeErr  error // set by closeOnce
}

type failure struct{ err error }

// Open opens the ledger in a data directory, or creates it. When it returns,
// the ledger leads, has replayed its log and answers. It holds the directory
// until Close. A node that has others in its cluster does not wait for them: see cluster.Node.Leader.
func Open(ctx context.Context, o Options) (*Ledger, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	l := newLedger(o)
	if err := l.open(ctx); err != nil {
		return nil, errors.Join(err, l.release())
	}
	return l, nil
}

func (l *Ledger) open(ctx context.Context) (err error) {
	if l.directory, err = datadir.Open(l.options.Dir, datadir.Created); err != nil {
		return err
	}
	private.Narrow(l.options.Logger, l.options.Dir)
	if err := l.findArchive(); err != nil {
		return err
	}
	if err := l.openState(); err != nil {
		return err
	}
	if err := l.openLog(); err != nil {
		return err
	}
	if l.directory.Fresh() {
		if err := l.directory.Finish(); err != nil {
			return err
		}
	}
	if err := l.run(ctx); err != nil {
		return err
	}
	if l.cluster.Term() != 0 {
		if err := l.create(ctx); err != nil {
			return err
		}
	}
	if err := l.cluster.Start(); err != nil {
		return err
	}
	l.catchUp()
	return nil
}

// run replays the log and then takes commands.
func (l *Ledger) run(ctx context.Context) error {
	// Before the replay, whose changes would gather in memory otherwise. It ends with stopping, and release joins it.
	l.loops.Go(l.jobLoop)
	sole, err := l.awaitSole(ctx)
	if err == nil {
		err = l.cluster.CompareLedger(ctx)
	}
	if err != nil {
		return err
	}
	if sole {
		if err := l.awaitReplay(ctx); err != nil {
			return err
		}
		if err := l.cluster.Objection(); err != nil { // raised before it was known that there is no other node
			return err
		}
		l.replayed.Store(true)
	}
	l.startLoops()
	return nil
}

func newLedger(o Options) *Ledger {
	stopping, stop := context.WithCancel(context.Background())
	l := &Ledger{
		options: o, cache: newCache(o.CacheBytes), watch: raftlog.NewWatch(),
		pipeline: pipeline{
			engine: engine.New(o.QueueBytes, engine.EntryCommands(o.Config)),
			cutDue: make(chan struct{}, 1), drained: make(chan struct{}, 1),
			inFlight: make(chan inflightEntry, engine.MaxInFlight),
		},
		upkeep: upkeep{
			jobDue: make(chan struct{}, 1), historyDue: make(chan struct{}, 1),
			backups: make(chan struct{}, 1), blockFiles: make(chan struct{}, 1),
		},
		life: life{stop: stop, stopping: stopping, failed: make(chan struct{})},
	}
	l.archiver.init()
	l.working = l.watch.Job("a checkpoint", checkpointPatience)
	// On equal disks the nodes of a cluster write their checkpoints at the same time, and one sync may take long.
	l.working.OnlyWhile(l.lacksRoom.Load)
	l.source.Err, l.source.Fresh, l.source.Failed = l.Err, l.fresh, l.readFailed
	l.Reader = read.New(&l.source)
	l.cluster = cluster.New(l.clusterHost())
	l.receipts.changed = make(chan struct{})
	l.keys.perKey, l.keys.total = maxKeyWaiters, maxWaiters
	l.counters.begin()
	l.keyedCounters.reservations.begin()
	l.keyedCounters.records.reset()
	return l
}

func (l *Ledger) openState() (err error) {
	l.store, err = boltstore.Open(l.directory.State(), boltstore.Options{
		Create: l.directory.Fresh(), Identity: l.directory.Identity(), Yield: l.yield, SealBytes: sealBytes,
		Advanced: l.advanced,
	})
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	l.engine.SetCheckpointBytes(l.options.CheckpointBytes, int64(l.store.ScrubPages())*int64(l.store.PageSize()))
	if l.store.SumsMade() && !l.directory.Fresh() && l.store.Checkpoint().Index > 0 {
		l.options.Logger.Warn("the checksums of the state file's pages were missing, as they are after a join, "+
			"and were made of the pages as they are; seqledger verify checks them against the blocks",
			"file", boltstore.SumsPath(l.directory.State()))
	}
	return l.store.View(func(r machine.Reader) error {
		if l.machine, err = machine.Open(r); err != nil {
			return err
		}
		if l.options.Cluster != nil {
			l.machine.Differs = l.differs
		}
		l.source.Store, l.source.Machine = l.store, l.machine
		l.setHead(l.machine.View(r))
		l.clock.learn(l.Head().Time, time.Now(), true)
		l.setHorizon(l.machine.View(r).Horizon())
		return l.machine.View(r).VisitReservations(maxReservationScan, l.keyedCounters.reservations.add)
	})
}

// sealBytes is the length at which the block files of a new ledger are sealed; 0 is
// the default. Only tests change it.
var sealBytes int64

// segmentBytes is the most that a log file may have. Only tests change it: each start reads a whole
// file.
var segmentBytes = raftlog.DefaultSegmentBytes

// minSegmentBytes keeps a small LogBytes from making a file of every few writes.
const minSegmentBytes = 1 << 20

// logFileBytes returns the size of a log file. The log is truncated by whole files, so it is never
// shorter than one: with files of 64 MiB, a LogBytes of less would have no effect on the disk.
func logFileBytes(logBytes int64, most int) int {
	return int(min(max(logBytes/2, minSegmentBytes), int64(most)))
}

func (l *Ledger) openLog() (err error) {
	l.logOpened = time.Now()
	at := l.store.Checkpoint()
	o := raftlog.Options{
		Dir: l.directory.Log(), Identity: l.directory.Identity(), Node: l.directory.Node(),
		Create: l.directory.Fresh(), Checkpoint: raftlog.Position{Index: at.Index, Term: at.Term},
		Machine: (*applier)(l), Watch: l.watch, Logger: l.options.Logger, OnFailure: l.fail,
		SegmentBytes: logFileBytes(l.options.LogBytes, segmentBytes),
		Stored: func(_ int, took time.Duration) {
			l.counters.stored.Observe(int64(took))
			l.stored(took)
		},
	}
	if c := l.options.Cluster; c != nil {
		o.Cluster = &raftlog.Cluster{Send: l.cluster.Send, Tick: tickOf(c)}
	}
	if l.log, err = raftlog.Open(o); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	l.opened.Store(l.log)
	l.cluster.Attach(l.directory, l.log)
	if err := l.Err(); err != nil { // the applier failed before it could tell the log
		l.log.Fail(err)
	}
	return nil
}

func (l *Ledger) startLoops() {
	// They end with stopping and are joined by release, but for answerLoop, which ends when release closes inFlight.
	l.loops.Go(l.commitLoop)
	l.answering.Go(l.answerLoop)
	l.loops.Go(l.tickLoop)
	l.loops.Go(l.scrubLoop)
	if l.keyedCounters.records.counts() == nil { // the start counts those of a small ledger
		l.loops.Go(l.countLoop)
	}
	l.loops.Go(l.historyLoop)
	if l.options.Receipts != nil {
		l.loops.Go(l.receiptLoop)
	}
	if l.options.Archive != nil && l.options.ArchiveInterval >= 0 {
		l.loops.Go(l.shipLoop)
	}
	l.gather() // the log may be long enough to be truncated
}

// create proposes the command that gives a new ledger its id.
func (l *Ledger) create(ctx context.Context) error {
	view := l.Head()
	if view.Created {
		if configured := l.options.Config; configured != withDefaults(machine.Config{}) && configured != view.Config {
			l.options.Logger.Warn("the ledger exists and keeps its own configuration; change it with UpdateConfig",
				"configured", configured, "kept", view.Config)
		}
		return nil
	}
	if err := ctx.Err(); err != nil { // a caller that leads does not look
		return fmt.Errorf("create the ledger: %w", err)
	}
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return fmt.Errorf("random ledger id: %w", err)
	}
	ledgerID := machine.LedgerID(binary.BigEndian.Uint64(random[:8]))
	create := machine.AppendCreate(nil, ledgerID, binary.BigEndian.Uint64(random[8:]), l.options.Config)
	_, err := l.one(ctx, engine.Origin{}, create)
	return err
}

// Drain refuses new writes with ErrDraining and waits until everything that
// was accepted is decided.
func (l *Ledger) Drain(ctx context.Context) error {
	l.draining.Store(true)
	l.keys.close()
	l.closeEngine()
	select {
	case <-l.drained:
		signal(l.drained) // for the next call
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain: %w", ctx.Err())
	}
}

// closeEngine turns away what comes from now on, for the reason that refusal tells.
func (l *Ledger) closeEngine() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Err() != nil {
		l.engine.Fail()
	}
	l.engine.Close()
	l.changed()
}

// Close finishes what was accepted, writes a checkpoint and releases the data
// directory. After a failure of the storage it writes nothing more. Later
// calls return what the first one did.
func (l *Ledger) Close() error {
	l.closeOnce.Do(func() {
		l.draining.Store(true)
		// A failure answers everything, so that this ends in any case.
		_ = l.Drain(context.Background())
		if l.Err() == nil {
			l.cluster.HandOver() // first, because no other node takes writes before
			l.shipLast()
		}
		l.closeErr = l.release()
	})
	return l.closeErr
}

// release ends the loops and closes the parts that are open, in the order that
// keeps the log from being truncated beyond the state.
func (l *Ledger) release() error {
	l.stop()
	l.loops.Wait()
	close(l.inFlight) // nobody proposes any more: see Drain
	l.answering.Wait()
	l.cluster.Wait()
	l.backups <- struct{}{} // kept, so that none begins later; the one that is being made ends with stopping
	l.watchers.close()
	l.keys.close()
	var errs []error
	if l.log != nil {
		if l.Err() == nil && l.machine != nil {
			errs = append(errs, l.lastCheckpoint())
		}
		errs = append(errs, l.log.Close())
	}
	errs = append(errs, l.cluster.Close())
	if l.store != nil {
		errs = append(errs, l.store.Close())
	}
	if l.directory != nil {
		errs = append(errs, l.directory.Close())
	}
	return errors.Join(errs...)
}

// fail stops the ledger for good. What was applied before may still be
// acknowledged, because it is durable; nothing is applied after it.
func (l *Ledger) fail(err error) {
	if !l.failure.CompareAndSwap(nil, &failure{fmt.Errorf("%w: %w", ErrFailed, err)}) {
		return
	}
	l.options.Logger.Error("the ledger stops", "error", err)
	close(l.failed)
	l.closeEngine()
	l.watchers.close()
	l.keys.close()
	if log := l.opened.Load(); log != nil {
		log.Fail(err)
	}
}

// Stalled returns the work of this node, if any, that has stopped advancing because a disk does not answer. While there
// is any, the node does not lead a cluster. It waits for nothing.
func (l *Ledger) Stalled() raftlog.Stall { return l.watch.Stalled() }

// advanced notes that what is being applied advances.
func (l *Ledger) advanced() {
	if log := l.opened.Load(); log != nil {
		log.Advance()
	}
}

// Failed is closed when the ledger has failed; see Err.
func (l *Ledger) Failed() <-chan struct{} { return l.failed }

// Err returns the failure that stopped the ledger, or nil.
func (l *Ledger) Err() error {
	if f := l.failure.Load(); f != nil {
		return f.err
	}
	return nil
}
