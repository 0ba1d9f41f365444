package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	// digestPath is the path at which a node returns its digest after an entry of the log.
	digestPath = "/seqledger.peer.v1/Digest"
	// digestsKept is the number of recent entries whose digests a node keeps.
	digestsKept = 1 << 14
	// digestInterval is the time between two comparisons while no node differs.
	digestInterval = time.Second
	// digestRetry is the time until an undecided comparison is repeated.
	digestRetry = 100 * time.Millisecond
	// digestTimeout bounds a request to another node.
	digestTimeout = 2 * time.Second
	// digestPatience is how long a node that differs from the leader waits for the other nodes to decide which of the
	// two is right.
	digestPatience = 10 * time.Second
)

// digests compares the state of this node with those of the others. The digest of a state covers everything that ever
// led to it, so that one comparison covers all earlier entries.
type digests struct {
	mu     sync.Mutex
	stands []stand       // a ring; allocated by the first add
	count  uint64        // number of stands ever added
	doubt  error         // the mismatch between the log and this state, if any
	wake   chan struct{} // capacity 1; makes the next comparison start early
	result roundResult   // of the last comparison; its map is never changed
}

// roundResult is the result of one comparison with the other nodes.
type roundResult struct {
	own   machine.Check // where this node stood
	nodes map[uint64]nodeResult
}

// nodeResult is what a comparison found out about a node, this one included.
type nodeResult struct {
	state Comparison
	disk  datadir.Usage
	room  Room
}

func (d *digests) lastResult() roundResult {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.result
}

func (d *digests) setResult(r roundResult) {
	d.mu.Lock()
	d.result = r
	d.mu.Unlock()
}

// stand is the index and digest of the state after an entry of the log.
type stand struct {
	at    uint64 // Raft index of the entry
	check machine.Check
}

func (d *digests) add(at uint64, check machine.Check) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stands == nil {
		d.stands = make([]stand, digestsKept)
	}
	d.stands[d.count%digestsKept] = stand{at, check}
	d.count++
}

// last returns the latest stand.
func (d *digests) last() (s stand, found bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count == 0 {
		return s, false
	}
	return d.stands[(d.count-1)%digestsKept], true
}

// find returns the stand after an entry.
func (d *digests) find(at uint64) (s stand, found bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := uint64(1); i <= min(d.count, digestsKept); i++ {
		if s := d.stands[(d.count-i)%digestsKept]; s.at <= at {
			return s, s.at == at
		}
	}
	return s, false
}

// object records that a digest in the log does not match this state. A comparison decides which of them is right.
func (d *digests) object(err error) {
	d.mu.Lock()
	d.doubt = err
	d.mu.Unlock()
	wake(d.wake)
}

// wake starts the next comparison early. It does nothing if that is so already.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// objection returns the recorded mismatch between the log and this state, or nil.
func (d *digests) objection() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.doubt
}

// AddDigest records the index and digest of the state after an entry of the log.
func (d *Driver) AddDigest(at uint64, check machine.Check) { d.digests.add(at, check) }

// Object records that a digest in the log does not match this state. The nodes compare their states, and the one that
// differs from a majority stops.
func (d *Driver) Object(err error) { d.digests.object(err) }

// Objection returns the recorded mismatch between the log and this state, or nil.
func (d *Driver) Objection() error { return d.digests.objection() }

// compareLoop compares the state of this node with those of the others until the ledger stops.
func (n *Node) compareLoop() {
	defer n.loops.Done()
	timer := time.NewTimer(digestInterval)
	defer timer.Stop()
	c := comparison{n: n}
	var began time.Time
	for {
		select {
		case <-timer.C:
		case <-n.digests.wake:
			if soon := digestRetry - time.Since(began); soon > 0 { // two nodes that differ wake each other
				timer.Reset(soon)
				continue
			}
		case <-n.host.Failed:
			return
		case <-n.host.Stopping.Done():
			return
		}
		began = time.Now()
		settled, err := c.round()
		if err != nil {
			n.host.Fail(err)
			return
		}
		if settled {
			timer.Reset(digestInterval)
		} else {
			timer.Reset(digestRetry)
		}
	}
}

// comparison compares one state with those of the voters, repeatedly until there is a decision.
type comparison struct {
	n       *Node
	own     stand
	since   time.Time // since when this state is known to differ from the leader's; zero: it does not
	blaming string    // the differing nodes that were last logged
}

// opinion is the voters' view of a state.
type opinion struct {
	voters         int
	same, other    []uint64 // ids; same includes this node's
	otherCheck     machine.Check
	leaderDiffers  bool
	silent, passed int // voters that did not answer or are not at the entry yet; voters that no longer know it
	removed        bool
}

// round asks the voters once. It fails if this node has to stop.
func (c *comparison) round() (settled bool, err error) {
	n := c.n
	if _, kept := n.digests.find(c.own.at); c.own.at == 0 || !kept {
		// If this node has applied nothing since its start, the others can only report whether it was removed. A
		// removed node is sent nothing.
		c.own, _ = n.digests.last()
	}
	o := n.askDigests(c.own)
	switch {
	case o.removed:
		return false, ErrRemoved
	case c.own.at == 0:
		return true, nil
	}
	if o.leaderDiffers && c.since.IsZero() {
		c.since = time.Now()
	}
	v := o.judge(!c.since.IsZero() && time.Since(c.since) > digestPatience)
	if v == verdictStop {
		return false, fmt.Errorf("%w: after entry %d of the log it stands at ledger index %d with a digest that "+
			"begins with %016x; of %d voters the nodes %d stand at ledger index %d with %016x, and %d as it does: %w",
			ErrDiffers, c.own.at, c.own.check.Index, c.own.check.Digest, o.voters, o.other, o.otherCheck.Index,
			o.otherCheck.Digest, o.same, machine.ErrDiverged)
	}
	c.blame(&o)
	if v == verdictAskAgain {
		return len(o.other) == 0, nil // retry early if a node differs
	}
	c.own, c.since = stand{}, time.Time{}
	return true, nil
}

// blame logs the nodes that differ, once.
func (c *comparison) blame(o *opinion) {
	now := fmt.Sprint(o.other)
	if len(o.other) == 0 || now == c.blaming {
		return
	}
	c.blaming = now
	c.n.host.Logger.Error("the state of other nodes differs from that of this one; a node that differs from a "+
		"majority stops", "nodes", o.other, "after entry", c.own.at,
		"their index", o.otherCheck.Index, "their digest", fmt.Sprintf("%016x", o.otherCheck.Digest),
		"own index", c.own.check.Index, "own digest", fmt.Sprintf("%016x", c.own.check.Digest))
}

type verdict int

const (
	verdictSettled  verdict = iota // nothing more can be learned about this state
	verdictAskAgain                // about the same state
	verdictStop                    // stop this node
)

// judge interprets the voters' answers. waited means that this node has differed from the leader for digestPatience.
func (o *opinion) judge(waited bool) verdict {
	agreed := 2*len(o.same) > o.voters
	switch {
	case agreed:
		return verdictSettled
	case 2*len(o.other) > o.voters:
		return verdictStop
	case o.leaderDiffers && (waited || len(o.same)+len(o.other) == o.voters):
		// No other node decides which is right, and the leader's results are the acknowledged ones.
		return verdictStop
	case o.silent > 0 && o.passed == 0:
		return verdictAskAgain
	}
	return verdictSettled
}

// askDigests asks all other members for their digest after the same entry.
func (n *Node) askDigests(own stand) opinion {
	var o opinion
	leader, _ := n.Leader()
	type answer struct {
		Member
		check machine.Check
		err   error
	}
	ctx, cancel := context.WithTimeout(n.host.Stopping, digestTimeout)
	defer cancel()
	members := n.Status().Members
	answers := make(chan answer, len(members))
	asked := 0
	for _, m := range members {
		if m.Voter {
			o.voters++
		}
		if m.ID == n.id() {
			if m.Voter {
				o.same = append(o.same, m.ID)
			}
			continue
		}
		asked++
		// Ends with ctx; the channel is buffered for all answers.
		go func() {
			a := answer{Member: m}
			a.check, a.err = n.askDigest(ctx, &a.Member, own)
			answers <- a
		}()
	}
	result := roundResult{own.check, map[uint64]nodeResult{n.id(): n.ownResult(own)}}
	for range asked {
		a := <-answers
		result.nodes[a.ID] = nodeResult{comparisonOf(a.err, a.check == own.check), a.Disk, a.Room}
		switch {
		case errors.Is(a.err, ErrRemoved):
			o.removed = true
		case !a.Voter: // a learner compares its own state
		case errors.Is(a.err, errPassed):
			o.passed++
		case a.err != nil:
			o.silent++
		case a.check == own.check:
			o.same = append(o.same, a.ID)
		default:
			o.other, o.otherCheck = append(o.other, a.ID), a.check
			o.leaderDiffers = o.leaderDiffers || a.ID == leader.ID
		}
	}
	n.digests.setResult(result)
	slices.Sort(o.same)
	slices.Sort(o.other)
	return o
}

// ownResult is this node's own part of a result.
func (n *Node) ownResult(own stand) (r nodeResult) {
	r.disk, _ = n.directory.Usage() // if it fails, the usage is unknown
	r.room = n.measureRoom()
	if own.check.Index > 0 {
		r.state = Same
	}
	return r
}

func comparisonOf(err error, same bool) Comparison {
	switch {
	case err != nil:
		return NotCompared
	case same:
		return Same
	}
	return Differs
}

// errPassed means that a node no longer knows its digest after an entry.
var errPassed = errors.New("the node has forgotten where it stood after that entry")

// askDigest asks another node for its digest after an entry, and sends it this node's digest. It sets what the node
// reports about its disk.
func (n *Node) askDigest(ctx context.Context, m *Member, own stand) (check machine.Check, err error) {
	m.Disk, m.Room = datadir.Usage{}, RoomUnknown
	response, err := n.askMember(ctx, m, http.MethodGet, DigestQuery(own.at, own.check), http.NoBody)
	if err != nil {
		return check, fmt.Errorf("digest of node %d: %w", m.ID, err)
	}
	defer func() { _ = response.Body.Close() }()                                    // the body was only read
	m.Disk.Free, _ = strconv.ParseUint(response.Header.Get(diskFreeHeader), 10, 64) // 0 where it is not known
	m.Disk.Size, _ = strconv.ParseUint(response.Header.Get(diskSizeHeader), 10, 64)
	m.Room = toldRoom(response.Header)
	text, err := io.ReadAll(io.LimitReader(response.Body, 128))
	switch {
	case err != nil:
		return check, fmt.Errorf("digest of node %d: %w", m.ID, err)
	case response.StatusCode == http.StatusGone:
		return check, errPassed
	case response.StatusCode != http.StatusOK:
		return check, fmt.Errorf("digest of node %d: %s", m.ID, response.Status)
	}
	_, err = fmt.Sscanf(strings.TrimSpace(string(text)), "%d-%x", &check.Index, &check.Digest)
	return check, err
}

// Headers with which a node reports on its disk when it is asked for its digest.
const (
	diskFreeHeader = "Seqledger-Disk-Free"
	diskSizeHeader = "Seqledger-Disk-Size"
)

// DigestQuery returns the path and query with which a node is asked for its digest after an entry of the log, and told
// that of the caller. The answer is a line with FormatCheck of it.
func DigestQuery(after uint64, own machine.Check) string {
	query := url.Values{}
	query.Set("after", fmt.Sprint(after))
	query.Set("stand", FormatCheck(own))
	return digestPath + "?" + query.Encode()
}

// FormatCheck returns the text of a check.
func FormatCheck(c machine.Check) string { return fmt.Sprintf("%d-%016x", c.Index, c.Digest) }

// tellDigest answers askDigest. If the digests differ, this node starts a comparison at once.
func (n *Node) tellDigest(w http.ResponseWriter, r *http.Request) {
	var after uint64
	if _, err := fmt.Sscan(r.FormValue("after"), &after); err != nil {
		http.Error(w, "after: must be an index of the log", http.StatusBadRequest)
		return
	}
	// Not asked of the file system here: if that hangs, so would every request of every node.
	own := n.digests.lastResult().nodes[n.id()]
	w.Header().Set(diskFreeHeader, strconv.FormatUint(own.disk.Free, 10))
	w.Header().Set(diskSizeHeader, strconv.FormatUint(own.disk.Size, 10))
	tellRoom(w.Header(), own.room)
	at, found := n.digests.find(after)
	if !found {
		status := http.StatusNotFound // not yet
		if last, any := n.digests.last(); any && last.at >= after {
			status = http.StatusGone
		}
		http.Error(w, "not known here", status)
		return
	}
	text := FormatCheck(at.check)
	if r.FormValue("stand") != text {
		wake(n.digests.wake)
	}
	_, _ = fmt.Fprintln(w, text) // the other node asks again
}
