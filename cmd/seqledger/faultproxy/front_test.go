package faultproxy_test

import (
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// listen serves a handler until the test ends.
func listen(t *testing.T, handler http.HandlerFunc) *faultproxy.Front {
	t.Helper()
	front := must.Get(faultproxy.Listen(handler, faultproxy.Protocols(true, true)))(t)
	t.Cleanup(front.Close)
	return front
}

// get calls a front and returns the protocol and the body of the answer.
func get(t *testing.T, front *faultproxy.Front, protocols *http.Protocols) (string, string, error) {
	t.Helper()
	transport := faultproxy.NewTransport(protocols)
	t.Cleanup(transport.CloseIdleConnections)
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+front.Address, nil))(t)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "", "", err
	}
	body, err := io.ReadAll(response.Body)
	return response.Proto, string(body), errors.Join(err, response.Body.Close())
}

// TestFrontCloseWaits: Close returns after the handlers, which it ends by their requests' contexts.
func TestFrontCloseWaits(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	ended := false // Close makes this safe to read; the race detector fails otherwise
	front := must.Get(faultproxy.Listen(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		ended = true
	}), faultproxy.Protocols(true, false)))(t)
	called := make(chan error, 1)
	// Ends with the front, which is closed below.
	go func() {
		_, _, err := get(t, front, faultproxy.Protocols(true, false))
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
