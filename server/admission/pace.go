package admission

import (
	"sync/atomic"
	"time"
)

// pace spreads units over time: so many a second, of which a second's worth may
// come at once.
type pace struct {
	began time.Time // the wall clock cannot move what is counted from here
	// due is when the units so far would be over if they came evenly, in
	// nanoseconds since began.
	due atomic.Int64
}

func (p *pace) now() int64 { return int64(time.Since(p.began)) }

// take counts n units and returns 0. When they are too many it counts none and
// returns after which time there is room for them; with always it counts them and
// returns for how long the caller must wait. perSecond 0 is no limit.
func (p *pace) take(n, perSecond int, always bool) (wait time.Duration) {
	if perSecond == 0 {
		return 0
	}
	step, now := int64(n)*int64(time.Second)/int64(perSecond), p.now()
	for {
		was := p.due.Load()
		next := max(was, now) + step
		// More than a second's worth is let through when nothing is before it.
		over := time.Duration(next - now - max(int64(time.Second), step))
		if over > 0 && !always {
			return over
		}
		if p.due.CompareAndSwap(was, next) {
			return max(0, over)
		}
	}
}

// behind returns after which time there is room for a unit, without counting one.
func (p *pace) behind(perSecond int) time.Duration {
	if perSecond == 0 {
		return 0
	}
	return max(0, time.Duration(p.due.Load()-p.now())-time.Second)
}

// idle tells whether all units are over.
func (p *pace) idle() bool { return p.due.Load() <= p.now() }
