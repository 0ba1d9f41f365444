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

	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	// levelPath is the path at which a node returns the highest format level that its program supports.
	levelPath = "/seqledger.peer.v1/Level"
	// firstClusterLevel is the level of programs that can join a cluster and do not send a level.
	firstClusterLevel = 3
	// levelPatience bounds the requests before the level is raised.
	levelPatience = time.Second
)

// errOldMember means that the level is not raised, because a node does not, or may not, support the next one.
var errOldMember = errors.New("the format level stays as it is")

// raiseLevel raises the ledger to the highest level that the programs of all nodes support. A node that is down may
// come back with an older program, so all nodes must answer, including learners and dead nodes. Until the level is
// raised, any node can still go back to its older program. raiseLevel does nothing if the level is already the highest.
func (n *Node) raiseLevel(ctx context.Context) error {
	view, err := n.host.State()
	if err != nil || !view.Created || view.Level >= n.host.Level {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, levelPatience)
	defer cancel()
	known, members := n.host.Level, n.log.MembersChanged()
	for _, m := range n.Status().Members {
		if m.ID == n.id() {
			continue
		}
		level, err := n.askLevel(ctx, &m)
		if err != nil {
			return fmt.Errorf("%w: node %d does not tell what it knows: %w", errOldMember, m.ID, err)
		}
		if known = min(known, level); known <= view.Level {
			return fmt.Errorf("%w: the program of node %d knows level %d", errOldMember, m.ID, level)
		}
	}
	n.changing.Lock() // until the level is raised, no node may join that supports less
	defer n.changing.Unlock()
	if n.log.MembersChanged() != members {
		return fmt.Errorf("%w: the members have changed meanwhile", errOldMember)
	}
	if known >= tokenLevel && view.Level < tokenLevel {
		if err := n.shareToken(ctx); err != nil {
			return fmt.Errorf("%w: %w", errOldMember, err)
		}
	}
	return n.host.RaiseLevel(ctx, view.Level, known)
}

// RaiseLevel raises the format level at once if that can be done, as the leader does by itself from time to time.
func (d *Driver) RaiseLevel(ctx context.Context) error { return d.raiseLevel(ctx) }

// askLevel asks another node for the highest level that its program supports.
func (n *Node) askLevel(ctx context.Context, m *Member) (uint64, error) {
	response, err := n.askMember(ctx, m, http.MethodGet, levelPath, http.NoBody)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, 64))
	if err != nil || response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("level of node %d: %s: %w", m.ID, response.Status, err)
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// tellLevel answers a leader's askLevel.
func (n *Node) tellLevel(w http.ResponseWriter) {
	_, _ = fmt.Fprintln(w, n.host.Level) // the leader asks again
}

// mustKnowLevel refuses a node that could not read the log.
func (n *Node) mustKnowLevel(q *JoinRequest) error {
	if q.ID != 0 { // a member that updates its address
		return nil
	}
	known := q.Level
	if known == 0 {
		known = firstClusterLevel
	}
	view, err := n.host.State()
	if err == nil && known < view.Level {
		err = &machine.FieldError{Field: "level", Problem: fmt.Sprintf("is %d, and the ledger has format level %d: "+
			"let the machine join with the program of the other nodes", known, view.Level)}
	}
	return err
}
