package rpc

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

// Options are client.Options, which describes them. The fields are the same, so that one type converts to the other.
type Options struct {
	Server         string
	Token          func(ctx context.Context) (string, error)
	CleartextToken bool
	TLS            *tls.Config
	HTTP2          bool
	HTTPClient     *http.Client
	MaxAttempts    int
	Logger         *slog.Logger
}

// validate checks the options, fills in the defaults and returns the base URLs of the servers.
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

// Authorize puts the token into the header of a request and returns it.
func (o *Options) Authorize(ctx context.Context, header http.Header) (string, error) {
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
