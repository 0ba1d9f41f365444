package ledger

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

// tendLevel raises the ledger to the highest level that the programs of all nodes support. A node that is down may come
// back with an older program, so all nodes must answer, including learners and dead nodes. Until the level is raised,
// any node can still go back to its older program. tendLevel does nothing if the level is already the highest.
func (l *Ledger) tendLevel(ctx context.Context) error {
	view, err := l.head()
	if err != nil || !view.Created || view.Level >= l.options.level {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, levelPatience)
	defer cancel()
	known, members := l.options.level, l.log.MembersChanged()
	for _, m := range l.ClusterStatus().Members {
		if m.ID == l.node() {
			continue
		}
		level, err := l.askLevel(ctx, &m)
		if err != nil {
			return fmt.Errorf("%w: node %d does not tell what it knows: %w", errOldMember, m.ID, err)
		}
		if known = min(known, level); known <= view.Level {
			return fmt.Errorf("%w: the program of node %d knows level %d", errOldMember, m.ID, level)
		}
	}
	l.members.changing.Lock() // until the level is raised, no node may join that supports less
	defer l.members.changing.Unlock()
	if l.log.MembersChanged() != members {
		return fmt.Errorf("%w: the members have changed meanwhile", errOldMember)
	}
	if known >= tokenLevel && view.Level < tokenLevel {
		if err := l.shareToken(ctx); err != nil {
			return fmt.Errorf("%w: %w", errOldMember, err)
		}
	}
	return l.raiseLevel(ctx, view.Level, known)
}

// askLevel asks another node for the highest level that its program supports.
func (l *Ledger) askLevel(ctx context.Context, m *Member) (uint64, error) {
	response, err := l.askMember(ctx, m, http.MethodGet, levelPath, http.NoBody)
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
func (l *Ledger) tellLevel(w http.ResponseWriter) {
	_, _ = fmt.Fprintln(w, l.options.level) // the leader asks again
}

// mustKnowLevel refuses a node that could not read the log.
func (l *Ledger) mustKnowLevel(q *JoinRequest) error {
	if q.ID != 0 { // a member that updates its address
		return nil
	}
	known := q.Level
	if known == 0 {
		known = firstClusterLevel
	}
	view, err := l.head()
	if err == nil && known < view.Level {
		err = &machine.FieldError{Field: "level", Problem: fmt.Sprintf("is %d, and the ledger has format level %d: "+
			"let the machine join with the program of the other nodes", known, view.Level)}
	}
	return err
}
