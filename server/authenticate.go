package server

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/auth"
)

// authenticated lets in who has a credential, within its limits. Everything but
// the health checks is behind it. It runs before a body is read.
func (s *Server) authenticated(next http.Handler) http.Handler {
	if s.options.Auth == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := s.options.Auth.Authenticate(r.Header)
		if err == nil {
			err = c.Enter()
		}
		if err != nil {
			s.turnAway(w, r, err)
			return
		}
		defer c.Leave()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// observing lets in who may see figures about the whole ledger.
func (s *Server) observing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.caller(r.Context()).Observe(); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// turnAway answers a request that was not let in, in the protocol that it is in.
func (s *Server) turnAway(w http.ResponseWriter, r *http.Request, err error) {
	var refused *auth.RefusedError
	var limit *auth.LimitError
	status := http.StatusServiceUnavailable
	switch {
	case errors.As(err, &refused):
		challenge := `Bearer realm="seqledger"`
		if !refused.Missing() {
			challenge += `, error="invalid_token"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
		status = http.StatusUnauthorized
		s.options.Logger.DebugContext(r.Context(), "a request was not let in", "reason", refused.Reason, "from", r.RemoteAddr)
	case errors.As(err, &limit):
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(limit.RetryAfter.Seconds()))))
		status = http.StatusTooManyRequests
	}
	writer := connect.NewErrorWriter()
	if writer.IsSupported(r) {
		_ = writer.Write(w, r, accessError(err))
		return
	}
	http.Error(w, err.Error(), status)
}

// accessError translates the errors of package auth; nil for any other.
func accessError(err error) *connect.Error {
	var denied *auth.DeniedError
	var refused *auth.RefusedError
	var limit *auth.LimitError
	switch {
	case errors.As(err, &denied):
		return withDetails(connect.CodePermissionDenied, deniedError(denied))
	case errors.As(err, &refused):
		return connect.NewError(connect.CodeUnauthenticated, errors.New(refused.Problem))
	case errors.Is(err, auth.ErrRevoked), errors.Is(err, auth.ErrExpired):
		return connect.NewError(connect.CodeUnauthenticated, err)
	case errors.Is(err, auth.ErrChanged):
		// Not final: who comes back is looked at anew.
		return connect.NewError(connect.CodeUnavailable, err)
	case errors.As(err, &limit):
		return withDetails(connect.CodeResourceExhausted, &seqledgerv1.WriteError{
			Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL,
			Message: limit.Error(), RetryAfter: durationpb.New(limit.RetryAfter),
		})
	case errors.Is(err, auth.ErrTooManyCallers):
		return connect.NewError(connect.CodeResourceExhausted, err)
	}
	return nil
}

// deniedError is the WriteError of a write that the caller may not make.
func deniedError(denied *auth.DeniedError) *seqledgerv1.WriteError {
	return &seqledgerv1.WriteError{
		Code:    seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED,
		Message: denied.Error(), Field: denied.Field,
	}
}

// untilCallerEnds calls end, once, when the caller's credential ends while a
// stream is open. stop returns after end, if it runs.
func (s *Server) untilCallerEnds(ctx context.Context, end func(cause error)) (stop func()) {
	c := s.caller(ctx)
	ended, release := c.Ended()
	done := make(chan struct{})
	cancel := context.AfterFunc(ended, func() {
		defer close(done)
		end(context.Cause(ended))
	})
	return func() {
		if !cancel() {
			<-done
		}
		release()
	}
}

// admitStream opens a stream of the caller. leave closes it.
func (s *Server) admitStream(ctx context.Context, procedure string) (leave func(), err error) {
	if err := s.authorizeStream(ctx, procedure); err != nil {
		return nil, err
	}
	c := s.caller(ctx)
	if err := c.EnterStream(); err != nil {
		return nil, err
	}
	return c.LeaveStream, nil
}
