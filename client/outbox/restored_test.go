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
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// execute runs statements in one transaction, which may deadlock with those of a relay.
func execute(t *testing.T, db *pgxpool.Pool, statements ...string) {
	t.Helper()
	for {
		_, err := db.Exec(t.Context(), "BEGIN;"+strings.Join(statements, ";")+";COMMIT")
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "deadlock") {
			t.Fatal(err)
		}
	}
}

const lockTables = "LOCK seqledger_outbox_streams, seqledger_outbox"

// backUp copies the tables of an outbox, and restore brings the copies back.
func backUp(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	execute(t, db, lockTables, "CREATE TABLE saved AS TABLE seqledger_outbox",
		"CREATE TABLE saved_streams AS TABLE seqledger_outbox_streams")
}

func restore(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	execute(t, db, lockTables, "DELETE FROM seqledger_outbox", "DELETE FROM seqledger_outbox_streams",
		"INSERT INTO seqledger_outbox OVERRIDING SYSTEM VALUE TABLE saved",
		"INSERT INTO seqledger_outbox_streams TABLE saved_streams")
}

// restored is when a backup was made, and what stops the stream after the restore.
var restored = map[string]struct {
	rows    []string // written before the backup
	at      string   // the step of the last of them at which the backup is made; "" for after it
	running bool     // the restore is under a relay that runs, otherwise none runs meanwhile
	reason  string
}{
	"BeforeTheFirstRow":     {nil, "", false, "the stream is new in this table"},
	"WithAnAttempt":         {[]string{"1"}, "attempt saved", true, "the stream is new in this table"},
	"WithASession":          {[]string{"1"}, "session saved", true, "and the rows to 0"},
	"WithASentRow":          {[]string{"1"}, "numbered", true, "the rows without an outcome are 1 to 1"},
	"UnderARunningRelay":    {[]string{"1"}, "", true, "and the rows to 1"},
	"BeforeItsFirstRunning": {nil, "", true, "the stream is new in this table"},
	"WithAnOlderSession":    {[]string{"1", "2"}, "", false, "another program has opened a session"},
}

// A database that was set back does not say what is written. Nothing is written twice, an operator is told what to do,
// and the stream goes on where the ledger is.
func TestRestoredDatabase(t *testing.T) {
	t.Parallel()
	for name, test := range restored {
		t.Run(name, func(t *testing.T) {
			l, db := newLedger(t), openDatabase(t, servertest.Database(t))
			ledger := dial(t, l.address)
			if test.running && test.rows == nil { // the relay owns nothing yet
				backUp(t, db)
			}
			relay := must.Get(outbox.NewRelay(ledger, db, outbox.Options{Scope: scope, Poll: quick}))(t)
			if test.at != "" {
				relay.At(once(test.at, 1, func() { backUp(t, db) }))
			}
			stop := runRelay(t, relay)
			for _, text := range test.rows {
				insert(t, db, "s", op.Append([]byte(text)))
				await(t, db, settled)
			}
			if !test.running {
				stop()
			}
			if test.at == "" && !(test.running && test.rows == nil) {
				if len(test.rows) == 0 {
					insert(t, db, "s", op.Append([]byte("0")))
				}
				backUp(t, db)
			}
			if !test.running {
				_, stop = run(t, ledger, db, outbox.Options{})
			}
			insert(t, db, "s", op.Append([]byte("later")))
			insert(t, db, "s", op.Append([]byte("latest")))
			await(t, db, settled)
			if !test.running {
				stop()
			}
			want := payloads(t, ledger)
			restore(t, db)
			insert(t, db, "s", op.Append([]byte("new")))
			if !test.running {
				_, stop = run(t, ledger, db, outbox.Options{})
			}
			status := await(t, db, stopped)
			why := status.Streams[0].Stopped
			if !strings.Contains(why, test.reason) || !strings.Contains(why, "resume") {
				t.Errorf("stopped because %s", why)
			}
			same(t, payloads(t, ledger), want)
			for _, row := range status.Rows { // the operator looks into the ledger
				if payload := payloadOf(t, db, row.ID); payload != "new" {
					must.Do(t, outbox.Settle(t.Context(), db, "", row.ID, true), "%v", row)
				}
			}
			must.Do(t, outbox.Resume(t.Context(), db, "", "s"))
			await(t, db, settled)
			stop()
			want["s"] = append(want["s"], "new")
			same(t, payloads(t, ledger), want)
		})
	}
}

// payloadOf returns what a row writes.
func payloadOf(t *testing.T, db *pgxpool.Pool, id int64) (payload string) {
	t.Helper()
	err := db.QueryRow(t.Context(), `SELECT convert_from(decode(operations->0->'append'->>'payload', 'base64'), 'UTF8')
		FROM seqledger_outbox WHERE id = $1`, id).Scan(&payload)
	check.Is(t, err, nil)
	return payload
}

// A stream that is new in the table, and has a session at the ledger, is another program's.
func TestStreamOfAnotherProgram(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t), openDatabase(t, servertest.Database(t))
	must.Get(dial(t, l.address).OpenSession(t.Context(), &seqledgerv1.OpenSessionRequest{
		Scope: scope, ClientId: "outbox.s", AttemptId: []byte("0123456789abcdef"),
	}))(t)
	insert(t, db, "s", op.Append([]byte("1")))
	_, stop := run(t, dial(t, l.address), db, outbox.Options{})
	defer stop()
	if s := await(t, db, stopped).Streams[0]; !strings.Contains(s.Stopped, "another program") {
		t.Errorf("%+v", s)
	}
}

// A resumed stream takes its number from the ledger at once, also without a row to write: a later backup has it.
func TestResumedStreamHasItsNumber(t *testing.T) {
	t.Parallel()
	l, db := newLedger(t), openDatabase(t, servertest.Database(t))
	insert(t, db, "s", op.Append([]byte("1")))
	_, stop := run(t, dial(t, l.address), db, outbox.Options{})
	defer stop()
	await(t, db, settled)
	execute(t, db, "UPDATE seqledger_outbox_streams SET stopped = 'by hand', owner = NULL")
	must.Do(t, outbox.Resume(t.Context(), db, "", "s"))
	await(t, db, func(s *outbox.Status) bool { return s.Streams[0].Next == 2 })
}
