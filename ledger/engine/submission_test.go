package engine

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
		s := new(Submission)
		var logged []int
		for i := range n {
			if random.IntN(3) == 0 {
				s.AddReplay(machine.Outcome{CommittedSequence: uint64(i) + 1}, n)
				continue
			}
			s.Add(Origin{}, []byte{byte(i)}, 1)
			logged = append(logged, i)
		}
		for at := 0; at < len(logged); {
			more := 1 + random.IntN(len(logged)-at)
			var outcomes []machine.Outcome
			for _, i := range logged[at : at+more] {
				outcomes = append(outcomes, machine.Outcome{CommittedSequence: uint64(i) + 1})
			}
			Span{s, at, at + more}.setOutcomes(outcomes)
			at += more
		}
		for i := range n {
			if s.Outcomes[i].CommittedSequence != uint64(i)+1 {
				t.Fatalf("outcome %d of %d is that of %d, slots %v", i, n, s.Outcomes[i].CommittedSequence, s.slots)
			}
		}
	}
}
