package ledger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger/datadir"
)

// A node that has never led reads records by wall time, not at the end of time.
func TestClockBeforeTheFirstTerm(t *testing.T) {
	t.Parallel()
	before := time.Now().UnixNano()
	if now := new(clock).now(); now < before || now > time.Now().UnixNano() {
		t.Errorf("it is %d, and began at %d", now, before)
	}
}

// Ledger time follows the entries that are applied, and continues by monotonic time. Only an epoch sets it back, and
// only a wall clock that is right moves it ahead of them.
func TestClockFollowsTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c clock
		want := func(want int64) {
			t.Helper()
			check.Equal(t, c.now(), want)
		}
		wall := time.Now().UnixNano()
		c.learn(0, time.Now(), false)
		want(wall) // nothing is known
		c.learn(1_000, time.Now(), false)
		want(1_000)
		<-time.After(500) // in the bubble's time
		want(1_500)
		c.learn(1_400, time.Now(), false) // stamped before, and late
		want(1_500)
		applied := time.Now()
		<-time.After(100)
		c.learn(2_000, applied, false)
		want(2_100)
		c.learn(50, time.Now(), true)
		want(50)
		if step, err := c.set(time.Unix(0, 20), 0, false); step != 0 || err != nil {
			t.Error(step, err)
		}
		want(50)
		day := int64(24 * time.Hour)
		check.Is(t, check.Err(c.set(time.Unix(0, 31*day), 0, false)), datadir.ErrClock)
		want(50)
		if step, err := c.set(time.Unix(0, 30*day), 0, false); step != time.Duration(30*day-50) || err != nil {
			t.Error(step, err)
		}
		want(30 * day)
	})
}
