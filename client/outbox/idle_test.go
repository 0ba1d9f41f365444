package outbox

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A stream that had nothing to write for long is given up, in the table and in memory; one that is worked on, or
// was a moment ago, is kept.
func TestIdleStreamsAreGivenUp(t *testing.T) {
	t.Parallel()
	db := must.Get(pgxpool.New(t.Context(), servertest.Database(t)))(t)
	t.Cleanup(db.Close)
	must.Do(t, Init(t.Context(), db, ""))
	scope := &seqledgerv1.Scope{Organization: "shop", Vault: "main"}
	r := must.Get(NewRelay(nil, db, Options{Scope: scope}))(t)
	long := time.Now().Add(-2 * ownIdle)
	for name, used := range map[string]time.Time{"idle": long, "busy": long, "fresh": time.Now()} {
		s := r.take(name)
		must.Do(t, s.claim(t.Context()))
		s.used = used
		s.busy.Store(name == "busy")
	}
	must.Do(t, r.renewOwnership(t.Context()))
	for name, owned := range map[string]bool{"idle": false, "busy": true, "fresh": true} {
		var owner *string
		const ask = "SELECT owner FROM seqledger_outbox_streams WHERE stream = $1"
		must.Do(t, db.QueryRow(t.Context(), ask, name).Scan(&owner))
		if (owner != nil) != owned || (r.streams[name] != nil) != owned {
			t.Errorf("%s: owner %v, in memory %v", name, owner, r.streams[name] != nil)
		}
	}
	if r.streams["fresh"].busy.Load() || !r.streams["busy"].busy.Load() {
		t.Error("who works on the streams has changed")
	}
}
