package outbox_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/outbox"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storefaults"
)

// The address of the database moves from a server that became read-only: the relay leaves it, also when it had nothing
// to write there, and finds the rows at the new one.
func TestFailOver(t *testing.T) {
	t.Parallel()
	p, moving, old, next := storefaults.Moving(t)
	l, before, after := newLedger(t), openDatabase(t, old.URL), openDatabase(t, next.URL)
	insert(t, before, "a", op.Append([]byte("1")))
	_, stop := run(t, dial(t, l.address), moving, outbox.Options{})
	defer stop()
	await(t, before, settled)
	storefaults.FailOver(t, p, old, next)
	insert(t, after, "b", op.Append([]byte("2")))
	await(t, after, settled)
	same(t, payloads(t, dial(t, l.address)), map[string][]string{"a": {"1"}, "b": {"2"}})
}

// A relay tells at its start which privilege its role lacks.
func TestRoleWithoutPrivileges(t *testing.T) {
	t.Parallel()
	url := servertest.Database(t)
	db := openDatabase(t, url)
	grants := must.Get(outbox.Privileges("", "app", "relay"))(t)
	execute(t, db, "CREATE ROLE app LOGIN", "CREATE ROLE relay LOGIN", grants)
	own := must.Get(pgxpool.New(t.Context(), strings.Replace(url, "test@", "relay@", 1)))(t)
	t.Cleanup(own.Close)
	for _, privilege := range []string{
		"UPDATE ON seqledger_outbox", "DELETE ON seqledger_outbox", "INSERT ON seqledger_outbox_streams",
		"UPDATE ON seqledger_outbox_streams",
	} {
		execute(t, db, "REVOKE "+privilege+" FROM relay")
		relay, err := outbox.NewRelay(dial(t, "127.0.0.1:1"), own, outbox.Options{Scope: scope, DeleteAfter: 1})
		must.Do(t, err)
		_, table, _ := strings.Cut(privilege, " ON ")
		err = relay.Run(t.Context())
		check.ErrorContains(t, err, "permission denied for table "+table, "without %s", privilege)
		execute(t, db, "GRANT "+privilege+" TO relay")
	}
}
