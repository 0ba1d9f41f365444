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
	// Server is host:port, or an http:// or https:// URL; without a scheme it is cleartext.
	// Several servers of one ledger are separated by commas: calls and the write stream use one
	// of them, and move on when it cannot be reached, drains, or names another one as the
	// leader.
	Server string
	// Token returns the API key or session token that is sent as the bearer token of every call
	// and every new write stream; nil sends none. [StaticToken] returns a fixed token. Token is
	// called often, so it should cache its result. It must be safe for concurrent use.
	Token func(ctx context.Context) (string, error)
	// CleartextToken lets Token go over http:// to a host that is not this machine,
	// where the network can read it. Without it such a Server is refused.
	CleartextToken bool
	// TLS is the configuration for https: which server to trust and which certificate to
	// present. Nil means the system's roots and no certificate. New copies it. TLS and
	// HTTPClient exclude each other.
	TLS *tls.Config
	// HTTP2 uses HTTP/2 for everything. Otherwise calls use up to 256 persistent HTTP/1.1
	// connections, which takes half of the time, and the write stream uses an upgraded
	// connection (a WebSocket) if the server and all intermediaries allow it. Both fall back to HTTP/2 by
	// themselves.
	HTTP2 bool
	// HTTPClient replaces the client's own connections, for tests and special TLS. It must
	// speak HTTP/2, because writes use a bidirectional stream.
	HTTPClient *http.Client
	// MaxAttempts bounds how often one call is sent, repeats included. 0 means no bound but the
	// call's context. A Writer's writes are repeated until they are settled or it is closed.
	MaxAttempts int
	// Logger receives events of the connections and the Writers for an operator, never a
	// payload, a key or a token. Nil logs nothing.
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
			return nil, fmt.Errorf(
				"client: Options.Token would go to %s in clear text; use https://, or set Options.CleartextToken",
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
		return nil, errors.New("is empty or contains an empty address")
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

// mayHaveToken reports whether a token may be sent to a server.
func (o *Options) mayHaveToken(base *url.URL) bool {
	return o.Token == nil || o.CleartextToken || base.Scheme == "https" || isLoopback(base.Hostname())
}

// isLoopback reports whether a host is this machine, without asking a name server.
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
		return "", errors.New("client: Options.Token returned a token with an invalid character")
	}
	header.Set("Authorization", "Bearer "+token)
	return token, nil
}
