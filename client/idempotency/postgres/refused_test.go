package postgres

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A server that denies the access has answered; one that starts, ends or has no room for connections has not.
func TestRefused(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"28P01": true, "42501": true, "42P01": true, "57P01": false, "57P03": false, "53300": false, "08006": false,
	} {
		err := refused(fmt.Errorf("load: %w", &pgconn.PgError{Code: code}))
		if _, ok := errors.AsType[*pgconn.PgError](err); errors.Is(err, idempotency.ErrRefused) != want || !ok {
			t.Errorf("%s: %v", code, err)
		}
	}
	must.Do(t, refused(nil))
}
