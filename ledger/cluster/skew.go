package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// maxClockSkew is the maximum difference between the wall clock of a leader and the clocks of a majority.
	maxClockSkew = 10 * time.Second
	// skewPatience is how long a leader waits for the other nodes' clocks before it asks again.
	skewPatience = time.Second
	// clockPath is the path at which a node returns its wall clock, in nanoseconds since 1970.
	clockPath = "/seqledger.peer.v1/Clock"
)

// errSkew means that a node must not lead, because its clock does not agree with a majority.
var errSkew = errors.New("the clock of this node is not that of a majority")

// errTooFewClocks means that no majority has answered yet.
var errTooFewClocks = errors.New("too few nodes told their clocks")

// checkClock compares the wall clock of this newly elected node with those of the other voters. Ledger time starts from
// this clock, and whatever expires because of a wrong clock is lost.
func (n *Node) checkClock() error {
	var others []Member
	voters := 1
	for _, m := range n.Status().Members {
		if m.Voter && m.ID != n.id() {
			others, voters = append(others, m), voters+1
		}
	}
	if len(others) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(n.host.Stopping, skewPatience)
	defer cancel()
	skews := make(chan time.Duration, len(others))
	failures := make(chan error, len(others))
	for _, m := range others {
		// Ends with ctx; the channels have room for it.
		go func() {
			skew, err := n.askClock(ctx, &m)
			if err != nil {
				failures <- err
				return
			}
			skews <- skew
		}()
	}
	near, far := 1, 0 // this node's own
	var err error
	for range others {
		select {
		case skew := <-skews:
			if skew.Abs() <= maxClockSkew {
				near++
			} else {
				far++
			}
		case failure := <-failures:
			err = failure
		}
		// Decided as soon as it can be, so that a node that does not answer is not waited for.
		switch majority := voters/2 + 1; {
		case near >= majority:
			return nil
		case far > voters-majority:
			return fmt.Errorf("%w: %d of %d nodes are more than %s away", errSkew, far, voters, maxClockSkew)
		}
	}
	return fmt.Errorf("%w: %d agree and %d do not, of %d: %w", errTooFewClocks, near, far, voters, err)
}

// askClock returns how far this node's clock is ahead of another node's, with an error of at most half the round trip.
func (n *Node) askClock(ctx context.Context, m *Member) (time.Duration, error) {
	began, wall := time.Now(), n.host.Clock()
	response, err := n.askMember(ctx, m, http.MethodGet, clockPath, http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("clock of node %d: %w", m.ID, err)
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, 64))
	if err != nil || response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("clock of node %d: %s: %w", m.ID, response.Status, err)
	}
	nanos, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("clock of node %d: %w", m.ID, err)
	}
	return wall.Add(time.Since(began) / 2).Sub(time.Unix(0, nanos)), nil
}

// tellClock answers a leader's askClock.
func (n *Node) tellClock(w http.ResponseWriter) {
	_, _ = fmt.Fprintln(w, n.host.Clock().UnixNano()) // the leader asks again
}
