package raftlog

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
)

// tick is the default heartbeat interval; an election timeout is ten of them.
const tick = 50 * time.Millisecond

// A job is stalled once it has not advanced for longer than its patience, and only while it is under way.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := NewWatch()
		short, long := w.Job("short", time.Second), w.Job("long", time.Minute)
		want := func(want Stall) {
			t.Helper()
			check.Equal(t, w.Stalled(), want)
		}
		pass := func(d time.Duration) { <-time.After(d) } // in the bubble's time
		pass(time.Hour)
		short.Advance() // nothing is under way
		want(Stall{})
		short.Begin()
		long.Begin()
		pass(time.Second)
		want(Stall{})
		pass(1)
		want(Stall{Job: "short", For: time.Second + 1})
		short.Advance()
		want(Stall{})
		pass(2 * time.Minute)
		want(Stall{Job: "long", For: 2*time.Minute + time.Second + 1})
		long.End()
		want(Stall{Job: "short", For: 2 * time.Minute})
		short.End()
		want(Stall{})
		check.Equal(t, short.Took(), 0, "it has ended and is under way for %v")
	})
}

// A job that nothing waits for is not stalled, however long it takes.
func TestJobThatCountsOnlyWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, waited := NewWatch(), false
		j := w.Job("a checkpoint", time.Second)
		j.OnlyWhile(func() bool { return waited })
		j.Begin()
		<-time.After(time.Minute)
		check.Equal(t, w.Stalled().Job, "", "%s is stalled, and nothing waits for it")
		waited = true
		if s := w.Stalled(); s.Job != "a checkpoint" || s.For < time.Minute-time.Second {
			t.Errorf("%q is stalled for %s", s.Job, s.For)
		}
		j.End()
		check.Equal(t, w.Stalled().Job, "", "%s has ended and is stalled")
	})
}

// A leader whose disk or state machine is slow keeps sending heartbeats, so that no other node is elected. It does not
// acknowledge entries that are not durable on itself.
func TestHeartbeatsPassASlowDisk(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		leader, others := c.leader(1, 2, 3)
		write(t, leader.Log, numbered(10)...)
		term := leader.Role().Term
		release := leader.disk.stall("sync")
		slow := leader.ProposeIn(leader.Role().Term, []byte("slow"))
		<-time.After(9 * tick) // in the bubble's time
		select {
		case <-slow.Done():
			t.Error("acknowledged before it was durable here")
		default:
		}
		for _, m := range others {
			check.Equal(t, len(m.machine.texts()), 11, "node %d has %d entries: they leave before the leader's sync",
				m.id)
		}
		release()
		must.Get(slow.Wait())(t)

		leader.machine.onApply = func(entry string) {
			if entry != "long" {
				<-time.After(9 * tick)
				return
			}
			for range 100 { // slow, and it advances
				<-time.After(9 * tick)
				leader.Advance()
			}
		}
		write(t, leader.Log, append(numbered(100), "long")...)
		for _, m := range c.members {
			if role := m.Role(); role.Leader != leader.id || role.Term != term {
				t.Errorf("node %d: %+v, want node %d in term %d", m.id, role, leader.id, term)
			}
		}
	})
}

// hangs are the ways in which the work of a node may stall, with how to begin and end that.
var hangs = map[string]func(m *member) (end func()){
	"a sync of the log":  func(m *member) func() { return m.disk.stall("sync") },
	"a write to the log": func(m *member) func() { return m.disk.stall("write") },
	"the state machine": func(m *member) func() {
		hung := make(chan struct{})
		m.machine.hang(hung)
		return func() { m.machine.hang(nil); close(hung) }
	},
	"work of the caller": func(m *member) func() {
		job := m.watch.Job("work of the caller", 10*tick)
		job.Begin()
		return job.End
	},
}

// A leader that hangs loses the leadership within three election timeouts, and says what hangs. Its status waits for
// nothing. When it works again, the node follows with every acknowledged entry.
func TestStalledLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	for name, hang := range hangs {
		t.Run(name, func(t *testing.T) {
			inCluster(t, func(t *testing.T, c *cluster) {
				hung, others := c.leader(1, 2, 3)
				write(t, hung.Log, numbered(10)...)
				check.Equal(t, hung.Stalled().Job, "", "it is stalled: %+v")
				end := hang(hung)
				stalled := hung.ProposeIn(hung.Role().Term, []byte("stalled"))
				<-time.After(31 * tick)
				if s := hung.Stalled(); s.Job == "" || s.For < 29*tick || s.For > 31*tick {
					t.Errorf("it is stalled: %+v", s)
				}
				for _, m := range others {
					if role := m.Role(); role.Leader == hung.id {
						t.Errorf("node %d still follows node %d", m.id, hung.id)
					}
				}
				if _, ready := hung.IsReady(); hung.Role().Leads || ready {
					t.Errorf("it still leads: %+v", hung.Role())
				}
				next, _ := c.leader(others[0].id, others[1].id)
				write(t, next.Log, "of the next leader")
				if p := hung.Progress(); p.Applied > p.Committed || p.Others != nil {
					t.Errorf("the progress of a follower: %+v", p)
				}
				end()
				if _, err := stalled.Wait(); err != nil && !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("the proposal to the hung leader: %v", err)
				}
				must.Do(t, hung.ReadBarrier(t.Context()))
				if got, want := hung.machine.texts(), next.machine.texts(); !slices.Equal(got, want) || len(got) < 11 {
					t.Errorf("it has %d entries, and the next leader %d", len(got), len(want))
				}
				check.Equal(t, hung.Stalled().Job, "", "it works again and is stalled: %+v")
			})
		})
	}
}

// A leader that hangs steps down although the others cannot agree on another one without it. It still votes, and then
// one of them leads.
func TestStalledLeaderStepsDown(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		hung, others := c.leader(1, 2, 3)
		c.mu.Lock()
		c.apart = [2]uint64{others[0].id, others[1].id}
		c.mu.Unlock()
		end := hangs["the state machine"](hung)
		defer end()
		stalled := hung.ProposeIn(hung.Role().Term, []byte("stalled"))
		<-time.After(31 * tick)
		if hung.Role().Leads {
			t.Error("it still leads")
		}
		check.Is(t, check.Err(stalled.Wait()), ErrOutcomeUnknown, "its proposal")
		next, _ := c.leader(others[0].id, others[1].id)
		write(t, next.Log, "with the acknowledgement of a node whose state machine hangs")
	})
}

// A node that hangs does not lead: neither by a transfer, nor because the leader is gone.
func TestStalledNodeDoesNotTakeOver(t *testing.T) {
	t.Parallel()
	for name, hang := range hangs {
		t.Run(name, func(t *testing.T) {
			inCluster(t, func(t *testing.T, c *cluster) {
				leader, others := c.leader(1, 2, 3)
				hung := others[0]
				defer hang(hung)()
				write(t, leader.Log, numbered(10)...)
				<-time.After(12 * tick)
				led := false
				watched := make(chan struct{})
				go func() { // ends when the node stops, or with watched; joined by stop
					for {
						changed := hung.Changed()
						if hung.Role().Leads {
							c.mu.Lock()
							led = true
							c.mu.Unlock()
						}
						select {
						case <-changed:
						case <-watched:
							return
						}
					}
				}()
				defer close(watched)
				must.Do(t, leader.Transfer(hung.id))
				<-time.After(30 * tick)
				write(t, leader.Log, "after the transfer")
				if name != "a sync of the log" && name != "a write to the log" { // it can acknowledge
					c.cut(leader.id, true)
					next, _ := c.leader(others[1].id)
					write(t, next.Log, "of the next leader")
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				if led {
					t.Error("it has led")
				}
			})
		})
	}
}

// A call that describes a node waits neither for its disk nor for its state machine, and delays no tick: the leader
// keeps its term while a write hangs for less than an election timeout and calls come all the time.
func TestStatusWaitsForNoDisk(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		leader, _ := c.leader(1, 2, 3)
		before := leader.Role()
		end := leader.disk.stall("write")
		p := leader.ProposeIn(leader.Role().Term, []byte("x"))
		for range 9 {
			<-time.After(tick)
			_, ready := leader.IsReady()
			if s := leader.Progress(); !ready || len(s.Others) != 3 || s.Last != s.Applied ||
				leader.Role() != before || leader.files.Last().Index <= s.Last ||
				len(leader.Members().Voters) != 3 || leader.Covered().Index > s.Applied ||
				leader.MembersChanged() != 0 {
				t.Errorf("ready %v, %+v, %+v", ready, s, leader.Role())
			}
		}
		end()
		must.Get(p.Wait())(t)
	})
}

// TestHungDiskIsVisible: while a sync hangs, Writing returns for how long, and nothing is acknowledged.
func TestHungDiskIsVisible(t *testing.T) {
	t.Parallel()
	d := &stalling{Disk: simdisk.New()}
	l := started(t, d, &recorder{}, nil)
	write(t, l, "one")
	for l.Writing() != 0 && t.Context().Err() == nil { // the write of the term's first entry has ended, or is about to
		runtime.Gosched()
	}
	release := d.stall("sync")
	p := l.ProposeIn(l.Role().Term, []byte("two"))
	for before := l.Writing(); before == 0 || l.Writing() <= before; before = l.Writing() {
		must.Do(t, t.Context().Err(), "a write that hangs is not seen")
		runtime.Gosched()
	}
	select {
	case <-p.Done():
		t.Error("acknowledged before it was durable")
	default:
	}
	release()
	must.Get(p.Wait())(t)
	for l.Writing() != 0 { // ends, because no write is in progress any more
		must.Do(t, t.Context().Err(), "the write has ended and is still seen")
		runtime.Gosched()
	}
}
