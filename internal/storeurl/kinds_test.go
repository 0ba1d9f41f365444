package storeurl

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// TestKindsOfStores: what is a store is known by its scheme alone, without a connection, and the help names them all.
func TestKindsOfStores(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		url          string
		store        bool
		statements   bool
		preparations bool
	}{
		{"memory:", true, false, false},
		{"postgres://db/shop", true, true, true},
		{"postgresql://db/shop", true, true, true},
		{"redis://db", true, false, false},
		{"rediss://db", true, false, false},
		{"redis-cluster://a,b", true, false, false},
		{"rediss-cluster://a,b", true, false, false},
		{"s3://bucket/prefix", true, false, true},
		{"ledger", false, false, false},
		{"memory", false, false, false}, // which is a file name for all that one knows
		{"", false, false, false},
		{":", false, false, false},
		{"POSTGRES://db", false, false, false},
		{" memory:", false, false, false},
		{"mysql://app:secret@db", false, false, false},
	} {
		err := Check(test.url)
		unknown, is := errors.AsType[*UnknownError](err)
		if (err == nil) != test.store || is == test.store {
			t.Errorf("%q: %v", test.url, err)
		}
		if is && (strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), Forms) ||
			!strings.HasPrefix(test.url, unknown.Scheme)) {
			t.Errorf("%q: %v", test.url, err)
		}
		text, err := Statements(test.url)
		switch {
		case !test.store:
			if _, is := errors.AsType[*UnknownError](err); !is {
				t.Errorf("%q: statements: %v", test.url, err)
			}
			if _, err := Init(t.Context(), test.url); err == nil || errors.Is(err, ErrNothingToInit) {
				t.Errorf("%q: init: %v", test.url, err)
			}
		case test.statements:
			if err != nil || !strings.Contains(text, "GRANT") || !strings.Contains(text, "CREATE TABLE") {
				t.Errorf("%q: statements: %q, %v", test.url, text, err)
			}
		default:
			if !errors.Is(err, ErrNothingToInit) || text != "" {
				t.Errorf("%q: statements: %q, %v", test.url, text, err)
			}
		}
		if test.store && !test.preparations {
			check.Is(t, check.Err(Init(t.Context(), test.url)), ErrNothingToInit, "%q: init", test.url)
		}
	}
	for scheme := range kinds {
		if scheme != "postgresql" && !strings.Contains(Forms, scheme+":") {
			t.Errorf("%s is not in %q", scheme, Forms)
		}
	}
}

// TestEntriesInMemoryAreBounded, as the option says.
func TestEntriesInMemoryAreBounded(t *testing.T) {
	t.Parallel()
	s, closing, err := OpenWith(t.Context(), "memory:", Options{Logger: slog.New(slog.DiscardHandler), MaxEntries: 2})
	must.Do(t, err)
	defer func() { _ = closing() }()
	for i, key := range []string{"a", "b", "c"} {
		_, err := s.Reserve(t.Context(), &idempotency.ReserveRequest{
			Key: idempotency.RecordKey{Key: key}, AttemptID: idempotency.NewAttemptID(),
		})
		if (err == nil) != (i < 2) {
			t.Errorf("record %d: %v", i+1, err)
		}
	}
}

// TestBucketsThatCannotBe: the mistake is told before a bucket is asked.
func TestBucketsThatCannotBe(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"s3://": "s3://BUCKET/PREFIX", "s3:///prefix": "s3://BUCKET/PREFIX", "s3://bucket/p?max_ttl=soon": "max_ttl",
		"s3://bucket/p?max_open=few": "max_open", "s3://bucket/p?max_open=-1": "MaxOpen",
	} {
		if _, _, err := Open(t.Context(), url, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
