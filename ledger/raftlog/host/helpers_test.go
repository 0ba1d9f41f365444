package host_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/raftlog/host"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var errDisk = errors.New("input/output error")

// recorder is a state machine: durable state survives a restart, state that is only applied does not.
type recorder struct {
	mu      sync.Mutex
	applied []segment.Position
	entries []string
	durable segment.Position
	members core.Members // as of durable
	onApply func(entry string)
	hung    chan struct{} // apply waits for it; nil: it does not
}

// hang makes apply wait for a channel.
func (r *recorder) hang(until chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hung = until
}

func (r *recorder) apply(at segment.Position, entry []byte) any {
	if r.onApply != nil {
		r.onApply(string(entry))
	}
	r.mu.Lock()
	hung := r.hung
	r.mu.Unlock()
	if hung != nil {
		<-hung
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.applied); n > 0 && at.Index <= r.applied[n-1].Index {
		panic(fmt.Sprintf("entry %d is applied behind entry %d", at.Index, r.applied[n-1].Index))
	}
	r.applied, r.entries = append(r.applied, at), append(r.entries, string(entry))
	return "result of " + string(entry)
}

func (r *recorder) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries)
}

// checkpoint makes everything applied up to a position durable.
func (r *recorder) checkpoint(at segment.Position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.durable = at
}

// restarted returns the state machine after a crash.
func (r *recorder) restarted() *recorder {
	next := &recorder{durable: r.durable, members: r.members}
	for i, at := range r.applied {
		if at.Index <= r.durable.Index {
			next.applied, next.entries = append(next.applied, at), append(next.entries, r.entries[i])
		}
	}
	return next
}

func segmentOptions(d segment.Disk) segment.Options {
	return segment.Options{
		Disk: d, Identity: []byte("host"), SegmentBytes: 16 << 10, Random: rand.Reader,
		Logger: slog.New(slog.DiscardHandler),
	}
}

// create creates the log of a new node.
func create(t testing.TB, d segment.Disk, members core.Members) {
	t.Helper()
	must.Do(t, segment.Create(segmentOptions(d), segment.Checkpoint{Data: members.Encode()}, segment.State{}))
}

var sole = core.Members{Voters: []uint64{1}, Highest: 1}

// running is a host with its log. The test closes both when it ends.
type running struct {
	*host.Host
	log *segment.Log
}

// start starts a host from the log on the disk.
func start(t testing.TB, d segment.Disk, m *recorder, change func(*host.Options)) running {
	t.Helper()
	log := must.Get(segment.Open(segmentOptions(d)))(t)
	members, _, err := core.DecodeMembers(log.Checkpoint().Data)
	must.Do(t, err)
	for i := max(log.First(), log.Checkpoint().Index+1); i <= m.durable.Index; i++ {
		found := must.Get(log.Entries(i, i+1, 1<<20))(t)
		members = members.After(&found[0])
	}
	o := host.Options{
		ID: 1, Log: log, Applied: m.durable, Members: members, Apply: m.apply, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	h := must.Get(host.Start(o))(t)
	t.Cleanup(func() { _ = h.Close(); _ = log.Close() })
	return running{h, log}
}

// started starts the sole voter of a new log.
func started(t testing.TB, d segment.Disk, m *recorder, change func(*host.Options)) running {
	t.Helper()
	create(t, d, sole)
	r := start(t, d, m, change)
	must.Do(t, r.Ready(t.Context()))
	return r
}

// write proposes the texts one after the other, and wants all of them committed.
func write(t testing.TB, h *host.Host, texts ...string) {
	t.Helper()
	proposals := make([]*host.Proposal, len(texts))
	for i, text := range texts {
		proposals[i] = h.ProposeIn(h.Role().Term, []byte(text))
	}
	for i, p := range proposals {
		if result, err := p.Wait(); err != nil || result != "result of "+texts[i] {
			t.Fatalf("proposal %q: %v, %v", texts[i], result, err)
		}
	}
}

func numbered(n int) []string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = fmt.Sprintf("entry-%05d", i)
	}
	return texts
}
