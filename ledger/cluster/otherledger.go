package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// OtherLedgerError means that a node was told to join the cluster of another ledger than the one in its data directory.
type OtherLedgerError struct {
	Own   string // id of the ledger in the data directory
	Node  string // address of a node of Options.Nodes
	Other string // id of the ledger of that node
}

// Error names both ledgers.
func (e *OtherLedgerError) Error() string {
	return fmt.Sprintf("the data directory holds ledger %s, and the node at %s, which --join names, is of ledger %s",
		e.Own, e.Node, e.Other)
}

// compareInterval is the time after which nodes that did not answer are asked again for their ledger.
const compareInterval = time.Second

// CompareLedger compares the ledger with that of the nodes of Options.Nodes, until one of them has the same: an address
// may have been reused for a node of another ledger. It returns an *OtherLedgerError if the nodes have another ledger
// and none has this one. Nodes that do not answer are asked again while the node runs. A ledger that never had a second
// node was not made by joining the nodes that it is told to join: it may be any ledger, and is not served before one of
// them has answered. The log must be attached, and the members in it applied.
func (d *Driver) CompareLedger(ctx context.Context) error {
	o := d.host.Options
	if o == nil {
		return nil
	}
	for _, node := range o.Nodes {
		if node != o.Peer && node != o.Listener.Addr().String() {
			d.uncompared = append(d.uncompared, node)
		}
	}
	for said := false; len(d.uncompared) > 0; {
		members := d.log.Members()
		other, err := d.compareLedgers(ctx, members.Highest > 1)
		switch {
		case other != nil:
			return other
		case ctx.Err() != nil, finalRefusal(err) && members.Highest == 1:
			return err
		case members.Highest > 1:
			return nil
		case !said && err != nil:
			said = true
			d.host.Logger.Warn("this ledger was never in a cluster and is not served before a node that --join names "+
				"has told its ledger; without --join it is served alone", "error", err)
		}
		if len(d.uncompared) == 0 {
			return nil
		}
		timer := time.NewTimer(compareInterval)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// compareLedgers asks all nodes for their ledger. If one has this ledger, none is asked again. Otherwise other is that
// of a node that has another one; a node of a cluster waits until all have answered, because those that are silent may
// be its own. err joins the problems with the nodes.
func (n *Node) compareLedgers(ctx context.Context, patient bool) (other *OtherLedgerError, err error) {
	type answer struct {
		node string
		err  error
	}
	answers := make(chan answer, len(n.uncompared))
	for _, node := range n.uncompared {
		// Ends with the request, which has a deadline; the channel has a place for its answer.
		go func() {
			_, err := n.askIdentity(ctx, node, 0)
			answers <- answer{node, err}
		}()
	}
	same, silent := false, false
	for range n.uncompared {
		a := <-answers
		if a.err == nil {
			same = true
			continue
		}
		err = errors.Join(err, fmt.Errorf("ledger of the node at %s: %w", a.node, a.err))
		if found, is := errors.AsType[*OtherLedgerError](a.err); is {
			other = found
		} else {
			silent = true
		}
	}
	switch {
	case same && other != nil:
		n.host.Logger.Warn("an address that --join names is of another ledger", "error", other)
		fallthrough
	case same:
		n.uncompared = nil
		return nil, nil
	case silent && patient:
		return nil, err
	}
	return other, err
}

// finalRefusal reports whether a node will refuse the same request again.
func finalRefusal(err error) bool {
	no, is := errors.AsType[*refused](err)
	return is && no.Final
}

// compareRest asks the nodes for their ledger until one has this one. It stops this node if all have another ledger.
func (n *Node) compareRest() {
	defer n.loops.Done()
	ticker := time.NewTicker(compareInterval)
	defer ticker.Stop()
	for len(n.uncompared) > 0 {
		select {
		case <-ticker.C:
		case <-n.host.Failed:
			return
		case <-n.host.Stopping.Done():
			return
		}
		// Whatever else keeps a node from answering may end.
		if other, _ := n.compareLedgers(n.host.Stopping, true); other != nil {
			n.host.Fail(other)
			return
		}
	}
}
