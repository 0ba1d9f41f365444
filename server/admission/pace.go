package admission

import (
	"sync/atomic"
	"time"
)

// pace is a rate limiter: a number of units per second, with bursts of up to one second's worth.
type pace struct {
	began time.Time // times are relative to it, so changes of the wall clock have no effect
	// due is when the units so far would end if they were evenly spaced, in nanoseconds since began.
	due atomic.Int64
}

func (p *pace) now() int64 { return int64(time.Since(p.began)) }

// take counts n units and returns 0. If they exceed the rate it counts none and returns after which time they do not;
// with always it counts them and returns how long the caller must wait. perSecond 0 means no limit.
func (p *pace) take(n, perSecond int, always bool) (wait time.Duration) {
	if perSecond == 0 {
		return 0
	}
	step, now := int64(n)*int64(time.Second)/int64(perSecond), p.now()
	for {
		was := p.due.Load()
		next := max(was, now) + step
		// More than a second's worth is allowed if nothing precedes it.
		over := time.Duration(next - now - max(int64(time.Second), step))
		if over > 0 && !always {
			return over
		}
		if p.due.CompareAndSwap(was, next) {
			return max(0, over)
		}
	}
}

// delay returns after which time one more unit is within the rate, without counting it.
func (p *pace) delay(perSecond int) time.Duration {
	if perSecond == 0 {
		return 0
	}
	return max(0, time.Duration(p.due.Load()-p.now())-time.Second)
}

// idle reports whether all units have ended.
func (p *pace) idle() bool { return p.due.Load() <= p.now() }
