package follow_test

import (
	"path/filepath"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// The address of the database moves from a server that became read-only: the follower leaves it, and applies the blocks
// to the new one.
func TestFailOver(t *testing.T) {
	t.Parallel()
	p, moving, old, next := storefaults.Moving(t)
	before, after := openDatabase(t, old.URL), openDatabase(t, next.URL)
	ledger, _ := openLedger(t, filepath.Join(t.TempDir(), "data"))
	transfer(t, ledger, "1", 1, 2, 10)
	stop := start(t, ledger, moving, keepBalances)
	await(t, before, 1)
	storefaults.FailOver(t, p, old, next)
	transfer(t, ledger, "2", 1, 2, 20)
	await(t, after, 2)
	end(t, stop)
}
