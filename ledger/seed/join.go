// Package seed creates the data directory of a node that joins a cluster: it asks the leader to add the node, and
// starts from another node's state. It also gives a new state to a node that can no longer follow the log.
//
// handler.go sends a state, in the format of a backup; fetch.go and receive.go receive one for join.go and again.go.
// Unlike a restored backup, a seed begins no epoch: the node is one more copy of the same ledger, and continues after
// the log position of the state.
package seed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/seqledger/seqledger/internal/private"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// Options configures Join and Again. Dir, Nodes, RoundTripper and Peer are required.
type Options struct {
	Dir          string   // the data directory to create
	Nodes        []string // addresses of other nodes, host and port; one reachable node is enough
	RoundTripper http.RoundTripper
	Encrypted    bool   // nodes are reached over TLS
	Token        string // the join token; if it is empty, Again uses the stored one
	Peer, Client string // addresses of this node; see cluster.Options
	Logger       *slog.Logger
	// Archive has states and the log of the ledger, which a node starts from if they are new enough and another node
	// confirms where they lead; nil for none.
	Archive archive.Target

	retry    time.Duration             // pause between two attempts; 0 means a second
	stall    time.Duration             // see fetch; 0 means stallTimeout
	patience time.Duration             // 0 means archivePatience
	disk     func(io.Writer) io.Writer // lets a test make the disk under the state fail
	step     func(what string) error   // called before each step after the stream; an error ends the work there
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.retry == 0 {
		o.retry = time.Second
	}
	if o.stall == 0 {
		o.stall = stallTimeout
	}
	if o.patience == 0 {
		o.patience = archivePatience
	}
	if o.disk == nil {
		o.disk = func(w io.Writer) io.Writer { return w }
	}
	if o.step == nil {
		o.step = func(string) error { return nil }
	}
}

// ErrJoined means that the directory already belongs to a node.
var ErrJoined = errors.New("the data directory belongs to a node already")

// Join creates the data directory of a node that joins a cluster. It retries until ctx ends. A repeated call continues
// with the node id that an interrupted call was given. A permanent refusal, such as an address that another node has,
// is returned at once.
func Join(ctx context.Context, o Options) error {
	o.setDefaults()
	d, err := datadir.Open(o.Dir, datadir.Joined)
	if err != nil {
		return err
	}
	if !d.Fresh() {
		return errors.Join(ErrJoined, d.Close())
	}
	private.Narrow(o.Logger, o.Dir)
	j := joining{o: o, d: d}
	err = o.persist(ctx, "join the cluster", j.attempt)
	return errors.Join(err, d.Close())
}

// joining is a node that is joining a cluster.
type joining struct {
	o Options
	d *datadir.Directory
}

func (j *joining) attempt(ctx context.Context) error {
	answer, leader, err := j.ask(ctx)
	if err != nil {
		return err
	}
	j.o.Logger.Info("this node has a place in the cluster and fetches its state", "node", answer.ID,
		"ledger", answer.Ledger, "from", leader)
	as := transport.Identity{Token: j.o.Token, Ledger: answer.Ledger.String(), From: answer.ID}
	take := j.receiver(answer)
	return j.o.obtain(ctx, as, leader, take, func(from seed) error { return j.receive(take, from) })
}

func (j *joining) receiver(answer cluster.JoinAnswer) *receiver {
	return &receiver{
		o: &j.o, d: j.d, node: answer.ID, ledger: answer.Ledger, atLeast: answer.AtLeast,
		state: func(raftlog.Position) (raftlog.State, error) { return raftlog.State{}, nil }, // it never voted
	}
}

// ask asks one node after another, and the leader that a node names. It returns the address of the leader, which is the
// one that answered.
func (j *joining) ask(ctx context.Context) (answer cluster.JoinAnswer, leader string, err error) {
	q := cluster.JoinRequest{Nonce: j.d.Nonce(), Peer: j.o.Peer, Client: j.o.Client}
	nodes := append([]string(nil), j.o.Nodes...)
	const mostHops = 3 // nodes may name a lost leader for a while
	tokens := 0        // refused
	for i, hops := 0, 0; i < len(nodes); i++ {
		var problem error
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		answer, problem = cluster.AskToJoin(attempt, j.o.as(transport.Identity{Token: j.o.Token}), j.o.url(nodes[i]), q)
		cancel()
		if problem == nil {
			return answer, nodes[i], nil
		}
		err = errors.Join(err, fmt.Errorf("node at %s: %w", nodes[i], problem))
		refusal, refused := errors.AsType[*cluster.JoinRefusal](problem)
		switch {
		case errors.Is(problem, cluster.ErrToken):
			tokens++
		case refused && refusal.Leader != "" && hops < mostHops:
			hops++
			nodes = append(nodes, refusal.Leader)
		case refused && refusal.Final:
			return answer, "", finalError{fmt.Errorf("join the cluster of the node at %s: %w", nodes[i], problem)}
		}
	}
	return answer, "", tokenRefused(err, tokens, len(nodes))
}

// askTimeout bounds one request to join, because a membership change waits for a majority.
const askTimeout = 10 * time.Second

// receive creates the directory from a seed. The marker comes last.
func (j *joining) receive(take *receiver, from seed) error {
	at, err := take.receive(from)
	if err != nil {
		return errors.Join(err, j.d.DropState())
	}
	j.d.SetNode(take.node)
	if err := j.o.step("finish"); err != nil {
		return finalError{err}
	}
	if err := j.d.Finish(); err != nil {
		return finalError{err}
	}
	j.o.Logger.Info("this node has the state of the cluster", "node", take.node, "log index", at.Index)
	return nil
}
