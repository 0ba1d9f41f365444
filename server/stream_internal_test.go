package server

import (
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/wire"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The reader commits frames of one write once enough of them have come alone, and leaves some to the sender to see
// whether they still do.
func TestCommitsNext(t *testing.T) {
	t.Parallel()
	one := &wire.Frame{Writes: make([]*seqledgerv1.WriteRequest, 1)}
	two := &wire.Frame{Writes: make([]*seqledgerv1.WriteRequest, 2)}
	for name, test := range map[string]struct {
		frame      *wire.Frame
		unanswered int64
	}{"two writes": {two, 0}, "an unanswered frame": {one, 1}} {
		var st writeStream
		for round := range 2 {
			for i := 1; i <= 3*seenFrames; i++ {
				check.Equal(t, st.commitsNext(one), i > loneFrames && i%seenFrames > 0,
					"%s, round %d: frame %d: got %t", name, round, i)
			}
			st.unanswered.Store(test.unanswered)
			if st.commitsNext(test.frame) {
				t.Errorf("%s: the reader commits it", name)
			}
			st.unanswered.Store(0)
		}
	}
}
