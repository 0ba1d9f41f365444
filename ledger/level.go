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
	// levelPath is where a node tells the highest format level that its program knows.
	levelPath = "/seqledger.peer.v1/Level"
	// firstClusterLevel is what programs know that can join a cluster and tell no level.
	firstClusterLevel = 3
	// levelPatience bounds the questions before the level is raised.
	levelPatience = time.Second
)

// errOldMember says that the level is not raised, because a node would not understand what comes then, or may not.
var errOldMember = errors.New("the format level stays as it is")

// tendLevel brings the ledger to the highest level that the programs of all nodes know. A node that is away may come
// back with an older one, so all of them are asked, learners and dead ones too. Until then any of them can be replaced
// by the program of before. It does nothing when there is nothing to raise.
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
	l.members.changing.Lock() // until it is raised, none is let in that knows less
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

// askLevel asks another node for the highest level that its program knows.
func (l *Ledger) askLevel(ctx context.Context, m *Member) (uint64, error) {
	response, err := l.askMember(ctx, m, http.MethodGet, levelPath, http.NoBody)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
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

// mustKnowLevel refuses a node that could not read what the log has.
func (l *Ledger) mustKnowLevel(q *JoinRequest) error {
	if q.ID != 0 { // it is a member, and asked for its address
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
