package host

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
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
		check.Equal(t, w.Stalled().Job, "", "%s is stalled, and nothing waits for it")
		waited = true
		if s := w.Stalled(); s.Job != "a checkpoint" || s.For < time.Minute-time.Second {
			t.Errorf("%q is stalled for %s", s.Job, s.For)
		}
		j.End()
		check.Equal(t, w.Stalled().Job, "", "%s has ended and is stalled")
	})
}
