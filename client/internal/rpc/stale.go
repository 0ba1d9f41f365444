package rpc

import (
	"context"
	"net/http"
	"strconv"

	"github.com/seqledger/seqledger/internal/wire/message"
)

// StaleRead is client.StaleRead.
type StaleRead struct {
	// Index is the ledger index up to which the last answer shows everything.
	Index uint64
}

type staleReadKey struct{}

// WithStaleRead is client.WithStaleRead.
func WithStaleRead(ctx context.Context, s *StaleRead) context.Context {
	return context.WithValue(ctx, staleReadKey{}, s)
}

// ask sets the header of a request; s may be nil.
func (s *StaleRead) ask(h http.Header) {
	if s != nil {
		h.Set(message.ReadHeader, message.ReadStale)
	}
}

// learn takes in the header of an answer. A server of before did not know what it was asked, and its answer is not
// stale.
func (s *StaleRead) learn(h http.Header) {
	if s == nil {
		return
	}
	index, err := strconv.ParseUint(h.Get(message.IndexHeader), 10, 64)
	if err != nil {
		index = 0
	}
	s.Index = index
}
