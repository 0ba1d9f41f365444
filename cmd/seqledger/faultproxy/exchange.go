package faultproxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
)

// Reply is the whole answer to a call.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// NewTransport returns a transport to the server. It leaves compressed answers as they are, because a proxy that
// unpacked them would have to change their headers too.
func NewTransport(protocols *http.Protocols) *http.Transport {
	return &http.Transport{Protocols: protocols, DisableCompression: true}
}

// Forward returns a client's request with another body, for the server at backend (host:port).
func Forward(ctx context.Context, r *http.Request, backend string, body io.Reader) (*http.Request, error) {
	target := *r.URL
	target.Scheme, target.Host = "http", backend
	request, err := http.NewRequestWithContext(ctx, r.Method, target.String(), body)
	if err != nil {
		return nil, err
	}
	request.Header = r.Header.Clone()
	// The body's own length is the right one, and the other headers are about the client's connection.
	for _, name := range []string{"Content-Length", "Connection", "Upgrade", "Te"} {
		request.Header.Del(name)
	}
	for name := range request.Header {
		if strings.HasPrefix(name, "Sec-Websocket-") {
			request.Header.Del(name)
		}
	}
	return request, nil
}

// Send sends a request of [Forward] and reads the whole answer.
func Send(transport http.RoundTripper, request *http.Request) (Reply, error) {
	response, err := transport.RoundTrip(request)
	if err != nil {
		return Reply{}, err
	}
	got, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return Reply{}, err
	}
	return Reply{response.StatusCode, response.Header, got}, nil
}
