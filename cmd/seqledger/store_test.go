package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/storeurl"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/servertest"
)

// Two gateways share a store in a database: a key runs once before both of them, and a crash of gateway
// or database changes nothing.
func TestGatewayStores(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *servertest.Server{
		"postgres": func(t *testing.T) *servertest.Server { return servertest.Postgres(t) },
		"redis":    func(t *testing.T) *servertest.Server { return servertest.Redis(t) },
		"s3":       func(t *testing.T) *servertest.Server { return servertest.S3(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			init := seqledger(t, "store", "init", server.URL)
			if name == "redis" {
				init.expect(t, exitRefused, "needs no tables")
			} else {
				init.expect(t, exitDone, map[string]string{"postgres": "GRANT", "s3": "Expiration"}[name])
				seqledger(t, "store", "init", server.URL).expect(t, exitDone) // again
			}
			var executed atomic.Int32
			service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprintf(w, "charge %d of %s", executed.Add(1), b)
			}))
			defer service.Close()
			one := startGateway(t, t.TempDir(), service.URL, "--store", server.URL)
			two := startGateway(t, t.TempDir(), service.URL, "--store", server.URL)
			var group sync.WaitGroup
			for i := range 32 {
				group.Go(func() {
					g := one
					if i%2 == 0 {
						g = two
					}
					if status, _, text := g.charge(`"one"`, "5"); status != http.StatusCreated || text != "charge 1 of 5" {
						t.Errorf("%d %s", status, text)
					}
				})
			}
			group.Wait()
			one.kill()
			server.Kill()
			if status, _, text := two.charge(`"two"`, "5"); status != http.StatusServiceUnavailable ||
				!strings.Contains(text, "store-unavailable") {
				t.Errorf("without the store: %d %s", status, text)
			}
			server.Start()
			if status, replayed, text := two.charge(`"one"`, "5"); status != http.StatusCreated || !replayed {
				t.Errorf("after the crash: %d %v %s", status, replayed, text)
			}
			check.Equal(t, executed.Load(), 1, "executed %d times")
			settle(t, server.URL)
		})
	}
}

// A guard keeps its records in a database, too: what a killed guard has begun is not begun again by the next, and
// without the store no guarded tool runs.
func TestGuardStores(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *servertest.Server{
		"postgres": func(t *testing.T) *servertest.Server { return servertest.Postgres(t) },
		"redis":    func(t *testing.T) *servertest.Server { return servertest.Redis(t) },
		"s3":       func(t *testing.T) *servertest.Server { return servertest.S3(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, dir := start(t), t.TempDir()
			if name != "redis" {
				seqledger(t, "store", "init", server.URL).expect(t, exitDone)
			}
			one := startGuard(t, dir, "--store", server.URL)
			if r := one.charge("A", ""); r.isError || r.replayed {
				t.Fatalf("the first call: %+v", r)
			}
			cut := make(chan toolReply, 1)
			go func() { cut <- one.charge("B", "late") }() // ends with the guard; received below
			awaitEffect(t, dir, "B")
			one.kill()
			<-cut

			two := startGuard(t, dir, "--store", server.URL)
			two.awaitCode(t, "B", "outcome-unknown")
			if r := two.charge("A", ""); r.isError || !r.replayed {
				t.Errorf("after the first guard's end: %+v", r)
			}
			server.Kill()
			if r := two.charge("C", ""); !r.isError {
				t.Errorf("without the store: %+v", r)
			}
			for order, want := range map[string]int{"A": 1, "B": 1, "C": 0} {
				if n := effects(dir, order); n != want {
					t.Errorf("%d effects for %s, want %d", n, order, want)
				}
			}
		})
	}
}

// Gateway and guard with records in memory: a key runs once for as long as the process lives, and again in the next.
func TestMemoryStore(t *testing.T) {
	t.Parallel()
	service := newKeyedService(t)
	for run := 1; run <= 2; run++ {
		g := startGateway(t, t.TempDir(), service.URL, "--store", "memory:")
		var group sync.WaitGroup
		for range 8 {
			// Ends with its request; the Wait below joins it.
			group.Go(func() {
				if status, _, text := g.charge(`"k"`, "k"); status != http.StatusCreated ||
					text != fmt.Sprintf("charge %d of k", run) {
					t.Errorf("%d %s", status, text)
				}
			})
		}
		group.Wait()
		if n := service.times("k"); n != run {
			t.Errorf("the work was done %d times in %d lives of the gateway", n, run)
		}
		g.kill()
	}
	dir := t.TempDir()
	for run := 1; run <= 2; run++ {
		g := startGuard(t, dir, "--store", "memory:")
		if r := g.charge("A", ""); r.isError || r.replayed {
			t.Errorf("the first call: %+v", r)
		}
		if r := g.charge("A", ""); r.isError || !r.replayed {
			t.Errorf("its repeat: %+v", r)
		}
		if n := effects(dir, "A"); n != run {
			t.Errorf("%d effects in %d lives of the guard", n, run)
		}
		g.kill()
	}
}

// settle looks at an unknown outcome in a store, and settles it.
func settle(t *testing.T, url string) {
	t.Helper()
	s, closing, err := storeurl.Open(t.Context(), url, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
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
	gateway := []string{"gateway", "--check", "--upstream", "http://127.0.0.1:1"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--store", "mysql://app:secret@db/shop"}, "names no store"},
		{[]string{"--store", "memory:", "--ledger", "127.0.0.1:1"}, "--ledger: is for the store ledger"},
		{[]string{"--store", "memory:", "--ledger-listen", "127.0.0.1:0"}, "--ledger-listen: is for the store ledger"},
		{[]string{"--store", "memory:", "--max-keys-per-principal", "5"}, "--max-keys-per-principal"},
	} {
		r := seqledger(t, append(gateway, c.args...)...).expect(t, exitUsage, c.want)
		if strings.Contains(r.String(), "secret") {
			t.Error("the password is shown:", r)
		}
	}
	seqledger(t, append(gateway, "--store", "memory:")...).expect(t, exitDone)
	seqledger(t, "store", "init", "memory:").expect(t, exitRefused, "needs no tables")
	seqledger(t, "store", "init", "--print", "postgres://db").expect(t, exitDone, "CREATE TABLE", "GRANT")
	seqledger(t, "key", "get", "k", "--scope", "a", "--store", "nonsense").expect(t, exitUsage, "names no store")
	seqledger(t, "key", "list", "--scope", "a", "--store", "memory:").expect(t, exitRefused, "has no list")
	seqledger(t, "store", "init", "nonsense").expect(t, exitUsage, "names no store")
}
