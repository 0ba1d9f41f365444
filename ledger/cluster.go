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
	// ErrAlone means that the ledger was opened without Options.Cluster, so that its cluster cannot be changed.
	ErrAlone = errors.New("this ledger runs on one node that takes no others: start it with --peer-listen")
	// ErrRemoved is the failure of a node that was removed from the cluster.
	ErrRemoved = errors.New("this node was removed from the cluster: to let the machine join again, " +
		"start it with an empty data directory")
	// ErrNoSuchNode means that a change names a node that is not a member, or that has no vote where it needs one.
	ErrNoSuchNode = errors.New("no such node")
	// ErrNoChange means that a membership change was refused; the members are unchanged. It wraps the reason.
	ErrNoChange = errors.New("the members of the cluster cannot be changed like this")
)

// BehindError is the failure of a node that needs another node's state, because the others have dropped the log entries
// that it is missing.
type BehindError = raftlog.BehindError

// Cluster configures a node of a cluster.
type Cluster struct {
	// Listener accepts the connections of other nodes. The ledger owns it.
	Listener net.Listener
	// Peer and Client are the addresses, host and port, at which other nodes and clients reach this node. Peer defaults
	// to the address of Listener; Client may be empty.
	Peer, Client string
	// TLS is used in both directions between nodes; see transport.Options. If it is nil, connections are not encrypted.
	TLS *tls.Config
	// Insecure allows addresses that are not loopback without TLS.
	Insecure bool
	// Token is the join token, a secret shared by all nodes of the cluster. Each node sends it with every request to
	// another node, and refuses requests without it. It is stored in the data directory. If Token is empty, the stored
	// token is used; the first node of a cluster generates one. See Ledger.JoinToken.
	Token string
	// Tick is the heartbeat interval; an election begins after ten to twenty intervals without a heartbeat. 0 means 50
	// ms.
	Tick time.Duration
}

// tick returns the heartbeat interval.
func (c *Cluster) tick() time.Duration { return cmp.Or(c.Tick, 50*time.Millisecond) }

// Leader describes the leader of the cluster, as far as this node knows.
type Leader struct {
	ID     uint64 // of the node; 0: unknown, an election is in progress
	Self   bool   // this node leads, and accepts writes
	Term   uint64 // the Raft term
	Peer   string // host and port at which the node listens for other nodes; may be empty
	Client string // the same for clients, as the node was told to advertise it; may be empty
	// Encrypted reports whether nodes communicate over TLS.
	Encrypted bool
}

// Member is a node of the cluster.
type Member struct {
	ID      uint64
	Voter   bool   // otherwise a learner, which receives the log and has no vote
	Peer    string // as in Leader
	Client  string
	Active  bool   // heard from within an election timeout; known only to the leader
	Matched uint64 // index up to which its log matches the leader's; known only to the leader
	// Heard is when this node received the last message from it. It is zero for this node, and if there was no message
	// since the ledger was opened. Only the leader hears from all nodes.
	Heard time.Time
	// State is the result of the last comparison of its state with this node's, and Disk is what it reported about its
	// disk.
	State Comparison
	Disk  datadir.Usage
}

// Comparison is the result of comparing the states of two nodes.
type Comparison uint8

// Results of a comparison.
const (
	NotCompared Comparison = iota // not yet, or a node has not applied the entry, or no longer knows its digest
	Same
	Differs
)

// ClusterStatus describes the cluster as one node sees it.
type ClusterStatus struct {
	Self      uint64 // id of this node
	Leader    Leader
	Applied   uint64 // log index up to which this node has applied the log
	Committed uint64 // log index up to which this node knows the log to be committed
	Last      uint64 // last index in this node's log
	Members   []Member
	Compared  machine.Check // this node's index and digest at its last comparison with the others
}

// membership is a node's part in a cluster.
type membership struct {
	term      atomic.Uint64 // the term in which this node leads and has stamped its clock; 0: it does not lead
	transport atomic.Pointer[transport.Transport]
	handler   atomic.Pointer[http.Handler] // see ServePeers
	changing  sync.Mutex                   // serializes membership changes
	heard     contacts
	serving   sync.WaitGroup
	token     joinToken
	complain  sync.Once
	old       sync.Once // logs once why the level is not raised

	mu      sync.Mutex
	leader  Leader
	changed chan struct{} // closed when leader changes
}

// Leader returns the current leader, and a channel that is closed when the leader changes.
func (l *Ledger) Leader() (Leader, <-chan struct{}) {
	m := &l.members
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leader, m.changed
}

// noteLeader updates the current leader.
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

// notLeading returns the error with which a node that does not lead refuses a request.
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
	result := l.digests.lastResult()
	s.Compared = result.own
	add := func(ids []uint64, voter bool) {
		for _, id := range ids {
			if slices.ContainsFunc(s.Members, func(m Member) bool { return m.ID == id }) {
				continue // an outgoing voter that becomes a learner
			}
			m := Member{ID: id, Voter: voter, Heard: l.members.heard.last(id)}
			if a, found := members.Address(id); found {
				m.Peer, m.Client = a.Peer, a.Client
			}
			if p, found := progress.Others[id]; found {
				m.Active, m.Matched = p.Active, p.Matched
			}
			found := result.nodes[id]
			m.State, m.Disk = found.state, found.disk
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

// ServePeers sets the handler for requests of other nodes that are not messages of the consensus: requests to join, to
// fetch the state, and forwarded calls. Until ServePeers is called, they are refused. It does nothing without
// Options.Cluster.
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

// openTransport starts the transport to the other nodes. The ledger must have its id.
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
			_ = l.log.Receive(messages) // it fails only once the log has stopped, and then nothing is left to do
		},
		// This, too, fails only once the log has stopped.
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

// send sends messages to other nodes. Until there is a transport they are dropped.
func (l *Ledger) send(messages []*pb.Message) {
	if t := l.members.transport.Load(); t != nil {
		t.Send(messages)
	}
}

// connectMembers passes the current members to the transport.
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

// PeerTransport returns a RoundTripper that reaches other nodes at their Member.Peer, over TLS if the cluster uses it.
// It is nil without Options.Cluster.
func (l *Ledger) PeerTransport() http.RoundTripper {
	t := l.members.transport.Load()
	if t == nil {
		return nil
	}
	return t.RoundTripper()
}

// askMember sends a request to another member. If another node has taken over the member's address, that node refuses
// the request. The error is ErrRemoved if the member reports that this node was removed. A member that has applied the
// change knows this, and the removal is permanent.
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
	defer func() { _ = response.Body.Close() }() // the body was only read
	var no transport.Refusal
	if err := json.NewDecoder(io.LimitReader(response.Body, mostRefusalBytes)).Decode(&no); err == nil && no.Removed {
		return nil, ErrRemoved
	}
	return nil, fmt.Errorf("node %d refuses it: %s", m.ID, cmp.Or(no.Message, response.Status))
}

// mostRefusalBytes is the maximum number of bytes read of a refusal.
const mostRefusalBytes = 4 << 10

// closeTransport closes the connections to other nodes.
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

// leadInterval is how often a leader checks whether learners have caught up, and how often a node checks whether the
// others know its address.
const leadInterval = 200 * time.Millisecond

// leadLoop follows changes of the leader and of the members, and begins this node's terms.
func (l *Ledger) leadLoop() {
	defer l.loops.Done()
	// A term does not begin while the clock is wrong; the ticker retries it.
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

// follow reacts to the current leader and members.
func (l *Ledger) follow() error {
	if members := l.log.Members(); !members.Has(l.node()) && l.node() <= members.Highest {
		return ErrRemoved // otherwise it has not joined yet
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
	if lost { // after noteLeader, because the awakened calls name the leader
		l.keys.wakeAll()
	}
	// One unusable address must not affect the other nodes.
	if err := l.connectMembers(); err != nil {
		l.members.complain.Do(func() {
			l.options.Logger.Error("the address of a node of the cluster cannot be used", "error", err)
		})
	}
	return nil
}

// refuseToLead transfers the leadership to another node, because this node's clock is wrong.
func (l *Ledger) refuseToLead(cause error) {
	to, err := l.successor(0)
	if err == nil {
		err = l.log.Transfer(to)
	}
	l.options.Logger.Error("this node was elected and does not lead", "error", cause, "transfer to", to, "failed", err)
}

// tendLoop does the periodic work of a cluster.
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

// tend promotes learners that have caught up, and raises the format level. It ignores errors, because it is called
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
	// caughtUp is how many entries a learner may lag behind when it is promoted.
	caughtUp = 100
	// changePatience bounds a membership change that the leader makes on its own.
	changePatience = 5 * time.Second
)

// change makes a membership change.
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

// offerState commits a command after a membership change. A node that is too far behind is offered the state as of the
// last command, and that state must include the current members. Without this command the node would have to wait for
// the next write.
func (l *Ledger) offerState(ctx context.Context) {
	if _, err := l.one(ctx, origin{}, machine.AppendTick(nil)); err != nil {
		l.options.Logger.Warn("no command came behind a change of the members", "error", err)
	}
}

// mustLead returns an error unless this node leads a cluster.
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

// PromoteNode makes a learner a voter. It returns once the change is applied on this node. If this node does not lead,
// the error is a *NotLeaderError. It does nothing if the node is already a voter.
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

// RemoveNode removes a node from the cluster; see PromoteNode. The node's id is never reused. The leader cannot be
// removed; transfer the leadership first. RemoveNode does nothing if the node was already removed.
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
		return nil // the request is repeated, because the first response was lost
	}
	if _, err := l.member(id); err != nil {
		return err
	}
	return l.change(ctx, single(pb.ConfChangeRemoveNode, id))
}

// TransferLeadership transfers the leadership to a voter, or, if to is 0, to the voter with the longest log. It returns
// once another node leads, or at once if this node is the voter to take over.
func (l *Ledger) TransferLeadership(ctx context.Context, to uint64) error {
	if err := l.mustLead(); err != nil {
		return err
	}
	if to == l.node() {
		return nil // a repeated request has reached the new leader, because the first response was lost
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

// successor returns the voter that takes over. It must be another node, and active if to is 0.
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

// handOver transfers the leadership to another node, if there is one, so that a shutdown needs no election.
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

// awaitAlone waits until it is known whether this node is the only voter. The log after the state may contain
// membership changes; if it names no other voters, this node becomes the leader.
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
			return true, nil // awaitReplay returns the reason
		case <-ctx.Done():
			return false, fmt.Errorf("replay of the log: %w", ctx.Err())
		}
	}
}

// startCluster connects this node to the others, and lets it lead when it is elected. It does nothing without
// Options.Cluster.
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

// catchUp waits until everything that was in the log at the start has been applied again. The other nodes know which of
// it was committed.
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
