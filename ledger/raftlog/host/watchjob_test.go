package host

import (
	"testing"
	"testing/synctest"
	"time"
)

// A job that nothing waits for is not stalled, however long it takes.
func TestJobThatCountsOnlyWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, waited := NewWatch(), false
		j := w.Job("a checkpoint", time.Second)
		j.OnlyWhile(func() bool { return waited })
		j.Begin()
		<-time.After(time.Minute)
		if s := w.Stalled(); s.Job != "" {
			t.Errorf("%s is stalled, and nothing waits for it", s.Job)
		}
		waited = true
		if s := w.Stalled(); s.Job != "a checkpoint" || s.For < time.Minute-time.Second {
			t.Errorf("%q is stalled for %s", s.Job, s.For)
		}
		j.End()
		if s := w.Stalled(); s.Job != "" {
			t.Errorf("%s has ended and is stalled", s.Job)
		}
	})
}
