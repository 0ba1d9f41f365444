// Package pgserver tells from errors of PostgreSQL whether another connection may do better.
package pgserver

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// readOnly is the SQLSTATE of a statement that a server refuses because it takes no writes: a standby, or a primary
// that was switched over. An open connection stays there, wherever its address leads now.
const readOnly = "25006"

// code returns the SQLSTATE of an error, or "".
func code(err error) string {
	if failure, ok := errors.AsType[*pgconn.PgError](err); ok {
		return failure.Code
	}
	return ""
}

// IsReadOnly reports whether a server refused a statement because it takes no writes. Nothing was done.
func IsReadOnly(err error) bool { return code(err) == readOnly }

// IsUnable reports whether a server cannot be used any more, or not yet: it takes no writes, shuts down or starts up.
func IsUnable(err error) bool { return IsReadOnly(err) || strings.HasPrefix(code(err), "57P") }

// Passes reports whether a server that has answered with an error may do so no longer a moment later: it is unable, or
// had connections, rollbacks or resources that failed, or it has ended a transaction from which it heard nothing.
func Passes(err error) bool {
	for _, class := range []string{"08", "40", "53", "57", "25P03"} {
		if strings.HasPrefix(code(err), class) {
			return true
		}
	}
	return IsUnable(err)
}

// Leave makes a pool begin anew after an error of a server that cannot be used: its other connections lead there, too.
// It returns the error.
func Leave(pool *pgxpool.Pool, err error) error {
	if IsUnable(err) {
		pool.Reset()
	}
	return err
}
