package pgserver

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code                     string
		readOnly, unable, passes bool
	}{
		{"25006", true, true, true},    // read-only
		{"57P01", false, true, true},   // shutting down
		{"57P02", false, true, true},   // crashed
		{"57P03", false, true, true},   // starting up, or a standby without queries
		{"57014", false, false, true},  // the statement was canceled
		{"08006", false, false, true},  // connection failure
		{"40001", false, false, true},  // serialization failure
		{"53300", false, false, true},  // too many connections
		{"25P03", false, false, true},  // a transaction that was idle
		{"42501", false, false, false}, // no privilege
		{"42P01", false, false, false}, // no table
		{"25001", false, false, false}, // another state of a transaction
	} {
		err := fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: test.code})
		if IsReadOnly(err) != test.readOnly || IsUnable(err) != test.unable || Passes(err) != test.passes {
			t.Errorf("%s: %v, %v, %v", test.code, IsReadOnly(err), IsUnable(err), Passes(err))
		}
	}
	for _, err := range []error{nil, context.Canceled, errors.New("25006")} {
		if IsReadOnly(err) || IsUnable(err) || Passes(err) {
			t.Errorf("%v is no error of a server", err)
		}
	}
}
