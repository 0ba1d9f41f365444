package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/address"
	"github.com/seqledger/seqledger/internal/upgrade"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// Endpoint is one server of the ledger. Its methods are also those of the API, each of which is one attempt.
type Endpoint struct {
	seqledgerv1connect.LedgerServiceClient
	seqledgerv1connect.AdminServiceClient
	seqledgerv1connect.IdempotencyServiceClient

	base    *url.URL
	options *Options
	frames  *connect.Client[message.Frame, seqledgerv1.WriteStreamResponse]
	// pool holds the connections of unary calls; http2 holds those of streams and of calls that
	// the pool cannot send. upgrade opens connections for the write stream alone. pool and
	// upgrade may be nil; with Options.HTTPClient all three are nil.
	pool    *pool
	http2   http.RoundTripper
	upgrade *http.Transport
	// writeHeader begins every request of write.
	writeHeader string
	// ask sends a request outside the pool, whose places calls may fill.
	ask     func(*http.Request) (*http.Response, error)
	hearing hearing
	// identity is that of the Client, or nil.
	identity *identity

	mu sync.Mutex
	// moveTo is called with the address of the leader that an answer names.
	moveTo func(leader string)

	// left is when the Client last moved to another server. The mutex of endpoints guards it.
	left time.Time
	// noHTTP1 and noUpgrade are the times until which the server is assumed not to speak
	// HTTP/1.1, and not to upgrade a connection for a write stream.
	noHTTP1, noUpgrade time.Time
}

// refusalMemory is how long the Client does not ask again for what a server has refused.
const refusalMemory = 5 * time.Minute

// leftMemory is how long the Client does not return to a server that it has left although another one names it as the
// leader: the other server may reach it where the Client cannot.
const leftMemory = time.Minute

// newEndpoint returns an endpoint that shares the transports of its Client.
func (c *Client) newEndpoint(base *url.URL) *Endpoint {
	e := &Endpoint{
		base: base, options: &c.Options, hearing: hearing{turn: make(chan struct{}, 1)}, identity: c.identity,
	}
	e.moveTo = func(leader string) { c.endpoints.learn(e, leader) }
	do := attempts{e.roundTrip, e}
	if c.Options.HTTPClient != nil {
		do.do, e.ask = c.Options.HTTPClient.Do, c.Options.HTTPClient.Do
	} else {
		e.http2, e.ask = c.http2, c.http2.RoundTrip
		if !c.Options.HTTP2 && !viaProxy(base) {
			e.pool = newPool(dialUntil(c.ctx), address.Of(base), callTLS(base, c.Options.TLS))
		}
		if !c.Options.HTTP2 {
			e.upgrade = c.upgrade
		}
	}
	e.writeHeader = e.newWriteHeader()
	opts := []connect.ClientOption{connect.WithCodec(message.Codec{})}
	e.LedgerServiceClient = seqledgerv1connect.NewLedgerServiceClient(do, base.String(), opts...)
	e.AdminServiceClient = seqledgerv1connect.NewAdminServiceClient(do, base.String(), opts...)
	e.IdempotencyServiceClient = seqledgerv1connect.NewIdempotencyServiceClient(do, base.String(), opts...)
	// Receipts are small and random: gzip on the stream would cost more CPU
	// than everything else together and save nothing.
	e.frames = connect.NewClient[message.Frame, seqledgerv1.WriteStreamResponse](
		do, e.writeStreamURL(), append(opts, connect.WithAcceptCompression("gzip", nil, nil))...)
	return e
}

// Host returns the server's host and port, for messages.
func (e *Endpoint) Host() string { return e.base.Host }

// writeStreamURL is the URL of the WriteStream procedure.
func (e *Endpoint) writeStreamURL() string {
	return e.base.String() + seqledgerv1connect.LedgerServiceWriteStreamProcedure
}

// viaProxy reports whether the environment names a proxy for a server. net/http supports proxies, the pool does not.
func viaProxy(base *url.URL) bool {
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: base})
	return proxy != nil || err != nil
}

// callTLS returns the TLS configuration of a pool's connections, nil for cleartext.
func callTLS(base *url.URL, config *tls.Config) *tls.Config {
	if base.Scheme != "https" {
		return nil
	}
	if config = config.Clone(); config == nil {
		config = new(tls.Config)
	}
	if config.ServerName == "" {
		config.ServerName = base.Hostname()
	}
	// Offer nothing else, because a server that is also offered HTTP/2 chooses that.
	config.NextProtos = []string{"http/1.1"}
	return config
}

// roundTrip sends a request: a unary call over the pool where the server speaks
// HTTP/1.1, and everything else over HTTP/2.
func (e *Endpoint) roundTrip(r *http.Request) (*http.Response, error) {
	if isStream(r.Header) || e.pool == nil || e.isRefused(&e.noHTTP1) {
		return e.http2.RoundTrip(r)
	}
	answer, err := e.pool.RoundTrip(r)
	if !errors.Is(err, errNotHTTP1) {
		return answer, err
	}
	return e.overHTTP2(r)
}

// overHTTP2 sends a request of which nothing was sent because the server does not speak HTTP/1.1.
func (e *Endpoint) overHTTP2(r *http.Request) (*http.Response, error) {
	answer, err := e.http2.RoundTrip(r)
	if err == nil {
		e.options.Logger.InfoContext(r.Context(), "the server speaks only HTTP/2; calls use it", "server", e.base.Host)
		e.refused(&e.noHTTP1)
	}
	return answer, err
}

// isRefused reports whether the server has recently refused an offer.
func (e *Endpoint) isRefused(until *time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Now().Before(*until)
}

func (e *Endpoint) refused(until *time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*until = time.Now().Add(refusalMemory)
}

// close closes what no call uses.
func (e *Endpoint) close() {
	if e.pool != nil {
		e.pool.close()
	}
}

// endpoints are the servers of a ledger, of which one is in use. It is safe for concurrent use.
type endpoints struct {
	all []*Endpoint // as they were given
	new func(*url.URL) *Endpoint

	mu sync.Mutex
	// current is in use: one of all, or named, which another server has called the leader.
	current, named *Endpoint
}

// use returns the server to send to.
func (s *endpoints) use() *Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// moveOn chooses another server when from cannot take a call, unless another call has done so
// since. leader is the leader's address in the answer, or empty.
func (s *endpoints) moveOn(from *Endpoint, leader string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != from {
		return
	}
	from.left = time.Now()
	if to := s.find(from, leader); to != nil {
		s.current = to
		return
	}
	// A server that is not in the list is followed by the first one.
	s.current = s.all[(slices.Index(s.all, from)+1)%len(s.all)]
}

// learn moves to the leader that a server has named in an answer, which saves a hop. The leader must be in the list,
// because this client may have been given other addresses than the advertised ones for a reason.
func (s *endpoints) learn(from *Endpoint, leader string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.all {
		if s.current == from && e != from && e.isAt(from.base.Scheme, leader) && time.Since(e.left) >= leftMemory {
			from.left = time.Now()
			s.current = e
			return
		}
	}
}

// isAt reports whether a server has an address that another one gave.
func (e *Endpoint) isAt(scheme, leader string) bool {
	if !strings.Contains(leader, "://") {
		leader = scheme + "://" + leader
	}
	base, err := parseServer(leader)
	return err == nil && base.Scheme == e.base.Scheme && address.Of(e.base) == address.Of(base)
}

// learn reads the ledger and the leader from the header of an answer. The error means that the server has another
// ledger.
func (e *Endpoint) learn(header http.Header) error {
	if err := e.identity.check(header); err != nil {
		e.options.Logger.Warn("a server has another ledger and is not used", "server", e.base.Host, "error", err)
		return fmt.Errorf("%s: %w", e.base.Host, err)
	}
	if leader := header.Get(message.LeaderHeader); leader != "" {
		e.moveTo(leader)
	}
	return nil
}

// find returns the server at an address that another server gave, or nil if it may not be used. mu is held.
func (s *endpoints) find(from *Endpoint, leader string) *Endpoint {
	if leader == "" {
		return nil
	}
	if !strings.Contains(leader, "://") {
		leader = from.base.Scheme + "://" + leader
	}
	base, err := parseServer(leader)
	if err != nil || base.Scheme != from.base.Scheme || !from.options.mayHaveToken(base) {
		return nil
	}
	// Clipped, so that append copies and never writes into the array of all.
	for _, e := range append(slices.Clip(s.all), s.named) {
		if e != nil && address.Of(e.base) == address.Of(base) {
			return e
		}
	}
	if s.named != nil {
		s.named.close()
	}
	s.named = s.new(base)
	return s.named
}

// close closes what no call uses.
func (s *endpoints) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range append(slices.Clip(s.all), s.named) {
		if e != nil {
			e.close()
		}
	}
}

// OpenStream opens a write stream on an upgraded connection, or an ordinary one if the upgrade is refused. The refusal
// may come from an intermediary or from a server that speaks only HTTP/2. If it was a refusal of the call itself, the
// ordinary stream returns it with all its details.
func (e *Endpoint) OpenStream(ctx context.Context) (Stream, error) {
	header := make(http.Header)
	if _, err := e.options.Authorize(ctx, header); err != nil {
		return nil, err
	}
	e.identity.introduce(header)
	if e.upgrade != nil && !e.isRefused(&e.noUpgrade) {
		own := header.Clone()
		own.Set("User-Agent", userAgent)
		stream, err := upgrade.Dial(ctx, e.upgrade, e.writeStreamURL(), own, message.Codec{})
		switch dial, isDial := errors.AsType[*net.OpError](err); {
		case err == nil:
			if err := e.learn(stream.Header()); err != nil {
				_ = stream.Close() // nothing was sent on it
				return nil, failure.FromConnect(connect.NewError(connect.CodeUnavailable, err), 0)
			}
			return UpgradedStream{stream}, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		// Without a connection nothing was refused, so that the next stream asks for the upgrade again.
		case isDial && dial.Op == "dial":
			return nil, failure.FromConnect(connect.NewError(connect.CodeUnavailable, err), 0)
		}
		e.noteUpgrade(ctx, err)
	}
	stream := e.frames.CallBidiStream(ctx)
	for name, values := range header {
		stream.RequestHeader()[name] = values
	}
	return stream, nil
}

// userAgent identifies this client to the server's operator, as Connect's own user agent does for calls.
const userAgent = "seqledger-go"

// noteUpgrade records that a server, or an intermediary, does not upgrade connections, so that reconnecting does not
// wait for the same refusal again. It does not record an answer that concerns only the caller or the moment.
func (e *Endpoint) noteUpgrade(ctx context.Context, err error) {
	if refused, ok := errors.AsType[*upgrade.RefusedError](err); ok {
		switch refused.Status {
		case http.StatusUnauthorized, http.StatusPreconditionFailed, http.StatusTooManyRequests,
			http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable,
			http.StatusGatewayTimeout:
			return
		}
	}
	e.options.Logger.InfoContext(ctx, "the write stream uses a shared connection", "server", e.base.Host, "reason", err)
	e.refused(&e.noUpgrade)
}
