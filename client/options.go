package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
)

// Options configures a [Client]. Only Server is required.
type Options struct {
	// Server is host:port, or an http:// or https:// URL; without a scheme it is cleartext.
	// Several servers of one ledger are separated by commas. Calls and the write stream use one of them. They move on
	// when it cannot be reached, drains, or names another one as the leader. They also leave a server that forwards
	// calls to the leader, if the list has the leader under the address that it advertises.
	Server string
	// Token returns the API key or session token that is sent as the bearer token of every call
	// and every new write stream; nil sends none. [StaticToken] returns a fixed token. Because Token is
	// called often, it should cache its result. It must be safe for concurrent use.
	Token func(ctx context.Context) (string, error)
	// CleartextToken lets Token go over http:// to a host that is not this machine,
	// where the network can read it. Without it such a Server is refused.
	CleartextToken bool
	// TLS is the configuration for https: which server to trust and which certificate to present. Nil means the
	// system's roots and no certificate. New copies it. TLS and HTTPClient exclude each other.
	TLS *tls.Config
	// HTTP2 uses HTTP/2 for everything. Otherwise calls use up to 256 persistent HTTP/1.1
	// connections, which are faster, and the write stream uses an upgraded
	// connection (a WebSocket) if the server and all intermediaries allow it. Both fall back to HTTP/2.
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
