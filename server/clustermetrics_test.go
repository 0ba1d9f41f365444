package server

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/cluster"
)

// clusterMetrics returns the metrics of a status by name, with the node in brackets.
func clusterMetrics(t *testing.T, s cluster.Status) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry() // which refuses what is there twice
	registry.MustRegister(prometheus.CollectorFunc(func(out chan<- prometheus.Metric) { collectCluster(out, &s) }))
	families := must.Get(registry.Gather())(t)
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "seqledger_cluster_")
			for _, label := range m.GetLabel() {
				name += "[" + label.GetValue() + "]"
			}
			found[name] = m.GetGauge().GetValue()
		}
	}
	return found
}

// TestClusterMetrics: the leader says who is alive and how far behind, and nobody else claims to know.
func TestClusterMetrics(t *testing.T) {
	t.Parallel()
	members := []cluster.Member{
		{ID: 1, Voter: true, Matched: 90}, // itself, which it need not hear of
		{ID: 2, Voter: true, Active: true, Matched: 120},
		{ID: 3, Voter: true, Matched: 40, Heard: time.Now().Add(-time.Hour)},
		{ID: 5, Active: true, Matched: 7},
	}
	everywhere := map[string]float64{
		"term": 6, "applied_index": 95, "committed_index": 100, "voters": 3, "learners": 1,
	}
	with := func(more map[string]float64) map[string]float64 {
		all := maps.Clone(everywhere)
		maps.Copy(all, more)
		return all
	}
	for name, test := range map[string]struct {
		self   uint64
		leader cluster.Leader
		want   map[string]float64
	}{
		"leader": {1, cluster.Leader{ID: 1, Self: true, Term: 6}, with(map[string]float64{
			"leads": 1, "leader_known": 1, "voters_alive": 2,
			"node_alive[1]": 1, "node_alive[2]": 1, "node_alive[3]": 0, "node_alive[5]": 1,
			// Node 2 has more than is committed, and is not ahead of anything for that.
			"node_behind_entries[1]": 0, "node_behind_entries[2]": 0, "node_behind_entries[3]": 60,
			"node_behind_entries[5]": 93,
		})},
		"elected, not leading yet": {1, cluster.Leader{ID: 1, Term: 6},
			with(map[string]float64{"leads": 0, "leader_known": 1})},
		"follower": {2, cluster.Leader{ID: 1, Term: 6}, with(map[string]float64{"leads": 0, "leader_known": 1})},
		"election": {2, cluster.Leader{Term: 6}, with(map[string]float64{"leads": 0, "leader_known": 0})},
	} {
		got := clusterMetrics(t, cluster.Status{
			Self: test.self, Leader: test.leader, Applied: 95, Committed: 100, Last: 130, Members: members,
		})
		// Its value is the age of the time above, and grows.
		silent, told := got["node_last_contact_seconds[3]"]
		delete(got, "node_last_contact_seconds[3]")
		if told != test.leader.Self || told && silent < time.Hour.Seconds() {
			t.Errorf("%s: node 3 was heard of %v seconds ago (%v)", name, silent, told)
		}
		if !maps.Equal(got, test.want) {
			t.Errorf("%s: want %v\ngot %v", name, test.want, got)
		}
	}
}
