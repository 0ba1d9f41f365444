package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// lines returns the printed lines, with one space between the columns.
func lines(t *testing.T, show func(*table)) (found []string) {
	t.Helper()
	for line := range strings.Lines(human(t, show)) {
		found = append(found, strings.Join(strings.Fields(line), " "))
	}
	return found
}

// clusterOf returns a cluster of three as one node sees it: node 2 is alive, and node 3 is away.
func clusterOf(self, leader uint64) *seqledgerv1.Cluster { return stalledClusterOf(self, leader, "") }

// stalledClusterOf is clusterOf in which work of node 2 may be stalled.
func stalledClusterOf(self, leader uint64, stalled string) *seqledgerv1.Cluster {
	return &seqledgerv1.Cluster{Self: self, Leader: leader, Term: 7, AppliedIndex: 9, CommittedIndex: 10,
		Members: []*seqledgerv1.ClusterMember{
			{Id: 1, Voter: true, PeerAddress: "a:1", ClientAddress: "a:2"},
			{Id: 2, Voter: true, Active: true, MatchedIndex: 8, PeerAddress: "b:1", ClientAddress: "b:2",
				SinceContact: durationpb.New(1500 * time.Millisecond), DiskFreeBytes: 3 << 30, DiskSizeBytes: 4 << 30,
				State:      seqledgerv1.StateComparison_STATE_COMPARISON_SAME,
				ClockAhead: durationpb.New(-90 * time.Second), Stalled: stalled},
			{Id: 3, State: seqledgerv1.StateComparison_STATE_COMPARISON_DIFFERS, MatchedIndex: 12,
				PeerAddress: "c:1", ClientAddress: "c:2"},
		}}
}

// TestClusterStatusLines: whatever a node does not know is shown as a question mark, never as a number.
func TestClusterStatusLines(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		self, leader uint64
		want         string
	}{
		{1, 1, "leader 1|1 leader away 10 - - ? ? a:1 a:2|" +
			"2 voter alive 2 1.5s ago 1m30s behind same 3.0 GiB (75%) b:1 b:2|" +
			"3 learner away 0 never ? DIFFERS ? c:1 c:2"},
		{1, 2, "leader 2|1 voter ? ? - - ? ? a:1 a:2|2 leader ? ? 1.5s ago 1m30s behind same 3.0 GiB (75%) b:1 b:2|" +
			"3 learner ? ? ? ? DIFFERS ? c:1 c:2"},
		{1, 0, "leader none: an election goes on, or most voters are away|1 voter ? ? - - ? ? a:1 a:2|" +
			"2 voter ? ? 1.5s ago 1m30s behind same 3.0 GiB (75%) b:1 b:2|3 learner ? ? ? ? DIFFERS ? c:1 c:2"},
	} {
		got := lines(t, func(shown *table) { showCluster(shown, clusterOf(test.self, test.leader)) })
		for _, line := range strings.Split(test.want, "|") {
			check.Contains(t, "|"+strings.Join(got, "|")+"|", "|"+line+"|", "node %d under %d: no %q in %q", test.self,
				test.leader, line, got)
		}
	}
}

// TestClusterStatusWarns: a node that hangs and a ledger time that lags are seen.
func TestClusterStatusWarns(t *testing.T) {
	t.Parallel()
	c := stalledClusterOf(1, 1, "a write to the log")
	c.TimeLags, c.TimeMayLag = "no clocks agree", durationpb.New(time.Hour)
	c.Members[2].OldCopy = true
	got := strings.Join(lines(t, func(shown *table) { showCluster(shown, c) }), "|")
	for _, want := range []string{
		"|ledger time lags, by 1h0m at most: no clocks agree|", "|2 voter STALLED 2 ", "|3 learner OLD-COPY 0 ",
	} {
		check.Contains(t, got, want)
	}
}

// TestClusterLineOfStatus: one line shows the node's own view of the cluster; a node without others has no such line.
func TestClusterLineOfStatus(t *testing.T) {
	t.Parallel()
	alive := clusterOf(1, 1)
	alive.Members = alive.Members[:2]
	alone := clusterOf(1, 1)
	alone.Members = alone.Members[:1]
	for want, c := range map[string]*seqledgerv1.Cluster{
		"cluster node 1 leads 3 nodes, away: 3":        clusterOf(1, 1),
		"cluster node 1 leads 2 nodes, all alive":      alive,
		"cluster node 2 follows node 1, of 3 nodes":    clusterOf(2, 1),
		"cluster node 2 knows no leader among 3 nodes": clusterOf(2, 0),
		"": alone,
	} {
		check.Equal(t, strings.Join(lines(t, func(shown *table) { showClusterLine(shown, c) }), "|"), want)
	}
	check.Equal(t, len(lines(t, func(shown *table) { showClusterLine(shown, nil) })), 0,
		"a server without a cluster: %q")
}
