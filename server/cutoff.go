package server

import (
	"context"
	"time"

	"github.com/seqledger/seqledger/ledger/cluster"
)

// cutOffAfter is how long a node must have known of no leader before it ends what it would otherwise send for ever.
// Elections are far shorter, and survive.
const cutOffAfter = 10 * time.Second

// untilCutOff calls end once if this node has known of no leader for long while a stream is open. It may be cut off
// from the others then: its blocks just stop, and the caller, which may reach another node, would wait for ever.
func (s *Server) untilCutOff(ctx context.Context, end func(cause error)) {
	if s.options.Ledger.Cluster().PeerTransport() == nil {
		return // this node has no others
	}
	// Ends with the stream.
	go awaitCutOff(ctx, s.options.Ledger.Cluster().Leader, s.cutOff, end)
}

// awaitCutOff is untilCutOff with a way to ask for the leader.
func awaitCutOff(
	ctx context.Context, leaderOf func() (cluster.Leader, <-chan struct{}), after time.Duration, end func(cause error),
) {
	var without time.Time // since when there is no leader; zero: there is one
	for {
		leader, changed := leaderOf()
		var over <-chan time.Time
		if known(leader) {
			without = time.Time{}
		} else {
			if without.IsZero() {
				without = time.Now()
			}
			over = time.After(time.Until(without.Add(after)))
		}
		select {
		case <-changed:
		case <-over:
			end(&cluster.NotLeaderError{})
			return
		case <-ctx.Done():
			return
		}
	}
}
