package server

import (
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire/message"
)

// ofLedger tells clients that ask which ledger this is, and refuses calls for another one. It runs after
// authentication, so that it reveals nothing to unauthenticated callers.
func (s *Server) ofLedger(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		meant := r.Header.Get(message.LedgerHeader)
		if meant == "" {
			next.ServeHTTP(w, r)
			return
		}
		id := s.ledgerID()
		if id == "" || meant == id {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set(message.LedgerHeader, id)
		if meant == message.AnyLedger {
			next.ServeHTTP(w, r)
			return
		}
		answerError(w, r, connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("the call is for ledger %.64q, and this is ledger %s", meant, id)),
			http.StatusPreconditionFailed)
	})
}

// ledgerID returns the id of the ledger, or "" if it cannot be told: then the call itself finds out why.
func (s *Server) ledgerID() string {
	if known := s.ledger.Load(); known != nil {
		return *known
	}
	id, err := s.options.Ledger.ID()
	if err != nil || id == 0 {
		return ""
	}
	text := id.String()
	s.ledger.Store(&text)
	return text
}
