package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/seqledger/seqledger/server/auth"
)

// tokens verifies session tokens. Keys from a URL are fetched periodically, so that an issuer can replace them.
type tokens struct {
	verifier atomic.Pointer[auth.Verifier]
	url      string // "" for a file, which is read again with the configuration

	cancel context.CancelFunc
	ended  chan struct{} // closed when the fetching has ended
}

// A JWKS is fetched every jwksInterval; a fetch takes at most jwksTimeout and maxJWKS bytes.
const (
	jwksInterval = 5 * time.Minute
	jwksTimeout  = 10 * time.Second
	maxJWKS      = 1 << 20
)

// start starts to fetch the keys periodically.
func (t *tokens) start(logger *slog.Logger) {
	if t == nil || t.url == "" || t.cancel != nil {
		return
	}
	var ctx context.Context
	ctx, t.cancel = context.WithCancel(context.Background())
	t.ended = make(chan struct{})
	// stop ends this goroutine and waits for it.
	go func() {
		defer close(t.ended)
		ticker := time.NewTicker(jwksInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := t.renew(ctx); err != nil {
				logger.ErrorContext(ctx, "the JWKS could not be fetched; the previous keys stay in use", "url", t.url,
					"error", err)
			}
		}
	}()
}

// stop ends the fetching.
func (t *tokens) stop() {
	if t == nil || t.cancel == nil {
		return
	}
	t.cancel()
	<-t.ended
}

// renew fetches the keys once.
func (t *tokens) renew(ctx context.Context) error {
	content, err := fetchJWKS(ctx, t.url)
	if err != nil {
		return err
	}
	v, err := t.verifier.Load().WithKeys(content)
	if err != nil {
		return err
	}
	t.verifier.Store(v)
	return nil
}

// fetchJWKS fetches a JWKS. It accepts cleartext HTTP only from this machine, because the keys decide who may see whose
// responses; for the same reason it does not follow redirects.
func fetchJWKS(ctx context.Context, address string) ([]byte, error) {
	target, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("must be a URL")
	}
	if target.Scheme != "https" && (target.Scheme != "http" || !isLoopback(target.Hostname())) {
		return nil, errors.New("must be an https URL, or an http URL of this machine")
	}
	ctx, cancel := context.WithTimeout(ctx, jwksTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // read only
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer has status %s", answer.Status)
	}
	content, err := io.ReadAll(io.LimitReader(answer.Body, maxJWKS+1))
	if err == nil && len(content) > maxJWKS {
		err = fmt.Errorf("has more than %d bytes", maxJWKS)
	}
	return content, err
}

func isLoopback(host string) bool {
	if address, err := netip.ParseAddr(host); err == nil {
		return address.IsLoopback()
	}
	return host == "localhost"
}
