package server

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// metrics are what the server counts. No label holds what a client chose: a
// million client ids would be a million series.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	latency  prometheus.Histogram
	refusals *prometheus.CounterVec
	panics   prometheus.Counter
	// connections that were refused.
	connections prometheus.Counter
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "seqledger_requests_total", Help: "Calls that have ended, by procedure and Connect code.",
		}, []string{"procedure", "code"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "seqledger_write_duration_seconds", Help: "How long a Write took, from request to answer.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18), // 50 µs to 6.5 s
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "seqledger_write_stream_errors_total", Help: "Errors in the results of WriteStreams, by code.",
		}, []string{"code"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "seqledger_panics_total", Help: "Handlers that panicked.",
		}),
	}
	m.connections = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "seqledger_connections_refused_total", Help: "Connections closed at once, because there were as many as may be.",
	})
	version := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "seqledger_build_info", Help: "1, with the server's version.",
		ConstLabels: prometheus.Labels{"version": s.options.Version},
	}, func() float64 { return 1 })
	m.registry.MustRegister(m.requests, m.latency, m.refusals, m.panics, m.connections, version, newLedgerCollector(s),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

func (m *metrics) request(procedure, code string, took time.Duration) {
	m.requests.WithLabelValues(procedure, code).Inc()
	if procedure == seqledgerv1connect.LedgerServiceWriteProcedure {
		m.latency.Observe(took.Seconds())
	}
}

func (m *metrics) refusal(code seqledgerv1.WriteErrorCode) {
	m.refusals.WithLabelValues(code.String()).Inc()
}

// ledgerCollector reads the ledger's own counters when somebody asks.
type ledgerCollector struct {
	server    *Server
	decisions *prometheus.Desc
	values    []ledgerValue
}

// ledgerValue is a metric and where it comes from.
type ledgerValue struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*ledgerState) float64
}

func newLedgerCollector(s *Server) *ledgerCollector {
	c := &ledgerCollector{server: s, decisions: prometheus.NewDesc("seqledger_decisions_total",
		"Commands decided since the start, replayed log included, by outcome.", []string{"code"}, nil)}
	add := func(kind prometheus.ValueType, name, help string, read func(*ledgerState) float64) {
		c.values = append(c.values, ledgerValue{prometheus.NewDesc("seqledger_"+name, help, nil, nil), kind, read})
	}
	counter := func(name, help string, read func(*ledgerState) float64) {
		add(prometheus.CounterValue, name+"_total", help, read)
	}
	gauge := func(name, help string, read func(*ledgerState) float64) {
		add(prometheus.GaugeValue, name, help, read)
	}
	counter("log_entries", "Log entries applied.", func(l *ledgerState) float64 { return float64(l.Entries) })
	counter("log_bytes", "Bytes of the log entries applied.", func(l *ledgerState) float64 { return float64(l.LogBytes) })
	counter("flushes", "Checkpoints of the state.", func(l *ledgerState) float64 { return float64(l.Flushes) })
	counter("truncations", "Truncations of the log.", func(l *ledgerState) float64 { return float64(l.Truncations) })
	counter("slowed", "Times that writes waited for a checkpoint.", func(l *ledgerState) float64 { return float64(l.Slowed) })
	counter("queue_full", "Writes refused because the queue was full.", func(l *ledgerState) float64 { return float64(l.QueueFull) })
	counter("time_jumps", "Starts that moved ledger time by more than an hour.", func(l *ledgerState) float64 { return float64(l.TimeJumps) })
	counter("cache_hits", "Retries answered without the log.", func(l *ledgerState) float64 { return float64(l.CacheHits) })
	counter("cache_misses", "Writes that the response cache did not have.", func(l *ledgerState) float64 { return float64(l.CacheMisses) })
	gauge("pending_bytes", "Changes that wait for the state file.", func(l *ledgerState) float64 { return float64(l.PendingBytes) })
	gauge("log_pending_bytes", "Log since it was truncated.", func(l *ledgerState) float64 { return float64(l.LogPendingBytes) })
	gauge("queue_items", "Submissions that wait to be proposed.", func(l *ledgerState) float64 { return float64(l.QueuedItems) })
	gauge("requests_open", "Requests under way, streams included.", func(*ledgerState) float64 { return float64(s.requests.count()) })
	gauge("connections_open", "Open connections.", func(*ledgerState) float64 { return float64(s.open.count()) })
	gauge("arriving_bytes", "Memory that is taken for large messages.", func(*ledgerState) float64 { return float64(s.arriving.held.Load()) })
	gauge("streams_open", "Open WriteStreams and Watches.", func(*ledgerState) float64 { return float64(s.streams.count()) })
	gauge("clients", "Streams of clients in the ledger.", func(l *ledgerState) float64 { return float64(l.streams) })
	gauge("index", "The ledger index.", func(l *ledgerState) float64 { return float64(l.index) })
	gauge("ledger_time_seconds", "Ledger time, Unix seconds.", func(l *ledgerState) float64 { return float64(l.time) / 1e9 })
	return c
}

// Describe implements prometheus.Collector.
func (c *ledgerCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.decisions
	for _, v := range c.values {
		out <- v.desc
	}
}

// Collect implements prometheus.Collector.
func (c *ledgerCollector) Collect(out chan<- prometheus.Metric) {
	state := c.server.ledgerState()
	for code, n := range state.Decisions {
		out <- prometheus.MustNewConstMetric(c.decisions, prometheus.CounterValue, float64(n), code.String())
	}
	for _, v := range c.values {
		out <- prometheus.MustNewConstMetric(v.desc, v.kind, v.read(state))
	}
}

// ledgerState returns the ledger's counters, and where it stands unless it has
// failed: the counters must be there to explain a failure.
func (s *Server) ledgerState() *ledgerState {
	state := &ledgerState{Stats: s.options.Ledger.Stats()}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.options.Ledger.View(ctx, func(v machine.View) error {
		state.streams, state.index, state.time = v.Streams(), v.Index(), v.Time()
		return nil
	})
	return state
}

// ledgerState is what the collector reads at one moment.
type ledgerState struct {
	ledger.Stats
	streams, index uint64
	time           int64
}
