package tools

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/client"
)

// maxBody bounds an agent's request, in bytes.
const maxBody = 4 << 20

// requestKey is the context key of the HTTP request's context within a tool call's context, which the MCP library does
// not end with the request. authorizationKey is the context key of the request's credential.
type (
	requestKey       struct{}
	authorizationKey struct{}
)

// Handler serves the tools over streamable HTTP. Each POST is answered on its own: there are no sessions. api carries
// the requests to the ledger, with the context and the credential of the POST. o.Client is not used.
func Handler(o Options, api http.RoundTripper, logger *slog.Logger) (http.Handler, error) {
	c, err := client.New(client.Options{
		Server: "http://127.0.0.1", HTTPClient: &http.Client{Transport: api}, Logger: logger, MaxAttempts: 1,
		Token: func(ctx context.Context) (string, error) {
			header, _ := ctx.Value(authorizationKey{}).(string)
			scheme, token, _ := strings.Cut(header, " ")
			if !strings.EqualFold(scheme, "bearer") && header != "" {
				return "", errors.New("the header Authorization must be a bearer token")
			}
			return strings.TrimSpace(token), nil
		},
	})
	if err != nil {
		return nil, err
	}
	o.Client = c
	s := Server(o)
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true, MaxRequestBodyBytes: maxBody, Logger: logger,
		DisableLocalhostProtection: true, // the enclosing server checks the host
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), requestKey{}, r.Context())
		ctx = context.WithValue(ctx, authorizationKey{}, r.Header.Get("Authorization"))
		h.ServeHTTP(w, r.WithContext(ctx))
	}), nil
}
