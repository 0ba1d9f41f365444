package admission

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// TestPaceHoldsItsRate: between any two moments no more passes than the rate, a burst of a second's worth and one call
// of more than that; and who comes back when it was told to is let through, if nobody else was meanwhile.
func TestPaceHoldsItsRate(t *testing.T) {
	t.Parallel()
	type passed struct {
		at time.Duration
		n  int
	}
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			perSecond := []int{1, 3, 7, 1000}[seed%4]
			largest := 1 + random.IntN(2*perSecond)
			began := time.Now()
			p := pace{began: began}
			var all []passed
			for range 200 {
				n := 1 + random.IntN(largest)
				wait := p.take(n, perSecond, false)
				if wait > 0 {
					before := p.due.Load()
					if wait > time.Microsecond {
						<-time.After(wait - time.Microsecond) // the bubble's time
						if early := p.take(n, perSecond, false); early <= 0 {
							t.Errorf("seed %d: %d were told to wait for %v, and passed before", seed, n, wait)
						}
					}
					check.Equal(t, p.due.Load(), before, "seed %d: what was refused was counted: %v", seed)
					<-time.After(time.Microsecond)
					check.Equal(t, p.take(n, perSecond, false), 0,
						"seed %d: %d waited for %v, and must wait for %v more", seed, n, wait)
				}
				all = append(all, passed{time.Since(began), n})
				<-time.After(time.Duration(random.IntN(3)) * time.Second / time.Duration(2*perSecond))
			}
			for i := range all {
				units := 0
				for _, x := range all[i:] {
					units += x.n
					room := float64(perSecond)*(x.at-all[i].at).Seconds() + float64(perSecond+largest) + 1
					if float64(units) > room {
						t.Fatalf("seed %d: %d units passed between %v and %v, at %d a second", seed, units, all[i].at,
							x.at, perSecond)
					}
				}
			}
		})
	}
}

// TestBehindIsTheWaitOfOne, which looking at it does not change.
func TestBehindIsTheWaitOfOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pace{began: time.Now()}
		if p.delay(2) != 0 || p.delay(0) != 0 || !p.idle() {
			t.Error("something is due before the first")
		}
		for range 2 {
			p.take(8, 2, true) // four seconds each
		}
		for range 2 {
			check.Equal(t, p.delay(2), 7*time.Second, "eight seconds' worth less the burst of one is a wait of %v")
		}
		check.Equal(t, p.delay(0), 0, "without a limit nothing waits: %v")
		<-time.After(7 * time.Second) // the bubble's time
		if p.delay(2) != 0 || p.idle() {
			t.Errorf("a second's worth is still due: %v", p.delay(2))
		}
		<-time.After(time.Second)
		if !p.idle() {
			t.Error("all is over")
		}
	})
}

// TestRefusedLargeWritesAreNotOwedForEver: whatever a client does, it is slowed by no more than the bound, and is free
// again after it.
func TestRefusedLargeWritesAreNotOwedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShare("user:a")
		if s.slowed() != 0 || !s.idle() {
			t.Errorf("a new share is slowed by %v", s.slowed())
		}
		for range 100_000 {
			s.refusedLarge()
		}
		if s.slowed() <= 0 || s.slowed() > maxSlowed || s.idle() {
			t.Errorf("it is slowed by %v, at most %v is right", s.slowed(), maxSlowed)
		}
		<-time.After(maxSlowed + 2*time.Second) // the bubble's time
		if s.slowed() != 0 || !s.idle() {
			t.Errorf("after that it is still slowed by %v", s.slowed())
		}
	})
}
