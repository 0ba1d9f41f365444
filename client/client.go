package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/seqledger/seqledger/internal/upgrade"
)

// Client calls one ledger. It is safe for concurrent use. Close it after use.
type Client struct {
	options   Options
	endpoints *endpoints
	// http2 carries the streams, and the calls that do not use an endpoint's pool; upgrade
	// opens connections for write streams. Both are nil when the caller brought an HTTPClient:
	// then its connections are the caller's to close.
	http2, upgrade *http.Transport
	conns          connections
	counters       counters

	mux    *mux
	ctx    context.Context
	cancel context.CancelFunc
	// background counts the goroutines of the multiplexer and of journals. Each Writer joins
	// its own goroutines.
	background sync.WaitGroup
}

// New checks the options and returns a Client. The first call connects.
func New(options Options) (*Client, error) {
	bases, err := options.validate()
	if err != nil {
		return nil, err
	}
	c := &Client{options: options}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if options.HTTPClient == nil {
		c.http2 = newTransport()
		c.http2.DialContext = c.conns.dial
		c.http2.TLSClientConfig = options.TLS.Clone() // nil stays nil
		c.upgrade = upgrade.NewTransport(c.http2)
	}
	c.endpoints = newEndpoints(bases, c.newEndpoint)
	c.mux = newMux(c.endpoints, &c.options, &c.counters)
	return c, nil
}

// newEndpoints returns the servers at the given addresses. The first one is in use.
func newEndpoints(bases []*url.URL, make func(*url.URL) *endpoint) *endpoints {
	s := &endpoints{new: make}
	for _, base := range bases {
		s.all = append(s.all, make(base))
	}
	s.current = s.all[0]
	return s
}

// newTransport returns an HTTP/2-only transport, in cleartext and over TLS.
func newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Proxy:     http.ProxyFromEnvironment,
		Protocols: protocols,
		HTTP2: &http.HTTP2Config{
			// StrictMaxConcurrentRequests would restrict the transport to one connection.
			// net/http counts waiting requests among the active ones, so as many waiting
			// requests as the limit would block all of them for ever. Without pings the write
			// stream would wait for ever for a peer that vanished (power loss, a firewall that
			// dropped the connection).
			SendPingTimeout: 10 * time.Second,
			PingTimeout:     5 * time.Second,
			// Pings wait behind a blocked write, so writes need their own bound: a peer that
			// takes no byte for this long is gone.
			WriteByteTimeout: 10 * time.Second,
		},
		TLSHandshakeTimeout: dialTimeout,
		DisableCompression:  true,
	}
}

// closeTimeout bounds how long Close waits for its goroutines to end. Only a journal's disk
// that does not answer can delay one.
const closeTimeout = 5 * time.Second

// Close ends every Writer at once, without waiting for unanswered writes; use [Client.Shutdown]
// or [Writer.Close] to wait for them. It waits for every goroutine of the Client, but at most
// five seconds for a journal's disk that does not answer. Calls under way fail, because Close
// closes their connections. It does not close the connections of Options.HTTPClient, which
// belong to the caller. The error joins an [*UnsettledError] for each Writer that had unsettled
// writes.
func (c *Client) Close() error {
	c.cancel()
	// A cancelled stream sends a reset to its peer, and would wait for a peer that no longer
	// reads.
	c.conns.close()
	c.endpoints.close()
	limited, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	for _, w := range c.mux.close() {
		if err := w.end(); err != nil {
			errs = append(errs, err)
		}
	}
	joined := make(chan struct{})
	// This goroutine waits for those of the Client, and ends with them.
	go func() {
		defer close(joined)
		c.background.Wait()
	}()
	select {
	case <-joined:
	case <-limited.Done():
		errs = append(errs, fmt.Errorf(
			"client: the journal's disk has not answered for %v; one goroutine waits until it does",
			closeTimeout))
	}
	if c.http2 != nil {
		c.http2.CloseIdleConnections()
		c.upgrade.CloseIdleConnections()
	}
	return errors.Join(errs...)
}

// Shutdown refuses new writes, waits until the submitted ones are settled or ctx ends, and
// closes the Client. The error is the one of Close.
func (c *Client) Shutdown(ctx context.Context) error {
	writers := c.mux.close()
	errs := make([]error, len(writers))
	var group sync.WaitGroup
	for i, w := range writers {
		// Ends with its writes or ctx; the Wait below joins it.
		group.Go(func() { errs[i] = w.Close(ctx) })
	}
	group.Wait()
	return errors.Join(append(errs, c.Close())...)
}
