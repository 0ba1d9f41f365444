package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Options configures a [Client]. Only Server is required.
type Options struct {
	// Server is host:port, or an http:// or https:// URL; without a scheme it is
	// cleartext. Several servers of one ledger are separated by commas: calls and the
	// write stream go to one of them, and to the next when that cannot be reached,
	// drains, or names another as the leader.
	Server string
	// Token returns the API key or session token that is sent as a bearer token, for
	// every call and every write stream that is opened; nil sends none. [StaticToken]
	// makes one that always returns the same. It must be quick while nothing has
	// changed, and safe for concurrent use.
	Token func(ctx context.Context) (string, error)
	// CleartextToken lets Token go over http:// to a host that is not this machine,
	// where the network can read it. Without it such a Server is refused.
	CleartextToken bool
	// TLS says which server to trust and which certificate to show, for https.
	// Default: nil, the system's roots and no certificate. It is copied. Not
	// together with HTTPClient, which has its own.
	TLS *tls.Config
	// HTTP2 uses HTTP/2 for everything. Otherwise calls go over HTTP/1.1 connections
	// that are kept open, up to 256, because that takes half of the time, and the write
	// stream has a connection to itself where the server, and whatever is before it,
	// allows that. Both find out by themselves where only HTTP/2 is offered.
	HTTP2 bool
	// HTTPClient replaces the client's own connections, for tests and for TLS of your
	// own. It must speak HTTP/2, because writes go over a bidirectional stream.
	HTTPClient *http.Client
	// MaxAttempts bounds how often one call is sent, repeats included; 0 bounds it by
	// its context alone. A Writer's writes are repeated until they are settled or it is
	// closed.
	MaxAttempts int
	// Logger gets what an operator should know of the connections and the Writers, and
	// never a payload, a key or a token. Default: nothing is logged.
	Logger *slog.Logger
}

// StaticToken returns an [Options].Token for a token that does not change.
func StaticToken(token string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return token, nil }
}

// validate checks the options, fills in the defaults and returns the base URLs of the
// servers.
func (o *Options) validate() ([]*url.URL, error) {
	var bases []*url.URL
	for server := range strings.SplitSeq(o.Server, ",") {
		base, err := parseServer(strings.TrimSpace(server))
		if err != nil {
			return nil, fmt.Errorf("client: Options.Server: %w", err)
		}
		if o.TLS != nil && (o.HTTPClient != nil || base.Scheme != "https") {
			return nil, errors.New("client: Options.TLS needs an https:// server and no HTTPClient")
		}
		if !o.mayHaveToken(base) {
			return nil, fmt.Errorf("client: Options.Token would go to %s in clear text; use https://, or set Options.CleartextToken",
				base.Host)
		}
		bases = append(bases, base)
	}
	if o.MaxAttempts < 0 {
		return nil, fmt.Errorf("client: Options.MaxAttempts is %d, must not be negative", o.MaxAttempts)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return bases, nil
}

// parseServer returns the base URL of a server.
func parseServer(server string) (*url.URL, error) {
	if server == "" {
		return nil, errors.New("is empty, or a name of its list is")
	}
	given := server
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	base, err := url.Parse(server)
	switch {
	case err != nil:
		return nil, err
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, fmt.Errorf("scheme %q is neither http nor https", base.Scheme)
	case base.Host == "":
		return nil, fmt.Errorf("%q names no host", given)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	return base, nil
}

// mayHaveToken tells whether the token, if there is one, may be sent to a server.
func (o *Options) mayHaveToken(base *url.URL) bool {
	return o.Token == nil || o.CleartextToken || base.Scheme == "https" || isLoopback(base.Hostname())
}

// isLoopback tells whether a host is this machine, whatever a name server says.
func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.Unmap().IsLoopback()
}

// authorize puts the token into the header of a request and returns it.
func (o *Options) authorize(ctx context.Context, header http.Header) (string, error) {
	if o.Token == nil {
		return "", nil
	}
	token, err := o.Token(ctx)
	if err != nil {
		return "", fmt.Errorf("client: Options.Token: %w", err)
	}
	if token == "" {
		return "", nil
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("client: Options.Token returned a token with a character that no token has")
	}
	header.Set("Authorization", "Bearer "+token)
	return token, nil
}
