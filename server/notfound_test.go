package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/testkit/check"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// TestNotFoundTakesAStep: a caller without rights in a scope waits for a transaction in it to the end of the same step
// as for one that does not exist. In the bubble the look-up takes no time, so that all of the time is that of the wait.
func TestNotFoundTakesAStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newKeyedServer(t, Options{}, map[string]string{
			"root":      `role: admin, scopes: ["*"], client_ids: ["*"]`,
			"elsewhere": `role: reader, scopes: ["other"], limits: {reads: 1}`,
		})
		// ask returns the answer to a call, and how long it took.
		ask := func(key, path string, m proto.Message) (*httptest.ResponseRecorder, time.Duration) {
			began := time.Now()
			w := s.ask(key, path, m)
			return w, time.Since(began)
		}
		w, _ := ask("root", seqledgerv1connect.LedgerServiceWriteProcedure, &seqledgerv1.WriteRequest{
			Scope: &seqledgerv1.Scope{Organization: "acme"}, ClientId: "c", Sequence: 1,
			Operations: []*seqledgerv1.Operation{{
				Operation: &seqledgerv1.Operation_Append{Append: &seqledgerv1.Append{}},
			}},
		})
		written := new(seqledgerv1.WriteResponse)
		if err := proto.Unmarshal(w.Body.Bytes(), written); err != nil || w.Code != http.StatusOK {
			t.Fatal(w.Code, w.Body, err)
		}
		id := written.Receipt.TxId
		const get = seqledgerv1connect.LedgerServiceGetTransactionProcedure
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
			w, took := ask(asked.key, get, &seqledgerv1.GetTransactionRequest{TxId: asked.id})
			if w.Code != asked.status || took != asked.took {
				t.Errorf("%s: got %d after %v, want %d after %v", name, w.Code, took, asked.status, asked.took)
			}
		}
		// The wait takes no place of a read, or a few callers would hold up all others with it.
		began := time.Now()
		var asking sync.WaitGroup
		for range 3 {
			asking.Go(func() {
				ask("elsewhere", get, &seqledgerv1.GetTransactionRequest{TxId: id})
			})
		}
		asking.Wait()
		check.Equal(t, time.Since(began), notFoundStep, "three callers with one place for reads wait for %v")
	})
}

// TestAwaitStep: whatever the work took, the wait ends with a step. A record that is read from a slow disk ends with
// the same step as one that is in memory.
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
			check.Equal(t, time.Since(began), want, "work of %v ends after %v", work)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if awaitStep(ctx, began); time.Since(began) != 0 {
			t.Errorf("a call that has ended waits for %v", time.Since(began))
		}
	})
}
