package gateway

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/client/idempotency"
)

// metrics are the gateway's counters. Labels are events, calls and patterns of the configuration, and never contain
// what a client sends.
type metrics struct {
	registry *prometheus.Registry
	events   map[idempotency.Event]prometheus.Counter
	calls    map[string]prometheus.Observer
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	reloads  *prometheus.CounterVec
	bypassed *prometheus.CounterVec
	waiting  atomic.Int64
}

// counted are the counted events. They exist from the start, so that a rate includes the first occurrence of each.
var counted = []idempotency.Event{
	idempotency.EventAcquired, idempotency.EventTakeover, idempotency.EventReplayed, idempotency.EventWaited,
	idempotency.EventInFlight, idempotency.EventMismatch, idempotency.EventIndeterminate, idempotency.EventNotRetained,
	idempotency.EventExpired,
	idempotency.EventLeaseLost, idempotency.EventReleased, idempotency.EventAbandoned, idempotency.EventJournaled,
	idempotency.EventUnstored, idempotency.EventBypassed, idempotency.EventStoreFailure,
}

func newMetrics(g *Gateway) *metrics {
	buckets := prometheus.ExponentialBuckets(100e-6, 2, 20) // 100 µs to 52 s
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "seqledger_gateway_events_total",
		Help: "What became of requests with a key; see the events of package client/idempotency.",
	}, []string{"event"})
	calls := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "seqledger_gateway_store_duration_seconds", Buckets: buckets,
		Help: "How long the store took, by operation; a reserve includes its wait for another owner.",
	}, []string{"operation"})
	m := &metrics{
		registry: prometheus.NewRegistry(), events: map[idempotency.Event]prometheus.Counter{},
		calls: map[string]prometheus.Observer{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "seqledger_gateway_requests_total",
			Help: "Requests that have ended, by the route's path in the configuration and the class of the status.",
		}, []string{"route", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "seqledger_gateway_request_duration_seconds", Buckets: buckets,
			Help: "How long requests took, by the route's path in the configuration.",
		}, []string{"route"}),
		bypassed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "seqledger_gateway_bypassed_total",
			Help: "Requests with a key that ran without the store, and may run twice, by the route's path in the " +
				"configuration.",
		}, []string{"route"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "seqledger_gateway_reloads_total", Help: "Times that the configuration was read again, by result.",
		}, []string{"result"}),
	}
	for _, event := range counted {
		m.events[event] = events.WithLabelValues(string(event))
	}
	for _, call := range []string{"reserve", "complete", "reject", "release", "heartbeat", "checkpoint"} {
		m.calls[call] = calls.WithLabelValues(call)
	}
	for _, result := range []string{"taken", "failed"} {
		m.reloads.WithLabelValues(result)
	}
	gauge := func(name, help string, read func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "seqledger_gateway_" + name, Help: help},
			func() float64 { return float64(read()) })
	}
	m.registry.MustRegister(events, calls, m.requests, m.latency, m.reloads, m.bypassed,
		gauge("requests_open", "Requests under way.", func() int { return len(g.requests) }),
		gauge("requests_limit", "What requests_open may be before requests are refused.",
			func() int { return cap(g.requests) }),
		gauge("waiters", "Requests that wait for the first one with their key.",
			func() int { return int(m.waiting.Load()) }),
		gauge("journal_results", "Results in the journal that wait for the store.", func() int {
			if g.options.Journal == nil {
				return 0
			}
			return g.options.Journal.Len()
		}))
	return m
}

// routeMetrics are the metrics of one route. It implements [idempotency.WaitMetrics].
type routeMetrics struct {
	*metrics

	bypasses prometheus.Counter
}

// of returns the metrics of a route. This creates the route's counter, so that a rate includes the first bypass.
func (m *metrics) of(label string) routeMetrics {
	return routeMetrics{m, m.bypassed.WithLabelValues(label)}
}

// Count implements [idempotency.Metrics].
func (m routeMetrics) Count(event idempotency.Event) {
	if c := m.events[event]; c != nil {
		c.Inc()
	}
	if event == idempotency.EventBypassed {
		m.bypasses.Inc()
	}
}

// Waiting implements [idempotency.WaitMetrics].
func (m *metrics) Waiting(by int) { m.waiting.Add(int64(by)) }

// StoreLatency implements [idempotency.Metrics].
func (m *metrics) StoreLatency(call string, took time.Duration) {
	if c := m.calls[call]; c != nil {
		c.Observe(took.Seconds())
	}
}

// request counts a finished request.
func (m *metrics) request(route string, status int, took time.Duration) {
	class := "none" // the connection was closed
	if status >= 100 && status < 1000 {
		class = fmt.Sprintf("%dxx", status/100)
	}
	m.requests.WithLabelValues(route, class).Inc()
	m.latency.WithLabelValues(route).Observe(took.Seconds())
}

// Reloaded counts a reload.
func (g *Gateway) Reloaded(taken bool) {
	result := "failed"
	if taken {
		result = "taken"
	}
	g.metrics.reloads.WithLabelValues(result).Inc()
}
