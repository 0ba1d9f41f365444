package admission

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
)

// What takes too long is interrupted once, and nothing is after Close.
func TestStallTimer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(*testing.T) {
		var interrupts atomic.Int64
		s := NewStallTimer(time.Second, func() { interrupts.Add(1) })
		for range 3 {
			s.Begin()
			<-time.After(time.Second / 2) // the bubble's time, not ours
			s.End()
		}
		<-time.After(time.Hour)
		check.Equal(t, interrupts.Load(), 0, "nothing was late: %v")
		s.Begin()
		<-time.After(2 * time.Second)
		check.Equal(t, interrupts.Load(), 1, "want one interrupt: %v")
		s.Begin()
		s.Close()
		<-time.After(time.Hour)
		check.Equal(t, interrupts.Load(), 1, "an interrupt after Close: %v")
	})
}

// A wait that is under way, and those after it, have the new limit.
func TestStallTimerShorten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(*testing.T) {
		var interrupts atomic.Int64
		s := NewStallTimer(time.Hour, func() { interrupts.Add(1) })
		s.Shorten(time.Minute)
		<-time.After(2 * time.Hour)
		check.Equal(t, interrupts.Load(), 0, "nothing is waited for: %v")
		for want := range int64(2) {
			s.Begin()
			s.Shorten(time.Second)
			<-time.After(2 * time.Second)
			check.Equal(t, interrupts.Load(), want+1, "%d interrupts")
		}
		s.Close()
		s.Shorten(time.Second)
		<-time.After(time.Hour)
		check.Equal(t, interrupts.Load(), 2, "an interrupt after Close: %v")
	})
}
