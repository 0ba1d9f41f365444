package cluster

import (
	"crypto/rand"
	"sync/atomic"

	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// joinToken is the secret that the nodes of a cluster share.
type joinToken struct {
	text atomic.Pointer[string]
}

// JoinToken returns the secret with which other nodes join this node's cluster. It is empty before the
// node is started. The error is ErrAlone in a ledger on one node.
func (n *Node) JoinToken() (string, error) {
	if n.host.Options == nil {
		return "", ErrAlone
	}
	return n.token(), nil
}

func (n *Node) token() string {
	if t := n.joinToken.text.Load(); t != nil {
		return *t
	}
	return ""
}

// openToken sets the join token: the configured one, the stored one or, if there are no other nodes, a new one.
func (n *Node) openToken() error {
	given := n.host.Options.Token
	stored, err := n.directory.JoinToken()
	if err != nil {
		return err
	}
	switch {
	case given != "" && given != stored:
		return n.setToken(given)
	case stored != "":
		n.joinToken.text.Store(&stored)
		return nil
	case n.isAlone():
		return n.makeToken()
	}
	return ErrNoToken
}

// setToken stores the token and uses it from now on.
func (n *Node) setToken(token string) error {
	if err := n.directory.SetJoinToken(token); err != nil {
		return err
	}
	n.joinToken.text.Store(&token)
	return nil
}

// makeToken generates a token for a cluster that has none.
func (n *Node) makeToken() error {
	token := rand.Text()
	if err := n.setToken(token); err != nil {
		return err
	}
	// Log the file's name only, because logs may go to places that must not have the secret.
	n.host.Logger.Info("this node has made a join token, which other nodes need to join",
		"file", n.directory.JoinTokenFile())
	return nil
}

// isAlone reports whether this node is the only member.
func (n *Node) isAlone() bool {
	m := n.log.Members()
	return len(m.Voters) == 1 && m.Voters[0] == n.id() && len(m.Outgoing)+len(m.Learners)+len(m.LearnersNext) == 0
}

// access returns which requests of other nodes this node answers.
func (n *Node) access() transport.Access {
	return transport.Access{
		Token: n.token, Joining: []string{JoinPath, identityPath}, Unannounced: []string{SeedPath},
		Member: func(id uint64) (peer string, is, was bool) {
			members := n.log.Members()
			a, _ := members.Address(id)
			is = members.Has(id)
			return a.Peer, is, !is && id <= members.Highest
		},
	}
}
