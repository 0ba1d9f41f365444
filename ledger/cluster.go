package ledger

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

var (
	// ErrAlone refuses a change of the cluster of a ledger that was opened without Options.Cluster.
	ErrAlone = errors.New("this ledger runs on one node that takes no others: start it with --peer-listen")
	// ErrRemoved is the failure of a node that was taken out of the cluster.
	ErrRemoved = errors.New("this node was removed from the cluster: to let the machine join again, " +
		"start it with an empty data directory")
	// ErrNoSuchNode refuses a change that names a node which is no member, or has no vote where that is needed.
	ErrNoSuchNode = errors.New("no such node")
	// ErrNoChange refuses a change of the members; they are as they were. It wraps the reason.
	ErrNoChange = errors.New("the members of the cluster cannot be changed like this")
)

// BehindError is the failure of a node that needs the state of another one, because the others have
// dropped what it would need of the log.
type BehindError = raftlog.BehindError

// Cluster says how a node is part of a cluster.
type Cluster struct {
	// Listener takes the connections of other nodes. It belongs to the ledger.
	Listener net.Listener
	// Peer and Client are the addresses, host and port, under which this node is reached by other
	// nodes and by clients. Peer defaults to that of Listener; Client may be empty.
	Peer, Client string
	// TLS is used to and from other nodes; see transport.Options. Nil: not encrypted.
	TLS *tls.Config
	// Insecure allows addresses without TLS that are not loopback.
	Insecure bool
	// Token is the join token, a secret that all nodes of the cluster have: each shows it with every request to
	// another one, and refuses those that do not. It is stored in the data directory. Empty: the stored one, and for
	// the first node of a cluster one that it makes; see Ledger.JoinToken.
	Token string
	// Tick is the time between two heartbeats; an election begins after ten to twenty without one.
	// 0: 50 ms.
	Tick time.Duration
}

// Leader is who leads the cluster, as far as this node knows.
type Leader struct {
	ID     uint64 // of the node; 0: not known, an election goes on
	Self   bool   // this node leads, and takes writes
	Term   uint64 // Raft's
	Peer   string // host and port on which the node listens for other nodes; may be empty
	Client string // the same for clients, as the node was told to advertise it; may be empty
	// Encrypted reports whether nodes talk to each other by TLS.
	Encrypted bool
}

// Member is a node of the cluster.
type Member struct {
	ID      uint64
	Voter   bool   // else a learner, which gets the log and has no vote
	Peer    string // as in Leader
	Client  string
	Active  bool   // it was heard of within an election timeout; known to the leader alone
	Matched uint64 // index up to which its log is the leader's; known to the leader alone
	// Heard is when this node got the last message of it. Zero: none since it was opened, or it is this node. Only the
	// leader hears of all of them.
	Heard time.Time
	// State is what came of the last comparison of its state with that of this node, and Disk what it told of its disk.
	State Comparison
	Disk  datadir.Usage
}

// Comparison is what came of a comparison of two nodes' states.
type Comparison uint8

// What a comparison may say.
const (
	NotCompared Comparison = iota // yet, or one has not got as far, or has forgotten where it stood
	Same
	Differs
)

// ClusterStatus is the cluster as one node sees it.
type ClusterStatus struct {
	Self      uint64 // id of this node
	Leader    Leader
	Applied   uint64 // log index up to which this node has applied
	Committed uint64 // log index up to which this node knows that the log is committed
	Last      uint64 // last index of this node's log
	Members   []Member
	Compared  machine.Check // where this node stood when it compared its state with those of the others last
}

// membership is a node's part in a cluster.
type membership struct {
	term      atomic.Uint64 // in which this node leads and has stamped its clock; 0: it does not lead
	transport atomic.Pointer[transport.Transport]
	handler   atomic.Pointer[http.Handler] // see ServePeers
	changing  sync.Mutex                   // one change of the members at a time
	heard     contacts
	serving   sync.WaitGroup
	token     joinToken
	complain  sync.Once
	old       sync.Once // for what keeps the level from being raised

	mu      sync.Mutex
	leader  Leader
	changed chan struct{} // closed when leader changes
}

// Leader returns who leads, and a channel that is closed when that changes.
func (l *Ledger) Leader() (Leader, <-chan struct{}) {
	m := &l.members
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leader, m.changed
}

// noteLeader finds out who leads.
func (l *Ledger) noteLeader() {
	role, members := l.log.Role(), l.log.Members()
	now := Leader{ID: role.Leader, Term: role.Term}
	now.Self = role.Leads && l.members.term.Load() == role.Term
	if a, found := members.Address(role.Leader); found {
		now.Peer, now.Client = a.Peer, a.Client
	}
	now.Encrypted = l.options.Cluster != nil && l.options.Cluster.TLS != nil
	m := &l.members
	m.mu.Lock()
	defer m.mu.Unlock()
	if now != m.leader {
		m.leader = now
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

// notLeading returns the refusal of a node that does not lead.
func (l *Ledger) notLeading() error {
	leader, _ := l.Leader()
	return &NotLeaderError{Leader: leader.Client}
}

// ClusterStatus returns the cluster as this node sees it.
func (l *Ledger) ClusterStatus() ClusterStatus {
	members, progress := l.log.Members(), l.log.Progress()
	leader, _ := l.Leader()
	s := ClusterStatus{
		Self: l.node(), Leader: leader,
		Applied: progress.Applied, Committed: progress.Committed, Last: progress.Last,
	}
	told := l.digests.told()
	s.Compared = told.own
	add := func(ids []uint64, voter bool) {
		for _, id := range ids {
			if slices.ContainsFunc(s.Members, func(m Member) bool { return m.ID == id }) {
				continue // a voter of before that becomes a learner
			}
			m := Member{ID: id, Voter: voter, Heard: l.members.heard.last(id)}
			if a, found := members.Address(id); found {
				m.Peer, m.Client = a.Peer, a.Client
			}
			if p, found := progress.Others[id]; found {
				m.Active, m.Matched = p.Active, p.Matched
			}
			if about, found := told.others[id]; found {
				m.State, m.Disk = about.state, about.disk
			}
			if id == s.Self {
				m.Disk, _ = l.DiskUsage() // a disk that cannot be asked is not known
				if s.Compared.Index > 0 {
					m.State = Same
				}
			}
			s.Members = append(s.Members, m)
		}
	}
	add(members.Voters, true)
	add(members.Outgoing, true)
	add(members.Learners, false)
	add(members.LearnersNext, false)
	slices.SortFunc(s.Members, func(a, b Member) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// node returns the id of this node.
func (l *Ledger) node() uint64 { return l.directory.Node() }

// ServePeers answers the requests of other nodes that are no messages of the consensus: those that
// join, fetch the state, or forward calls. Before it is called, they are refused. It does nothing
// without Options.Cluster.
func (l *Ledger) ServePeers(h http.Handler) { l.members.handler.Store(&h) }

func (l *Ledger) servePeer(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case clockPath:
		l.tellClock(w)
		return
	case digestPath:
		l.tellDigest(w, r)
		return
	case levelPath:
		l.tellLevel(w)
		return
	case tokenPath:
		l.takeToken(w, r)
		return
	}
	h := l.members.handler.Load()
	if h == nil {
		http.Error(w, "this node is starting", http.StatusServiceUnavailable)
		return
	}
	(*h).ServeHTTP(w, r)
}

// ID returns the ledger's id, which stays the same while it is open. It asks no other node.
func (l *Ledger) ID() (id machine.LedgerID, err error) {
	err = l.store.View(func(r machine.Reader) error {
		id = l.machine.View(r).LedgerID()
		return nil
	})
	return id, err
}

// openTransport makes the connections to other nodes, once the ledger has its id.
func (l *Ledger) openTransport() error {
	c := l.options.Cluster
	id, err := l.ID()
	if err != nil {
		return err
	}
	t, err := transport.New(transport.Options{
		Ledger: id.String(), ID: l.node(), TLS: c.TLS, Insecure: c.Insecure, Logger: l.options.Logger,
		Receive: func(messages []*pb.Message) {
			l.members.heard.note(messages, time.Now())
			_ = l.log.Receive(messages) // it fails once the log has stopped, and there is nothing more to do then
		},
		// The same.
		Unreachable: func(id uint64) { _ = l.log.Unreachable(id) },
		Handler:     http.HandlerFunc(l.servePeer),
		Access:      l.access(),
	})
	if err != nil {
		return err
	}
	l.members.transport.Store(t)
	l.members.serving.Go(func() { // ends when the transport is closed; joined by closeTransport
		if err := t.Serve(c.Listener); err != nil {
			l.fail(fmt.Errorf("listen for other nodes: %w", err))
		}
	})
	return nil
}

// send passes messages on to other nodes. Before there is a transport they are lost.
func (l *Ledger) send(messages []*pb.Message) {
	if t := l.members.transport.Load(); t != nil {
		t.Send(messages)
	}
}

// connectMembers tells the transport who the members are.
func (l *Ledger) connectMembers() error {
	t := l.members.transport.Load()
	if t == nil {
		return nil
	}
	members := l.log.Members()
	peers := map[uint64]string{}
	for _, a := range members.Addresses {
		if a.ID != l.node() {
			peers[a.ID] = a.Peer
		}
	}
	return t.SetPeers(peers)
}

// PeerTransport reaches other nodes at their Member.Peer: with TLS when the cluster has it. It is nil
// without Options.Cluster.
func (l *Ledger) PeerTransport() http.RoundTripper {
	t := l.members.transport.Load()
	if t == nil {
		return nil
	}
	return t.RoundTripper()
}

// askMember makes a request to another member. A node that has its address now refuses it. The error is ErrRemoved
// when a member says that this node was removed, which one that has applied the change knows, and which is for good.
func (l *Ledger) askMember(
	ctx context.Context, m *Member, method, path string, body io.Reader,
) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, peerURL(l.options.Cluster.TLS != nil, m.Peer)+path, body)
	if err != nil {
		return nil, err
	}
	transport.AddressTo(r.Header, m.ID)
	response, err := (&http.Client{Transport: l.PeerTransport()}).Do(r)
	if err != nil || response.StatusCode != http.StatusForbidden {
		return response, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	var no transport.Refusal
	if err := json.NewDecoder(io.LimitReader(response.Body, mostRefusalBytes)).Decode(&no); err == nil && no.Removed {
		return nil, ErrRemoved
	}
	return nil, fmt.Errorf("node %d refuses it: %s", m.ID, cmp.Or(no.Message, response.Status))
}

// mostRefusalBytes is how much is read of a refusal.
const mostRefusalBytes = 4 << 10

// closeTransport ends the connections to other nodes.
func (l *Ledger) closeTransport() error {
	if t := l.members.transport.Load(); t != nil {
		defer l.members.serving.Wait()
		return t.Close()
	}
	if c := l.options.Cluster; c != nil {
		return c.Listener.Close()
	}
	return nil
}

// leadInterval is how often a leader looks whether learners have caught up, and a node whether the
// others know its address.
const leadInterval = 200 * time.Millisecond

// leadLoop follows who leads and who the members are, and begins the terms of this node.
func (l *Ledger) leadLoop() {
	defer l.loops.Done()
	// A term is not begun where the clock is out, and tried again.
	ticker := time.NewTicker(leadInterval)
	defer ticker.Stop()
	for {
		changed := l.log.Changed()
		if err := l.follow(); err != nil {
			l.fail(err)
			return
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
	}
}

// follow takes in who leads now and who the members are.
func (l *Ledger) follow() error {
	if members := l.log.Members(); !members.Has(l.node()) && l.node() <= members.Highest {
		return ErrRemoved // else it has not joined yet
	}
	term, ready := l.log.IsReady()
	lost := false
	switch {
	case !ready:
		lost = l.members.term.Swap(0) != 0
	case l.members.term.Load() != term:
		err := l.checkClock()
		if err == nil {
			err = l.beginTerm(term)
		}
		switch {
		case errors.Is(err, errTooFewClocks):
			l.options.Logger.Warn("this node was elected and does not lead yet", "error", err)
		case errors.Is(err, datadir.ErrClock), errors.Is(err, errSkew):
			l.refuseToLead(err)
		case err != nil:
			return err
		}
	}
	l.noteLeader()
	if lost { // behind noteLeader, because the calls that wake name the leader
		l.keys.wakeAll()
	}
	// An address that cannot be used keeps nobody else away.
	if err := l.connectMembers(); err != nil {
		l.members.complain.Do(func() {
			l.options.Logger.Error("the address of a node of the cluster cannot be used", "error", err)
		})
	}
	return nil
}

// refuseToLead lets another node lead, because the clock of this one is out.
func (l *Ledger) refuseToLead(cause error) {
	to, err := l.successor(0)
	if err == nil {
		err = l.log.Transfer(to)
	}
	l.options.Logger.Error("this node was elected and does not lead", "error", cause, "transfer to", to, "failed", err)
}

// tendLoop does what the cluster needs from time to time.
func (l *Ledger) tendLoop() {
	defer l.loops.Done()
	ticker := time.NewTicker(leadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.announce()
			l.tend()
		case <-l.failed:
			return
		case <-l.stopping.Done():
			return
		}
	}
}

// tend makes voters of learners that have caught up, and raises the format level. Errors need no answer: it is called
// again.
func (l *Ledger) tend() {
	leader, _ := l.Leader()
	if !leader.Self {
		return
	}
	if err := l.tendLevel(l.stopping); errors.Is(err, errOldMember) {
		l.members.old.Do(func() {
			l.options.Logger.Warn("not every node knows the newest format level yet", "why", err)
		})
	}
	s := l.ClusterStatus()
	for _, m := range s.Members {
		if !m.Voter && m.Active && m.Matched+caughtUp >= s.Committed && m.Matched > 0 {
			ctx, cancel := context.WithTimeout(l.stopping, changePatience)
			err := l.PromoteNode(ctx, m.ID)
			cancel()
			l.options.Logger.Info("a node of the cluster has caught up and becomes a voter", "node", m.ID, "error", err)
		}
	}
}

const (
	// caughtUp is how many entries a learner may be behind when it becomes a voter.
	caughtUp = 100
	// changePatience is how long a change of the members that the leader makes by itself may take.
	changePatience = 5 * time.Second
)

// change makes a change of the members.
func (l *Ledger) change(ctx context.Context, change *pb.ConfChangeV2) error {
	if err := l.mustLead(); err != nil {
		return err
	}
	err := l.log.Change(ctx, change)
	switch {
	case errors.Is(err, raftlog.ErrNotLeader) && l.mustLead() != nil:
		return l.notLeading()
	case errors.Is(err, raftlog.ErrOutcomeUnknown):
		return fmt.Errorf("it is not known whether the members have changed: %w", err)
	case errors.Is(err, raftlog.ErrNotLeader):
		return fmt.Errorf("%w: %w", ErrNoChange, err)
	case err != nil:
		return fmt.Errorf("change of the members: %w", err)
	}
	l.offerState(ctx)
	return nil
}

// offerState puts a command behind a change of the members. A node that is too far behind is offered the state as
// of the last command, and that must know the members as they are: otherwise it would have to wait for the next
// write.
func (l *Ledger) offerState(ctx context.Context) {
	if _, err := l.one(ctx, origin{}, machine.AppendTick(nil)); err != nil {
		l.options.Logger.Warn("no command came behind a change of the members", "error", err)
	}
}

// mustLead refuses what only a leader of a cluster does.
func (l *Ledger) mustLead() error {
	if l.options.Cluster == nil {
		return ErrAlone
	}
	if leader, _ := l.Leader(); !leader.Self {
		return l.notLeading()
	}
	return nil
}

func single(kind pb.ConfChangeType, id uint64) *pb.ConfChangeV2 {
	return &pb.ConfChangeV2{Changes: []*pb.ConfChangeSingle{{Type: kind.Enum(), NodeId: &id}}}
}

// PromoteNode makes a learner a voter. It returns when the change is applied here. This node leads,
// or the error is a *NotLeaderError. A voter stays one.
func (l *Ledger) PromoteNode(ctx context.Context, id uint64) error {
	l.members.changing.Lock()
	defer l.members.changing.Unlock()
	m, err := l.member(id)
	if err != nil || m.Voter {
		return err
	}
	return l.change(ctx, single(pb.ConfChangeAddNode, id))
}

// member returns a member as the leader knows it.
func (l *Ledger) member(id uint64) (Member, error) {
	if err := l.mustLead(); err != nil {
		return Member{}, err
	}
	for _, m := range l.ClusterStatus().Members {
		if m.ID == id {
			return m, nil
		}
	}
	return Member{}, fmt.Errorf("%w: node %d is no member of this cluster", ErrNoSuchNode, id)
}

// RemoveNode takes a node out of the cluster; see PromoteNode. Its id is never used again. The leader
// is not removed: the leadership must be transferred first. A node that was removed before stays it.
func (l *Ledger) RemoveNode(ctx context.Context, id uint64) error {
	l.members.changing.Lock()
	defer l.members.changing.Unlock()
	if err := l.mustLead(); err != nil {
		return err
	}
	if id == l.node() {
		return fmt.Errorf("%w: node %d leads; transfer the leadership first", ErrNoChange, id)
	}
	members := l.log.Members()
	if !members.Has(id) && id != 0 && id <= members.Highest {
		return nil // a repeat, because the first answer was lost
	}
	if _, err := l.member(id); err != nil {
		return err
	}
	return l.change(ctx, single(pb.ConfChangeRemoveNode, id))
}

// TransferLeadership hands the leadership to a voter, or, with 0, to the one whose log is longest. It
// returns when another node leads, and at once when the voter to take over is this one.
func (l *Ledger) TransferLeadership(ctx context.Context, to uint64) error {
	if err := l.mustLead(); err != nil {
		return err
	}
	if to == l.node() {
		return nil // a repeat that has come to the new leader, because the first answer was lost
	}
	to, err := l.successor(to)
	if err != nil {
		return err
	}
	for {
		leader, changed := l.Leader()
		if leader.ID != 0 && leader.ID != l.node() {
			return nil
		}
		if leader.ID == l.node() {
			if err := l.log.Transfer(to); err != nil {
				return err
			}
		}
		retry := time.NewTimer(leadInterval)
		select {
		case <-changed:
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return fmt.Errorf("transfer of the leadership to node %d: %w", to, ctx.Err())
		}
		retry.Stop()
	}
}

// successor returns the voter that takes over, which must be another node that is alive.
func (l *Ledger) successor(to uint64) (uint64, error) {
	best := Member{}
	for _, m := range l.ClusterStatus().Members {
		if m.ID == l.node() || !m.Voter {
			continue
		}
		if m.ID == to || to == 0 && m.Active && (best.ID == 0 || m.Matched > best.Matched) {
			best = m
		}
	}
	switch {
	case best.ID == 0 && to == 0:
		return 0, fmt.Errorf("%w: no other voter is alive", ErrNoSuchNode)
	case best.ID == 0:
		return 0, fmt.Errorf("%w: node %d is no other voter of this cluster", ErrNoSuchNode, to)
	}
	return best.ID, nil
}

// handOver lets another node lead, if there is one, so that a stop costs no election.
func (l *Ledger) handOver() {
	if leader, _ := l.Leader(); l.options.Cluster == nil || !leader.Self || l.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handOverPatience)
	defer cancel()
	if err := l.TransferLeadership(ctx, 0); err != nil && !errors.Is(err, ErrNoSuchNode) {
		l.options.Logger.Warn("the leadership was not handed over; the others will elect a leader", "error", err)
	}
}

const handOverPatience = 2 * time.Second

// awaitAlone waits until it is known whether this node is the only voter. The members may have changed in
// what the log has beyond the state; a node that finds no others in it leads.
func (l *Ledger) awaitAlone(ctx context.Context) (bool, error) {
	for {
		changed := l.log.Changed()
		members := l.log.Members()
		if !slices.Equal(members.Voters, []uint64{l.node()}) || len(members.Outgoing) > 0 {
			if l.options.Cluster == nil {
				return false, fmt.Errorf("%w: this is node %d, and the log names the voters %d",
					raftlog.ErrNeedsCluster, l.node(), members.Voters)
			}
			return false, nil
		}
		if _, ready := l.log.IsReady(); ready {
			return true, nil
		}
		select {
		case <-changed:
		case <-l.log.Stopped():
			return true, nil // awaitReplay tells why
		case <-ctx.Done():
			return false, fmt.Errorf("replay of the log: %w", ctx.Err())
		}
	}
}

// startCluster connects this node to the others, and lets it lead when it is elected. It does nothing
// without Options.Cluster.
func (l *Ledger) startCluster() error {
	if l.options.Cluster == nil {
		return nil
	}
	if err := l.openToken(); err != nil {
		return err
	}
	if err := l.openTransport(); err != nil {
		return err
	}
	l.loops.Add(3)
	// Ends with stopping or a failure; joined by release.
	go l.leadLoop()
	// The same.
	go l.compareLoop()
	// The same.
	go l.tendLoop()
	if l.replayed.Load() {
		return nil
	}
	l.loops.Go(func() { // ends with stopping or a failure; joined by release
		if err := l.catchUp(); err != nil && l.stopping.Err() == nil {
			l.fail(err)
		}
	})
	return nil
}

// catchUp waits until everything that was in the log at the start has been applied again. What was
// committed of it is known to the other nodes.
func (l *Ledger) catchUp() error {
	began := time.Now()
	if err := l.log.AwaitApplied(l.stopping, l.log.Last()); err != nil {
		return err
	}
	if err := l.endReplay(); err != nil {
		return err
	}
	l.replayed.Store(true)
	signal(l.checkpointDue) // the log may be long enough to be truncated
	l.counters.recovered(time.Since(began))
	l.options.Logger.Info("log replayed", "entries", l.counters.entries.Load(), "took", time.Since(began))
	return nil
}
