package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

const (
	// tokenLevel is the format level from which on all nodes show the join token. Before it, some may run a program
	// that has none.
	tokenLevel = 5
	// tokenPath is where a leader gives the token to a node of a cluster that is being upgraded.
	tokenPath = "/seqledger.peer.v1/Token"
	// maxTokenBytes bounds a token.
	maxTokenBytes = 4 << 10
)

// ErrNoToken refuses to open a node of a cluster that has lost the join token.
var ErrNoToken = errors.New("the node has no join token, without which the other nodes refuse it: " +
	"give it that of the cluster with --join-token-file, such as JOIN-TOKEN in the data directory of another node")

// errOtherToken says that two nodes were given different tokens.
var errOtherToken = errors.New("the node was given another join token")

// joinToken is the secret that the nodes of a cluster share.
type joinToken struct {
	text   atomic.Pointer[string]
	given  bool        // by Cluster.Token, and not made by a node
	strict atomic.Bool // the ledger has tokenLevel, which it keeps

	changing sync.Mutex // held while it is stored
}

// JoinToken returns the secret with which other nodes join the cluster of this one. It is empty while a cluster that
// has none is upgraded. The error is ErrAlone without Options.Cluster.
func (l *Ledger) JoinToken() (string, error) {
	if l.options.Cluster == nil {
		return "", ErrAlone
	}
	return l.token(), nil
}

func (l *Ledger) token() string {
	if t := l.members.token.text.Load(); t != nil {
		return *t
	}
	return ""
}

// openToken finds the join token: the given one, the stored one, or for a node that is alone a new one.
func (l *Ledger) openToken() error {
	given := l.options.Cluster.Token
	l.members.token.given = given != ""
	stored, err := l.directory.JoinToken()
	if err != nil {
		return err
	}
	head, err := l.head()
	switch {
	case err != nil:
		return err
	case given != "" && given != stored:
		return l.setToken(given)
	case stored != "":
		l.members.token.text.Store(&stored)
		return nil
	case l.isAlone():
		return l.makeToken()
	case head.Level >= tokenLevel:
		return ErrNoToken
	}
	return nil // until the leader gives it one
}

// setToken stores the token and uses it from now on.
func (l *Ledger) setToken(token string) error {
	if err := l.directory.SetJoinToken(token); err != nil {
		return err
	}
	l.members.token.text.Store(&token)
	return nil
}

// makeToken makes a token for a cluster that has none.
func (l *Ledger) makeToken() error {
	token := rand.Text()
	if err := l.setToken(token); err != nil {
		return err
	}
	// Its file is named, because logs go to places that may not have the secret.
	l.options.Logger.Info("this node has made a join token, which other nodes need to join",
		"file", l.directory.JoinTokenFile())
	return nil
}

// isAlone reports whether this node has no other beside it.
func (l *Ledger) isAlone() bool {
	m := l.log.Members()
	return len(m.Voters) == 1 && m.Voters[0] == l.node() && len(m.Outgoing)+len(m.Learners)+len(m.LearnersNext) == 0
}

// upgrading reports whether the cluster may have nodes whose programs show no token.
func (l *Ledger) upgrading() bool {
	t := &l.members.token
	if t.strict.Load() {
		return false
	}
	head, err := l.head()
	if err == nil && head.Level >= tokenLevel {
		t.strict.Store(true)
		return false
	}
	return !l.isAlone()
}

// access says which requests of other nodes this one answers.
func (l *Ledger) access() transport.Access {
	return transport.Access{
		Token: l.token, Upgrading: l.upgrading, Joining: []string{JoinPath},
		Member: func(id uint64) (peer string, is, was bool) {
			members := l.log.Members()
			a, _ := members.Address(id)
			is = members.Has(id)
			return a.Peer, is, !is && id <= members.Highest
		},
		Guarded: func(path string) bool {
			switch path {
			case clockPath, digestPath, levelPath, tokenPath, transport.Procedure:
				return false
			}
			return l.members.token.given
		},
	}
}

// shareToken gives the join token to the other nodes before the level is raised to the one at which they need it.
func (l *Ledger) shareToken(ctx context.Context) error {
	t := &l.members.token
	t.changing.Lock()
	defer t.changing.Unlock()
	if l.token() == "" {
		if err := l.makeToken(); err != nil {
			return err
		}
	}
	for _, m := range l.ClusterStatus().Members {
		if m.ID == l.node() {
			continue
		}
		if err := l.giveToken(ctx, &m); err != nil {
			return fmt.Errorf("join token for node %d: %w", m.ID, err)
		}
	}
	return nil
}

func (l *Ledger) giveToken(ctx context.Context, m *Member) error {
	response, err := l.askMember(ctx, m, http.MethodPost, tokenPath, strings.NewReader(l.token()))
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it has nothing to read
	switch response.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusConflict:
		return errOtherToken
	}
	return errors.New(response.Status)
}

// takeToken answers a leader's giveToken.
func (l *Ledger) takeToken(w http.ResponseWriter, r *http.Request) {
	t := &l.members.token
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxTokenBytes))
	token := string(b)
	if err != nil || token == "" {
		http.Error(w, "a join token of at most 4 KiB is missing", http.StatusBadRequest)
		return
	}
	t.changing.Lock()
	defer t.changing.Unlock()
	switch {
	case token == l.token():
	case t.given || !l.upgrading():
		http.Error(w, errOtherToken.Error(), http.StatusConflict)
		return
	default:
		if err := l.setToken(token); err != nil {
			l.options.Logger.Error("the join token was not stored", "error", err)
			http.Error(w, "the token was not stored", http.StatusInternalServerError)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}
