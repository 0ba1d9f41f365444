package idempotency

import (
	"context"
	"errors"
	"net/http"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/seqledger/seqledger/internal/keyed"
)

// ErrNotFinal is returned by a [Resolver] while the owner of a record may still be at work or, for Purge, while the
// outcome is unknown. Nothing was changed.
var ErrNotFinal = errors.New("idempotency: the outcome of the work is still open")

// Resolver is a [Store] whose records can be settled by an operator, or by a program that has established what
// happened. The stores returned by [NewStore] are Resolvers; for a ledger use its API. An absent record is
// [ErrNotFound].
type Resolver interface {
	Store
	// Resolve settles an unknown outcome: state is Committed or Rejected, and result is what retries get. The outcome
	// is OK, even if the record was already settled in the same way; or it is AlreadyCompleted or ResultExpired, with
	// the record.
	Resolve(ctx context.Context, key *RecordKey, state State, result Result) (*Answer, error)
	// Purge deletes a finished or an expired record. Its key is then free, and the work runs again for it.
	Purge(ctx context.Context, key *RecordKey) (*Answer, error)
}

// Resolve implements Resolver.
func (s *casStore) Resolve(ctx context.Context, key *RecordKey, state State, result Result) (*Answer, error) {
	if state != Committed && state != Rejected {
		return nil, &InvalidError{"State", "must be Committed or Rejected, is " + state.String()}
	}
	ttl, err := span("TTL", result.TTL, 0, MinTTL, MaxTTL)
	if err != nil {
		return nil, err
	}
	if err := checkLength("Response", len(result.Response), MaxResponse); err != nil {
		return nil, err
	}
	return s.settle(ctx, key, keyed.Command{
		Kind: keyed.Resolve, State: keyed.State(state), Response: result.Response, TTL: int64(ttl),
	})
}

// Purge implements Resolver.
func (s *casStore) Purge(ctx context.Context, key *RecordKey) (*Answer, error) {
	return s.settle(ctx, key, keyed.Command{Kind: keyed.Purge})
}

// isSettled reports whether a record without a handler's result holds what an operator stored with Resolve: nothing, or
// a text. The results of handlers begin with a byte that no text contains.
func isSettled(record *Record) bool {
	stored := record.Response
	if uint64(len(stored)) != record.ResponseSize {
		return false
	}
	return len(stored) == 0 || stored[0] >= '\t' && utf8.Valid(stored)
}

// settledResponse returns the response for work that an operator found to have been done. Without a text there is
// nothing to replay.
func settledResponse(text []byte) *storedResponse {
	media := "text/plain; charset=utf-8"
	if jsontext.Value(text).IsValid() {
		media = "application/json"
	}
	return &storedResponse{
		Status: http.StatusOK, Header: http.Header{"Content-Type": {media}}, Kept: len(text) > 0, Body: text,
	}
}

// settle applies a command of an operator.
func (s *casStore) settle(ctx context.Context, key *RecordKey, c keyed.Command) (*Answer, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	out, err := s.decide(ctx, key, c, nil)
	if err != nil {
		return nil, err
	}
	switch out.Code {
	case keyed.NotFound:
		return nil, ErrNotFound
	case keyed.NotFinal:
		return nil, ErrNotFinal
	}
	answer := &Answer{Outcome: out.Code}
	if out.Code == keyed.AlreadyCompleted || out.Code == keyed.ResultExpired {
		answer.Record = publicRecord(out.record)
	}
	return answer, nil
}
