package faultproxy

import (
	"net/http"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// listen serves a handler until the test ends.
func listen(t *testing.T, handler http.HandlerFunc) *Front {
	t.Helper()
	front := must.Get(Listen(handler, Protocols(true, true)))(t)
	t.Cleanup(front.Close)
	return front
}

// TestFrontCloseWaits: Close returns after the handlers, which it ends by their requests' contexts.
func TestFrontCloseWaits(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	ended := false // Close makes this safe to read; the race detector fails otherwise
	front := must.Get(Listen(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		ended = true
	}), Protocols(true, false)))(t)
	called := make(chan error, 1)
	// Ends with the front, which is closed below.
	go func() {
		answer, err := http.Get("http://" + front.Address)
		if err == nil {
			_ = answer.Body.Close()
		}
		called <- err
	}()
	<-began
	front.Close()
	if !ended {
		t.Error("Close did not wait for the handler")
	}
	if err := <-called; err == nil {
		t.Error("want a broken connection")
	}
}
