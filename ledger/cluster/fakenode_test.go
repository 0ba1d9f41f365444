package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// fakeLedger is a node whose ledger does what a test wants. Its log, its directory and its transport are real.
type fakeLedger struct {
	*Driver

	logged   bytes.Buffer // read it only when nothing is running
	mu       sync.Mutex
	state    State
	stateErr error
	tickErr  error
	ticks    int
	now      time.Time // its wall clock

	time      int64     // ledger time
	plausible time.Time // a wall clock beyond is refused unless it is accepted
	refused   bool
}

// nothing is a machine that keeps nothing.
type nothing struct{}

func (nothing) Apply(raftlog.Position, []byte) any { return nil }

var testLedger = machine.LedgerID(0xfeed)

// newFake makes node 1 of a cluster with these members, or of one that it is alone in and leads if there are none.
func newFake(t *testing.T, members *raftlog.Members, change func(*Host)) *fakeLedger {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	now := time.Now()
	f := &fakeLedger{now: now, plausible: now.AddDate(0, 1, 0),
		state: State{Created: true, Ledger: testLedger}}
	h := Host{
		Options:  &Options{Listener: listener, Peer: listener.Addr().String(), Client: "client-of-1:7450"},
		Logger:   slog.New(slog.NewTextHandler(&f.logged, nil)),
		Clock:    func() time.Time { return f.now },
		Stopping: t.Context(), Failed: make(chan struct{}),
		Fail:  func(err error) { t.Error("the node failed:", err) },
		State: func() (State, error) { f.mu.Lock(); defer f.mu.Unlock(); return f.state, f.stateErr },
		Tick: func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ticks++
			if f.tickErr != nil {
				return f.tickErr
			}
			_, err := f.log.ProposeIn(f.log.Role().Term, []byte("tick")).Wait()
			return err
		},
		BeginTerm: func() {}, EndTerm: func() {},
		Now: func() int64 { f.mu.Lock(); defer f.mu.Unlock(); return f.time },
		SetTime: func(wall time.Time, accept bool) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.refused = wall.After(f.plausible) && !accept; f.refused {
				return datadir.ErrClock
			}
			f.time = max(f.time, wall.UnixNano())
			return nil
		},
	}
	if change != nil {
		change(&h)
	}
	if h.Options == nil {
		_ = listener.Close()
	}
	f.Driver = New(h)
	directory := must.Get(datadir.Open(t.TempDir(), datadir.Created))(t)
	t.Cleanup(func() { _ = directory.Close() })
	o := raftlog.Options{
		Dir: directory.Log(), Identity: directory.Identity(), Machine: nothing{}, Logger: h.Logger,
		Cluster: &raftlog.Cluster{Send: f.Send}, SegmentBytes: 64 << 10,
		Create: members == nil,
	}
	if members != nil {
		o.Checkpoint = raftlog.Position{Index: 10, Term: 2}
		o.Cluster.Tick = time.Hour // no elections
		must.Do(t, raftlog.CreateAt(o, o.Checkpoint, members.Encode(), raftlog.State{}))
	}
	log := must.Get(raftlog.Open(o))(t)
	t.Cleanup(func() { _ = errors.Join(f.Close(), log.Close()) })
	f.Attach(directory, log)
	if members == nil {
		must.Do(t, log.Ready(t.Context()))
		term, _ := log.IsReady()
		must.Do(t, f.Lead(term))
	}
	return f
}

// connect gives a node its transport, with which it can ask the others.
func (f *fakeLedger) connect(t *testing.T) *fakeLedger {
	t.Helper()
	token := "the token"
	f.joinToken.text.Store(&token)
	must.Do(t, f.openTransport())
	return f
}

// leads makes another node the leader, as far as the node knows.
func (f *fakeLedger) leads(l Leader) *fakeLedger {
	f.Driver.mu.Lock()
	defer f.Driver.mu.Unlock()
	f.leader = l
	return f
}

// other starts a server in the place of another node and returns its address.
func other(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// says answers every request with a status and a text.
func says(status int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text))
	}
}

// isNode answers as a node does that is asked who it is.
func isNode(id uint64) http.HandlerFunc {
	return says(200, fmt.Sprintf(`{"ledger":%d,"node":%d}`, testLedger, id))
}

// isNodeWith is isNode for a node whose log ended at an index when it was started.
func isNodeWith(id uint64, last *atomic.Uint64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		says(200, fmt.Sprintf(`{"ledger":%d,"node":%d,"last":%d}`, testLedger, id, last.Load()))(w, r)
	}
}

// beats answers a request for the pulse.
func beats(p pulse) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, p) }
}

// removed answers as a node does that knows that the other one was removed.
var removed = says(http.StatusForbidden, `{"error":"node 1 was removed from the cluster","final":true,"removed":true}`)

// voters are members with node 1 and one node for each handler. A handler that is nil belongs to a node that is down.
func voters(t *testing.T, others ...http.HandlerFunc) *raftlog.Members {
	t.Helper()
	m := &raftlog.Members{Voters: []uint64{1}, Highest: 1 + uint64(len(others))}
	m.Addresses = append(m.Addresses, core.Address{ID: 1, Peer: "127.0.0.1:1", Client: "client-of-1:7450"})
	for i, h := range others {
		id := uint64(i) + 2
		a := core.Address{ID: id, Nonce: [16]byte{byte(id)}, Peer: "127.0.0.1:1"} // without a listener
		if h != nil {
			a.Peer = other(t, h)
		}
		m.Voters, m.Addresses = append(m.Voters, id), append(m.Addresses, a)
	}
	return m
}

// fieldOf returns the field that an error is about.
func fieldOf(err error) string {
	if wrong, is := errors.AsType[*machine.FieldError](err); is {
		return wrong.Field
	}
	return ""
}
