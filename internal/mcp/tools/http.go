package tools

import (
	"bufio"
	"context"
	"errors"
	"io"
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
		r = r.WithContext(ctx)
		if isBatch(r) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, batchRefusal) // the client may be gone
			return
		}
		h.ServeHTTP(w, r)
	}), nil
}

// batchRefusal is the answer to a batch.
const batchRefusal = `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"seqledger: MCP has no batches; ` +
	`nothing of it was done; send the messages one by one"}}`

// isBatch reports whether the body of a request is a JSON array: many calls, which would be one request to the limits
// of their caller. The MCP library takes them, because an early revision of MCP had them.
func isBatch(r *http.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	body := bufio.NewReader(r.Body)
	r.Body = struct {
		io.Reader
		io.Closer
	}{body, r.Body}
	for {
		first, err := body.ReadByte()
		if err != nil {
			return false // the library reads the error, too
		}
		switch first {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return body.UnreadByte() == nil && first == '['
	}
}
