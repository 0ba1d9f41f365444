package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/client/outbox"
)

// outboxMetrics are the metrics of a relay. The state of the table is read with each scrape, and is left out if the
// database does not answer.
type outboxMetrics struct {
	relay *outbox.Relay
	db    *pgxpool.Pool
	table string
}

// scrapeTimeout bounds the time that a scrape waits for the database; Prometheus waits 10 s.
const scrapeTimeout = 5 * time.Second

func outboxMetric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("seqledger_outbox_"+name, help, labels, nil)
}

var (
	outboxRows     = outboxMetric("rows_total", "Rows that this relay has settled.", "outcome")
	outboxRepeats  = outboxMetric("repeats_total", "Sends after one that left a row without an outcome.")
	outboxSessions = outboxMetric("sessions_total", "Sessions that this relay has opened.")
	outboxOwned    = outboxMetric("owned_streams", "Streams that this relay works on.")
	outboxOpen     = outboxMetric("open_rows", "Rows in the table that are not settled.")
	outboxAge      = outboxMetric("oldest_row_age_seconds", "Age of the oldest row that is not settled; 0 without one.")
	outboxRefused  = outboxMetric("refused_rows", "Refused rows in the table that wait for a decision.")
	outboxStopped  = outboxMetric("stopped_streams", "Streams in the table that are stopped.")
)

func (*outboxMetrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		outboxRows, outboxRepeats, outboxSessions, outboxOwned, outboxOpen, outboxAge, outboxRefused, outboxStopped,
	} {
		descriptions <- d
	}
}

func (m *outboxMetrics) Collect(metrics chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	done := m.relay.Counters()
	counter(outboxRows, done.Committed, "committed")
	counter(outboxRows, done.Refused, "refused")
	counter(outboxRepeats, done.Repeated)
	counter(outboxSessions, done.Sessions)
	gauge(outboxOwned, float64(done.Owned))

	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	status, err := outbox.ReadStatus(ctx, m.db, m.table)
	if err != nil {
		return
	}
	var open, refused, stopped int64
	var age time.Duration
	for _, s := range status.Streams {
		open, refused = open+s.Open, refused+s.Refused
		if s.Stopped != "" {
			stopped++
		}
		age = max(age, s.Age)
	}
	gauge(outboxOpen, float64(open))
	gauge(outboxAge, age.Seconds())
	gauge(outboxRefused, float64(refused))
	gauge(outboxStopped, float64(stopped))
}
