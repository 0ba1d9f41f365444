package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/storeurl"
	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// The records of a store in a database are listed, settled and purged like those of a ledger.
// TestGatewayStoreAtEachStep has gateways on these stores.
func TestKeysOfStores(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return servertest.Database(t) },
		"redis":    func(t *testing.T) string { return servertest.Redis(t).URL },
		"s3":       func(t *testing.T) string { return servertest.S3(t).URL },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t)
			init := seqledger(t, "store", "init", url)
			if name == "redis" {
				init.expect(t, exitRefused, "needs no tables")
			} else {
				init.expect(t, exitDone, map[string]string{"postgres": "GRANT", "s3": "Expiration"}[name])
				seqledger(t, "store", "init", url).expect(t, exitDone) // again
			}
			settle(t, url)
		})
	}
}

// settle looks at an unknown outcome in a store, and settles it.
func settle(t *testing.T, url string) {
	t.Helper()
	s, closing, err := storeurl.Open(t.Context(), url, slog.New(slog.DiscardHandler))
	must.Do(t, err)
	defer func() { _ = closing() }()
	key := idempotency.RecordKey{
		Scope: idempotency.Scope{Organization: "acme", Vault: "main"}, Namespace: "charge", Key: "k",
	}
	_, err = idempotency.Do(t.Context(), s, key, func(context.Context, *idempotency.Owner) ([]byte, error) {
		return nil, errors.New("the line broke")
	})
	if err == nil {
		t.Fatal("the work did not fail")
	}
	run := func(command string, args ...string) result {
		return seqledger(t, append([]string{"key", command, "k", "--store", url, "--scope", "acme/main", "--namespace",
			"charge"}, args...)...)
	}
	list := func(args ...string) result {
		return seqledger(t, append([]string{"key", "list", "--store", url, "--scope", "acme/main"}, args...)...)
	}
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte("k")))
	list("--state", "indeterminate").expect(t, exitDone, "indeterminate", "charge", hash)
	list("--json", "--namespace", "charge").expect(t, exitDone, `"RECORD_STATE_INDETERMINATE"`)
	list("--state", "committed").expect(t, exitDone)
	if r := list("--state", "committed"); strings.Contains(r.stdout, hash) {
		t.Errorf("it is not committed: %s", r.stdout)
	}
	run("get").expect(t, exitDone, "indeterminate")
	run("purge").expect(t, exitRefused, "still open")
	run("resolve", "--as", "committed", "--response", "ch_1").expect(t, exitDone, "committed")
	run("resolve", "--as", "rejected").expect(t, exitRefused, "another result")
	run("get").expect(t, exitDone, "committed", "ch_1")
	run("purge").expect(t, exitDone, "purged")
	run("get").expect(t, exitRefused, "no record of this key")
}

func TestStoreMistakes(t *testing.T) {
	t.Parallel()
	seqledger(t, "gateway", "--check", "--upstream", "http://127.0.0.1:1", "--store", "memory:").expect(t, exitDone)
	dir := t.TempDir()
	seqledger(t, "gateway", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--data", dir,
		"--journal", dir, "--ledger", "http://a?b").expect(t, exitUsage, "--ledger http://a?b: nothing may follow")
	seqledger(t, "store", "init", "memory:").expect(t, exitRefused, "needs no tables")
	seqledger(t, "store", "init", "--print", "postgres://db").expect(t, exitDone, "CREATE TABLE", "GRANT")
	seqledger(t, "key", "get", "k", "--scope", "a", "--store", "nonsense").expect(t, exitUsage, "names no store")
	seqledger(t, "key", "list", "--scope", "a", "--store", "memory:").expect(t, exitRefused, "has no list")
	seqledger(t, "store", "init", "nonsense").expect(t, exitUsage, "names no store")
	nobody := freeport.Unreachable(t)
	seqledger(t, "store", "init", "postgres://"+nobody+"/db").expect(t, exitFailed, "does the store answer")
	unread := program(t, "", "key", "get", "k", "--scope", "a", "--json", "--store", "redis://"+nobody)
	if unread.code != exitFailed || strings.Count(unread.stderr, "\n") != 1 || !strings.HasPrefix(unread.stderr, "{") {
		t.Errorf("standard error is not one object: %s", unread.stderr)
	}
}
