package ledger

import (
	"testing"
	"time"
)

// A node that has never led reads records by wall time, not at the end of time.
func TestClockBeforeTheFirstTerm(t *testing.T) {
	t.Parallel()
	before := time.Now().UnixNano()
	if now := new(clock).now(); now < before || now > time.Now().UnixNano() {
		t.Errorf("it is %d, and began at %d", now, before)
	}
}
