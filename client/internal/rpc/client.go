// Package rpc connects a Client to the servers of a ledger: connections, calls and their repeats,
// and write streams. Package client makes calls with it, package client/writer writes.
package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/upgrade"
)

// Client is the part of a client.Client that the packages of the client share.
type Client struct {
	// Options are complete and valid.
	Options   Options
	Counters  Counters
	endpoints *endpoints
	identity  *identity // nil for one server
	// http2 carries the streams, and the calls that do not use an endpoint's pool; upgrade opens connections for write
	// streams. Both are nil when the caller brought an HTTPClient: then its connections are the caller's to close.
	http2, upgrade *http.Transport

	ctx    context.Context
	cancel context.CancelFunc
	// background counts the goroutines that Go started.
	background sync.WaitGroup

	mu      sync.Mutex
	writers Writers // nil before the first Writer
	closed  bool
}

// Writers are the Writers of a Client, which end with it.
type Writers interface {
	// Close ends the Writers at once.
	Close() error
	// Shutdown takes no more writes, and ends the Writers once their writes are settled or ctx ends.
	Shutdown(ctx context.Context) error
}

// New checks the options and returns a Client. The first call connects.
func New(options Options) (*Client, error) {
	bases, err := options.validate()
	if err != nil {
		return nil, err
	}
	c := &Client{Options: options}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if options.HTTPClient == nil {
		c.http2 = newTransport()
		c.http2.DialContext = dialUntil(c.ctx)
		c.http2.TLSClientConfig = options.TLS.Clone() // nil stays nil
		c.upgrade = upgrade.NewTransport(c.http2)
	}
	if len(bases) > 1 {
		c.identity = new(identity)
	}
	c.endpoints = newEndpoints(bases, c.newEndpoint)
	return c, nil
}

// Writers returns the Client's Writers, which the first call makes, or ErrClosed.
func (c *Client) Writers(make func() Writers) (Writers, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, failure.ErrClosed
	}
	if c.writers == nil {
		c.writers = make()
	}
	return c.writers, nil
}

// Context ends when the Client is closed.
func (c *Client) Context() context.Context { return c.ctx }

// Go runs do, which must end with the Client's context; Close waits for it.
func (c *Client) Go(do func()) { c.background.Go(do) }

// Endpoint returns the server to send to.
func (c *Client) Endpoint() *Endpoint { return c.endpoints.use() }

// MoveOn chooses another server because from cannot take a call. leader is the leader's address
// in its answer, or empty.
func (c *Client) MoveOn(from *Endpoint, leader string) { c.endpoints.moveOn(from, leader) }

// newEndpoints returns the servers at the given addresses. The first one is in use.
func newEndpoints(bases []*url.URL, make func(*url.URL) *Endpoint) *endpoints {
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
			// StrictMaxConcurrentRequests is not set, because it would restrict the transport to one connection.
			// net/http counts waiting requests among the active ones, so requests up to the limit could deadlock. Pings
			// detect a peer that vanished (power loss, a firewall that dropped the connection).
			SendPingTimeout: 10 * time.Second,
			PingTimeout:     5 * time.Second,
			// A blocked write holds up pings, so writes need their own bound: a peer that
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

// Close is client.Client.Close.
func (c *Client) Close() error {
	// This also closes the connections: a cancelled stream sends a reset, which blocks if the peer no longer reads.
	c.cancel()
	c.endpoints.close()
	limited, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	if writers := c.end(); writers != nil {
		errs = append(errs, writers.Close())
	}
	joined := make(chan struct{})
	// Ends with the Client's goroutines.
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

// Shutdown is client.Client.Shutdown.
func (c *Client) Shutdown(ctx context.Context) error {
	var err error
	if writers := c.end(); writers != nil {
		err = writers.Shutdown(ctx)
	}
	return errors.Join(err, c.Close())
}

// end allows no more Writers, and returns the present ones.
func (c *Client) end() Writers {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.writers
}
