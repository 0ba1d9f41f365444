package storeurl

import (
	"bytes"
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	s, closing, err := Open(t.Context(), "memory:", slog.New(slog.DiscardHandler))
	must.Do(t, err)
	key := idempotency.RecordKey{Key: "k"}
	r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{Key: key, AttemptID: idempotency.NewAttemptID()})
	if err != nil || r.Outcome != idempotency.Acquired {
		t.Errorf("%+v, %v", r, err)
	}
	must.Do(t, closing())
}

// Behind a PgBouncer in transaction mode the URL names the server itself for notifications, which then wake the callers
// that wait.
func TestListenURL(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t)
	bouncer := servertest.PgBouncer(t, server)
	address := bouncer.URL + "&listen_url=" + url.QueryEscape(server.URL+"&application_name=listener")
	must.Get(Init(t.Context(), address))(t)
	var log bytes.Buffer
	s, closing, err := Open(t.Context(), address, slog.New(slog.NewTextHandler(&log, nil)))
	must.Do(t, err)
	owner := held(t, s, "k")
	waited := make(chan *idempotency.Reservation, 1)
	// Ends with the result of the owner; received below.
	go func() {
		r, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{
			Key: owner.Key, AttemptID: idempotency.NewAttemptID(), Wait: time.Minute,
		})
		check.Is(t, err, nil)
		waited <- r
	}()
	db := must.Get(pgx.Connect(t.Context(), server.URL))(t)
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	for listening := false; !listening && t.Context().Err() == nil; {
		must.Do(t, db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE application_name = 'listener' AND query LIKE 'LISTEN %')`).Scan(&listening))
	}
	check.Equal(t, must.Get(s.Complete(t.Context(), owner, idempotency.Result{}))(t).Outcome, idempotency.OK)
	if r := <-waited; r == nil || r.Outcome != idempotency.Replay {
		t.Errorf("the caller that waited got %+v", r)
	}
	must.Do(t, closing())
	if log.Len() > 0 {
		t.Errorf("the log has %s", log.String())
	}
}

// A mistake in a URL must not put its password into a log.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"", "postgres", "mysql://app:secret@db/shop", "app:secret@db", "postgres://app:secret@db:port/shop",
		"redis://app:secret@db:port/0", "redis://app:secret@127.0.0.1:1/x",
		"redis://app:secret@127.0.0.1:1/0?unknown=1",
		"redis://app:secret@127.0.0.1:1/0?min_replicas=x",
		"postgres://127.0.0.1:1/db?listen_url=postgres://app:secret@db:x/",
		"postgres://app:secret@127.0.0.1:1/shop?sslmode=disable",
		"redis://app:secret@127.0.0.1:1/0", "redis-cluster://app:secret@127.0.0.1:1,127.0.0.1:2",
		"redis-cluster://app:secret@db:port,127.0.0.1:2", "rediss-cluster://app:secret@,127.0.0.1:2",
		"redis-cluster://app:secret@127.0.0.1:1/0?unknown=1", "redis-cluster://app:secret@127.0.0.1:1,?max_open=x",
	} {
		_, _, err := Open(t.Context(), url, slog.New(slog.DiscardHandler))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	check.Is(t, check.Err(Init(t.Context(), "memory:")), ErrNothingToInit, "Init")
	check.Contains(t, must.Get(Statements("postgres://db"))(t), "CREATE TABLE")
}

// What a store deletes by its age bounds what may be asked of it.
func TestMaxTTL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]time.Duration{
		"memory:": 0, "postgres://app@db/shop": 0, "redis://r": 0, "s3://b/p": s3.DefaultMaxTTL,
		"s3://b/p?region=eu&max_ttl=48h": 48 * time.Hour,
	} {
		check.Equal(t, MaxTTL(url), want, "%s: %v", url)
	}
}
