package ledger

import (
	"math/rand/v2"
	"testing"

	"github.com/seqledger/seqledger/ledger/machine"
)

// TestEveryOutcomeHasItsPlace: whichever writes of a submission are answered at
// once, and however the others are spread over log entries.
func TestEveryOutcomeHasItsPlace(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	for range 5_000 {
		n := 1 + random.IntN(40)
		s, buffer := new(Submission), new(writeBuffer)
		s.frames = buffer.memory
		var logged []int
		for i := range n {
			if random.IntN(3) == 0 {
				s.setReplayed(i, machine.Outcome{CommittedSequence: uint64(i) + 1}, n)
				continue
			}
			if s.slots != nil {
				s.slots = append(s.slots, i)
			}
			s.add([]byte{byte(i)}, 1)
			logged = append(logged, i)
		}
		s.frames = buffer.take(s.frames)
		if len(s.frames) > 0 && cap(buffer.memory) > 0 && &s.frames[0] == &buffer.memory[:1][0] {
			t.Fatal("the frames of a submission are in memory that the next one uses")
		}
		for at := 0; at < len(logged); {
			more := 1 + random.IntN(len(logged)-at)
			var outcomes []machine.Outcome
			for _, i := range logged[at : at+more] {
				outcomes = append(outcomes, machine.Outcome{CommittedSequence: uint64(i) + 1})
			}
			span{s, at, at + more}.setOutcomes(outcomes)
			at += more
		}
		for i := range n {
			if s.outcomes[i].CommittedSequence != uint64(i)+1 {
				t.Fatalf("outcome %d of %d is that of %d, slots %v", i, n, s.outcomes[i].CommittedSequence, s.slots)
			}
		}
	}
}
