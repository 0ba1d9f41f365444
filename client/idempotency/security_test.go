package idempotency_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// A principal cannot read, replay, detect or block another's keys. Whatever the state of the other's key, a request
// with the same key, or a read of its record, is answered as if the other did not exist.
func TestPrincipalsCannotTell(t *testing.T) {
	t.Parallel()
	const none, running = 0, -1
	for name, status := range map[string]int{
		"no record": none, "committed": http.StatusCreated, "rejected": http.StatusNotFound,
		"unknown": http.StatusBadGateway, "running": running,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				leave, done := make(chan struct{}), make(chan struct{})
				s.charge.serve = func(w http.ResponseWriter, _ *http.Request) {
					if status == running {
						<-leave
						return
					}
					w.Header().Set("Location", "/victim")
					w.WriteHeader(status)
					_, _ = io.WriteString(w, "of the victim")
				}
				go func() { // ends with leave, which the test waits for
					defer close(done)
					if status != none {
						s.send(header("Authorization", "Bearer victim"))
					}
				}()
				synctest.Wait()
				runs := s.charge.runs.Load()
				s.charge.serve = nil
				for i, change := range []func(*http.Request){func(*http.Request) {}, body(`{"amount":6}`)} {
					answer := s.send(change, header("Authorization", "Bearer attacker"), header("Idempotency-Key",
						[]string{`"` + testKey + `"`, `"other"`}[i]))
					content := s.expect(answer, http.StatusCreated, "false", runs+int64(i)+1)
					if said := fmt.Sprint(answer.Header, content); strings.Contains(said, "victim") {
						t.Errorf("the answer is %s", said)
					}
				}
				close(leave)
				<-done
			})
		})
	}
}

// The values that a store writes to its database contain neither keys nor principals, and a conflict reveals nothing
// about the first request.
func TestStoredValuesHaveNoKeys(t *testing.T) {
	t.Parallel()
	backend := newMapBackend()
	s := &service{T: t, store: idempotency.NewStore(backend), metrics: newCounter()}
	s.charge.serve = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	s.use(func(o *idempotency.Options) {
		o.Namespace = func(*http.Request) string { return "secret-namespace" }
		o.Principal = func(context.Context, http.Header) (string, error) { return "secret-principal", nil }
	})
	secret := header("Idempotency-Key", `"secret-key"`)
	s.expect(s.send(secret, body("secret-body")), http.StatusNoContent, "false", 1)
	conflict := s.send(secret, body("other"))
	var text bytes.Buffer
	must.Do(t, conflict.Write(&text))
	if said := strings.ReplaceAll(text.String(), `"secret-key"`, ""); strings.Contains(said, "secret") {
		t.Errorf("the conflict says %s", said) // it echoes the key, which the client has sent
	}
	backend.mu.Lock()
	defer backend.mu.Unlock()
	if len(backend.values) < 2 {
		t.Fatalf("%d values are stored", len(backend.values))
	}
	for key, value := range backend.values {
		if strings.Contains(key+string(value.bytes), "secret") {
			t.Errorf("the database has %q under %q", value.bytes, key)
		}
	}
}

// A principal whose request runs, or waits, does not block any other principal.
func TestPrincipalsDoNotBlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, func(o *idempotency.Options) { o.Wait = time.Minute })
		leave := make(chan struct{})
		s.charge.serve = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") == "Bearer slow" {
				<-leave
			}
		}
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() { // ends with leave
				w := httptest.NewRecorder()
				s.handler.ServeHTTP(w, request(header("Authorization", "Bearer slow")))
				check.Equal(t, w.Code, http.StatusOK)
			})
		}
		synctest.Wait()
		began := time.Now()
		s.expect(s.send(), http.StatusOK, "false", 2)
		// bubble time, which passes only when all goroutines wait
		check.Equal(t, time.Since(began), 0, "another principal waited for %v")
		close(leave)
		group.Wait()
		check.Equal(t, s.charge.runs.Load(), 2, "the handler ran %d times")
	})
}
