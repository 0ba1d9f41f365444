package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// memberIn returns a member in a condition: alive, dead, unheard, behind, new (without anything of the log), low, full
// or unmeasured. A condition that begins with "learner " is that of a learner.
func memberIn(id uint64, condition string) Member {
	condition, learner := strings.CutPrefix(condition, "learner ")
	m := Member{
		ID: id, Voter: !learner, Peer: fmt.Sprintf("10.0.0.%d:7451", id), Active: true, Matched: 1000 + id,
		Heard: time.Now(), Room: RoomEnough,
	}
	switch condition {
	case "dead":
		m.Active, m.Heard = false, time.Now().Add(-4*time.Second)
	case "unheard":
		m.Active, m.Heard, m.Matched = false, time.Time{}, 0
	case "behind":
		m.Matched = 800
	case "new":
		m.Matched = 0
	case "low":
		m.Room = RoomScarce
	case "full":
		m.Room = RoomNone
	case "unmeasured":
		m.Room = RoomUnknown
	}
	return m
}

// leaderOf returns the status of node 1, which leads, with its own condition first.
func leaderOf(conditions ...string) *Status {
	s := &Status{Self: 1, Committed: 1000}
	for i, condition := range conditions {
		s.Members = append(s.Members, memberIn(uint64(i)+1, condition))
	}
	s.Members[0].Heard = time.Time{} // a node does not hear from itself
	return s
}

// TestMembersMayChange: no change leaves fewer voters that are alive and caught up than a majority needs, and the error
// names every one that is not.
func TestMembersMayChange(t *testing.T) {
	t.Parallel()
	const remove, promote, demote = pb.ConfChangeRemoveNode, pb.ConfChangeAddNode, pb.ConfChangeAddLearnerNode
	for _, test := range []struct {
		nodes string
		kind  pb.ConfChangeType
		id    uint64
		names string // what a refusal names, or "" if there is none
	}{
		{"alive, alive, alive", remove, 3, ""},
		{"alive, alive", remove, 2, ""},
		{"alive, alive, dead", remove, 3, ""},
		{"alive, alive, dead", remove, 2, "node 3 (10.0.0.3:7451) was last heard of 4s ago; node 2 ("},
		{"alive, alive, unheard", remove, 2, "node 3 (10.0.0.3:7451) has not been heard of"},
		{"alive, alive, behind", remove, 2, "node 3 (10.0.0.3:7451) is 200 log entries behind"},
		{"alive, alive, new", remove, 2, "node 3 (10.0.0.3:7451) is 1000 log entries behind"},
		{"alive, behind, dead", remove, 3, "node 2 (10.0.0.2:7451) is 200 log entries behind"},
		{"alive, alive, alive, dead, dead", remove, 2, "node 5 (10.0.0.5:7451) was last heard of"},
		{"alive, alive, alive, dead, dead", remove, 5, ""},
		{"alive, alive, alive, alive, dead", remove, 2, ""},
		{"alive, alive, dead", demote, 2, "node 3 (10.0.0.3:7451) was last heard of"},
		{"alive, alive, dead", demote, 3, ""},
		{"alive, alive, dead, learner alive", remove, 4, ""}, // its vote is not lost, because it has none
		{"alive, alive, dead", pb.ConfChangeUpdateNode, 3, ""},
		{"alive, alive, dead", demote, 4, ""}, // a node joins
		{"alive, learner dead", promote, 2, "of 2 voters 1 would be alive and caught up, and 2 are needed: node 2"},
		{"alive, learner behind", promote, 2, "node 2 (10.0.0.2:7451) is 200 log entries behind"},
		{"alive, learner alive", promote, 2, ""},
		{"alive, alive, alive, learner dead", promote, 4, "node 4 (10.0.0.4:7451) was last heard of"},
		{"alive, alive, alive, learner new", promote, 4, "node 4 (10.0.0.4:7451) is 1000 log entries behind"},
		{"alive, alive, dead, learner alive", promote, 4, ""},
		{"alive, alive, dead, dead, learner alive", promote, 5, ""}, // three of five
		{"alive, alive, dead, dead, dead, learner alive", promote, 6, "node 3 (10.0.0.3:7451) was last heard of"},
		{"alive, alive, dead", promote, 3, ""}, // it votes already
	} {
		err := leaderOf(strings.Split(test.nodes, ", ")...).mayChange(single(test.kind, test.id))
		refused := errors.Is(err, ErrNoChange) && strings.Contains(err.Error(), test.names) &&
			strings.Contains(err.Error(), "--force") && strings.Contains(err.Error(), "cluster status")
		if test.names == "" && err != nil || test.names != "" && !refused {
			t.Errorf("%s, %s of node %d: %v, want %q", test.nodes, test.kind, test.id, err, test.names)
		}
	}
}

// TestSuccessor: only a voter that is alive and caught up takes over, and one without room on its disk only if there is
// no other and it is not asked for by name.
func TestSuccessor(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		nodes string
		to    uint64
		want  uint64
		err   error
		names string
	}{
		{"alive, alive, alive", 2, 2, nil, ""},
		{"alive, alive, alive", 0, 3, nil, ""}, // its log is the longest
		{"alive, alive, dead", 0, 2, nil, ""},
		{"alive, alive, behind", 0, 2, nil, ""},
		{"alive, alive, low", 0, 2, nil, ""},
		{"alive, unmeasured, full", 0, 2, nil, ""},
		{"alive, full, low", 0, 3, nil, ""},
		{"alive, low, full", 0, 2, nil, ""},
		{"alive, alive, low", 3, 0, ErrNoSuccessor, "node 3 (10.0.0.3:7451) has less room on its disk"},
		{"full, alive, low", 3, 3, nil, ""},
		{"alive, alive, dead", 3, 0, ErrNoSuccessor, "node 3 (10.0.0.3:7451) was last heard of 4s ago"},
		{"alive, alive, unheard", 3, 0, ErrNoSuccessor, "node 3 (10.0.0.3:7451) has not been heard of"},
		{"alive, alive, behind", 3, 0, ErrNoSuccessor, "node 3 (10.0.0.3:7451) is 200 log entries behind"},
		{"alive, dead, behind", 0, 0, ErrNoSuccessor, "200 log entries behind"},
		{"alive", 0, 0, ErrNoSuchNode, "there is no other voter"},
		{"alive, learner alive", 0, 0, ErrNoSuchNode, "there is no other voter"},
		{"alive, learner alive", 2, 0, ErrNoSuchNode, "node 2 (10.0.0.2:7451) is a learner"},
		{"alive, alive", 9, 0, ErrNoSuchNode, "node 9"},
	} {
		got, err := leaderOf(strings.Split(test.nodes, ", ")...).successor(test.to)
		if got != test.want || !errors.Is(err, test.err) || err != nil && !strings.Contains(err.Error(), test.names) {
			t.Errorf("%s, to %d: %d, %v, want %d, %v", test.nodes, test.to, got, err, test.want, test.err)
		}
	}
}

// TestFullDiskIsYielded: to a voter whose disk is known to have room, and from a leader whose disk has none.
func TestFullDiskIsYielded(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[string]uint64{
		"alive, alive, alive":               0,
		"low, alive, alive":                 0, // it takes writes
		"full, alive, alive":                3,
		"full, alive, unmeasured":           2,
		"full, alive, full":                 2,
		"full, alive, dead":                 2,
		"full, alive, behind":               2,
		"full, low, full":                   0, // both were full, and would be again
		"full, unmeasured":                  0,
		"full, dead, learner alive":         0,
		"full, alive, low, dead, full":      2,
		"full":                              0,
		"unmeasured, alive, learner behind": 0,
	} {
		check.Equal(t, leaderOf(strings.Split(nodes, ", ")...).roomier(), want, "%s: node %d", nodes)
	}
}

// TestRoomReturnsWhenItIsAmple: a disk at the edge of its reserve does not make a node a candidate again and again.
func TestRoomReturnsWhenItIsAmple(t *testing.T) {
	t.Parallel()
	f := newFake(t, nil, nil)
	check.Equal(t, f.measureRoom(), RoomUnknown, "unmeasured: %d")
	var below, ample bool
	f.WatchRoom(func() (bool, bool) { return below, ample })
	for i, step := range []struct {
		below, ample bool
		want         Room
	}{
		{false, false, RoomEnough},
		{true, false, RoomNone},
		{false, false, RoomScarce},
		{true, false, RoomNone},
		{false, false, RoomScarce},
		{false, true, RoomEnough},
		{false, false, RoomEnough},
	} {
		below, ample = step.below, step.ample
		check.Equal(t, f.measureRoom(), step.want, "step %d: %d", i)
	}
}
