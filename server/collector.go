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
	"github.com/seqledger/seqledger/server/auth"
)

// collector reads the counters of the ledger and of the parts of the server on each scrape. What is not known at the
// moment is left out, because a zero would look real.
type collector struct{ server *Server }

// Describe implements prometheus.Collector. It describes nothing, because which metrics there are changes.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	l := c.server.ledgerState()
	collectWrites(out, l)
	collectStorage(out, l)
	collectState(out, l)
	collectKeyed(out, l)
	collectCluster(out, &l.cluster)
	collectAdmission(out, c.server.admission)
	if c.server.options.Auth != nil {
		collectAccess(out, c.server.options.Auth.Stats())
	}
}

// number is the type of a value.
type number interface {
	~int | ~int32 | ~int64 | ~uint32 | ~uint64 | ~float64
}

// gauge reports a value. labels are names and values in turns.
func gauge[N number](out chan<- prometheus.Metric, name, help string, value N, labels ...string) {
	report(out, prometheus.GaugeValue, name, help, float64(value), labels)
}

// counter is gauge for a value that only grows.
func counter[N number](out chan<- prometheus.Metric, name, help string, value N, labels ...string) {
	report(out, prometheus.CounterValue, name+"_total", help, float64(value), labels)
}

func report(
	out chan<- prometheus.Metric, kind prometheus.ValueType, name, help string, value float64, labels []string,
) {
	var names, values []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	desc := prometheus.NewDesc("seqledger_"+name, help, names, nil)
	out <- prometheus.MustNewConstMetric(desc, kind, value, values...)
}

func histogram(out chan<- prometheus.Metric, name, help string, d stats.Distribution) {
	desc := prometheus.NewDesc("seqledger_"+name, help, nil, nil)
	out <- prometheus.MustNewConstHistogram(desc, d.Count, d.Sum, d.Buckets)
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// secondsSince returns how long ago something was; 0 if it was not.
func secondsSince(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, time.Since(t).Seconds())
}

// ledgerState is what the collector reads for one scrape.
type ledgerState struct {
	stats.Stats
	viewed   bool // the ledger has not failed
	head     ledger.Head
	cluster  cluster.Status
	disk     datadir.Usage
	measured bool // the disk
	ready    bool
}

// ledgerState returns the ledger's counters, and its position unless it has failed: the counters must be available to
// explain a failure.
func (s *Server) ledgerState() *ledgerState {
	state := &ledgerState{Stats: s.options.Ledger.Stats()}
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

// collectWrites reports the path of a write: queue, log, decision.
func collectWrites(out chan<- prometheus.Metric, l *ledgerState) {
	for code, n := range l.Decisions {
		counter(out, "decisions", "Commands decided since the start, replayed log included, by outcome.", n,
			"code", code.String())
	}
	gauge(out, "queue_items", "Submissions that wait to be proposed.", l.QueuedItems)
	gauge(out, "queue_bytes", "Submissions that wait or are in flight, with overhead.", l.QueuedBytes)
	gauge(out, "queue_limit_bytes",
		"What queue_bytes may be before streams wait and single writes are refused.", l.QueueLimitBytes)
	counter(out, "queue_full", "Writes refused because the queue was full.", l.QueueFull)
	counter(out, "read_checks",
		"Reads and found retries for which a node of a cluster asked whether it is current.", l.ReadChecks)
	gauge(out, "entries_in_flight", "Log entries proposed and not yet answered.", l.InFlight)
	counter(out, "slowed", "Times that writes waited for a checkpoint.", l.Slowed)
	counter(out, "commands", "Commands decided, replayed log included.", l.Commands)
	counter(out, "log_entries", "Log entries applied.", l.Entries)
	counter(out, "log_bytes", "Bytes of the log entries applied.", l.LogBytes)
	histogram(out, "log_entry_commands", "Commands of a log entry: how well fsyncs are shared.", l.BatchCommands)
	histogram(out, "log_store_duration_seconds", "A write to the log, fsync included.", l.StoreSeconds)
	histogram(out, "apply_duration_seconds", "Deciding the commands of a log entry.", l.ApplySeconds)
	counter(out, "cache_hits", "Retries answered from the response cache.", l.CacheHits)
	counter(out, "cache_misses", "Retries that the response cache did not have.", l.CacheMisses)
	counter(out, "cache_evictions", "Receipts that others pushed out of the response cache.", l.CacheEvictions)
	gauge(out, "cache_entries", "Receipts in the response cache, about.", l.CacheEntries)
	gauge(out, "cache_bytes", "Memory of the response cache, about.", l.CacheBytes)
	gauge(out, "cache_limit_bytes", "What cache_bytes may be; 0 means that the cache is off.", l.CacheLimitBytes)
}

// collectStorage reports the state file, the log, the archive and the disk.
func collectStorage(out chan<- prometheus.Metric, l *ledgerState) {
	histogram(out, "checkpoint_duration_seconds", "A write of the state file, fsync included.", l.CheckpointSeconds)
	counter(out, "checkpoint_bytes", "Changes written to the state file, as they stood in memory.", l.CheckpointBytes)
	histogram(out, "spill_duration_seconds", "An fsync of the block files between two checkpoints.", l.BlockSyncSeconds)
	counter(out, "spill_bytes", "Bytes of block files made durable between checkpoints.", l.BlockSyncBytes)
	gauge(out, "block_files_bytes", "Size of the block files.", l.BlockBytes)
	counter(out, "dropped_block_bytes",
		"Bytes of block files that retention has removed since the start.", l.DroppedBytes)
	gauge(out, "last_checkpoint_timestamp_seconds",
		"When the last checkpoint ended, Unix seconds; before the first: the start.", unixSeconds(l.LastCheckpoint))
	counter(out, "scrub_pages",
		"Pages of the state file that were compared with their checksums since the start.", l.ScrubbedPages)
	counter(out, "scrub_block_bytes",
		"Bytes of block files that were compared with their checksums since the start.", l.ScrubbedBlockBytes)
	counter(out, "scrub_rounds", "Times that all of them were compared since the start.", l.ScrubRounds)
	gauge(out, "scrub_progress_ratio",
		"How far the present round is, 0 to 1; 0 between two rounds.",
		float64(l.ScrubPosition)/float64(max(l.ScrubBytes, 1)))
	lastScrub := 0.0
	if !l.LastScrub.IsZero() {
		lastScrub = unixSeconds(l.LastScrub)
	}
	gauge(out, "last_scrub_timestamp_seconds",
		"When the state file and the block files were last compared with their checksums, Unix seconds; 0 before the "+
			"first time.", lastScrub)
	gauge(out, "pending_bytes", "Changes in memory that wait for the state file.", l.PendingBytes)
	gauge(out, "log_write_under_way_seconds",
		"How long the write to the log that is under way has taken; it grows while the disk hangs.",
		l.LogWriting.Seconds())
	gauge(out, "stalled_seconds",
		"For how long some work of this node has stopped advancing because a disk does not answer, 0 if none has; "+
			"meanwhile it does not lead.", l.Stalled.Seconds())
	gauge(out, "log_pending_bytes", "Log since it was truncated.", l.LogPendingBytes)
	counter(out, "truncations", "Truncations of the log.", l.Truncations)
	if l.measured {
		gauge(out, "state_file_bytes", "Size of the state file.", l.disk.State)
	}
	if l.measured && l.disk.Size > 0 {
		gauge(out, "data_disk_free_bytes", "Free space of the file system of the data directory.", l.disk.Free)
		gauge(out, "data_disk_size_bytes", "Size of the file system of the data directory.", l.disk.Size)
	}
	gauge(out, "recovery_duration_seconds",
		"How long the replay of the log took at the start.", l.RecoveryTook.Seconds())
	gauge(out, "recovery_entries", "Log entries replayed at the start.", l.RecoveredEntries)
	gauge(out, "receipts_failing_seconds",
		"For how long there was no new checkpoint of receipts, or one without a cosignature, 0 while all is well.",
		secondsSince(l.ReceiptsFailing))
	if w := l.Witnesses; w != nil {
		gauge(out, "receipt_cosignatures", "Witnesses that have cosigned the last checkpoint of receipts.", w.Cosigned)
		gauge(out, "receipt_quorum_missing_seconds",
			"For how long the cosignatures have not met the policy of receipts, 0 while they do.",
			secondsSince(w.QuorumMissing))
	}
	if l.Archive == nil {
		return
	}
	gauge(out, "archive_bytes", "Bytes of block files that the archive has confirmed.", l.Archive.Bytes)
	gauge(out, "archive_waiting_bytes",
		"Bytes of sealed block files that the archive has not confirmed; retention drops none of them.",
		l.Archive.WaitingBytes)
	gauge(out, "archive_failing_seconds",
		"For how long the archive has taken or confirmed no files, 0 while it does.",
		secondsSince(l.Archive.FailingSince))
	if !l.Archive.LogSafe.IsZero() {
		gauge(out, "archive_log_lag_seconds", "How long ago the moment is up to which the leader has archived the log.",
			secondsSince(l.Archive.LogSafe))
	}
	counter(out, "archive_failures", "Tries to copy a file to the archive that failed.", l.Archive.Failures)
}

// collectState reports the ledger's contents and its clock.
func collectState(out chan<- prometheus.Metric, l *ledgerState) {
	if l.viewed {
		gauge(out, "clients", "Streams of clients in the ledger.", l.head.Streams)
		gauge(out, "max_streams", "How many streams one organization may have.", l.head.Config.MaxStreams)
		gauge(out, "horizon", "The first ledger index that is kept, 0 if all are.", l.head.Retained.Horizon.Index())
		gauge(out, "index", "The ledger index.", l.head.Index)
		gauge(out, "ledger_time_seconds", "Ledger time of the last log entry, Unix seconds.", float64(l.head.Time)/1e9)
	}
	gauge(out, "clock_ahead_seconds", "How far the ledger's clock is ahead of the wall clock.", l.ClockAhead.Seconds())
	gauge(out, "ledger_time_lagging",
		"1 while this node leads without a wall clock, because no majority of the voters has clocks that agree, or "+
			"one that is implausible.", oneIf(l.cluster.Lagging != nil))
	gauge(out, "ledger_time_lag_seconds",
		"By how much ledger time may lag at most while it does.", l.cluster.MayLag.Seconds())
	counter(out, "time_jumps", "Starts that moved ledger time by more than an hour.", l.TimeJumps)
	counter(out, "eviction_rounds", "Rounds of eviction, replayed log included.", l.Evictions.Rounds)
	counter(out, "eviction_full_rounds",
		"Rounds that reached eviction_limit, so that more may be due.", l.Evictions.Full)
	counter(out, "evicted_streams", "Streams that were evicted.", l.Evictions.Streams)
	counter(out, "expired_entities", "Entities that were removed after they had expired.", l.Evictions.Entities)
	gauge(out, "ready", "1 while /readyz is 200: no failure, no drain, and a leader with a majority.", oneIf(l.ready))
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
		machine.Keyed(keyed.Mismatch), machine.Keyed(keyed.Unknown), machine.Keyed(keyed.ResultExpired),
		machine.Keyed(keyed.Stale), machine.Keyed(keyed.LeaseLost), machine.TooManyKeys},
	keyed.Complete:  {machine.Keyed(keyed.OK), machine.Keyed(keyed.LeaseLost), machine.Keyed(keyed.AlreadyCompleted)},
	keyed.Reject:    {machine.Keyed(keyed.OK), machine.Keyed(keyed.LeaseLost), machine.Keyed(keyed.AlreadyCompleted)},
	keyed.Release:   {machine.Keyed(keyed.OK), machine.Keyed(keyed.LeaseLost)},
	keyed.Heartbeat: {machine.Keyed(keyed.OK), machine.Keyed(keyed.LeaseLost)},
}

// collectKeyed reports keyed records and the calls about them.
func collectKeyed(out chan<- prometheus.Metric, l *ledgerState) {
	if l.viewed {
		gauge(out, "keyed_reservations", "Keys that are reserved: their owners are at work, or gone.", l.head.Pending)
	}
	if l.viewed && (l.head.Pending == 0 || !l.Keyed.Oldest.IsZero()) {
		oldest := 0.0
		if l.head.Pending > 0 {
			oldest = max(0, time.Unix(0, l.head.Time).Sub(l.Keyed.Oldest).Seconds())
		}
		gauge(out, "keyed_oldest_reservation_seconds",
			"Age of the oldest reservation that is known, 0 if there is none.", oldest)
	}
	gauge(out, "keyed_waiters", "Reserves that wait for another owner.", l.KeyWaiters)
	counter(out, "keyed_waited", "Reserves that have waited for another owner.", l.Keyed.Waited)
	counter(out, "keyed_takeovers",
		"Reservations that went to another owner, replayed log included.", l.Keyed.Takeovers)
	counter(out, "keyed_indeterminate",
		"Reservations whose lease ended without a result, replayed log included.", l.Keyed.Indeterminate)
	counter(out, "keyed_expired",
		"Records of keys that were removed after they had expired, replayed log included.", l.Keyed.Expired)
	for s, n := range l.Keyed.Records {
		gauge(out, "keyed_records",
			"Records of keys by state, those that have expired and are not yet removed included; absent for a while "+
				"after a start, until they are counted.", n, "state", strings.ToLower(s.String()))
	}
	calls := l.Keyed.Calls
	for kind, codes := range keyedCodes {
		for _, code := range codes {
			calls[stats.KeyedCall{Kind: kind, Code: code}] += 0
		}
	}
	for call, n := range calls {
		counter(out, "keyed_calls",
			"Calls about keys that were answered, keyed writes among them, by what became of each.", n,
			"call", keyedCallNames[call.Kind], "code", strings.TrimPrefix(call.Code.String(), "KEYED_"))
	}
}

// collectAdmission reports the usage of the bounds of package admission, and what they have refused.
func collectAdmission(out chan<- prometheus.Metric, c *admission.Controller) {
	g := c.Gauges()
	gauge(out, "requests_open", "Requests under way, streams included.", g.Requests)
	gauge(out, "connections_open", "Open connections.", g.Connections)
	gauge(out, "connections_unknown",
		"Open connections on which no caller has been authenticated yet.", g.UnknownConnections)
	gauge(out, "visits_open",
		"Requests without an authenticated caller: health checks, and those that are refused.", g.Visits)
	gauge(out, "arriving_bytes", "Memory charged for large messages.", g.ArrivingBytes)
	gauge(out, "answer_bytes", "Memory charged for large answers that are being sent.", g.AnswerBytes)
	gauge(out, "reads_at_work", "Reads that build their answers.", g.Reads)
	gauge(out, "decodes_at_work", "Large messages that are being decoded.", g.Decodes)
	gauge(out, "streams_open", "Open WriteStreams and Watches.", g.Streams)
	gauge(out, "disk_reserve_level",
		"0 while the disk has space, 1 when less than twice the reserve is free, 2 when less than the reserve is: "+
			"then a leader refuses writes, unless another node can take the leadership.", g.DiskLevel)
	connections := uint64(0)
	c.Refusals(func(b admission.Bound, o admission.Owner, n uint64) {
		if b == admission.Connections {
			connections += n
		}
		counter(out, "gate_refusals",
			"What was refused or cut off because of a bound, by the bound and by whose it is.", n,
			"gate", b.String(), "of", o.String())
	})
	counter(out, "connections_refused",
		"Connections closed because there were as many as may be, or as many of unknown callers.", connections)
}

// collectAccess reports the auth file's counters.
func collectAccess(out chan<- prometheus.Metric, a auth.Stats) {
	const reloads = "Times that the auth file was read again, by result."
	counter(out, "auth_reloads", reloads, a.Reloads, "result", "taken")
	counter(out, "auth_reloads", reloads, a.FailedReloads, "result", "failed")
	for reason, n := range a.Refused {
		counter(out, "auth_refused", "Requests without a valid credential, by reason.", n, "reason", reason)
	}
	gauge(out, "auth_keys", "API keys in the auth file.", a.Keys)
}

// collectCluster reports what this node knows of the cluster. A ledger on one node has the same metrics, so that an
// alert never lacks them. What only the leader knows is left out elsewhere, because a zero would look like a node that
// is gone.
func collectCluster(out chan<- prometheus.Metric, s *cluster.Status) {
	gauge(out, "cluster_leads", "1 while this node leads and takes writes.", oneIf(s.Leader.Self))
	gauge(out, "cluster_term",
		"Raft's term as this node knows it: it rises with each election, so that its changes count them.",
		s.Leader.Term)
	gauge(out, "cluster_leader_known",
		"1 while this node knows a leader; 0 while an election goes on, or most voters are away.",
		oneIf(s.Leader.ID != 0))
	gauge(out, "cluster_applied_index", "Log index up to which this node has applied.", s.Applied)
	gauge(out, "cluster_committed_index", "Log index up to which this node knows that the log is committed.",
		s.Committed)
	voters, alive := 0, 0
	for _, m := range s.Members {
		if m.Voter {
			voters++
		}
		if m.Voter && isAlive(s, &m) {
			alive++
		}
		if s.Leader.Self {
			collectMember(out, s, &m)
		}
		if m.Answers {
			gauge(out, "clock_skew_seconds",
				"How far the wall clock of a node is ahead of this node's; absent while that node does not answer.",
				m.ClockAhead.Seconds(), "node", strconv.FormatUint(m.ID, 10))
		}
	}
	gauge(out, "cluster_voters", "Nodes that vote, the dead ones included.", voters)
	gauge(out, "cluster_learners", "Nodes that get the log and do not vote yet.", len(s.Members)-voters)
	if s.Leader.Self {
		gauge(out, "cluster_voters_alive",
			"Nodes that vote and were heard of within an election timeout; the leader alone has it.", alive)
	}
}

// isAlive reports whether a node was heard of. A leader need not hear of itself.
func isAlive(s *cluster.Status, m *cluster.Member) bool { return m.Active || m.ID == s.Self }

// collectMember reports what the leader knows of a node.
func collectMember(out chan<- prometheus.Metric, s *cluster.Status, m *cluster.Member) {
	behind := uint64(0)
	if m.ID != s.Self {
		behind = s.Committed - min(s.Committed, m.Matched)
	}
	id := strconv.FormatUint(m.ID, 10)
	gauge(out, "cluster_node_alive",
		"1 for a node that was heard of within an election timeout; the leader alone has it.",
		oneIf(isAlive(s, m)), "node", id)
	gauge(out, "cluster_node_behind_entries",
		"Committed log entries that a node is not known to have; the leader alone has it.", behind, "node", id)
	if !m.Heard.IsZero() {
		gauge(out, "cluster_node_last_contact_seconds",
			"Seconds since the last message of another node; the leader alone has it, once it has heard of it.",
			time.Since(m.Heard).Seconds(), "node", id)
	}
}
