package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/uuid"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// encodeRequest returns the bytes of a row's write that are kept with its number.
func encodeRequest(operations []*seqledgerv1.Operation) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(&seqledgerv1.WriteRequest{Operations: operations})
}

// decodeRequest returns what encodeRequest was given. Bytes that it did not make are a request without
// operations, which the ledger refuses.
func decodeRequest(b []byte) *seqledgerv1.WriteRequest {
	request := new(seqledgerv1.WriteRequest)
	if err := proto.Unmarshal(b, request); err != nil {
		return new(seqledgerv1.WriteRequest)
	}
	return request
}

// codeName returns the name of a refusal, such as KEY_EXISTS.
func codeName(code seqledgerv1.WriteErrorCode) string {
	return strings.TrimPrefix(code.String(), "WRITE_ERROR_CODE_")
}

// in runs do in a transaction that begins with the proof that this relay owns the stream, and that the stream stands
// where this relay left it: a database that was restored meanwhile may name this relay as the owner of older rows. The
// relay then begins anew, from the table. The proof is a lock, which
// no other relay may have to wait for as long as the network takes to find out that this machine is gone: PostgreSQL
// ends a transaction from which it hears nothing for as long as a relay owns a stream.
func (s *stream) in(ctx context.Context, do func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.relay.db, func(tx pgx.Tx) error {
		var set string
		err := tx.QueryRow(ctx, s.relay.tables.statement(
			`SELECT set_config('idle_in_transaction_session_timeout', $3, true)
				FROM {streams} WHERE stream = $1 AND owner = $2 AND stopped IS NULL
				AND session = $4 AND coalesce(next_sequence, 0) = $5 FOR UPDATE`),
			s.name, s.relay.owner, strconv.FormatInt(s.relay.silence.Milliseconds(), 10), s.head.session,
			s.head.next).Scan(&set)
		if errors.Is(err, pgx.ErrNoRows) {
			return errLost
		}
		if err != nil {
			return err
		}
		return do(tx)
	})
}

// exec runs a statement about the stream in a separate transaction.
func (s *stream) exec(ctx context.Context, statement string, arguments ...any) error {
	return s.in(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, s.relay.tables.statement(statement), append([]any{s.name}, arguments...)...)
		return err
	})
}

// claim makes this relay the stream's owner, and reads where the stream stands.
func (s *stream) claim(ctx context.Context) error {
	r := s.relay
	const insert = `INSERT INTO {streams} (stream, organization, vault, client_id) VALUES ($1, $2, $3, $4)
		ON CONFLICT DO NOTHING`
	_, err := r.db.Exec(ctx, r.tables.statement(insert), s.name, r.options.Scope.GetOrganization(),
		r.options.Scope.GetVault(), r.options.ClientPrefix+s.name)
	if err != nil {
		return err
	}
	const update = `UPDATE {streams} SET owner = $2, owned_until = clock_timestamp() + $3::interval
		WHERE stream = $1 AND stopped IS NULL AND organization = $4 AND vault = $5 AND client_id = $6
		AND (owner IS NULL OR owner = $2 OR owned_until < clock_timestamp())
		RETURNING organization, vault, client_id, ledger_id, session, attempt,
			coalesce(next_sequence, 0)`
	h := head{committed: s.head.committed}
	err = r.db.QueryRow(ctx, r.tables.statement(update), s.name, r.owner, ownFor, r.options.Scope.GetOrganization(),
		r.options.Scope.GetVault(), r.options.ClientPrefix+s.name).Scan(
		&h.organization, &h.vault, &h.clientID, &h.ledgerID, &h.session, &h.attempt, &h.next)
	if errors.Is(err, pgx.ErrNoRows) {
		return errLost
	}
	if err != nil {
		return err
	}
	s.head = h
	return s.in(ctx, func(tx pgx.Tx) error { return s.readSent(ctx, tx) })
}

// readSent reads the rows that have numbers.
func (s *stream) readSent(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, s.relay.tables.statement(`SELECT id, sequence, idempotency_key, request FROM {table}
		WHERE stream = $1 AND state = 'sent' ORDER BY sequence`), s.name)
	if err != nil {
		return err
	}
	s.rows, err = pgx.CollectRows(rows, func(found pgx.CollectableRow) (r row, err error) {
		return r, found.Scan(&r.id, &r.sequence, &r.key, &r.request)
	})
	if err != nil {
		return err
	}
	for i, r := range s.rows {
		if want := s.head.next - uint64(len(s.rows)-i); r.sequence != want {
			return stopf("the table was changed by hand: row %d has number %d, and %d was expected", r.id, r.sequence,
				want)
		}
	}
	return nil
}

func (s *stream) saveAttempt(ctx context.Context, attempt []byte) error {
	err := s.exec(ctx, `UPDATE {streams} SET attempt = $2, ledger_id = $3 WHERE stream = $1`, attempt, s.head.ledgerID)
	if err == nil {
		s.head.attempt = attempt
	}
	return err
}

// saveSession notes a session before anything is sent under it. From then on its attempt must not be repeated:
// that would return the same session, and fence no copies of what is sent.
func (s *stream) saveSession(ctx context.Context, session, next uint64) error {
	err := s.exec(ctx, `UPDATE {streams} SET attempt = NULL, session = $2, next_sequence = $3, last_error = NULL
		WHERE stream = $1`, session, next)
	if err == nil {
		s.head.attempt, s.head.session, s.head.next = nil, session, next
	}
	return err
}

// note says in the table why a stream does not go on. It is a service to people, so that its own failure is none.
func (s *stream) note(ctx context.Context, failure error) {
	_ = s.exec(ctx, `UPDATE {streams} SET last_error = $2 WHERE stream = $1`, printable(failure.Error()))
}

// printable makes a text that PostgreSQL takes.
func printable(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
}

// stop stops the stream until an operator lets it go on.
func (s *stream) stop(ctx context.Context, reason string) error {
	err := s.exec(ctx, `UPDATE {streams} SET stopped = $2, owner = NULL WHERE stream = $1`, printable(reason))
	if err == nil {
		s.stopped(ctx, reason)
	}
	return err
}

func (s *stream) stopped(ctx context.Context, reason string) {
	s.relay.stopped.Add(1)
	s.relay.log.ErrorContext(ctx, "a stream of the outbox is stopped", "stream", s.name, "reason", reason)
}

// settle notes that rows are committed.
func (s *stream) settle(ctx context.Context, settled []settlement) error {
	if len(settled) == 0 {
		return nil
	}
	err := s.in(ctx, func(tx pgx.Tx) error {
		err := s.settleIn(ctx, tx, settled)
		s.at(stepSettling)
		return err
	})
	if err == nil {
		s.at(stepSettled)
		s.relay.committed.Add(uint64(len(settled)))
		s.rows = s.rows[len(settled):]
	}
	return err
}

// advance notes that rows are committed, and gives numbers to the next ones when none has one. It is one
// transaction, because each waits for the disk.
func (s *stream) advance(ctx context.Context, settled []settlement) error {
	rest := s.rows[len(settled):]
	if len(rest) > 0 {
		return s.settle(ctx, settled)
	}
	var numbered []row
	var refused error
	s.refusals = nil
	err := s.in(ctx, func(tx pgx.Tx) (err error) {
		if err := s.settleIn(ctx, tx, settled); err != nil {
			return err
		}
		numbered, refused, err = s.number(ctx, tx)
		s.at(stepNumbering)
		return err
	})
	if err != nil {
		return err
	}
	s.at(stepNumbered)
	s.relay.committed.Add(uint64(len(settled)))
	s.rows, s.head.next, s.numbered = numbered, s.head.next+uint64(len(numbered)), time.Now()
	s.tell(ctx)
	return refused
}

// settleIn notes that rows, which are the first ones, are committed.
func (s *stream) settleIn(ctx context.Context, tx pgx.Tx, settled []settlement) error {
	if len(settled) == 0 {
		return nil
	}
	ids, txIDs := make([]int64, len(settled)), make([]*string, len(settled))
	heights, times := make([]*int64, len(settled)), make([]*time.Time, len(settled))
	for i, one := range settled {
		ids[i] = one.row.id
		if r := one.receipt; r != nil {
			id, height, at := r.GetTxId(), int64(r.GetBlockHeight()), r.GetCommittedAt().AsTime()
			txIDs[i], heights[i], times[i] = &id, &height, &at
		}
	}
	const update = `UPDATE {table} t SET state = 'committed', settled_at = clock_timestamp(), request = NULL,
		tx_id = u.tx_id, block_height = u.height, committed_at = u.at
		FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::timestamptz[]) AS u(id, tx_id, height, at)
		WHERE t.id = u.id AND t.state = 'sent'`
	tag, err := tx.Exec(ctx, s.relay.tables.statement(update), ids, txIDs, heights, times)
	switch {
	case err != nil:
		return err
	case tag.RowsAffected() != int64(len(settled)):
		return stopf("the table was changed by hand: of %d rows that were sent, %d are left", len(settled),
			tag.RowsAffected())
	}
	return nil
}

// number gives numbers to the next rows. refused says that the first of them can never be written, and that
// the stream has been stopped for it.
func (s *stream) number(ctx context.Context, tx pgx.Tx) (numbered []row, refused, err error) {
	// However many and however large the rows are, not much more than a call takes is read.
	const next = `SELECT id, operations FROM (
		SELECT id, operations, sum(octet_length(operations::text)) OVER (ORDER BY id) AS bytes,
			row_number() OVER (ORDER BY id) AS place
		FROM (SELECT id, operations FROM {table} WHERE stream = $1 AND state = 'new' ORDER BY id LIMIT $2) AS few
		) AS sized WHERE bytes <= $3 OR place = 1 ORDER BY id`
	found, err := tx.Query(ctx, s.relay.tables.statement(next), s.name, min(s.window, maxBatch), maxBatchBytes)
	if err != nil {
		return nil, nil, err
	}
	type candidate struct {
		id   int64
		text []byte
	}
	candidates, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (c candidate, err error) {
		return c, row.Scan(&c.id, &c.text)
	})
	if err != nil {
		return nil, nil, err
	}
	for _, c := range candidates {
		operations, invalid := decodeOperations(c.text)
		var request []byte
		if invalid == nil {
			request, invalid = encodeRequest(operations)
		}
		if invalid != nil && len(numbered) > 0 {
			break // its turn comes when the rows before it are committed
		}
		if invalid != nil {
			code := codeName(seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)
			refused, err = s.refuseIn(ctx, tx, c.id, code, "operations: "+invalid.Error())
			if refused != nil || err != nil {
				return nil, refused, err
			}
			continue
		}
		next := s.head.next + uint64(len(numbered))
		numbered = append(numbered, row{id: c.id, sequence: next, key: uuid.New(), request: request})
	}
	return numbered, nil, s.saveNumbers(ctx, tx, numbered)
}

// saveNumbers notes numbers, before anything is sent under them.
func (s *stream) saveNumbers(ctx context.Context, tx pgx.Tx, numbered []row) error {
	if len(numbered) == 0 {
		return nil
	}
	ids, sequences := make([]int64, len(numbered)), make([]int64, len(numbered))
	keys, requests := make([]string, len(numbered)), make([][]byte, len(numbered))
	for i, r := range numbered {
		ids[i], sequences[i], keys[i], requests[i] = r.id, int64(r.sequence), r.key, r.request
	}
	const update = `UPDATE {table} t SET state = 'sent', sequence = u.sequence, idempotency_key = u.key,
		request = u.request
		FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[]) AS u(id, sequence, key, request)
		WHERE t.id = u.id AND t.state = 'new'`
	tag, err := tx.Exec(ctx, s.relay.tables.statement(update), ids, sequences, keys, requests)
	switch {
	case err != nil:
		return err
	case tag.RowsAffected() != int64(len(numbered)):
		return fmt.Errorf("%d of %d new rows have disappeared", int64(len(numbered))-tag.RowsAffected(), len(numbered))
	}
	_, err = tx.Exec(ctx, s.relay.tables.statement(`UPDATE {streams} SET next_sequence = $2 WHERE stream = $1`),
		s.name, s.head.next+uint64(len(numbered)))
	return err
}

// settleRefused stores a final refusal. The numbers of later rows are free, too.
func (s *stream) settleRefused(ctx context.Context, r row, code, message string) error {
	var stopped error
	s.refusals = nil
	err := s.in(ctx, func(tx pgx.Tx) (err error) {
		const free = `UPDATE {table} SET state = 'new', sequence = NULL, idempotency_key = NULL, request = NULL
			WHERE stream = $1 AND state = 'sent'`
		if _, err := tx.Exec(ctx, s.relay.tables.statement(free), s.name); err != nil {
			return err
		}
		if stopped, err = s.refuseIn(ctx, tx, r.id, code, message); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, s.relay.tables.statement(`UPDATE {streams} SET next_sequence = $2 WHERE stream = $1`),
			s.name, r.sequence)
		s.at(stepRefusing)
		return err
	})
	if err != nil {
		return err
	}
	s.at(stepRefused)
	s.rows, s.head.next = nil, r.sequence
	s.tell(ctx)
	return stopped
}

// refuseIn notes that a row, which has no number, was refused. stopped says that its stream was stopped for it.
func (s *stream) refuseIn(ctx context.Context, tx pgx.Tx, id int64, code, message string) (stopped, err error) {
	state := "refused"
	if s.relay.options.Park {
		state = "skipped"
	}
	const update = `UPDATE {table} SET state = $2, refusal_code = $3, refusal = $4, settled_at = clock_timestamp()
		WHERE id = $1`
	if _, err := tx.Exec(ctx, s.relay.tables.statement(update), id, state, code, printable(message)); err != nil {
		return nil, err
	}
	s.refusals = append(s.refusals, refusal{id, code})
	if s.relay.options.Park {
		return nil, nil
	}
	reason := fmt.Sprintf("row %d was refused: %s", id, code)
	_, err = tx.Exec(ctx, s.relay.tables.statement(`UPDATE {streams} SET stopped = $2, owner = NULL WHERE stream = $1`),
		s.name, reason)
	if err != nil {
		return nil, err
	}
	return errStopped, nil
}

// refusal is a row that was refused in a transaction.
type refusal struct {
	id   int64
	code string
}

// tell counts and logs what was refused in a transaction that has committed.
func (s *stream) tell(ctx context.Context) {
	for _, r := range s.refusals {
		s.relay.refused.Add(1)
		s.relay.log.WarnContext(ctx, "a row of the outbox was refused", "stream", s.name, "row", r.id, "code", r.code)
		if !s.relay.options.Park {
			s.stopped(ctx, fmt.Sprintf("row %d was refused", r.id))
		}
	}
	s.refusals = nil
}
