package server

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/stats"
	"github.com/seqledger/seqledger/server/admission"
)

// ledgerCollector reads the ledger's own counters on each scrape.
type ledgerCollector struct {
	server        *Server
	decisions     *prometheus.Desc
	keyedCalls    *prometheus.Desc
	keyedRecords  *prometheus.Desc
	clockSkew     *prometheus.Desc
	values        []ledgerValue
	distributions []ledgerDistribution
}

// ledgerValue is a metric and its source.
type ledgerValue struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*ledgerState) float64
	// needs reports whether the value is known; nil: always. Unknown values are omitted, because a zero would look
	// real.
	needs func(*ledgerState) bool
}

// ledgerDistribution is a histogram and its source.
type ledgerDistribution struct {
	desc *prometheus.Desc
	read func(*ledgerState) stats.Distribution
}

// ledgerState is what the collector reads for one scrape.
type ledgerState struct {
	stats.Stats
	viewed    bool // the ledger has not failed
	head      ledger.Head
	cluster   cluster.Status
	disk      datadir.Usage
	measured  bool // the disk
	ready     bool
	admission admission.Gauges
}

func newLedgerCollector(s *Server) *ledgerCollector {
	c := &ledgerCollector{server: s, decisions: prometheus.NewDesc("seqledger_decisions_total",
		"Commands decided since the start, replayed log included, by outcome.", []string{"code"}, nil),
		keyedCalls: prometheus.NewDesc("seqledger_keyed_calls_total",
			"Calls about keys that were answered, keyed writes among them, by what became of each.",
			[]string{"call", "code"}, nil),
		keyedRecords: prometheus.NewDesc("seqledger_keyed_records",
			"Records of keys by state, those that have expired and are not yet removed included; absent for a while "+
				"after a start, until they are counted.", []string{"state"}, nil),
		clockSkew: prometheus.NewDesc("seqledger_clock_skew_seconds",
			"How far the wall clock of a node is ahead of this node's; absent while that node does not answer.",
			[]string{"node"}, nil)}
	c.describeWrites()
	c.describeStorage()
	c.describeState()
	c.describeKeyed()
	return c
}

func (c *ledgerCollector) add(
	kind prometheus.ValueType, name, help string, read func(*ledgerState) float64, needs func(*ledgerState) bool,
) {
	c.values = append(c.values, ledgerValue{prometheus.NewDesc("seqledger_"+name, help, nil, nil), kind, read, needs})
}

func (c *ledgerCollector) counter(name, help string, read func(*ledgerState) float64) {
	c.add(prometheus.CounterValue, name+"_total", help, read, nil)
}

func (c *ledgerCollector) gauge(name, help string, read func(*ledgerState) float64) {
	c.add(prometheus.GaugeValue, name, help, read, nil)
}

func (c *ledgerCollector) histogram(name, help string, read func(*ledgerState) stats.Distribution) {
	c.distributions = append(c.distributions,
		ledgerDistribution{prometheus.NewDesc("seqledger_"+name, help, nil, nil), read})
}

// describeWrites describes the path of a write: bounds, queue, log, decision.
func (c *ledgerCollector) describeWrites() {
	c.describeAdmission()
	c.gauge("queue_items", "Submissions that wait to be proposed.",
		func(l *ledgerState) float64 { return float64(l.QueuedItems) })
	c.gauge("queue_bytes", "Submissions that wait or are in flight, with overhead.",
		func(l *ledgerState) float64 { return float64(l.QueuedBytes) })
	c.gauge("queue_limit_bytes", "What queue_bytes may be before streams wait and single writes are refused.",
		func(l *ledgerState) float64 { return float64(l.QueueLimitBytes) })
	c.counter("queue_full", "Writes refused because the queue was full.",
		func(l *ledgerState) float64 { return float64(l.QueueFull) })
	c.counter("read_checks", "Reads and found retries for which a node of a cluster asked whether it is current.",
		func(l *ledgerState) float64 { return float64(l.ReadChecks) })
	c.gauge("entries_in_flight", "Log entries proposed and not yet answered.",
		func(l *ledgerState) float64 { return float64(l.InFlight) })
	c.counter("slowed", "Times that writes waited for a checkpoint.",
		func(l *ledgerState) float64 { return float64(l.Slowed) })
	c.counter("commands", "Commands decided, replayed log included.",
		func(l *ledgerState) float64 { return float64(l.Commands) })
	c.counter("log_entries", "Log entries applied.", func(l *ledgerState) float64 { return float64(l.Entries) })
	c.counter("log_bytes", "Bytes of the log entries applied.",
		func(l *ledgerState) float64 { return float64(l.LogBytes) })
	c.histogram("log_entry_commands", "Commands of a log entry: how well fsyncs are shared.",
		func(l *ledgerState) stats.Distribution { return l.BatchCommands })
	c.histogram("log_store_duration_seconds", "A write to the log, fsync included.",
		func(l *ledgerState) stats.Distribution { return l.StoreSeconds })
	c.histogram("apply_duration_seconds", "Deciding the commands of a log entry.",
		func(l *ledgerState) stats.Distribution { return l.ApplySeconds })
	c.counter("cache_hits", "Retries answered from the response cache.",
		func(l *ledgerState) float64 { return float64(l.CacheHits) })
	c.counter("cache_misses", "Retries that the response cache did not have.",
		func(l *ledgerState) float64 { return float64(l.CacheMisses) })
	c.counter("cache_evictions", "Receipts that others pushed out of the response cache.",
		func(l *ledgerState) float64 { return float64(l.CacheEvictions) })
	c.gauge("cache_entries", "Receipts in the response cache, about.",
		func(l *ledgerState) float64 { return float64(l.CacheEntries) })
	c.gauge("cache_bytes", "Memory of the response cache, about.",
		func(l *ledgerState) float64 { return float64(l.CacheBytes) })
	c.gauge("cache_limit_bytes", "What cache_bytes may be; 0 means that the cache is off.",
		func(l *ledgerState) float64 { return float64(l.CacheLimitBytes) })
}

// describeAdmission describes the usage of the bounds of package admission.
func (c *ledgerCollector) describeAdmission() {
	gauge := func(name, help string, read func(*admission.Gauges) int64) {
		c.gauge(name, help, func(l *ledgerState) float64 { return float64(read(&l.admission)) })
	}
	gauge("requests_open", "Requests under way, streams included.",
		func(g *admission.Gauges) int64 { return g.Requests })
	gauge("connections_open", "Open connections.", func(g *admission.Gauges) int64 { return g.Connections })
	gauge("connections_unknown", "Open connections on which no caller has been authenticated yet.",
		func(g *admission.Gauges) int64 { return g.UnknownConnections })
	gauge("visits_open", "Requests without an authenticated caller: health checks, and those that are refused.",
		func(g *admission.Gauges) int64 { return g.Visits })
	gauge("arriving_bytes", "Memory charged for large messages.",
		func(g *admission.Gauges) int64 { return g.ArrivingBytes })
	gauge("answer_bytes", "Memory charged for large answers that are being sent.",
		func(g *admission.Gauges) int64 { return g.AnswerBytes })
	gauge("reads_at_work", "Reads that build their answers.", func(g *admission.Gauges) int64 { return g.Reads })
	gauge("streams_open", "Open WriteStreams and Watches.", func(g *admission.Gauges) int64 { return g.Streams })
	gauge("disk_reserve_level",
		"0 while the disk has space, 1 when less than twice the reserve is free, 2 when less than the reserve "+
			"is: then a leader refuses writes, unless another node can take the leadership.",
		func(g *admission.Gauges) int64 { return g.DiskLevel })
}

// describeStorage describes the state file, the log and the disk.
func (c *ledgerCollector) describeStorage() {
	c.histogram("checkpoint_duration_seconds", "A write of the state file, fsync included.",
		func(l *ledgerState) stats.Distribution { return l.CheckpointSeconds })
	c.counter("checkpoint_bytes", "Changes written to the state file, as they stood in memory.",
		func(l *ledgerState) float64 { return float64(l.CheckpointBytes) })
	c.histogram("spill_duration_seconds", "An fsync of the block files between two checkpoints.",
		func(l *ledgerState) stats.Distribution { return l.BlockSyncSeconds })
	c.counter("spill_bytes", "Bytes of block files made durable between checkpoints.",
		func(l *ledgerState) float64 { return float64(l.BlockSyncBytes) })
	c.gauge("block_files_bytes", "Size of the block files.",
		func(l *ledgerState) float64 { return float64(l.BlockBytes) })
	c.counter("dropped_block_bytes", "Bytes of block files that retention has removed since the start.",
		func(l *ledgerState) float64 { return float64(l.DroppedBytes) })
	c.describeArchive()
	c.gauge("last_checkpoint_timestamp_seconds",
		"When the last checkpoint ended, Unix seconds; before the first: the start.",
		func(l *ledgerState) float64 { return unixSeconds(l.LastCheckpoint) })
	c.counter("scrub_pages", "Pages of the state file that were compared with their checksums since the start.",
		func(l *ledgerState) float64 { return float64(l.ScrubbedPages) })
	c.counter("scrub_block_bytes", "Bytes of block files that were compared with their checksums since the start.",
		func(l *ledgerState) float64 { return float64(l.ScrubbedBlockBytes) })
	c.counter("scrub_rounds", "Times that all of them were compared since the start.",
		func(l *ledgerState) float64 { return float64(l.ScrubRounds) })
	c.gauge("scrub_progress_ratio", "How far the present round is, 0 to 1; 0 between two rounds.",
		func(l *ledgerState) float64 { return float64(l.ScrubPosition) / float64(max(l.ScrubBytes, 1)) })
	c.gauge("last_scrub_timestamp_seconds",
		"When the state file and the block files were last compared with their checksums, Unix seconds; 0 before the "+
			"first time.",
		func(l *ledgerState) float64 {
			if l.LastScrub.IsZero() {
				return 0
			}
			return unixSeconds(l.LastScrub)
		})
	c.gauge("pending_bytes", "Changes in memory that wait for the state file.",
		func(l *ledgerState) float64 { return float64(l.PendingBytes) })
	c.gauge("log_write_under_way_seconds",
		"How long the write to the log that is under way has taken; it grows while the disk hangs.",
		func(l *ledgerState) float64 { return l.LogWriting.Seconds() })
	c.gauge("stalled_seconds",
		"For how long some work of this node has stopped advancing because a disk does not answer, 0 if none has; "+
			"meanwhile it does not lead.",
		func(l *ledgerState) float64 { return l.Stalled.Seconds() })
	c.gauge("log_pending_bytes", "Log since it was truncated.",
		func(l *ledgerState) float64 { return float64(l.LogPendingBytes) })
	c.counter("truncations", "Truncations of the log.", func(l *ledgerState) float64 { return float64(l.Truncations) })
	measured := func(l *ledgerState) bool { return l.measured }
	spaceKnown := func(l *ledgerState) bool { return l.measured && l.disk.Size > 0 }
	c.add(prometheus.GaugeValue, "state_file_bytes", "Size of the state file.",
		func(l *ledgerState) float64 { return float64(l.disk.State) }, measured)
	c.add(prometheus.GaugeValue, "data_disk_free_bytes", "Free space of the file system of the data directory.",
		func(l *ledgerState) float64 { return float64(l.disk.Free) }, spaceKnown)
	c.add(prometheus.GaugeValue, "data_disk_size_bytes", "Size of the file system of the data directory.",
		func(l *ledgerState) float64 { return float64(l.disk.Size) }, spaceKnown)
	c.gauge("recovery_duration_seconds", "How long the replay of the log took at the start.",
		func(l *ledgerState) float64 { return l.RecoveryTook.Seconds() })
	c.gauge("recovery_entries", "Log entries replayed at the start.",
		func(l *ledgerState) float64 { return float64(l.RecoveredEntries) })
}

// describeArchive describes the archive, if there is one.
func (c *ledgerCollector) describeArchive() {
	archived := func(l *ledgerState) bool { return l.Archive != nil }
	c.add(prometheus.GaugeValue, "archive_bytes", "Bytes of block files that the archive has confirmed.",
		func(l *ledgerState) float64 { return float64(l.Archive.Bytes) }, archived)
	c.add(prometheus.GaugeValue, "archive_waiting_bytes",
		"Bytes of sealed block files that the archive has not confirmed; retention drops none of them.",
		func(l *ledgerState) float64 { return float64(l.Archive.WaitingBytes) }, archived)
	c.add(prometheus.GaugeValue, "archive_failing_seconds",
		"For how long files could not be copied to the archive, 0 while they can.",
		func(l *ledgerState) float64 {
			if l.Archive.FailingSince.IsZero() {
				return 0
			}
			return max(0, time.Since(l.Archive.FailingSince).Seconds())
		}, archived)
	c.add(prometheus.CounterValue, "archive_failures_total", "Tries to copy a file to the archive that failed.",
		func(l *ledgerState) float64 { return float64(l.Archive.Failures) }, archived)
}

// describeState describes the ledger's contents and its clock.
func (c *ledgerCollector) describeState() {
	viewed := func(l *ledgerState) bool { return l.viewed }
	c.add(prometheus.GaugeValue, "clients", "Streams of clients in the ledger.",
		func(l *ledgerState) float64 { return float64(l.head.Streams) }, viewed)
	c.add(prometheus.GaugeValue, "max_streams", "How many streams one organization may have.",
		func(l *ledgerState) float64 { return float64(l.head.Config.MaxStreams) }, viewed)
	c.add(prometheus.GaugeValue, "horizon", "The first ledger index that is kept, 0 if all are.",
		func(l *ledgerState) float64 { return float64(l.head.Retained.Horizon.Index()) }, viewed)
	c.add(prometheus.GaugeValue, "index", "The ledger index.",
		func(l *ledgerState) float64 { return float64(l.head.Index) }, viewed)
	c.add(prometheus.GaugeValue, "ledger_time_seconds", "Ledger time of the last log entry, Unix seconds.",
		func(l *ledgerState) float64 { return float64(l.head.Time) / 1e9 }, viewed)
	c.gauge("clock_ahead_seconds", "How far the ledger's clock is ahead of the wall clock.",
		func(l *ledgerState) float64 { return l.ClockAhead.Seconds() })
	c.gauge("ledger_time_lagging",
		"1 while this node leads without a wall clock, because no majority of the voters has clocks that agree, or "+
			"one that is implausible.",
		func(l *ledgerState) float64 {
			if l.cluster.Lagging != nil {
				return 1
			}
			return 0
		})
	c.gauge("ledger_time_lag_seconds", "By how much ledger time may lag at most while it does.",
		func(l *ledgerState) float64 { return l.cluster.MayLag.Seconds() })
	c.counter("time_jumps", "Starts that moved ledger time by more than an hour.",
		func(l *ledgerState) float64 { return float64(l.TimeJumps) })
	c.counter("eviction_rounds", "Rounds of eviction, replayed log included.",
		func(l *ledgerState) float64 { return float64(l.Evictions.Rounds) })
	c.counter("eviction_full_rounds", "Rounds that reached eviction_limit, so that more may be due.",
		func(l *ledgerState) float64 { return float64(l.Evictions.Full) })
	c.counter("evicted_streams", "Streams that were evicted.",
		func(l *ledgerState) float64 { return float64(l.Evictions.Streams) })
	c.counter("expired_entities", "Entities that were removed after they had expired.",
		func(l *ledgerState) float64 { return float64(l.Evictions.Entities) })
	c.gauge("ready", "1 while /readyz is 200: no failure, no drain, and a leader with a majority.",
		func(l *ledgerState) float64 { return oneIf(l.ready) })
}

// describeKeyed describes keyed records.
func (c *ledgerCollector) describeKeyed() {
	c.add(prometheus.GaugeValue, "keyed_reservations", "Keys that are reserved: their owners are at work, or gone.",
		func(l *ledgerState) float64 { return float64(l.head.Pending) }, func(l *ledgerState) bool { return l.viewed })
	c.add(prometheus.GaugeValue, "keyed_oldest_reservation_seconds",
		"Age of the oldest reservation that is known, 0 if there is none.",
		func(l *ledgerState) float64 {
			if l.head.Pending == 0 || l.Keyed.Oldest.IsZero() {
				return 0
			}
			return max(0, time.Unix(0, l.head.Time).Sub(l.Keyed.Oldest).Seconds())
		}, func(l *ledgerState) bool { return l.viewed && (l.head.Pending == 0 || !l.Keyed.Oldest.IsZero()) })
	c.gauge("keyed_waiters", "Reserves that wait for another owner.",
		func(l *ledgerState) float64 { return float64(l.KeyWaiters) })
	c.counter("keyed_waited", "Reserves that have waited for another owner.",
		func(l *ledgerState) float64 { return float64(l.Keyed.Waited) })
	c.counter("keyed_takeovers", "Reservations that went to another owner, replayed log included.",
		func(l *ledgerState) float64 { return float64(l.Keyed.Takeovers) })
	c.counter("keyed_indeterminate", "Reservations whose lease ended without a result, replayed log included.",
		func(l *ledgerState) float64 { return float64(l.Keyed.Indeterminate) })
	c.counter("keyed_expired", "Records of keys that were removed after they had expired, replayed log included.",
		func(l *ledgerState) float64 { return float64(l.Keyed.Expired) })
}

// keyedCallNames are the calls about keys. Kind 0 is a keyed write.
var keyedCallNames = [...]string{
	0: "write", keyed.Reserve: "reserve", keyed.Complete: "complete", keyed.Reject: "reject",
	keyed.Release: "release", keyed.Heartbeat: "heartbeat", keyed.Checkpoint: "checkpoint",
	keyed.Resolve: "resolve", keyed.Purge: "purge",
}

// keyedCodes are the outcomes that each call always has a counter for, so that a rate includes the first of them.
// Others appear with the first one.
var keyedCodes = map[keyed.Kind][]machine.Code{
	0: {machine.Committed, machine.Replayed, machine.IdempotencyKeyReused, machine.TooManyKeys},
	keyed.Reserve: {machine.Keyed(keyed.Acquired), machine.Keyed(keyed.Replay), machine.Keyed(keyed.InFlight),
		machine.Keyed(keyed.Mismatch), machine.Keyed(keyed.Unknown), machine.Keyed(keyed.Stale),
		machine.Keyed(keyed.LeaseLost), machine.TooManyKeys},
	keyed.Complete:  {machine.Keyed(keyed.OK), machine.Keyed(keyed.LeaseLost), machine.Keyed(keyed.AlreadyCompleted)},
	keyed.Reject:    {machine.Keyed(keyed.OK), machine.Keyed(keyed.LeaseLost), machine.Keyed(keyed.AlreadyCompleted)},
	keyed.Release:   {machine.Keyed(keyed.OK), machine.Keyed(keyed.LeaseLost)},
	keyed.Heartbeat: {machine.Keyed(keyed.OK), machine.Keyed(keyed.LeaseLost)},
}

// collectKeyedCalls reports the counters of calls about keys.
func (c *ledgerCollector) collectKeyedCalls(calls map[stats.KeyedCall]uint64, out chan<- prometheus.Metric) {
	for kind, codes := range keyedCodes {
		for _, code := range codes {
			calls[stats.KeyedCall{Kind: kind, Code: code}] += 0
		}
	}
	for call, n := range calls {
		out <- prometheus.MustNewConstMetric(c.keyedCalls, prometheus.CounterValue, float64(n),
			keyedCallNames[call.Kind], strings.TrimPrefix(call.Code.String(), "KEYED_"))
	}
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// Describe implements prometheus.Collector.
func (c *ledgerCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.decisions
	out <- c.keyedCalls
	out <- c.keyedRecords
	out <- c.clockSkew
	for _, v := range c.values {
		out <- v.desc
	}
	for _, d := range c.distributions {
		out <- d.desc
	}
}

// Collect implements prometheus.Collector.
func (c *ledgerCollector) Collect(out chan<- prometheus.Metric) {
	state := c.server.ledgerState()
	for code, n := range state.Decisions {
		out <- prometheus.MustNewConstMetric(c.decisions, prometheus.CounterValue, float64(n), code.String())
	}
	c.collectKeyedCalls(state.Keyed.Calls, out)
	for s, n := range state.Keyed.Records {
		out <- prometheus.MustNewConstMetric(c.keyedRecords, prometheus.GaugeValue, float64(n),
			strings.ToLower(s.String()))
	}
	for _, m := range state.cluster.Members {
		if m.Answers {
			out <- prometheus.MustNewConstMetric(c.clockSkew, prometheus.GaugeValue, m.ClockAhead.Seconds(),
				strconv.FormatUint(m.ID, 10))
		}
	}
	for _, v := range c.values {
		if v.needs == nil || v.needs(state) {
			out <- prometheus.MustNewConstMetric(v.desc, v.kind, v.read(state))
		}
	}
	for _, d := range c.distributions {
		read := d.read(state)
		out <- prometheus.MustNewConstHistogram(d.desc, read.Count, read.Sum, read.Buckets)
	}
}

// ledgerState returns the ledger's counters, and its position unless it has failed: the counters must be available to
// explain a failure.
func (s *Server) ledgerState() *ledgerState {
	state := &ledgerState{Stats: s.options.Ledger.Stats(), admission: s.admission.Gauges()}
	ctx, cancel := context.WithTimeout(context.Background(), statusPatience)
	defer cancel()
	state.ready = s.notReady(ctx) == ""
	state.viewed, state.head = s.options.Ledger.Err() == nil, s.options.Ledger.Head()
	state.cluster = s.options.Ledger.Cluster().Status()
	var err error
	state.disk, err = s.options.Ledger.DiskUsage()
	state.measured = err == nil
	return state
}

var (
	reloadsDesc = prometheus.NewDesc("seqledger_auth_reloads_total",
		"Times that the auth file was read again, by result.", []string{"result"}, nil)
	authRefusedDesc = prometheus.NewDesc("seqledger_auth_refused_total",
		"Requests without a valid credential, by reason.", []string{"reason"}, nil)
	authKeysDesc = prometheus.NewDesc("seqledger_auth_keys", "API keys in the auth file.", nil, nil)
)

// accessCollector reads the auth file's counters on each scrape. Without an auth file it has no metrics.
type accessCollector struct{ server *Server }

// Describe implements prometheus.Collector.
func (accessCollector) Describe(out chan<- *prometheus.Desc) {
	out <- reloadsDesc
	out <- authRefusedDesc
	out <- authKeysDesc
}

// Collect implements prometheus.Collector.
func (c accessCollector) Collect(out chan<- prometheus.Metric) {
	if c.server.options.Auth == nil {
		return
	}
	stats := c.server.options.Auth.Stats()
	counter := func(d *prometheus.Desc, n uint64, label string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	counter(reloadsDesc, stats.Reloads, "taken")
	counter(reloadsDesc, stats.FailedReloads, "failed")
	for reason, n := range stats.Refused {
		counter(authRefusedDesc, n, reason)
	}
	out <- prometheus.MustNewConstMetric(authKeysDesc, prometheus.GaugeValue, float64(stats.Keys))
}

var (
	gateRefusalsDesc = prometheus.NewDesc("seqledger_gate_refusals_total",
		"What was refused or cut off because of a bound, by the bound and by whose it is.", []string{"gate", "of"}, nil)
	connectionsRefusedDesc = prometheus.NewDesc("seqledger_connections_refused_total",
		"Connections closed because there were as many as may be, or as many of unknown callers.", nil, nil)
)

// admissionCollector reads the counters of package admission on each scrape.
type admissionCollector struct{ admission *admission.Controller }

// Describe implements prometheus.Collector.
func (admissionCollector) Describe(out chan<- *prometheus.Desc) {
	out <- gateRefusalsDesc
	out <- connectionsRefusedDesc
}

// Collect implements prometheus.Collector.
func (c admissionCollector) Collect(out chan<- prometheus.Metric) {
	connections := uint64(0)
	c.admission.Refusals(func(b admission.Bound, o admission.Owner, n uint64) {
		if b == admission.Connections {
			connections += n
		}
		out <- prometheus.MustNewConstMetric(gateRefusalsDesc, prometheus.CounterValue, float64(n), b.String(),
			o.String())
	})
	out <- prometheus.MustNewConstMetric(connectionsRefusedDesc, prometheus.CounterValue, float64(connections))
}
