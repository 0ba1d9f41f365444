package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stream is the status of a stream.
type Stream struct {
	Name     string    `json:"stream"`
	ClientID string    `json:"client_id,omitempty"` // empty before its first row was looked at
	Open     int64     `json:"open"`                // rows that are not settled
	Oldest   time.Time `json:"oldest,omitzero"`     // when the oldest of these was inserted
	// Age is how long ago that was. Like Oldest it is by the database's clock.
	Age       time.Duration `json:"-"`
	Refused   int64         `json:"refused"`           // rows that wait for a decision
	Skipped   int64         `json:"skipped"`           // refused rows that were left out
	Next      uint64        `json:"next_sequence"`     // the number of the next row; 0 until a relay resumes the stream
	Owned     bool          `json:"owned"`             // a relay works on it
	Stopped   string        `json:"stopped,omitempty"` // why it is stopped
	LastError string        `json:"last_error,omitempty"`
}

// Row is a row that was refused or left out, or whose outcome an operator has to find out.
type Row struct {
	ID       int64     `json:"id"`
	Stream   string    `json:"stream"`
	State    string    `json:"state"` // new, sent, refused, skipped
	Created  time.Time `json:"created_at"`
	Sequence uint64    `json:"sequence,omitempty"` // of a row that was sent
	Code     string    `json:"code,omitempty"`     // of the refusal, such as KEY_EXISTS
	Refusal  string    `json:"refusal,omitempty"`
}

// Status is the state of an outbox.
type Status struct {
	Streams []Stream `json:"streams"`
	// Rows are the refused and skipped rows, and those without an outcome in streams that are stopped for another
	// reason than a refused row: the first 1,000 of them.
	Rows []Row `json:"rows"`
}

// ReadStatus reads the status of an outbox.
func ReadStatus(ctx context.Context, db Execer, table string) (*Status, error) {
	t, err := tablesOf(table)
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, t.statement(`SELECT coalesce(s.stream, o.stream, p.stream), coalesce(s.client_id, ''),
			coalesce(o.rows, 0), o.oldest, coalesce(p.refused, 0), coalesce(p.skipped, 0),
			CASE WHEN s.stream IS NULL THEN 1 ELSE coalesce(s.next_sequence, 0) END,
			coalesce(s.owner IS NOT NULL AND s.owned_until > clock_timestamp(), false), coalesce(s.stopped, ''),
			coalesce(s.last_error, ''),
			coalesce(extract(epoch FROM greatest(clock_timestamp() - o.oldest, interval '0')) * 1e9, 0)::bigint
		FROM {streams} s
		FULL JOIN (SELECT stream, count(*) AS rows, min(created_at) AS oldest FROM {table}
			WHERE state IN ('new', 'sent') GROUP BY stream) o ON o.stream = s.stream
		FULL JOIN (SELECT stream, count(*) FILTER (WHERE state = 'refused') AS refused,
			count(*) FILTER (WHERE state = 'skipped') AS skipped FROM {table}
			WHERE state IN ('refused', 'skipped') GROUP BY stream) p ON p.stream = coalesce(s.stream, o.stream)
		ORDER BY 1`))
	if err != nil {
		return nil, err
	}
	status := new(Status)
	status.Streams, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Stream, err error) {
		var oldest *time.Time
		err = row.Scan(&s.Name, &s.ClientID, &s.Open, &oldest, &s.Refused, &s.Skipped, &s.Next, &s.Owned,
			&s.Stopped, &s.LastError, &s.Age)
		if oldest != nil {
			s.Oldest = *oldest
		}
		return s, err
	})
	if err != nil {
		return nil, err
	}
	rows, err = db.Query(ctx, t.statement(`SELECT id, t.stream, state, created_at, coalesce(sequence, 0),
			coalesce(refusal_code, ''), coalesce(refusal, '')
		FROM {table} t JOIN {streams} s ON s.stream = t.stream
		WHERE state IN ('refused', 'skipped') OR state = 'sent' AND s.stopped IS NOT NULL
			OR state = 'new' AND s.stopped NOT LIKE 'row % was refused: %' ORDER BY id LIMIT 1000`))
	if err != nil {
		return nil, err
	}
	status.Rows, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Row, err error) {
		return r, row.Scan(&r.ID, &r.Stream, &r.State, &r.Created, &r.Sequence, &r.Code, &r.Refusal)
	})
	return status, err
}

// ErrNothingToDo is wrapped by the errors of Retry, Skip, Settle and Resume for a row or stream that is not in
// the state they are for. Nothing was changed.
var ErrNothingToDo = errors.New("outbox: nothing to do")

// Beginner is a pool, a connection or a transaction.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// change runs statements about a row or a stream in one transaction, each of which must change something.
func change(ctx context.Context, db Beginner, table, nothing string, argument any, statements ...string) error {
	t, err := tablesOf(table)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, statement := range statements {
			tag, err := tx.Exec(ctx, t.statement(statement), argument)
			switch {
			case err != nil:
				return err
			case tag.RowsAffected() == 0:
				return fmt.Errorf("%w: %s", ErrNothingToDo, nothing)
			}
		}
		return nil
	})
}

// lockStream is the first statement about a row: relays lock the stream first, too.
const lockStream = `UPDATE {streams} SET stream = stream
	WHERE stream = (SELECT stream FROM {table} WHERE id = $1::bigint)`

// goOn restarts a stream that was stopped for a refused row. It changes no other stream.
const goOn = `UPDATE {streams} SET
	stopped = CASE WHEN stopped LIKE 'row ' || $1::bigint || ' was refused: %' THEN NULL ELSE stopped END
	WHERE stream = (SELECT stream FROM {table} WHERE id = $1::bigint)`

// Retry makes the relay write a refused or skipped row again, as a new write. It restarts a stream that was stopped for
// the row.
func Retry(ctx context.Context, db Beginner, table string, id int64) error {
	return change(ctx, db, table, fmt.Sprintf("row %d is not refused, and was not left out", id), id, lockStream,
		`UPDATE {table} SET state = 'new', refusal_code = NULL, refusal = NULL, settled_at = NULL
			WHERE id = $1 AND state IN ('refused', 'skipped')`, goOn)
}

// Skip leaves a refused row out. It restarts a stream that was stopped for the row.
func Skip(ctx context.Context, db Beginner, table string, id int64) error {
	return change(ctx, db, table, fmt.Sprintf("row %d is not refused", id), id, lockStream,
		`UPDATE {table} SET state = 'skipped' WHERE id = $1 AND state = 'refused'`, goOn)
}

// Settle stores the outcome of a row in a stopped stream, which the caller has
// looked up in the ledger. A row that was not committed will be written again, as a new write. A row that was never
// sent may be committed, too, if the database was restored from a backup.
func Settle(ctx context.Context, db Beginner, table string, id int64, committed bool) error {
	update, states := `state = 'new', sequence = NULL, idempotency_key = NULL, request = NULL`, `'sent'`
	if committed {
		update, states = `state = 'committed', settled_at = clock_timestamp(), request = NULL`, `'sent', 'new'`
	}
	return change(ctx, db, table, fmt.Sprintf("row %d is not one without an outcome in a stopped stream", id), id,
		lockStream, `UPDATE {table} t SET `+update+` WHERE id = $1 AND state IN (`+states+`)
			AND EXISTS (SELECT FROM {streams} s WHERE s.stream = t.stream AND s.stopped IS NOT NULL)`)
}

// Resume restarts a stopped stream with the present ledger and client id, at the number that the ledger reports to the
// next relay. Sent rows must have been settled before, and so must new rows that are already committed, because Resume
// writes them.
func Resume(ctx context.Context, db Beginner, table, stream string) error {
	nothing := fmt.Sprintf("stream %q is not stopped, or has rows without an outcome", stream)
	return change(ctx, db, table, nothing, stream,
		`UPDATE {streams} SET stream = stream WHERE stream = $1`,
		`UPDATE {streams} s SET stopped = NULL, last_error = NULL, ledger_id = '', session = 0, attempt = NULL,
				next_sequence = NULL
			WHERE stream = $1 AND stopped IS NOT NULL
			AND NOT EXISTS (SELECT FROM {table} t WHERE t.stream = s.stream AND t.state = 'sent')`)
}
