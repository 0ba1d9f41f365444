package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/seqledger/seqledger/ledger/engine"
)

const (
	// pulsePath is the path at which a node tells its pulse.
	pulsePath = "/seqledger.peer.v1/Pulse"
	// pulseInterval is the time between two rounds in which a node asks all others for their pulses.
	pulseInterval = time.Second
	// pulsePatience bounds a round. A new leader waits for it before it takes writes, unless a majority has answered.
	pulsePatience = time.Second
	// pulseKept is how long the pulse of a node that no longer answers is shown.
	pulseKept = 10 * time.Second
	// maxPulseBytes bounds the answer.
	maxPulseBytes = 4 << 10
)

// errClocks means that no majority of the voters has clocks that agree.
var errClocks = errors.New("no majority of the voters tells clocks that agree")

// pulse is what a node tells each other node once a second.
type pulse struct {
	Clock int64 `json:"clock"` // its wall clock, Unix nanoseconds
	// AcceptClock says that its operator vouches for the clock of the machine, however far it is ahead.
	AcceptClock bool `json:"acceptClock,omitempty"`
	// Stalled is its work that has stopped advancing; empty for none. Such a node must not lead.
	Stalled string `json:"stalled,omitempty"`
}

// sighting is a pulse as this node has received it.
type sighting struct {
	pulse

	at    time.Time     // when it was asked for
	ahead time.Duration // how far its clock is ahead of this node's, with an error of at most half the round trip
}

// pulses are the last pulses of the other nodes, and what this node makes of their clocks.
type pulses struct {
	mu      sync.Mutex
	nodes   map[uint64]sighting
	skewed  map[uint64]bool // nodes whose clock was last reported as different
	lagging error           // why ledger time lags; nil: it does not, or this node does not lead
}

// last returns the last pulse of a node, if that is recent.
func (p *pulses) last(id uint64, since time.Time) (s sighting, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, found = p.nodes[id]
	return s, found && !s.at.Before(since)
}

// note takes in a pulse, and reports whether the clock has begun to differ or to agree.
func (p *pulses) note(id uint64, s sighting) (changed, skewed bool) {
	const agreesAgain = engine.MaxClockSkew * 9 / 10 // less, so that a clock at the limit is not reported every second
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nodes == nil {
		p.nodes, p.skewed = map[uint64]sighting{}, map[uint64]bool{}
	}
	if s.at.Before(p.nodes[id].at) {
		return false, p.skewed[id] // an answer that came late
	}
	p.nodes[id] = s
	was := p.skewed[id]
	skewed = s.ahead.Abs() > engine.MaxClockSkew || was && s.ahead.Abs() > agreesAgain
	p.skewed[id] = skewed
	return skewed != was, skewed
}

// endTerm notes that this node does not lead any more.
func (p *pulses) endTerm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lagging = nil
}

// why returns why ledger time lags, or nil.
func (p *pulses) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lagging
}

// pulseLoop asks the other nodes for their pulses. While ledger time lags, it also tries to move it forward.
func (n *Node) pulseLoop() {
	defer n.loops.Done()
	ticker := time.NewTicker(pulseInterval)
	defer ticker.Stop()
	for {
		if term := n.term.Load(); term != 0 && n.pulses.why() != nil {
			n.noteLag(term, n.moveTime())
		} else {
			n.askPulses(pulsePatience, func() bool { return false })
		}
		select {
		case <-ticker.C:
		case <-n.host.Failed:
			return
		case <-n.host.Stopping.Done():
			return
		}
	}
}

// askPulses asks all other members for their pulses, until enough says that it knows enough.
func (n *Node) askPulses(patience time.Duration, enough func() bool) {
	ctx, cancel := context.WithTimeout(n.host.Stopping, patience)
	defer cancel()
	members := n.Status().Members
	answered := make(chan struct{}, len(members))
	for _, m := range members {
		if m.ID == n.id() {
			answered <- struct{}{}
			continue
		}
		// Ends with ctx; the channel is buffered for all answers.
		go func() {
			if s, err := n.askPulse(ctx, &m); err == nil {
				n.notePulse(m.ID, s)
			}
			answered <- struct{}{}
		}()
	}
	for range members {
		if <-answered; enough() {
			return
		}
	}
}

func (n *Node) notePulse(id uint64, s sighting) {
	switch changed, skewed := n.pulses.note(id, s); {
	case changed && skewed:
		n.host.Logger.Warn("the clock of another node differs from the one of this node", "node", id, "ahead", s.ahead)
	case changed:
		n.host.Logger.Info("the clock of another node agrees with the one of this node again", "node", id, "ahead",
			s.ahead)
	}
}

// askPulse asks another node for its pulse.
func (n *Node) askPulse(ctx context.Context, m *Member) (s sighting, err error) {
	began, wall := time.Now(), n.host.Clock()
	response, err := n.askMember(ctx, m, http.MethodGet, pulsePath, http.NoBody)
	if err != nil {
		return s, fmt.Errorf("pulse of node %d: %w", m.ID, err)
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	if response.StatusCode != http.StatusOK {
		return s, fmt.Errorf("pulse of node %d: %s", m.ID, response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxPulseBytes)).Decode(&s.pulse); err != nil {
		return s, fmt.Errorf("pulse of node %d: %w", m.ID, err)
	}
	s.at = began
	s.ahead = time.Unix(0, s.Clock).Sub(wall.Add(time.Since(began) / 2))
	return s, nil
}

// tellPulse answers askPulse.
func (n *Node) tellPulse(w http.ResponseWriter) {
	p := pulse{Clock: n.host.Clock().UnixNano(), AcceptClock: n.host.AcceptClock, Stalled: n.log.Stalled().Job}
	writeJSON(w, http.StatusOK, p)
}

// moveTime moves ledger time forward to the clock on which a majority of the voters agrees at this moment, whether or
// not this node's clock is among them. Until that is possible, ledger time lags, and the error says why. Whatever
// expires because of a wrong clock is lost, and a cluster that waits for right clocks is not available.
func (n *Node) moveTime() error {
	began := time.Now()
	n.askPulses(pulsePatience, func() bool { _, _, err := n.agreedClock(began); return err == nil })
	wall, accept, err := n.agreedClock(began)
	if err != nil {
		return err
	}
	return n.host.SetTime(wall, accept)
}

// agreedClock returns the wall clock on which a majority of the voters agrees, from the pulses since a moment, and
// whether the operator of a node that has this clock vouches for it.
func (n *Node) agreedClock(since time.Time) (wall time.Time, accept bool, err error) {
	own := n.host.Clock()
	var clocks []time.Duration
	var vouched []time.Duration
	voters := 0
	for _, m := range n.Status().Members {
		if !m.Voter {
			continue
		}
		voters++
		s, found := sighting{pulse: pulse{AcceptClock: n.host.AcceptClock}}, true // of this node
		if m.ID != n.id() {
			s, found = n.pulses.last(m.ID, since)
		}
		if found {
			clocks = append(clocks, s.ahead)
		}
		if found && s.AcceptClock {
			vouched = append(vouched, s.ahead)
		}
	}
	agreed, ok := engine.AgreedClock(clocks, voters)
	if !ok {
		return wall, false, fmt.Errorf("%w: %d of %d have told theirs, which are ahead of this node's by %v",
			errClocks, len(clocks), voters, clocks)
	}
	for _, ahead := range vouched {
		accept = accept || (ahead-agreed).Abs() <= engine.MaxClockSkew
	}
	return own.Add(agreed), accept, nil
}

// noteLag notes why ledger time lags in a term in which this node leads, or that it does not.
func (n *Node) noteLag(term uint64, why error) {
	n.pulses.mu.Lock()
	was := n.pulses.lagging
	if n.term.Load() != term { // otherwise endTerm comes afterwards
		why, was = nil, nil
	}
	n.pulses.lagging = why
	n.pulses.mu.Unlock()
	switch {
	case why != nil && was == nil:
		n.host.Logger.Warn("ledger time lags: this node leads without a wall clock, and continues from the last "+
			"ledger time that it knows; what is due expires late, and nothing expires early", "term", term,
			"error", why, "may lag by", n.mayLag())
	case why == nil && was != nil:
		n.host.Logger.Info("ledger time does not lag any more: it follows the clocks of a majority of the voters",
			"term", term)
	}
}

// mayLag returns by how much ledger time may lag at most, if the clock of any node is right.
func (n *Node) mayLag() (lag time.Duration) {
	now, own := time.Unix(0, n.host.Now()), n.host.Clock()
	since := time.Now().Add(-pulseKept)
	lag = max(0, own.Sub(now))
	for _, id := range n.log.Members().Voters {
		if s, found := n.pulses.last(id, since); found {
			lag = max(lag, own.Add(s.ahead).Sub(now))
		}
	}
	return lag
}
