package outbox

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/protobuf/encoding/protojson"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// DefaultTable is the table of rows, unless Options.Table says otherwise.
const DefaultTable = "seqledger_outbox"

// maxTable leaves room, in PostgreSQL's 63 bytes of a name, for what is appended to it.
const maxTable = 50

//go:embed schema.sql
var schema string

// tables are the quoted names of an outbox's tables.
type tables struct{ rows, streams string }

// tablesOf returns the tables of an outbox. The name may have a schema before a dot.
func tablesOf(table string) (t tables, err error) {
	if table == "" {
		table = DefaultTable
	}
	parts := strings.Split(table, ".")
	last := len(parts) - 1
	if last > 1 || strings.Contains(table, "\x00") {
		return t, fmt.Errorf("outbox: table %q: it must be NAME or SCHEMA.NAME", table)
	}
	for _, part := range parts {
		if part == "" || len(part) > maxTable {
			return t, fmt.Errorf("outbox: table %q: each part of a name must have 1 to %d bytes", table, maxTable)
		}
	}
	t.rows = pgx.Identifier(parts).Sanitize()
	parts[last] += "_streams"
	t.streams = pgx.Identifier(parts).Sanitize()
	return t, nil
}

// statement puts the tables' names into a statement.
func (t tables) statement(text string) string {
	return strings.NewReplacer("{table}", t.rows, "{streams}", t.streams).Replace(text)
}

// Schema returns the statements that make the tables of an outbox. They may be run again. An empty table
// means [DefaultTable].
func Schema(table string) (string, error) {
	t, err := tablesOf(table)
	if err != nil {
		return "", err
	}
	name := table[strings.LastIndex(table, ".")+1:]
	if name == "" {
		name = DefaultTable
	}
	index := func(suffix string) string { return pgx.Identifier{name + suffix}.Sanitize() }
	return strings.NewReplacer("{open}", index("_open"), "{refused}", index("_refused"),
		"{settled}", index("_settled"), "{resumed}", index("_resumed")).Replace(t.statement(schema)), nil
}

// Privileges returns the statements that give two roles what they need, and no more: the application, which
// inserts rows, and the relay. The roles are SQL identifiers, quoted if they have to be.
func Privileges(table, application, relay string) (string, error) {
	t, err := tablesOf(table)
	if err != nil {
		return "", err
	}
	return t.statement("GRANT INSERT (stream, operations), SELECT ON {table} TO " + application + ";\n" +
		"GRANT SELECT, UPDATE, DELETE ON {table} TO " + relay + ";\n" +
		"GRANT SELECT, INSERT, UPDATE ON {streams} TO " + relay + ";\n"), nil
}

// Execer is a transaction, a connection or a pool.
type Execer interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
	Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error)
}

// Init makes the tables of an outbox. It may be called again, and by many processes at once.
func Init(ctx context.Context, db Execer, table string) error {
	text, err := Schema(table)
	if err != nil {
		return err
	}
	_, err = db.Exec(ctx, text) // without arguments: one simple query, which is one transaction
	return err
}

// Insert adds a row, in the caller's transaction, and returns its id. The write is made after the transaction
// has committed, and never if it has not.
func Insert(
	ctx context.Context, tx Execer, table, stream string, operations ...*seqledgerv1.Operation,
) (id int64, err error) {
	t, err := tablesOf(table)
	if err != nil {
		return 0, err
	}
	text, err := encodeOperations(operations)
	if err != nil {
		return 0, err
	}
	const insert = `INSERT INTO {table} (stream, operations) VALUES ($1::text, $2::text::jsonb) RETURNING id`
	err = tx.QueryRow(ctx, t.statement(insert), stream, text).Scan(&id)
	return id, err
}

// encodeOperations returns the JSON of operations.
func encodeOperations(operations []*seqledgerv1.Operation) (string, error) {
	list := make([]json.RawMessage, 0, len(operations))
	for i, operation := range operations {
		b, err := protojson.Marshal(operation)
		if err != nil {
			return "", fmt.Errorf("operations[%d]: %w", i, err)
		}
		list = append(list, b)
	}
	b, err := json.Marshal(list)
	return string(b), err
}

// decodeOperations reads what encodeOperations, or an application, has written.
func decodeOperations(text []byte) ([]*seqledgerv1.Operation, error) {
	request := new(seqledgerv1.WriteRequest)
	wrapped := append(append([]byte(`{"operations":`), text...), '}')
	if err := protojson.Unmarshal(wrapped, request); err != nil {
		return nil, err
	}
	if len(request.GetOperations()) == 0 {
		return nil, errors.New("no operations")
	}
	return request.GetOperations(), nil
}
