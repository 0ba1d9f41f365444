package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/seqledger/seqledger/internal/direct"
)

// Client calls one ledger. It is safe for concurrent use. Close it when done.
type Client struct {
	options   Options
	endpoints *endpoints
	// http2 carries the streams, and the calls that do not go over an endpoint's pool;
	// upgrade opens connections for write streams. Both are nil when the caller brought
	// an HTTPClient: then its connections are the caller's to close.
	http2, upgrade *http.Transport
	conns          connections
	counters       counters

	mux    *mux
	ctx    context.Context
	cancel context.CancelFunc
	// background counts the multiplexer's goroutine and those of journals; Writers join
	// their own.
	background sync.WaitGroup
}

// New checks the options and returns a Client. It does not connect: the first
// call does.
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
		c.upgrade = direct.NewTransport(c.http2)
	}
	c.endpoints = newEndpoints(bases, c.newEndpoint)
	c.mux = newMux(c.endpoints, &c.options, &c.counters)
	return c, nil
}

// newEndpoints returns the servers at the given addresses, of which the first is in
// use.
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
			// Not StrictMaxConcurrentRequests, which would keep to one connection:
			// net/http counts the requests that wait for a place among those that
			// have one, so that with as many waiting as there are places nobody
			// ever gets one.
			// Without pings a peer that vanished (power loss, a firewall that
			// forgot us) would leave the write stream waiting for ever.
			SendPingTimeout: 10 * time.Second,
			PingTimeout:     5 * time.Second,
			// Pings wait behind a write that blocks, so that needs its own
			// bound: no byte taken for this long is a peer that is gone.
			WriteByteTimeout: 10 * time.Second,
		},
		TLSHandshakeTimeout: dialTimeout,
		DisableCompression:  true,
	}
}

// closeTimeout bounds how long Close waits for goroutines that it has told to end.
// Nothing but a disk that does not answer, under a journal, can hold one.
const closeTimeout = 5 * time.Second

// Close ends every Writer at once, without waiting for unanswered writes (use
// [Client.Shutdown] or [Writer.Close] for that), and waits for every goroutine of the
// Client, for at most five seconds when the disk of a journal does not answer. Calls
// that are under way fail, because their connections are closed too (not those of
// Options.HTTPClient, which are the caller's). The error joins an [*UnsettledError]
// for each Writer that had unsettled writes.
func (c *Client) Close() error {
	c.cancel()
	// A cancelled stream still has to say so to its peer, and would wait for
	// one that no longer reads.
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
	// Ends with the goroutines of the Client, for which it waits.
	go func() {
		defer close(joined)
		c.background.Wait()
	}()
	select {
	case <-joined:
	case <-limited.Done():
		errs = append(errs, fmt.Errorf("client: the disk of a journal has not answered for %v; the goroutine that waits ends with it",
			closeTimeout))
	}
	if c.http2 != nil {
		c.http2.CloseIdleConnections()
		c.upgrade.CloseIdleConnections()
	}
	return errors.Join(errs...)
}

// Shutdown takes no more writes, waits until those that were submitted are settled or
// ctx ends, and closes the Client. The error is that of Close.
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
