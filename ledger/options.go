package ledger

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Options say how to open a ledger. Only Dir is required.
type Options struct {
	// Dir is the data directory. An absent or empty one becomes a new ledger.
	Dir string
	// Config is the replicated configuration of a new ledger; zero fields take
	// their defaults. An existing ledger keeps its own.
	Config machine.Config
	// Logger receives what operators should know. Default: slog.Default().
	Logger *slog.Logger
	// Clock tells wall time when a term begins, and Stats how far it has moved
	// away since; nothing else looks at it. Default: time.Now.
	Clock func() time.Time
	// AcceptClock says that the clock is right though it is far ahead of the last
	// command. Without it Open returns a datadir.ErrClock when ledger time would
	// move by more than 30 days, and by more than the longest pause of the ledger so
	// far.
	AcceptClock bool
	// CacheBytes bounds the response cache; 0 means 64 MiB, negative means no
	// cache. No answer depends on it.
	CacheBytes int64
	// QueueBytes bounds the writes that wait or are in flight, each counted
	// with some overhead. Default: 64 MiB.
	QueueBytes int64
	// CheckpointBytes is how much change gathers in memory before it is written
	// to the state file. 0 finds it by the size of that file and what checkpoints
	// cost, between 32 and 128 MiB. Writes wait when twice as much has gathered, or
	// 128 MiB if that is more. A larger value writes less to the disk where records change all
	// over a large state. While a checkpoint is written, some of its pages are in memory, too.
	CheckpointBytes int64
	// LogBytes is how much log gathers before it is truncated, and so about how
	// much is replayed after a crash. Default: 128 MiB. The log's files have half
	// of it, 1 to 64 MiB, because the log is truncated by whole files.
	LogBytes int64
	// ScrubBytes is how much of the state file and the block files is read a second to compare them with
	// their checksums, in the background, so that damage is found before a write needs the
	// page. 0 means 8 MiB, negative means not at all.
	ScrubBytes int64
	// Archive is where the ledger has its archive (see package archive), or nil. Sealed block files are copied to it,
	// and none is removed by retention that it has not confirmed. Without one, retention removes nothing if the ledger
	// had an archive before, unless EndArchive is set.
	Archive archive.Target
	// ArchiveInterval is how long after one state the leader copies the next one to the archive. 0 means a day,
	// negative that it copies none.
	ArchiveInterval time.Duration
	// ArchiveWindow is for how long states are kept in the archive, in ledger time; the newest state before it is kept
	// as well. 0 means a week, negative that none is removed.
	ArchiveWindow time.Duration
	// ArchiveRate is the most that is read for a state in a second, as BackupOptions.RateBytes.
	ArchiveRate int64
	// EndArchive gives up the archive that the ledger had, for this start and later ones: retention then removes
	// files that are in no archive. Archive must be nil.
	EndArchive bool
	// Receipts makes the ledger a transparency log, with receipts that verify offline. Nil: it is none. Every node that
	// may lead needs the same ones.
	Receipts *ReceiptOptions
	// Cluster lets this node have others beside it. Nil: it is alone, and a directory that belongs to
	// a node with others is refused.
	Cluster *cluster.Options
	// ObserveApply, unless it is nil, is called before each log entry is applied, and what it
	// returns after it, both by the goroutine that applies. It is for measurements: all writes
	// wait for it.
	ObserveApply func() (end func())

	scrubInterval time.Duration // between the beginnings of two rounds; 0 means an hour
	idleInterval  time.Duration // without proposals before a tick; 0 means a second
	// retainInterval is how often files before the horizon, and sealed ones, are looked for; 0 means ten seconds.
	retainInterval time.Duration
	// archivePatience is how long retention and a stop wait for an archive that does not answer; 0 means ten seconds.
	archivePatience time.Duration
	// sealedPatience is how old a checkpoint may be while a sealed file waits for the next one to be archived; 0 means
	// a minute.
	sealedPatience time.Duration
	// shipInterval is how long after one object of the log the next one is put into the archive, unless it is full; 0
	// means ten seconds.
	shipInterval time.Duration
	// statePart is how many bytes a part of a state in the archive has; 0 means 16 MiB.
	statePart int64
}

func (o *Options) validate() error {
	if o.Dir == "" {
		return errors.New("ledger: Options.Dir is empty")
	}
	orDefault := func(field *int64, value int64) {
		if *field == 0 {
			*field = value
		}
	}
	orDefault(&o.CacheBytes, 64<<20)
	orDefault(&o.QueueBytes, 64<<20)
	orDefault(&o.LogBytes, 128<<20)
	orDefault(&o.ScrubBytes, 8<<20)
	orDefault((*int64)(&o.scrubInterval), int64(time.Hour))
	orDefault((*int64)(&o.idleInterval), int64(time.Second))
	orDefault((*int64)(&o.retainInterval), int64(10*time.Second))
	orDefault((*int64)(&o.archivePatience), int64(10*time.Second))
	orDefault((*int64)(&o.sealedPatience), int64(time.Minute))
	orDefault((*int64)(&o.ArchiveInterval), int64(24*time.Hour))
	orDefault((*int64)(&o.ArchiveWindow), int64(7*24*time.Hour))
	orDefault(&o.statePart, 16<<20)
	orDefault((*int64)(&o.shipInterval), int64(10*time.Second))
	if o.Receipts != nil && (o.Receipts.Origin == "" || len(o.Receipts.Keys) == 0) {
		return errors.New("ledger: Options.Receipts needs an origin and a key")
	}
	if o.Archive != nil && o.EndArchive {
		return errors.New("ledger: Options: Archive and EndArchive exclude each other")
	}
	if o.QueueBytes < minQueueBytes || o.CheckpointBytes < 0 || o.LogBytes < 0 {
		return errors.New("ledger: Options: QueueBytes must be at least 16 MiB, " +
			"CheckpointBytes and LogBytes not negative")
	}
	if o.Cluster != nil {
		// A copy, so that the defaults do not change the caller's options.
		c := *o.Cluster
		if c.Listener == nil {
			return errors.New("ledger: Options.Cluster.Listener is nil")
		}
		c.Peer = cmp.Or(c.Peer, c.Listener.Addr().String())
		o.Cluster = &c
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.Config = withDefaults(o.Config)
	return o.Config.Validate()
}

// minQueueBytes leaves room for the largest submission.
const minQueueBytes = 16 << 20

func withDefaults(c machine.Config) machine.Config {
	d := machine.DefaultConfig()
	if c.EvictionInterval == 0 {
		c.EvictionInterval = d.EvictionInterval
	}
	if c.ClientTTL == 0 {
		c.ClientTTL = d.ClientTTL
	}
	if c.EvictionLimit == 0 {
		c.EvictionLimit = d.EvictionLimit
	}
	if c.ReceiptWindow == 0 {
		c.ReceiptWindow = d.ReceiptWindow
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = d.MaxStreams
	}
	return c
}
