package admission

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
		if interrupts.Load() != 0 {
			t.Error("nothing was late:", interrupts.Load())
		}
		s.Begin()
		<-time.After(2 * time.Second)
		if interrupts.Load() != 1 {
			t.Error("want one interrupt:", interrupts.Load())
		}
		s.Begin()
		s.Close()
		<-time.After(time.Hour)
		if interrupts.Load() != 1 {
			t.Error("an interrupt after Close")
		}
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
		if interrupts.Load() != 0 {
			t.Error("nothing is waited for")
		}
		for want := range int64(2) {
			s.Begin()
			s.Shorten(time.Second)
			<-time.After(2 * time.Second)
			if interrupts.Load() != want+1 {
				t.Errorf("%d interrupts, want %d", interrupts.Load(), want+1)
			}
		}
		s.Close()
		s.Shorten(time.Second)
		<-time.After(time.Hour)
		if interrupts.Load() != 2 {
			t.Error("an interrupt after Close")
		}
	})
}
