package main

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seqledger/seqledger/client/outbox"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// startRelay starts a relay and waits until it has reported that it is running.
func startRelay(t *testing.T, dsn, server string, args ...string) *process {
	t.Helper()
	p := start(t, append([]string{"outbox", "postgres", "--dsn", dsn, "--scope", "acme/orders", "--server", server},
		args...)...)
	awaitLog(t, p, "relaying")
	return p
}

// openPool connects to a database.
func openPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	db := must.Get(pgxpool.New(t.Context(), url))(t)
	t.Cleanup(db.Close)
	return db
}

// execute runs a statement.
func execute(t *testing.T, db *pgxpool.Pool, statement string, arguments ...any) {
	t.Helper()
	must.Do(t, check.Err(db.Exec(t.Context(), statement, arguments...)), "%s", statement)
}

// outboxSays waits until the output of outbox status contains all the texts.
func outboxSays(t *testing.T, dsn string, texts ...string) {
	t.Helper()
	must.Await(t, func() bool {
		said := seqledger(t, "outbox", "status", "--dsn", dsn).expect(t, exitDone)
		line := strings.Join(strings.Fields(said.stdout), " ")
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
	}, texts)
}

// The commands, with roles that have only the printed privileges, through a PgBouncer in transaction mode.
func TestOutbox(t *testing.T) {
	t.Parallel()
	ledger, postgres := serve(t), servertest.Postgres(t)
	bouncer := servertest.PgBouncer(t, postgres)
	owner := openPool(t, postgres.URL)
	execute(t, owner, `CREATE ROLE shop LOGIN; CREATE ROLE relay LOGIN`)
	as := func(role, url string) string { return strings.Replace(url, "test@", role+"@", 1) }

	seqledger(t, "outbox", "status", "--dsn", postgres.URL).
		expect(t, exitFailed, "seqledger outbox init makes the tables")
	seqledger(t, "outbox", "init", "--dsn", as("relay", postgres.URL)).expect(t, exitFailed, "init --print")
	grants := seqledger(t, "outbox", "init", "--dsn", postgres.URL, "--application", "shop").expect(t, exitDone)
	seqledger(t, "outbox", "init", "--dsn", bouncer.URL).expect(t, exitDone, "GRANT") // again, and through the pooler
	seqledger(t, "outbox", "postgres", "--dsn", as("relay", postgres.URL), "--scope", "acme/orders", "--server",
		ledger.address).expect(t, exitFailed, "permission denied")
	execute(t, owner, grants.stdout)

	app := openPool(t, as("shop", postgres.URL))
	const insert = `INSERT INTO seqledger_outbox (stream, operations) VALUES ($1, $2)`
	execute(t, app, insert, "orders", `[{"append": {"payload": "b25l"}}]`)
	if _, err := app.Exec(t.Context(), "UPDATE seqledger_outbox SET state = 'committed'"); err == nil {
		t.Error("the application may settle its own rows")
	}
	relay := startRelay(t, as("relay", bouncer.URL), ledger.address, "--debug-listen", "127.0.0.1:0")
	outboxSays(t, postgres.URL, "orders 0 - 0 0 2 relayed")
	execute(t, app, insert, "orders", `[{"append": {"payload": "dA=="}}]`)
	execute(t, app, insert, "orders", `[{"append": {"payloat": "b25l"}}]`)
	execute(t, app, insert, "orders", `[{"append": {"payload": "dHdv"}}]`)
	outboxSays(t, postgres.URL, "orders 1 ", "stopped row 3 was refused: INVALID_ARGUMENT", "payloat")
	metrics(t, relay, `seqledger_outbox_rows_total{outcome="committed"} 2`, "seqledger_outbox_stopped_streams 1",
		"seqledger_outbox_refused_rows 1", "seqledger_outbox_open_rows 1", "seqledger_outbox_oldest_row_age_seconds ",
		"go_goroutines")
	settleRows(t, postgres.URL)
	outboxSays(t, postgres.URL, "orders 0 - 0 1 4 relayed")
	if got := ledger.do(t, "state", "--scope", "acme/orders", "--client-id", "outbox.orders", "--json").
		expect(t, exitDone).field(t, "lastCommittedSequence"); got != "3" {
		t.Errorf("the ledger has committed the numbers to %v", got)
	}
	must.Do(t, relay.cmd.Process.Signal(syscall.SIGTERM))
	if code := relay.wait(t); code != exitDone {
		t.Errorf("after SIGTERM: %d %s", code, relay.stderr.String())
	}
}

// settleRows decides about the refused row 3.
func settleRows(t *testing.T, dsn string) {
	t.Helper()
	run := func(command string, args ...string) result {
		return seqledger(t, append([]string{"outbox", command, "--dsn", dsn}, args...)...)
	}
	run("retry", "1").expect(t, exitRefused, "row 1 is not refused")
	run("retry", "3").expect(t, exitDone)
	outboxSays(t, dsn, "stopped row 3 was refused: INVALID_ARGUMENT") // again
	run("settle", "3", "--as", "committed").expect(t, exitRefused, "nothing to do")
	run("skip", "3").expect(t, exitDone)
	run("skip", "3").expect(t, exitRefused, "seqledger outbox status")
	run("resume", "orders").expect(t, exitRefused, "is not stopped")
	run("status", "--json").expect(t, exitDone, `"skipped":1`, `"code":"INVALID_ARGUMENT"`)
}

// metrics reads the metrics of a relay.
func metrics(t *testing.T, relay *process, texts ...string) {
	t.Helper()
	_, after, _ := strings.Cut(relay.stderr.String(), `"serving profiles and metrics" address=`)
	address, _, _ := strings.Cut(after, "\n")
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics",
		http.NoBody))(t)
	response := must.Get(http.DefaultClient.Do(request))(t)
	defer func() { _ = response.Body.Close() }()
	body := must.Get(io.ReadAll(response.Body))(t)
	for _, text := range texts {
		if !strings.Contains(string(body), text) {
			t.Errorf("no %q in the metrics", text)
		}
	}
}

// The age of a row is computed from the database's clock alone. The relay's clock in this test is years behind.
func TestOutboxAge(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	seqledger(t, "outbox", "init", "--dsn", server.URL).expect(t, exitDone)
	synctest.Test(t, func(t *testing.T) { // in the bubble it is the year 2000
		db := openPool(t, server.URL)
		defer db.Close() // before the bubble ends
		age := func() float64 {
			t.Helper()
			relay := must.Get(outbox.NewRelay(nil, db, outbox.Options{
				Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "orders"},
			}))(t)
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(&outboxMetrics{relay: relay, db: db})
			families := must.Get(registry.Gather())(t)
			for _, f := range families {
				if f.GetName() == "seqledger_outbox_oldest_row_age_seconds" {
					return f.GetMetric()[0].GetGauge().GetValue()
				}
			}
			t.Fatal("no age in the metrics")
			return 0
		}
		check.Equal(t, age(), 0, "without rows the age is %v s")
		execute(t, db, `INSERT INTO seqledger_outbox (stream, operations, created_at)
			VALUES ('orders', '[{"append": {"payload": "b25l"}}]', clock_timestamp() - interval '1 hour')`)
		if got := age(); got < 3600 || got > 7200 {
			t.Errorf("the age is %v s, want an hour", got)
		}
	})
}

func TestOutboxMistakes(t *testing.T) {
	t.Parallel()
	const dsn = "postgres://app:secret@127.0.0.1:1/db"
	relay := []string{"outbox", "postgres", "--scope", "acme/orders", "--dsn"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"outbox", "postgres", "--scope", "acme/orders"}, "--dsn"},
		{[]string{"outbox", "postgres", "--dsn", dsn}, "--scope is missing"},
		{[]string{"outbox", "postgres", "--dsn", dsn, "--scope", "acme"}, "ORG/VAULT"},
		{append(relay, dsn+"?sslmode=nonsense"), "--dsn"},
		{append(relay, dsn, "--table", "a.b.c"), "NAME or SCHEMA.NAME"},
		{append(relay, dsn, "--poll", "0s"), "--poll"},
		{append(relay, dsn, "--debug-listen", "0.0.0.0:0"), "--debug-listen"},
		{append(relay, dsn, "--server", "a b"), "--server"},
		{[]string{"outbox", "settle", "--dsn", dsn, "1"}, "--as"},
	} {
		if r := seqledger(t, c.args...).expect(t, exitUsage, c.want); strings.Contains(r.String(), "secret") {
			t.Error("the password is shown:", r)
		}
	}
	// Without a database, and so without a connection.
	seqledger(t, "outbox", "init", "--print", "--dsn", dsn, "--table", "a.rows", "--relay", `x"; DROP`).
		expect(t, exitDone, `CREATE TABLE IF NOT EXISTS "a"."rows"`, `TO "x""; DROP"`)
	r := seqledger(t, "outbox", "status", "--dsn", dsn).expect(t, exitFailed)
	if strings.Contains(r.String(), "secret") {
		t.Error("the password is shown:", r)
	}
}
