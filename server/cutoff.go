package server

import (
	"context"
	"time"

	"github.com/seqledger/seqledger/ledger/cluster"
)

// cutOffAfter is how long a node must have been without a leader before it ends its streams. Elections are far shorter,
// and end none.
const cutOffAfter = 10 * time.Second

// untilCutOff calls end once if this node has been without a leader for long while a stream is open. The node may then
// be cut off from the others, and the caller, which may reach another node, would wait for blocks that never arrive.
func (s *Server) untilCutOff(ctx context.Context, end func(cause error)) {
	node := s.options.Ledger.Cluster()
	if node.PeerTransport() == nil {
		return // this node has no others
	}
	// Ends with the stream.
	go awaitCutOff(ctx, func() (bool, <-chan struct{}) {
		leader, changed := node.Leader()
		// A node without a vote never doubts its leader, so that it must have heard from it lately.
		return leader.Self || known(leader) && time.Since(node.Heard(leader.ID)) < s.cutOff, changed
	}, s.cutOff, end)
}

// awaitCutOff is untilCutOff with a way to ask whether there is a leader, and for a channel that is closed when that
// may have changed. It asks at least once in the given time.
func awaitCutOff(
	ctx context.Context, led func() (bool, <-chan struct{}), after time.Duration, end func(cause error),
) {
	var without time.Time // since when there is no leader; zero: there is one
	for {
		is, changed := led()
		again := after
		if is {
			without = time.Time{}
		} else if without.IsZero() {
			without = time.Now()
		} else if again = time.Until(without.Add(after)); again <= 0 {
			end(&cluster.NotLeaderError{})
			return
		}
		select {
		case <-changed:
		case <-time.After(again): // asked once more, because hearing from a leader again is no change
		case <-ctx.Done():
			return
		}
	}
}
