package postgres_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/postgres"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
	"github.com/seqledger/seqledger/internal/testkit/storetest"
)

// A list contains the records of its scope that match the request.
func TestList(t *testing.T) {
	t.Parallel()
	storetest.RunList(t, open(t, servertest.Postgres(t).URL, postgres.Options{CleanupInterval: -1}))
}

// A caller that stops early releases its connection, and a value that is not a record is reported.
func TestListEnds(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	s := open(t, server.URL+"&pool_max_conns=1", postgres.Options{CleanupInterval: -1})
	scope := idempotency.Scope{Organization: "acme"}
	storetest.MakeRecords(t, s, idempotency.RecordKey{Scope: scope})
	request := &idempotency.ListRequest{Scope: scope}
	for _, err := range s.List(t.Context(), request) {
		must.Do(t, err)
		break
	}
	must.Get(s.Get(t.Context(), &idempotency.RecordKey{Scope: scope, Key: "PENDING"}))(t)
	must.Get(connect(t, server.URL).Exec(t.Context(), `UPDATE idempotency_records SET record = '\xff02'
		WHERE key_hash = sha256('PENDING')`))(t)
	var last error
	for _, err := range s.List(t.Context(), request) {
		last = err
	}
	if !errors.Is(last, idempotency.ErrDamaged) || !strings.Contains(last.Error(), fmt.Sprintf("%x",
		sha256.Sum256([]byte("PENDING")))) {
		t.Errorf("want the damaged record, got %v", last)
	}
	server.Kill()
	last = nil
	for _, err := range s.List(t.Context(), request) {
		last = err
	}
	if last == nil {
		t.Error("a list without a server has no error")
	}
}
