package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
	"github.com/seqledger/seqledger/ledger/read"
)

// clusterNode is a node of a cluster in this process.
type clusterNode struct {
	*ledger.Ledger
	dir, address string
}

// anyAddress is the address of a node that has none yet.
const anyAddress = "127.0.0.1:0"

// startNode opens the node in a directory; address may name the port that it had before a restart.
func startNode(t *testing.T, dir, address string) *clusterNode {
	t.Helper()
	return startNodeAt(t, dir, address, time.Now)
}

// startNodeAt is startNode with another clock.
func startNodeAt(t *testing.T, dir, address string, clock func() time.Time) *clusterNode {
	t.Helper()
	return startNodeWith(t, address, ledger.Options{Dir: dir, Clock: clock})
}

// startNodeWith is startNode with options.
func startNodeWith(t *testing.T, address string, o ledger.Options) *clusterNode {
	t.Helper()
	n := must.Get(openNode(t, address, o))(t)
	return n
}

// openNode is startNodeWith for a start that may be refused.
func openNode(t *testing.T, address string, o ledger.Options) (*clusterNode, error) {
	t.Helper()
	if address == anyAddress { // one that stays free while the node is restarted
		free := must.Get(freeport.Address())(t)
		address = free
	}
	listener := must.Get(freeport.Listen(t.Context(), address))(t)
	o.CacheBytes, o.ScrubBytes = -1, -1
	o.Logger = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if o.Cluster == nil {
		o.Cluster = new(cluster.Options)
	}
	o.Cluster.Listener, o.Cluster.Tick = listener, 30*time.Millisecond
	l, err := ledger.Open(t.Context(), o)
	if err != nil {
		return nil, err
	}
	l.Cluster().ServePeers(l.Cluster().JoinHandler())
	n := &clusterNode{l, o.Dir, listener.Addr().String()}
	t.Cleanup(func() { _ = n.Close() }) // a test that closes it checks the error
	return n, nil
}

// testWriter writes to a test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// copyNode creates the directory of another node from that of a closed node.
func copyNode(t *testing.T, from string, id uint64) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), fmt.Sprint("node", id))
	must.Do(t, os.CopyFS(to, os.DirFS(from)))
	name := filepath.Join(to, "LEDGER")
	marker := must.Get(fs.ReadFile(os.DirFS(from), "LEDGER"))(t)
	numbered := strings.Replace(string(marker), "}", fmt.Sprintf(`,"id":%d}`, id), 1)
	must.Do(t, os.WriteFile(name, []byte(numbered), 0o600))
	return to
}

// awaitLeader waits until one of the nodes leads, and returns it.
func awaitLeader(t *testing.T, nodes ...*clusterNode) *clusterNode {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found := make(chan *clusterNode, len(nodes))
	for _, n := range nodes {
		go func() { // ends with the context
			for {
				leader, changed := n.Cluster().Leader()
				if leader.Self {
					found <- n
					return
				}
				select {
				case <-changed:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	select {
	case n := <-found:
		return n
	case <-ctx.Done():
		t.Fatal("no node leads")
		return nil
	}
}

// startCluster starts a cluster of three voters.
func startCluster(t *testing.T) []*clusterNode {
	t.Helper()
	return startClusterOf(t, 3)
}

// startClusterOf starts a cluster of voters.
func startClusterOf(t *testing.T, size int) []*clusterNode {
	t.Helper()
	return startClusterWith(t, size, func(dir string) ledger.Options { return ledger.Options{Dir: dir} })
}

// startClusterWith is startClusterOf with options.
func startClusterWith(t *testing.T, size int, options func(dir string) ledger.Options) []*clusterNode {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "node1")
	first := startNodeWith(t, anyAddress, options(dir))
	awaitAddress(t, first)
	must.Do(t, first.Close())
	var copies []string
	for id := 2; id <= size; id++ {
		copies = append(copies, copyNode(t, dir, uint64(id)))
	}
	nodes := []*clusterNode{startNodeWith(t, first.address, options(dir))}
	for i, dir := range copies {
		n := startNodeWith(t, anyAddress, options(dir))
		nodes = append(nodes, n)
		q := cluster.JoinRequest{Nonce: [16]byte{byte(2 + i)}, Peer: n.address}
		for range 2 { // the second request gets the same id
			must.Do(t, onLeader(t, nodes, func(leader *clusterNode) error {
				a, err := leader.Cluster().Admit(t.Context(), q)
				if err == nil && a.ID != uint64(2+i) {
					t.Errorf("node %d got %+v", 2+i, a)
				}
				return err
			}))
		}
	}
	awaitLeaderStatus(t, nodes, "all vote", func(s cluster.Status) bool {
		voters := 0
		for _, m := range s.Members {
			if m.Voter && m.Active {
				voters++
			}
		}
		return voters == size
	})
	return nodes
}

// onLeader calls do on the leader, and calls it again while it returns a *NotLeaderError or ErrOutcomeUnknown, which
// elections cause on a slow machine. So do may take effect twice.
func onLeader(t *testing.T, nodes []*clusterNode, do func(leader *clusterNode) error) error {
	t.Helper()
	for {
		err := do(awaitLeader(t, nodes...))
		if _, elsewhere := errors.AsType[*cluster.NotLeaderError](err); elsewhere ||
			errors.Is(err, ledger.ErrOutcomeUnknown) {
			continue
		}
		return err
	}
}

func awaitAddress(t *testing.T, n *clusterNode) {
	t.Helper()
	awaitStatus(t, n, "its own address", func(s cluster.Status) bool {
		return len(s.Members) > 0 && s.Members[0].Peer == n.address
	})
}

// awaitStatus waits until a node sees the cluster in a given state.
func awaitStatus(t *testing.T, n *clusterNode, what string, is func(cluster.Status) bool) {
	t.Helper()
	awaitLeaderStatus(t, []*clusterNode{n}, what, is)
}

// awaitLeaderStatus waits until one of the nodes sees the cluster in a given state, which may be visible only to the
// leader.
func awaitLeaderStatus(t *testing.T, nodes []*clusterNode, what string, is func(cluster.Status) bool) {
	t.Helper()
	must.Await(t, func() bool {
		return slices.ContainsFunc(nodes, func(n *clusterNode) bool { return is(n.Cluster().Status()) })
	}, what)
}

// Three nodes take writes. The leader stops, the remaining two continue with all writes, and the node that comes back
// has the same state.
func TestClusterSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	next := uint64(0)
	write := func(among []*clusterNode) {
		t.Helper()
		var o machine.Outcome
		err := onLeader(t, among, func(leader *clusterNode) (err error) {
			o, err = leader.Write(t.Context(), appendWrite("c", next+1, fmt.Append(nil, "write ", next+1)))
			return err
		})
		if err != nil || o.Code != machine.Committed && o.Code != machine.Replayed {
			t.Fatalf("%+v, %v", o, err)
		}
		next++
	}
	for range 50 {
		write(nodes)
	}
	leader := awaitLeader(t, nodes...)
	must.Do(t, leader.Close())
	var rest []*clusterNode
	for _, n := range nodes {
		if n != leader {
			rest = append(rest, n)
		}
	}
	for range 50 {
		write(rest)
	}
	back := startNode(t, leader.dir, leader.address)
	for range 10 {
		write(rest)
	}
	all := append(rest, back)
	var digests []string
	for _, n := range all {
		must.Do(t, n.View(t.Context(), func(v machine.View) error {
			digests = append(digests, fmt.Sprint(v.Index(), v.Digest()))
			return nil
		}))
	}
	if digests[0] != digests[1] || digests[0] != digests[2] {
		t.Errorf("the nodes have %v", digests)
	}
}

// The leader of a cluster confirms its leadership with the others before it answers a retry from its state, but not
// before it appends a new write to the log. A read confirms once, not for each block. The confirmation takes as long as
// everything else together.
func TestQuestionsAreFew(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	const writes, few = 50, 5 // the node also asks for other reasons
	attempt := 0
	must.Do(t, onLeader(t, nodes, func(leader *clusterNode) error {
		attempt++ // another leader may have decided the previous attempt's writes
		write := func(sequence uint64, want machine.Code) error {
			w := appendWrite(fmt.Sprint("c", attempt), sequence, []byte("a payload"))
			o, err := leader.Write(t.Context(), w)
			if err == nil && o.Code != want {
				t.Errorf("write %d: %+v, want %v", sequence, o, want)
			}
			return err
		}
		checks := func() uint64 { return leader.Stats().ReadChecks }
		before := checks()
		for i := range uint64(writes) {
			if err := write(i+1, machine.Committed); err != nil {
				return err
			}
		}
		if asked := checks() - before; asked > few {
			t.Errorf("%d new writes asked %d times", writes, asked)
		}
		for before = checks(); checks() == before; { // a retry goes through the log if the applier is busy
			if err := write(writes, machine.Replayed); err != nil {
				return err
			}
		}
		before = checks()
		chain, err := leader.Chain(t.Context(), scope)
		if err != nil {
			return err
		}
		if asked := checks() - before; asked == 0 || chain.Height < writes {
			t.Errorf("a chain of %d blocks was read after %d questions", chain.Height, asked)
		}
		before = checks()
		for header, err := range leader.Watch(t.Context(), chain.Scope, 1) {
			if err == nil {
				all := func(machine.Transaction) bool { return true }
				_, err = leader.VisitBlock(t.Context(), chain, header.Height, 0, all)
			}
			if err != nil {
				return err
			}
			if header.Height == chain.Height {
				break
			}
		}
		if asked := checks() - before; asked > few {
			t.Errorf("%d blocks asked %d times", chain.Height, asked)
		}
		return nil
	}))
}

// A node whose clock is a minute ahead leads in the time of the others. When one of them is gone, the two that are left
// do not agree: whichever leads, ledger time lags and writes continue, until the third one is back.
func TestNodeWithAWrongClockLeads(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	wrong := awaitLeader(t, nodes...)
	must.Do(t, wrong.Close())
	right := slices.DeleteFunc(slices.Clone(nodes), func(n *clusterNode) bool { return n == wrong })
	awaitLeader(t, right...)
	ahead := startNodeAt(t, wrong.dir, wrong.address, func() time.Time { return time.Now().Add(time.Minute) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sequence := uint64(0)
	leadIn := func(to *clusterNode, among []*clusterNode) {
		t.Helper()
		self := to.Cluster().Status().Self
		for ctx.Err() == nil {
			if leader, _ := to.Cluster().Leader(); leader.Self {
				break
			}
			err := onLeader(t, among, func(l *clusterNode) error { return l.Cluster().TransferLeadership(ctx, self) })
			if err != nil && !errors.Is(err, cluster.ErrNoSuccessor) && !errors.Is(err, cluster.ErrNoSuchNode) {
				t.Fatal(err)
			}
		}
		sequence++
		var o machine.Outcome
		must.Do(t, onLeader(t, []*clusterNode{to}, func(l *clusterNode) (err error) {
			o, err = l.Write(ctx, appendWrite("c", sequence, []byte("x")))
			return err
		}))
		if at := time.Unix(0, o.Receipt.CommittedAt); time.Until(at) > 30*time.Second {
			t.Errorf("write %d is of %s", sequence, at)
		}
	}
	leadIn(ahead, append(right, ahead))
	awaitStatus(t, ahead, "the time of the others", func(s cluster.Status) bool {
		for _, m := range s.Members {
			if m.ID != s.Self && (!m.Answers || (m.ClockAhead+time.Minute).Abs() > 10*time.Second) {
				return false
			}
		}
		return s.Lagging == nil && s.MayLag == 0
	})

	must.Do(t, right[1].Close())
	left := []*clusterNode{ahead, right[0]}
	for _, to := range []*clusterNode{right[0], ahead} {
		leadIn(to, left)
		awaitStatus(t, to, "that ledger time lags", func(s cluster.Status) bool {
			return s.Lagging != nil && s.MayLag > 30*time.Second && s.MayLag < 90*time.Second
		})
	}
	startNode(t, right[1].dir, right[1].address)
	awaitStatus(t, ahead, "that ledger time does not lag", func(s cluster.Status) bool { return s.Lagging == nil })
	leadIn(ahead, left)
}

// A cluster that comes back after a month leads in ledger time as it was, until an operator vouches for the clocks on
// any node.
func TestClusterThatStoodStill(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	awaitLeader(t, nodes...)
	for _, n := range nodes {
		must.Do(t, n.Close())
	}
	later := func() time.Time { return time.Now().AddDate(0, 0, 40) }
	for i, n := range nodes {
		nodes[i] = startNodeAt(t, n.dir, n.address, later)
	}
	write := func(client string) time.Time {
		t.Helper()
		var o machine.Outcome
		must.Do(t, onLeader(t, nodes, func(l *clusterNode) (err error) {
			o, err = l.Write(t.Context(), appendWrite(client, 1, []byte("x")))
			return err
		}))
		return time.Unix(0, o.Receipt.CommittedAt)
	}
	if at := write("before"); time.Until(at) > time.Hour {
		t.Errorf("ledger time is %s", at)
	}
	leader := awaitLeader(t, nodes...)
	if s := leader.Cluster().Status(); !errors.Is(s.Lagging, datadir.ErrClock) || s.MayLag < 39*24*time.Hour {
		t.Errorf("%v, %v", s.Lagging, s.MayLag)
	}
	i := slices.IndexFunc(nodes, func(n *clusterNode) bool { return n != leader })
	must.Do(t, nodes[i].Close())
	o := ledger.Options{Dir: nodes[i].dir, Clock: later, AcceptClock: true}
	nodes[i] = startNodeWith(t, nodes[i].address, o)
	awaitLeaderStatus(t, nodes, "that ledger time does not lag", func(s cluster.Status) bool {
		return s.Leader.Self && s.Lagging == nil
	})
	if at := write("after"); time.Until(at) < 39*24*time.Hour {
		t.Errorf("ledger time is %s", at)
	}
}

// A follower whose log hangs is not relied on, also if nothing was written since, so that nothing shows it: the other
// one is not removed.
func TestMemberWithAHungLogDoesNotCount(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	leader := awaitLeader(t, nodes...)
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *clusterNode) bool { return n == leader })
	release := ledger.HangLog(others[0].Ledger)
	removed := others[1].Cluster().Status().Self
	err := leader.Cluster().Remove(t.Context(), removed, false)
	release()
	if _, stepped := errors.AsType[*cluster.NotLeaderError](err); !stepped && !errors.Is(err, cluster.ErrNoChange) {
		t.Errorf("the other one is removed: %v", err)
	}
}

// A leader whose state hangs is replaced: here a read of it does not end, so that nothing can be applied. Meanwhile it
// answers what describes it, and takes no leadership. Then it follows with every write.
func TestLeaderWithAHungStateIsReplaced(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	hung := awaitLeader(t, nodes...)
	self := hung.Cluster().Status().Self
	others := slices.DeleteFunc(slices.Clone(nodes), func(n *clusterNode) bool { return n == hung })
	reading, hang, read := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { // ends with hang; received below
		read <- hung.ViewLocal(func(machine.View) error { close(reading); <-hang; return nil })
	}()
	<-reading
	written := make(chan error, 1)
	go func() { // ends when the leader has stepped down; received below
		_, err := hung.Write(t.Context(), appendWrite("hung", 1, []byte("x")))
		written <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for sequence := uint64(1); sequence <= 3; sequence++ {
		must.Do(t, onLeader(t, others, func(l *clusterNode) error {
			_, err := l.Write(ctx, appendWrite("c", sequence, []byte("x")))
			return err
		}))
	}
	err := <-written
	_, late := errors.AsType[*cluster.NotLeaderError](err) // it has stepped down already
	if !late && !errors.Is(err, ledger.ErrOutcomeUnknown) {
		t.Errorf("the write to the hung leader: %v", err)
	}
	awaitStatus(t, hung, "another leader", func(s cluster.Status) bool {
		i := slices.IndexFunc(s.Members, func(m cluster.Member) bool { return m.ID == self })
		return !s.Leader.Self && s.Leader.ID != 0 && s.Members[i].Stalled != ""
	})
	if s := hung.Stalled(); s.Job == "" || hung.Stats().Stalled == 0 || hung.Head().Index == 0 {
		t.Errorf("it is stalled: %+v", s)
	}
	err = onLeader(t, others, func(l *clusterNode) error { return l.Cluster().TransferLeadership(ctx, self) })
	check.Is(t, err, cluster.ErrNoSuccessor, "a transfer to it")
	close(hang)
	must.Do(t, <-read)
	next := awaitLeader(t, others...)
	awaitStatus(t, next, "that it works again", func(s cluster.Status) bool {
		i := slices.IndexFunc(s.Members, func(m cluster.Member) bool { return m.ID == self })
		return s.Members[i].Stalled == "" && s.Members[i].State == cluster.Same
	})
}

// A node of a cluster does not open without Options.Cluster, because it would wait for the others for ever. This holds
// whether the other nodes are named by its state or only by its log.
func TestNodeOfAClusterIsNotOpenedAlone(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	crashed := filepath.Join(t.TempDir(), "crashed")
	must.Do(t, os.CopyFS(crashed, os.DirFS(nodes[0].dir)))
	must.Do(t, nodes[0].Close())
	for _, dir := range []string{nodes[0].dir, crashed} {
		l, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		check.ErrorContains(t, err, "--peer-listen", "%s", dir)
		if err == nil {
			_ = l.Close()
		}
	}
}

// A node that comes back at another address tells the others, even a node to which the others connect.
func TestNodeComesBackElsewhere(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	leader := awaitLeader(t, nodes...)
	rest, moved := nodes[:2], nodes[2]
	if moved == leader {
		rest, moved = []*clusterNode{nodes[0], nodes[2]}, nodes[1]
	}
	self := moved.Cluster().Status().Self
	must.Do(t, moved.Close())
	back := startNode(t, moved.dir, anyAddress)
	awaitLeaderStatus(t, append(rest, back), "the node at its new address", func(s cluster.Status) bool {
		for _, m := range s.Members {
			if m.ID == self && m.Peer == back.address && m.Active && m.Matched == s.Last {
				return true
			}
		}
		return false
	})
}

// A caller whose response was lost repeats the request and learns that it is done. The leader is not removed.
func TestClusterChangesAreRepeated(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	var left *clusterNode
	err := onLeader(t, nodes, func(leader *clusterNode) error {
		left = leader
		return leader.Cluster().Remove(t.Context(), leader.Cluster().Status().Self, false)
	})
	must.Is(t, err, cluster.ErrNoChange, "the leader was asked to remove itself, and said")
	id := left.Cluster().Status().Self%2 + 1 // 1 or 2, and not the leader
	for range 2 {
		handOver(t, nodes, id)
	}
	var removed uint64
	err = onLeader(t, nodes, func(leader *clusterNode) error {
		removed = 3
		if leader.Cluster().Status().Self == removed {
			removed = 2
		}
		return leader.Cluster().Remove(t.Context(), removed, false)
	})
	for _, again := range []uint64{removed, removed} {
		err = errors.Join(err, onLeader(t, nodes, func(leader *clusterNode) error {
			return leader.Cluster().Remove(t.Context(), again, false)
		}))
	}
	must.Do(t, err)
	for _, unknown := range []uint64{0, 9} {
		err := onLeader(t, nodes, func(leader *clusterNode) error {
			return leader.Cluster().Remove(t.Context(), unknown, false)
		})
		check.Is(t, err, cluster.ErrNoSuchNode, "node %d", unknown)
	}
}

// A node that is too far behind can be offered a state as soon as the members have changed.
func TestChangedMembersAreOfferedAState(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	var leader *clusterNode
	must.Do(t, onLeader(t, nodes, func(n *clusterNode) error {
		leader = n
		return n.Cluster().Remove(t.Context(), n.Cluster().Status().Self%3+1, false)
	}))
	if offered, changed := ledger.OfferedState(leader.Ledger); changed == 0 || offered < changed {
		t.Errorf("the state at %d is offered, and the members changed at %d", offered, changed)
	}
}

// Only the leader's clock decides what depends on the time.
func TestOnlyTheLeaderTellsTheTime(t *testing.T) {
	t.Parallel()
	nodes := startClusterOf(t, 2)
	leader := awaitLeader(t, nodes...)
	for _, n := range nodes {
		err := n.ViewNow(t.Context(), func(machine.View, int64) error { return nil })
		_, refused := errors.AsType[*cluster.NotLeaderError](err)
		if refused == (n == leader) || !refused && err != nil {
			t.Errorf("node at %s, which leads: %t: %v", n.address, n == leader, err)
		}
	}
}

// A node that is cut off from the others refuses reads long before their deadline, so that their callers go to another
// node. A stale read is answered.
func TestReadsOfANodeThatIsCutOff(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	leader := awaitLeader(t, nodes...)
	left := nodes[0]
	for _, n := range nodes {
		if n != leader {
			left = n
		}
	}
	readOn := func(n *clusterNode) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return n.View(ctx, func(machine.View) error { return nil })
	}
	must.Do(t, readOn(left))
	for _, n := range nodes {
		if n != left {
			must.Do(t, n.Close())
		}
	}
	if err := readOn(left); !isNotLeader(err) {
		t.Errorf("a read: %v", err)
	}
	if _, err := left.Write(t.Context(), appendWrite("c", 1, nil)); !isNotLeader(err) {
		t.Errorf("a write: %v", err)
	}
	stale := read.WithStale(t.Context(), new(read.Stale))
	must.Do(t, left.View(stale, func(machine.View) error { return nil }), "a stale read")
}

// A read that was given up keeps no place at a node that is cut off: others are refused because there is no leader, and
// not because too many wait.
func TestReadsThatWereGivenUpKeepNoPlace(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t)
	leader := awaitLeader(t, nodes...)
	left := nodes[0]
	if left == leader {
		left = nodes[1]
	}
	for _, n := range nodes {
		if n != left {
			_ = n.Close() // the second cannot hand over
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	look := func(machine.View) error { return nil }
	for range core.MaxReads + 1 {
		if err := left.View(ended, look); err == nil {
			t.Fatal("a node that is alone answers a read")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := left.View(ctx, look); !isNotLeader(err) {
		t.Errorf("a read: %v", err)
	}
}
