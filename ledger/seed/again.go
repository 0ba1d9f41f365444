package seed

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/datadir"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
	"github.com/seqledger/seqledger/ledger/raftlog/transport"
)

// Again gives another node's state to a node that can no longer follow the log: see cluster.BehindError, whose
// index is atLeast. It uses the options Dir, RoundTripper, Encrypted, Token, Logger and Nodes. In addition to Nodes it
// asks the members that the node's log names. No process may have the directory open.
//
// Again retries until ctx ends. The node's state and log stay in place until their replacements are complete and
// verified. The node keeps its id, term and vote. A state that is older than the node's own is refused. Again returns
// at once if the directory has already reached atLeast, because an interrupted call had come that far. The error is
// cluster.ErrRemoved if the node is no longer a member.
func Again(ctx context.Context, o Options, atLeast uint64) error {
	o.setDefaults()
	d, err := datadir.Open(o.Dir, datadir.Created)
	if err != nil {
		return err
	}
	return errors.Join(again(ctx, &o, d, atLeast), d.Close())
}

func again(ctx context.Context, o *Options, d *datadir.Directory, atLeast uint64) error {
	if d.Fresh() {
		return fmt.Errorf("%s holds no ledger: there is nothing to replace", d.Path())
	}
	b, err := readBehind(d)
	if err != nil {
		return err
	}
	if b.at.Index >= atLeast {
		return nil
	}
	b.o, b.atLeast = o, atLeast
	b.as = transport.Identity{Token: o.Token, Ledger: b.ledger.String(), From: d.Node()}
	if o.Token == "" {
		if b.as.Token, err = d.JoinToken(); err != nil {
			return err
		}
	}
	return o.persist(ctx, "fetch the state of another node", b.attempt)
}

// outdated is a node that needs a newer state.
type outdated struct {
	o       *Options
	d       *datadir.Directory
	atLeast uint64
	ledger  machine.LedgerID
	at      raftlog.Position // of its state
	log     raftlog.Outline
	as      transport.Identity // of this node
}

// readBehind reads the node's own state and log.
func readBehind(d *datadir.Directory) (b *outdated, err error) {
	s, err := boltstore.OpenReadOnly(d.State(), d.Identity())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	b = &outdated{d: d, at: raftlog.Position(s.Checkpoint())}
	err = s.View(func(r machine.Reader) error {
		m, err := machine.Open(r)
		if err == nil {
			b.ledger = m.View(r).LedgerID()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b.log, err = raftlog.ReadOutline(d.Log(), d.Identity())
	return b, err
}

// nodes returns the addresses of other nodes.
func (b *outdated) nodes() []string {
	nodes := slices.Clone(b.o.Nodes)
	for _, a := range b.log.Members.Addresses {
		if a.ID != b.d.Node() && a.Peer != "" && !slices.Contains(nodes, a.Peer) {
			nodes = append(nodes, a.Peer)
		}
	}
	return nodes
}

// attempt asks one node after another.
func (b *outdated) attempt(ctx context.Context) error {
	err := errors.New("no other node is known: give the address of one")
	nodes, refused := b.nodes(), 0
	take := &receiver{o: b.o, node: b.d.Node(), again: true, ledger: b.ledger, atLeast: b.atLeast, state: b.promised}
	for i, node := range nodes {
		problem := b.o.obtain(ctx, b.as, node, take, func(from seed) error { return b.receive(take, from) })
		if _, final := errors.AsType[finalError](problem); problem == nil || final {
			return problem
		}
		if i == 0 {
			err = nil
		}
		if errors.Is(problem, cluster.ErrToken) {
			refused++
		}
		err = errors.Join(err, fmt.Errorf("node at %s: %w", node, problem))
	}
	return tokenRefused(err, refused, len(nodes))
}

// receive builds the directory that replaces this one, and then replaces it.
func (b *outdated) receive(take *receiver, from seed) (err error) {
	if take.d, err = b.d.Incoming(); err != nil {
		return finalError{err}
	}
	at, err := take.receive(from)
	if err != nil {
		return errors.Join(err, b.d.RemoveIncoming())
	}
	if err := b.o.step("replace"); err != nil {
		return finalError{err}
	}
	// If a step fails from here on, the next start completes it.
	if err := b.d.Replace(); err != nil {
		return finalError{err}
	}
	b.o.Logger.Info("this node has the state of another one in place of its own", "before", b.at.Index,
		"now", at.Index)
	return nil
}

// promised returns the Raft state that a log after a position must keep, or an error if there must be no such log.
func (b *outdated) promised(at raftlog.Position) (raftlog.State, error) {
	// The receiver has checked that the position is after this node's own state: see again.
	if b.log.Ahead(at) {
		return raftlog.State{}, finalError{fmt.Errorf("this node has the log up to %s and entries after it, which it "+
			"must keep: start it, and it follows the log", at)}
	}
	return b.log.State, nil
}
