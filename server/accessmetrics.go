package server

import "github.com/prometheus/client_golang/prometheus"

var (
	reloadsDesc = prometheus.NewDesc("seqledger_auth_reloads_total",
		"Times that the auth file was read again, by result.", []string{"result"}, nil)
	turnedAwayDesc = prometheus.NewDesc("seqledger_auth_refused_total",
		"Requests without a good credential, by reason.", []string{"reason"}, nil)
	authKeysDesc = prometheus.NewDesc("seqledger_auth_keys", "API keys in the auth file.", nil, nil)
)

// accessCollector reads the auth file's counters on each scrape. Without an auth file it has no
// metrics.
type accessCollector struct{ server *Server }

// Describe implements prometheus.Collector.
func (accessCollector) Describe(out chan<- *prometheus.Desc) {
	out <- reloadsDesc
	out <- turnedAwayDesc
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
		counter(turnedAwayDesc, n, reason)
	}
	out <- prometheus.MustNewConstMetric(authKeysDesc, prometheus.GaugeValue, float64(stats.Keys))
}
