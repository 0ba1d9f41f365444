package storeurl

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	s, closing, err := Open(t.Context(), "memory:", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	key := idempotency.RecordKey{Key: "k"}
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: key, AttemptID: idempotency.NewAttemptID()})
	if err != nil || r.Outcome != idempotency.Acquired {
		t.Errorf("%+v, %v", r, err)
	}
	if err := closing(); err != nil {
		t.Error(err)
	}
}

// A mistake in a URL must not put its password into a log.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "postgres", "mysql://app:secret@db/shop", "app:secret@db", "postgres://app:secret@db:port/shop",
		"redis://app:secret@db:port/0", "redis://app:secret@127.0.0.1:1/x",
		"redis://app:secret@127.0.0.1:1/0?unknown=1",
		"redis://app:secret@127.0.0.1:1/0?min_replicas=x", "postgres://app:secret@127.0.0.1:1/shop?sslmode=disable",
		"redis://app:secret@127.0.0.1:1/0", "redis-cluster://app:secret@127.0.0.1:1,127.0.0.1:2",
		"redis-cluster://app:secret@db:port,127.0.0.1:2", "rediss-cluster://app:secret@,127.0.0.1:2",
		"redis-cluster://app:secret@127.0.0.1:1/0?unknown=1", "redis-cluster://app:secret@127.0.0.1:1,?max_open=x",
	} {
		_, _, err := Open(t.Context(), url, slog.New(slog.DiscardHandler))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := Init(t.Context(), "memory:"); !errors.Is(err, ErrNothingToInit) {
		t.Errorf("Init: %v", err)
	}
	if text, err := Statements("postgres://db"); err != nil || !strings.Contains(text, "CREATE TABLE") {
		t.Errorf("Statements: %q, %v", text, err)
	}
}
