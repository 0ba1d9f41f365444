package server

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/server/admission"
	"github.com/seqledger/seqledger/server/auth"
)

// authenticated admits requests with a valid credential, within its limits, whose procedure its role allows. Only the
// health checks and the console run without it. It runs before a body is read.
func (s *Server) authenticated(next http.Handler) http.Handler {
	return s.entered(func(r *http.Request) (func(), error) { return s.admit(r, s.admission.Request) }, next)
}

// observed is authenticated for the metrics of the whole ledger.
func (s *Server) observed(metrics http.Handler) http.Handler {
	return s.entered(func(r *http.Request) (func(), error) { return s.admit(r, s.admission.OwnRequest) },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := s.caller(r.Context()).Observe(); err != nil {
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
			metrics.ServeHTTP(w, r)
		}))
}

// entered lets requests in that enter takes, until they are answered.
func (s *Server) entered(enter func(*http.Request) (leave func(), err error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave, err := enter(r)
		if err != nil {
			s.writeAuthError(w, r, err)
			return
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}

// admit authenticates a request and counts it. leave ends the count.
func (s *Server) admit(
	r *http.Request, count func(context.Context, admission.Party) (func(), error),
) (leave func(), err error) {
	ctx := r.Context()
	if s.options.Auth != nil {
		if callOf(ctx).caller, err = s.options.Auth.Authenticate(r.Header); err != nil {
			return nil, err
		}
	}
	if err := s.admitRole(ctx, r.URL.Path); err != nil {
		return nil, err
	}
	party := s.party(ctx)
	if leave, err = count(ctx, party); err != nil {
		return nil, err
	}
	if err := s.admission.Authenticated(ctx, party); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// writeAuthError answers a request that was not admitted, in the request's protocol.
func (s *Server) writeAuthError(w http.ResponseWriter, r *http.Request, err error) {
	s.admission.Visit(r.Context())
	var unauthenticated *auth.RefusedError
	var denied *auth.DeniedError
	var refused *admission.Refusal
	status := http.StatusServiceUnavailable
	switch {
	case errors.As(err, &unauthenticated):
		challenge := `Bearer realm="seqledger"`
		if !unauthenticated.Missing() {
			challenge += `, error="invalid_token"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
		status = http.StatusUnauthorized
		s.options.Logger.DebugContext(r.Context(), "a request was not authenticated",
			"reason", unauthenticated.Reason, "from", r.RemoteAddr)
	case errors.As(err, &denied):
		status = http.StatusForbidden
	case errors.As(err, &refused):
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refused.RetryAfter.Seconds()))))
		if refused.Bound == admission.Connections {
			w.Header().Set("Connection", "close") // over HTTP/2, too: net/http sends GOAWAY
		}
		if refused.Owner == admission.OfCredential {
			status = http.StatusTooManyRequests
		}
	}
	failed := connectError(r.Context(), s.options.Logger, err)
	s.countEarlyRefusal(r.URL.Path, failed)
	answerError(w, r, failed, status)
}

// countEarlyRefusal counts a call that ended before its handler ran. Only paths of procedures become labels.
func (s *Server) countEarlyRefusal(path string, failed *connect.Error) {
	if _, ok := permissions[path]; ok {
		s.metrics.requests.WithLabelValues(path, failed.Code().String()).Inc()
		s.countRefusal(path, failed, nil) // nothing of the command has been read
	}
}

// untilCallerEnds calls end once if the caller's credential ends while a stream is open. stop waits for end if it is
// running.
func (s *Server) untilCallerEnds(ctx context.Context, end func(cause error)) (stop func()) {
	ended, release := s.caller(ctx).Ended()
	cancel := admission.AfterFunc(ended, func() { end(context.Cause(ended)) })
	return func() {
		cancel()
		release()
	}
}

// admitStream opens a stream of the caller. leave closes it.
func (s *Server) admitStream(ctx context.Context, procedure string) (leave func(), err error) {
	if err := s.authorizeStream(ctx, procedure); err != nil {
		return nil, err
	}
	return s.admission.Stream(ctx, s.party(ctx))
}
