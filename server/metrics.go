package server

import (
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// metrics are the server's counters. No label has a value chosen by a client, because a million client ids would be a
// million series.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	latency  [methodCount]prometheus.Observer // of writes; nil for other methods
	panics   prometheus.Counter

	writeStreams prometheus.Gauge
	// upgraded counts the writeStreams on upgraded connections.
	upgraded prometheus.Gauge
	watches  prometheus.Gauge

	// results are created in advance, so that counting is one addition, and so that a rate includes the first of each.
	results [methodCount]methodResults
}

// method is a procedure that appends commands to the log.
type method uint8

const (
	methodWrite method = iota
	methodWriteStream
	methodWriteBatch
	methodOpenSession
	methodUpdateConfig
	methodCount
)

// methodNames are the methods' names in metrics and in refusals.
var methodNames = [methodCount]string{
	methodWrite: "Write", methodWriteStream: "WriteStream", methodWriteBatch: "WriteBatch",
	methodOpenSession: "OpenSession", methodUpdateConfig: "UpdateConfig",
}

// methods are the unary methods by procedure: the observer counts the errors of their calls. A WriteStream and a
// WriteBatch count their results themselves.
var methods = map[string]method{
	seqledgerv1connect.LedgerServiceWriteProcedure:       methodWrite,
	seqledgerv1connect.LedgerServiceWriteBatchProcedure:  methodWriteBatch,
	seqledgerv1connect.LedgerServiceOpenSessionProcedure: methodOpenSession,
	seqledgerv1connect.AdminServiceUpdateConfigProcedure: methodUpdateConfig,
}

// methodResults count the outcomes of a method's commands.
type methodResults struct {
	committed, replayed prometheus.Counter
	errors              []prometheus.Counter // by WriteErrorCode; 0 is a code unknown to this version
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "seqledger_requests_total", Help: "Calls that have ended, by procedure and Connect code.",
		}, []string{"procedure", "code"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "seqledger_panics_total", Help: "Handlers that panicked.",
		}),
		writeStreams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "seqledger_write_streams_open", Help: "Open WriteStreams.",
		}),
		upgraded: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "seqledger_write_streams_own_connection",
			Help: "Open WriteStreams that have a connection to themselves. Fewer than there are Go clients: " +
				"something between does not let them.",
		}),
		watches: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "seqledger_watches_open", Help: "Open Watches.",
		}),
	}
	results, latency := m.newResults(), m.newLatency()
	version := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "seqledger_build_info", Help: "1, with the server's version and the Go that built it.",
		ConstLabels: prometheus.Labels{"version": s.options.Version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
	m.registry.MustRegister(m.requests, latency, results, m.panics, m.writeStreams, m.upgraded, m.watches,
		version, collector{s}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// newLatency fills in the histograms of latency.
func (m *metrics) newLatency() *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "seqledger_write_duration_seconds",
		Help: "How long writes took, from request to answer, by method: of a WriteBatch the call, of a WriteStream " +
			"each message.",
		Buckets: prometheus.ExponentialBuckets(50e-6, 2, 18), // 50 µs to 6.5 s
	}, []string{"method"})
	for _, by := range []method{methodWrite, methodWriteStream, methodWriteBatch} {
		m.latency[by] = vec.WithLabelValues(methodNames[by])
	}
	return vec
}

// newResults fills in the counters of results.
func (m *metrics) newResults() *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "seqledger_results_total",
		Help: "What became of each command that a client sent, by method and code: COMMITTED, REPLAYED or a " +
			"WriteErrorCode.",
	}, []string{"method", "code"})
	codes := seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_UNSPECIFIED.Descriptor().Values()
	last := 0
	for i := range codes.Len() {
		last = max(last, int(codes.Get(i).Number()))
	}
	for i, name := range methodNames {
		r := &m.results[i]
		r.committed, r.replayed = vec.WithLabelValues(name, "COMMITTED"), vec.WithLabelValues(name, "REPLAYED")
		r.errors = make([]prometheus.Counter, last+1)
		for code := range r.errors {
			label := seqledgerv1.WriteErrorCode(code).String()
			r.errors[code] = vec.WithLabelValues(name, strings.TrimPrefix(label, "WRITE_ERROR_CODE_"))
		}
	}
	return vec
}

func (m *metrics) handler() http.Handler { return metricsHandler(m.registry) }

func metricsHandler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Gatherer returns the server's metrics.
func (s *Server) Gatherer() prometheus.Gatherer { return s.metrics.registry }

func (m *metrics) request(procedure, code string, took time.Duration) {
	m.requests.WithLabelValues(procedure, code).Inc()
	if writes(procedure) {
		m.latency[methods[procedure]].Observe(took.Seconds())
	}
}

// success counts a command that was committed, now or before.
func (m *metrics) success(by method, code machine.Code) {
	if code == machine.Replayed {
		m.results[by].replayed.Inc()
		return
	}
	m.results[by].committed.Inc()
}

// refusal counts any other command.
func (m *metrics) refusal(by method, code seqledgerv1.WriteErrorCode) {
	errors := m.results[by].errors
	if int(code) < 0 || int(code) >= len(errors) {
		code = 0
	}
	errors[code].Inc()
}
