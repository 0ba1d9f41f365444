package storefaults

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// Moving starts two PostgreSQLs, and returns a pool at an address that leads to the first until [FailOver] moves it.
func Moving(t *testing.T) (p *Proxy, pool *pgxpool.Pool, old, next *servertest.Server) {
	t.Helper()
	old, next = servertest.Postgres(t), servertest.Postgres(t)
	p = Start(t, old.Address)
	pool, err := pgxpool.New(t.Context(), strings.Replace(old.URL, old.Address, p.Address, 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return p, pool, old, next
}

// FailOver makes a PostgreSQL read-only and the proxy's address lead to another one. Connections that are open stay.
func FailOver(t *testing.T, p *Proxy, from, to *servertest.Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), from.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for _, statement := range []string{
		"ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()",
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for readOnly := ""; readOnly != "on"; {
		if err := conn.QueryRow(t.Context(), "SHOW default_transaction_read_only").Scan(&readOnly); err != nil {
			t.Fatal(err)
		}
	}
	// The connection above may have been told before the others. The server takes a new one when it has told all.
	told, err := pgx.Connect(t.Context(), from.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = told.Close(t.Context())
	p.Lead(to.Address)
}
