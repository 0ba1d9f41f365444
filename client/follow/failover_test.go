package follow_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// The address of the database moves from a server that became read-only: the follower leaves it, and applies the blocks
// to the new one.
func TestFailOver(t *testing.T) {
	t.Parallel()
	old, next := servertest.Postgres(t), servertest.Postgres(t)
	p := storefaults.Start(t, old.Address)
	before, after := openDatabase(t, old.URL), openDatabase(t, next.URL)
	moving, err := pgxpool.New(t.Context(), strings.Replace(old.URL, old.Address, p.Address, 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(moving.Close)
	ledger, _ := openLedger(t, filepath.Join(t.TempDir(), "data"))
	transfer(t, ledger, "1", 1, 2, 10)
	stop := start(t, ledger, moving, keepBalances)
	await(t, before, 1)
	storefaults.FailOver(t, p, old, next)
	transfer(t, ledger, "2", 1, 2, 20)
	await(t, after, 2)
	end(t, stop)
}
