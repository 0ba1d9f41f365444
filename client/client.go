package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/direct"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

const defaultMaxAttempts = 8

// Options configures a [Client]. Only Server is required.
type Options struct {
	// Server is host:port, or an http:// or https:// URL. Without a scheme it
	// is HTTP/2 in cleartext.
	Server string
	// HTTPClient replaces the client's own, for tests and for TLS of your own.
	// It must speak HTTP/2, because writes go over a bidirectional stream.
	HTTPClient *http.Client
	// Token is an API key or session token, sent as a bearer token with every
	// request; empty sends none. Use https then, because cleartext shows it to
	// the network.
	Token string
	// TLS says which server to trust and which certificate to show, for https.
	// Default: nil, the system's roots and no certificate. It is copied. Not
	// together with HTTPClient, which has its own.
	TLS *tls.Config
	// MaxAttempts bounds how often one call is sent, repeats included; 0 means
	// 8. A Writer's writes are repeated until they are settled or it is closed.
	MaxAttempts int
}

// validate checks the options and returns the base URL.
func (o *Options) validate() (string, error) {
	server := o.Server
	if server == "" {
		return "", errors.New("client: Options.Server is empty")
	}
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	parsed, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("client: Options.Server: %w", err)
	}
	if parsed.Scheme != "http" && parsed.Scheme != "https" {
		return "", fmt.Errorf("client: Options.Server: scheme %q is neither http nor https", parsed.Scheme)
	}
	if parsed.Host == "" {
		return "", fmt.Errorf("client: Options.Server: %q names no host", o.Server)
	}
	if o.TLS != nil && (o.HTTPClient != nil || parsed.Scheme != "https") {
		return "", errors.New("client: Options.TLS needs an https:// server and no HTTPClient")
	}
	if strings.ContainsFunc(o.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("client: Options.Token has a character that no token has")
	}
	if o.MaxAttempts < 0 {
		return "", fmt.Errorf("client: Options.MaxAttempts is %d, must not be negative", o.MaxAttempts)
	}
	return strings.TrimSuffix(parsed.String(), "/"), nil
}

// Client calls one ledger server. It is safe for concurrent use. Calls share one
// HTTP/2 connection, and all Writers another, which is theirs alone where the
// server, and whatever is before it, allows that. Close it when done.
type Client struct {
	options Options
	ledger  seqledgerv1connect.LedgerServiceClient
	admin   seqledgerv1connect.AdminServiceClient
	// transport is nil when the caller brought an HTTPClient: then its idle
	// connections are the caller's to close.
	transport *http.Transport
	// streams is that of the write stream, which has a connection to itself; nil
	// with an HTTPClient.
	streams *http.Transport
	conns   connections

	mux    *mux
	ctx    context.Context
	cancel context.CancelFunc
	// background counts the mux's goroutine; Writers join their own.
	background sync.WaitGroup
}

// New checks the options and returns a Client. It does not connect: the first
// call does.
func New(options Options) (*Client, error) {
	base, err := options.validate()
	if err != nil {
		return nil, err
	}
	if options.MaxAttempts == 0 {
		options.MaxAttempts = defaultMaxAttempts
	}
	c := &Client{options: options}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	httpClient := options.HTTPClient
	if httpClient == nil {
		c.transport = newTransport()
		c.transport.DialContext = c.conns.dial
		c.transport.TLSClientConfig = options.TLS.Clone() // nil stays nil
		httpClient = &http.Client{Transport: c.transport}
	}
	opts := []connect.ClientOption{connect.WithCodec(codec{})}
	if options.Token != "" {
		opts = append(opts, connect.WithInterceptors(bearer("Bearer "+options.Token)))
	}
	c.ledger = seqledgerv1connect.NewLedgerServiceClient(httpClient, base, opts...)
	c.admin = seqledgerv1connect.NewAdminServiceClient(httpClient, base, opts...)
	// Receipts are small and random: gzip on the stream would cost more CPU
	// than everything else together and save nothing.
	stream := connect.NewClient[frame, seqledgerv1.WriteStreamResponse](
		httpClient, base+seqledgerv1connect.LedgerServiceWriteStreamProcedure,
		append(opts, connect.WithAcceptCompression("gzip", nil, nil))...)
	c.mux = newMux(func(ctx context.Context) writeStream { return stream.CallBidiStream(ctx) })
	if c.transport != nil {
		c.dedicate(base)
	}
	return c, nil
}

// dedicate lets the write stream have a connection to itself where the server
// gives it one.
func (c *Client) dedicate(base string) {
	c.streams = direct.NewTransport(c.transport)
	header := make(http.Header)
	header.Set("User-Agent", userAgent)
	if c.options.Token != "" {
		header.Set("Authorization", "Bearer "+c.options.Token)
	}
	url := base + seqledgerv1connect.LedgerServiceWriteStreamProcedure
	c.mux.dedicated = func(ctx context.Context) (*direct.Stream, error) {
		return direct.Open(ctx, c.streams, url, header, codec{})
	}
}

// userAgent tells a server's operator who is on a connection, as Connect's own
// does for the calls.
const userAgent = "seqledger-go"

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

// Close ends every Writer at once, without waiting for unanswered writes (use
// [Writer.Close] for that), and waits for every goroutine of the Client. Calls
// that are under way fail, because their connections are closed too (not those
// of Options.HTTPClient, which are the caller's). The error joins an [*UnsettledError] for each Writer that had unsettled writes.
func (c *Client) Close() error {
	c.cancel()
	// A cancelled stream still has to say so to its peer, and would wait for
	// one that no longer reads.
	c.conns.close()
	var errs []error
	for _, w := range c.mux.close() {
		// c.ctx has ended, so this abandons what is open and only joins.
		if err := w.Close(c.ctx); err != nil {
			errs = append(errs, err)
		}
	}
	c.background.Wait()
	if c.transport != nil {
		c.transport.CloseIdleConnections()
		c.streams.CloseIdleConnections()
	}
	return errors.Join(errs...)
}

// bearer is an interceptor that adds an Authorization header.
type bearer string

// WrapUnary implements connect.Interceptor.
func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		request.Header().Set("Authorization", string(b))
		return next(ctx, request)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", string(b))
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor; a client handles nothing.
func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
