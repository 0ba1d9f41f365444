package rpc

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/seqledger/seqledger/internal/upgrade"
)

// Attempt is one transmission of a call. It reports whether any of the request's body may have
// left this process. A call that sent nothing was not executed, whatever its error.
type Attempt struct {
	// body is one of the three below.
	body atomic.Uint32
	// status is the HTTP status of the answer, 0 without an answer.
	status atomic.Int32
}

const (
	bodyUnread uint32 = iota // nothing was sent
	bodyRead                 // some of it may have been sent
	bodySealed               // nothing was sent, and nothing will be
)

// sent reports whether anything may have been sent. Once it returns false it seals the body,
// because a transport may still be working on a request that has already failed.
func (a *Attempt) sent() bool {
	return !a.body.CompareAndSwap(bodyUnread, bodySealed) && a.body.Load() == bodyRead
}

// attemptKey finds a call's attempt in its context.
type attemptKey struct{}

// WithAttempt returns the context of a call whose attempt is a, so that the transport finds it.
func WithAttempt(ctx context.Context, a *Attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

func attemptOf(r *http.Request) *Attempt {
	a, _ := r.Context().Value(attemptKey{}).(*Attempt)
	return a
}

// attemptBody records that the transport has read from it.
type attemptBody struct {
	io.ReadCloser

	attempt *Attempt
}

var errSealed = errors.New("the call was abandoned before it was sent")

// Read implements io.Reader.
func (b attemptBody) Read(p []byte) (int, error) {
	if !b.attempt.body.CompareAndSwap(bodyUnread, bodyRead) && b.attempt.body.Load() == bodySealed {
		return 0, errSealed
	}
	return b.ReadCloser.Read(p)
}

// attempts is the connect.HTTPClient of a Client. It records what each attempt sends. It does
// not follow redirects, so that a token reaches only the configured server.
type attempts struct {
	do func(*http.Request) (*http.Response, error)
	// endpoint gets the header of each answer, and may refuse it.
	endpoint *Endpoint
}

// isStream reports whether a header is that of a streaming call in Connect's protocol.
func isStream(header http.Header) bool {
	return strings.HasPrefix(header.Get("Content-Type"), "application/connect+")
}

// Do implements connect.HTTPClient. An answer of a server with another ledger becomes an error.
func (t attempts) Do(r *http.Request) (*http.Response, error) {
	t.endpoint.identity.introduce(r.Header)
	a := attemptOf(r)
	if r.Body == nil || r.Body == http.NoBody {
		a = nil
	}
	if a != nil {
		r.Body = attemptBody{r.Body, a}
		// A transport that repeats the request takes its body from GetBody, which must not escape the record.
		if again := r.GetBody; again != nil {
			r.GetBody = func() (io.ReadCloser, error) {
				body, err := again()
				return attemptBody{body, a}, err
			}
		}
	}
	answer, err := t.do(r)
	if err != nil {
		return nil, err
	}
	if err := t.endpoint.learn(answer.Header); err != nil {
		// An unread body would keep its connection.
		_ = answer.Body.Close()
		return nil, err
	}
	if a != nil {
		a.status.Store(int32(answer.StatusCode))
	}
	if isStream(answer.Header) {
		answer.Body = &upgrade.StreamBody{ReadCloser: answer.Body}
	}
	return answer, nil
}
