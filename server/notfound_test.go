package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server/auth"
)

// TestNotFoundTakesAStep: a caller without rights in a scope waits for a transaction in it
// to the end of the same step as for one that does not exist. In the bubble the look-up
// takes no time, so that all of the time is that of the wait.
func TestNotFoundTakesAStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := map[string]string{}
		file := "keys:\n"
		for id, rights := range map[string]string{
			"root":      `role: admin, scopes: ["*"], client_ids: ["*"]`,
			"elsewhere": `role: reader, scopes: ["other"], limits: {reads: 1}`,
		} {
			key, hash, err := auth.NewKey(id)
			if err != nil {
				t.Fatal(err)
			}
			keys[id] = key
			file += fmt.Sprintf("- {id: %s, hash: %q, %s}\n", id, hash, rights)
		}
		path := filepath.Join(t.TempDir(), "auth.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		o := Options{Logger: slog.New(slog.DiscardHandler)}
		var err error
		if o.Auth, err = auth.Open(path, auth.Options{Logger: o.Logger}); err != nil {
			t.Fatal(err)
		}
		s := newTestServer(t, o)
		// ask returns the answer to a call, and how long it took.
		ask := func(key, path, body string) (*httptest.ResponseRecorder, time.Duration) {
			r := httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", "Bearer "+keys[key])
			w := httptest.NewRecorder()
			began := time.Now()
			s.handler.ServeHTTP(w, r)
			return w, time.Since(began)
		}
		w, _ := ask("root", seqledgerv1connect.LedgerServiceWriteProcedure,
			`{"scope":{"organization":"acme"},"clientId":"c","sequence":1,"operations":[{"append":{}}]}`)
		var written struct{ Receipt struct{ TxID string } }
		if err := json.Unmarshal(w.Body.Bytes(), &written); err != nil || w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body, err)
		}
		id := written.Receipt.TxID
		for name, asked := range map[string]struct {
			id, key string
			status  int
			took    time.Duration
		}{
			"not there, no rights": {id[:len(id)-6] + "0fffff", "elsewhere", http.StatusNotFound, notFoundStep},
			"there, no rights":     {id, "elsewhere", http.StatusNotFound, notFoundStep},
			"not there":            {id[:len(id)-6] + "0fffff", "root", http.StatusNotFound, notFoundStep},
			"there":                {id, "root", http.StatusOK, 0},
		} {
			w, took := ask(asked.key,
				seqledgerv1connect.LedgerServiceGetTransactionProcedure, fmt.Sprintf(`{"txId":%q}`, asked.id))
			if w.Code != asked.status || took != asked.took {
				t.Errorf("%s: got %d after %v, want %d after %v", name, w.Code, took, asked.status, asked.took)
			}
		}
		// The wait takes no place of a read, or a few callers would hold up all others with it.
		began := time.Now()
		var asking sync.WaitGroup
		for range 3 {
			asking.Go(func() {
				ask("elsewhere", seqledgerv1connect.LedgerServiceGetTransactionProcedure, fmt.Sprintf(`{"txId":%q}`, id))
			})
		}
		asking.Wait()
		if took := time.Since(began); took != notFoundStep {
			t.Errorf("three callers with one place for reads wait for %v, want %v", took, notFoundStep)
		}
	})
}

// TestAwaitStep: whatever the work took, the wait ends with a step. A record that is read from a slow
// disk ends with the same step as one that is in memory.
func TestAwaitStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for work, want := range map[time.Duration]time.Duration{
			0:                     notFoundStep,
			20 * time.Millisecond: notFoundStep,
			notFoundStep / 2:      notFoundStep,
			notFoundStep - 1:      notFoundStep,
			notFoundStep:          2 * notFoundStep,
			5 * notFoundStep / 2:  3 * notFoundStep,
		} {
			began := time.Now()
			<-time.After(work)
			awaitStep(t.Context(), began)
			if took := time.Since(began); took != want {
				t.Errorf("work of %v ends after %v, want %v", work, took, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if awaitStep(ctx, began); time.Since(began) != 0 {
			t.Errorf("a call that has ended waits for %v", time.Since(began))
		}
	})
}
