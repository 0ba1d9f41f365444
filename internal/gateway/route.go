package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/unsent"
)

// newRoute returns the handler of a route. The caller holds mu.
func (g *Gateway) newRoute(c *Config, r *route) http.Handler {
	logger := g.options.Logger
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			c.rewrite(p, r.upstream)
			r.keep(p.Out.Header, p.In.Header)
		},
		// The middleware sets the headers of responses to keyed requests.
		ModifyResponse: func(answer *http.Response) error {
			idempotency.StripHeaders(answer.Header)
			if r.cors != nil {
				dropCORS(answer.Header)
			}
			// The names of the trailers are known by now; their values follow the body.
			idempotency.StripHeaders(answer.Trailer)
			if answer.StatusCode != http.StatusSwitchingProtocols { // its body is the connection
				answer.Body = &trailed{answer.Body, answer}
			}
			return nil
		},
		Transport:    once{g.transport(r.connections), r.connections.timeout},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { failed(w, r, err, logger) },
		ErrorLog:     slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	o := r.options
	o.Scope, o.Journal, o.Metrics, o.Logger = g.options.Scope, g.options.Journal, g.metrics.of(r.label()), logger
	o.Admit = g.admit
	if r.check != nil {
		o.AllowReplay = func(request *http.Request) (bool, error) { return r.check.ask(proxy, request) }
	}
	keyed := idempotency.Middleware(g.options.Store, o)(proxy)
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		c.strip(request, r)
		request.Host = c.authority(request)
		keyed.ServeHTTP(w, request)
	})
}

// trailed is the body of a response with trailers, which follow the body. It removes the trailers that only a gateway
// may send, so that a service cannot claim a replay.
type trailed struct {
	io.ReadCloser
	answer *http.Response
}

// Read implements io.Reader.
func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err != nil {
		idempotency.StripHeaders(t.answer.Trailer)
	}
	return n, err
}

// rewrite makes the request to the service. It replaces what the client says about itself in X-Forwarded-*, unless the
// client is a trusted proxy.
func (c *Config) rewrite(p *httputil.ProxyRequest, upstream *url.URL) {
	p.SetURL(upstream)
	// Some services read trailers as headers, and those that only the gateway may send are removed from headers alone.
	p.Out.Trailer = nil
	trusted := c.trusts(p.In)
	if trusted {
		p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"] // the proxy's own address is appended
	}
	p.SetXForwarded()
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if said := p.In.Header.Get(name); trusted && said != "" {
			p.Out.Header.Set(name, said)
		}
	}
}

// authority returns the host that a request is for. A trusted proxy may have replaced the Host header by its own name
// for this gateway; of several proxies the first one has seen it. The service gets it, alone, in X-Forwarded-Host.
func (c *Config) authority(r *http.Request) string {
	const name = "X-Forwarded-Host"
	first := func(name string) string {
		said, _, _ := strings.Cut(strings.Join(r.Header.Values(name), ","), ",")
		return strings.TrimSpace(said)
	}
	said := cmp.Or(first(name), hostIn(first("Forwarded")), first("X-Original-Host"))
	if said == "" || !c.trusts(r) {
		r.Header.Del(name)
		return r.Host
	}
	r.Header.Set(name, said)
	return said
}

// hostIn returns the host that an element of Forwarded (RFC 7239) names, or "".
func hostIn(forwarded string) string {
	for pair := range strings.SplitSeq(forwarded, ";") {
		if name, value, _ := strings.Cut(pair, "="); strings.EqualFold(strings.TrimSpace(name), "host") {
			return strings.Trim(value, ` "`)
		}
	}
	return ""
}

// principal returns the function that determines the principal of a request, or nil for the middleware's default. The
// kind is part of the principal, so that a header and a claim with the same value are two parties.
func (c *Config) principal(r *route) func(context.Context, http.Header) (string, error) {
	switch {
	case r.header != "":
		return func(_ context.Context, header http.Header) (string, error) {
			values := header.Values(r.header)
			switch {
			case len(values) > 1:
				return "", fmt.Errorf("it needs one header %s of a trusted proxy", r.header)
			case strings.Join(values, "") == "":
				return "", nil // anonymous
			}
			return limitPrincipal("header:" + values[0])
		}
	case r.claim != "":
		return func(_ context.Context, header http.Header) (string, error) {
			if strings.Join(header.Values("Authorization"), "") == "" {
				return "", nil // anonymous
			}
			principal, names := "claim:"+strconv.Quote(r.claim)+":", strings.Split(r.claim, ",")
			for _, name := range names {
				value, err := c.tokens.verifier.Load().Claim(header, strings.TrimSpace(name))
				if err != nil {
					return "", err
				}
				if len(names) > 1 {
					value = strconv.Quote(value)
				}
				principal += value
			}
			return limitPrincipal(principal)
		}
	}
	return nil
}

func limitPrincipal(principal string) (string, error) {
	if len(principal) > idempotency.MaxPrincipal {
		return "", fmt.Errorf("it has %d bytes, and may have %d", len(principal), idempotency.MaxPrincipal)
	}
	return principal, nil
}

// ask asks the service whether a request may see a stored response. It sends a request without a body, with the same
// credentials, and with the original method and target in X-Original-*.
func (k *replayCheck) ask(proxy http.Handler, request *http.Request) (bool, error) {
	target, err := url.Parse(k.path)
	if err != nil {
		return false, err
	}
	question := request.Clone(request.Context())
	question.Method, question.URL, question.RequestURI = k.method, target, ""
	question.Body, question.ContentLength, question.TransferEncoding, question.Trailer = http.NoBody, 0, nil, nil
	for _, name := range []string{
		// Connection could have the proxy remove what the check goes by.
		"Connection", "Upgrade",
		idempotency.HeaderKey, "X-" + idempotency.HeaderKey, "Content-Length", "Content-Type", "Content-Encoding",
		"Expect", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range",
		"Range",
	} {
		question.Header.Del(name)
	}
	for _, name := range idempotency.MethodHeaders {
		question.Header.Del(name) // it would be the method of the check
	}
	question.Header.Set("X-Original-Method", request.Method)
	question.Header.Set("X-Original-URI", request.URL.RequestURI())
	ctx, cancel := context.WithTimeout(request.Context(), checkTimeout)
	defer cancel()
	said := &statusOnly{header: http.Header{}}
	said.ask(proxy, question.WithContext(ctx))
	if said.status == 0 || said.status >= 499 { // 499: the client has disconnected
		return false, fmt.Errorf("the service answered the check with status %d", said.status)
	}
	return said.status < 300, nil
}

// checkTimeout bounds a check, and checkBytes what is read of its response.
const (
	checkTimeout = 10 * time.Second
	checkBytes   = 64 << 10
)

// statusOnly is a ResponseWriter that keeps only the status.
type statusOnly struct {
	header http.Header
	status int
	bytes  int
}

// ask sends a request. If the response is truncated, or continues for long, its status counts.
func (s *statusOnly) ask(proxy http.Handler, question *http.Request) {
	defer func() {
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler { //nolint:errorlint // It is that value.
			panic(cause)
		}
	}()
	proxy.ServeHTTP(s, question)
}

// Header implements http.ResponseWriter.
func (s *statusOnly) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *statusOnly) WriteHeader(status int) {
	if s.status == 0 && status >= 200 {
		s.status = status
	}
}

// Write implements io.Writer.
func (s *statusOnly) Write(b []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if s.bytes += len(b); s.bytes > checkBytes {
		return 0, errors.New("enough")
	}
	return len(b), nil
}

// once keeps a transport from sending a request twice. net/http retries a request whose connection breaks if it
// considers the request idempotent, and the header Idempotency-Key makes every request without a body qualify. That
// must never happen here, because the service may have executed the first request. If nothing of a request was sent,
// the error is an [*unsentError].
//
// A request that owns a key does not end with its client. So it ends once the service has taken or given nothing for
// timeout, if that is not 0; ResponseHeaderTimeout counts only between the request and the header of the response.
type once struct {
	next    http.RoundTripper
	timeout time.Duration
}

// RoundTrip implements http.RoundTripper.
func (o once) RoundTrip(r *http.Request) (*http.Response, error) {
	if hasKey(r) {
		r = r.Clone(r.Context())
		if r.GetBody = nil; r.Body == nil || r.Body == http.NoBody {
			r.Body = noBytes{}
		}
	}
	answered := func(*http.Response) {}
	if o.timeout > 0 && idempotency.FromContext(r.Context()) != nil {
		r, answered = o.bound(r)
	}
	r, connected := unsent.Watch(r)
	answer, err := o.next.RoundTrip(r)
	answered(answer)
	if err != nil && !connected() {
		return nil, &unsentError{err}
	}
	return answer, err
}

// bound has a request end when its service stalls. The caller must call answered with the response, or with nil.
func (o once) bound(r *http.Request) (bounded *http.Request, answered func(*http.Response)) {
	ctx, cancel := context.WithCancelCause(r.Context())
	stalled := func() { cancel(errStalled) }
	var over atomic.Bool // the transport may go on reading the request after the response has begun
	sending := time.AfterFunc(o.timeout, func() {
		if !over.Load() {
			stalled()
		}
	})
	sending.Stop() // until there is a connection, and something to send
	r = r.WithContext(ctx)
	if r.Body != nil {
		r.Body = &watched{r.Body, func() { sending.Stop() }, func() { sending.Reset(o.timeout) }, func() {}}
	}
	return r, func(answer *http.Response) {
		over.Store(true)
		sending.Stop()
		switch {
		case answer == nil:
			cancel(nil)
		case answer.StatusCode != http.StatusSwitchingProtocols: // its body is the connection
			receiving := time.AfterFunc(o.timeout, stalled)
			receiving.Stop()
			answer.Body = &watched{
				answer.Body, func() { receiving.Reset(o.timeout) }, func() { receiving.Stop() },
				func() { cancel(nil) },
			}
		}
	}
}

// errStalled ends a request whose service takes or gives nothing for upstream_timeout.
var errStalled = fmt.Errorf("the service has stalled: %w", os.ErrDeadlineExceeded)

// watched is a body with functions that are called before and after each Read, and after Close.
type watched struct {
	io.ReadCloser
	before, after, closed func()
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	w.before()
	defer w.after()
	return w.ReadCloser.Read(p)
}

// Close implements io.Closer.
func (w *watched) Close() error {
	defer w.closed()
	return w.ReadCloser.Close()
}

// hasKey reports whether a request has a key in the eyes of net/http.
func hasKey(r *http.Request) bool {
	_, key := r.Header[idempotency.HeaderKey]
	_, other := r.Header["X-Idempotency-Key"]
	return key || other
}

// noBytes is an empty body that net/http does not recognize as empty, and so cannot send again.
type noBytes struct{}

// Read implements io.Reader.
func (noBytes) Read([]byte) (int, error) { return 0, io.EOF }

// Close implements io.Closer.
func (noBytes) Close() error { return nil }

// The problems specific to the gateway. Each has a code that package idempotency lacks.
const (
	codeUnreachable idempotency.Code = "upstream-unreachable"
	codeBusy        idempotency.Code = "busy"
	codeAmbiguous   idempotency.Code = "path-ambiguous"
	codeMethod      idempotency.Code = "method-invalid"
	codeNoRoute     idempotency.Code = "route-unknown"
)

// unsentError is the error of a request of which nothing was sent to the service.
type unsentError struct{ cause error }

// Error implements error.
func (e *unsentError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *unsentError) Unwrap() error { return e.cause }

// failed answers a request to which the service gave no response. The key is free again if nothing of the request was
// sent; otherwise the outcome is unknown. The route's settings for 5xx responses and for refusals do not apply, because
// they are about the service's own responses.
func failed(w http.ResponseWriter, r *http.Request, err error, logger *slog.Logger) {
	p := idempotency.Problem{
		Status: http.StatusBadGateway, Code: idempotency.CodeOutcomeUnknown, Action: idempotency.Reconcile,
		Title: "The service gave no response; whether the request was executed is not known",
	}
	leaves := idempotency.LeaveUnknown
	if _, unsent := errors.AsType[*unsentError](err); unsent {
		leaves = idempotency.ReleaseKey
		p.Code, p.Action, p.RetryAfter = codeUnreachable, idempotency.SameKey, time.Second
		p.Title = "The request could not be sent to the service; nothing was executed"
	}
	if owner := idempotency.FromContext(r.Context()); owner != nil {
		owner.Leave(leaves)
	} else if hasKey(r) {
		w.Header().Set(idempotency.HeaderIgnored, "true") // the middleware takes a problem for one about the key
	}
	var timeout net.Error
	switch {
	case errors.Is(err, errSlowBody), tooSlow(r.Context()):
		p.Status = http.StatusRequestTimeout
		p.Title = "The body came too slowly; whether the service has executed a part of it is not known"
	case errors.Is(err, context.Canceled):
		p.Status = 499 // the client has disconnected; only the log shows this status
	case leaves == idempotency.ReleaseKey:
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		p.Status = http.StatusGatewayTimeout
	}
	logger.WarnContext(r.Context(), "the service gave no response", "path", r.URL.Path, "error", err)
	p.Write(w, r)
}
