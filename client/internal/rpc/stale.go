package rpc

import (
	"context"
	"net/http"
	"strconv"

	"github.com/seqledger/seqledger/internal/wire/message"
)

// StaleRead is client.StaleRead.
type StaleRead struct {
	// Index is the ledger index up to which the last answer is complete.
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

// learn reads the index from the header of an answer.
func (s *StaleRead) learn(h http.Header) {
	if s == nil {
		return
	}
	s.Index, _ = strconv.ParseUint(h.Get(message.IndexHeader), 10, 64) // 0 without the header
}
