package server

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/ledger/cluster"
)

// clusterCollector reads what this node knows of the cluster on each scrape. A ledger on one node has the same metrics,
// so that an alert never lacks them.
type clusterCollector struct{ status func() cluster.Status }

var (
	clusterLeadsDesc = clusterDesc("leads", "1 while this node leads and takes writes.")
	clusterTermDesc  = clusterDesc("term",
		"Raft's term as this node knows it: it rises with each election, so that its changes count them.")
	clusterLeaderDesc = clusterDesc("leader_known",
		"1 while this node knows a leader; 0 while an election goes on, or most voters are away.")
	clusterAppliedDesc   = clusterDesc("applied_index", "Log index up to which this node has applied.")
	clusterCommittedDesc = clusterDesc("committed_index",
		"Log index up to which this node knows that the log is committed.")
	clusterVotersDesc = clusterDesc("voters", "Nodes that vote, the dead ones included.")
	clusterAliveDesc  = clusterDesc("voters_alive",
		"Nodes that vote and were heard of within an election timeout; the leader alone has it.")
	clusterLearnersDesc = clusterDesc("learners", "Nodes that get the log and do not vote yet.")
	clusterActiveDesc   = clusterDesc("node_alive",
		"1 for a node that was heard of within an election timeout; the leader alone has it.", "node")
	clusterBehindDesc = clusterDesc("node_behind_entries",
		"Committed log entries that a node is not known to have; the leader alone has it.", "node")
	clusterContactDesc = clusterDesc("node_last_contact_seconds",
		"Seconds since the last message of another node; the leader alone has it, once it has heard of it.", "node")
)

func clusterDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("seqledger_cluster_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (clusterCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		clusterLeadsDesc, clusterTermDesc, clusterLeaderDesc, clusterAppliedDesc, clusterCommittedDesc,
		clusterVotersDesc, clusterAliveDesc, clusterLearnersDesc, clusterActiveDesc, clusterBehindDesc,
		clusterContactDesc,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
//
// What only the leader knows is left out elsewhere, because a zero would look like a node that is gone.
func (c clusterCollector) Collect(out chan<- prometheus.Metric) {
	s := c.status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(clusterLeadsDesc, oneIf(s.Leader.Self))
	gauge(clusterTermDesc, float64(s.Leader.Term))
	gauge(clusterLeaderDesc, oneIf(s.Leader.ID != 0))
	gauge(clusterAppliedDesc, float64(s.Applied))
	gauge(clusterCommittedDesc, float64(s.Committed))
	voters, alive := 0, 0
	for _, m := range s.Members {
		// A leader need not hear of itself.
		active := m.Active || m.ID == s.Self
		if m.Voter {
			voters++
		}
		if m.Voter && active {
			alive++
		}
		if !s.Leader.Self {
			continue
		}
		behind := uint64(0)
		if m.ID != s.Self {
			behind = s.Committed - min(s.Committed, m.Matched)
		}
		id := strconv.FormatUint(m.ID, 10)
		gauge(clusterActiveDesc, oneIf(active), id)
		gauge(clusterBehindDesc, float64(behind), id)
		if !m.Heard.IsZero() {
			gauge(clusterContactDesc, time.Since(m.Heard).Seconds(), id)
		}
	}
	gauge(clusterVotersDesc, float64(voters))
	gauge(clusterLearnersDesc, float64(len(s.Members)-voters))
	if s.Leader.Self {
		gauge(clusterAliveDesc, float64(alive))
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
