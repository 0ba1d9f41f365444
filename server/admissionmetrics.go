package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/server/admission"
)

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
		out <- prometheus.MustNewConstMetric(gateRefusalsDesc, prometheus.CounterValue, float64(n), b.String(), o.String())
	})
	out <- prometheus.MustNewConstMetric(connectionsRefusedDesc, prometheus.CounterValue, float64(connections))
}
