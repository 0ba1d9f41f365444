package rpc

import (
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/wire/message"
)

// identity is the ledger that the servers of a Client have, as the first one that answered said. The others must have
// the same: what was read from one of them and written to another one would be of two ledgers. It is nil for one
// server, which may be restored under the same address. Its methods may be called from any goroutine.
type identity struct{ id atomic.Pointer[string] }

// isKnown reports whether a server has said which ledger it has.
func (i *identity) isKnown() bool { return i == nil || i.id.Load() != nil }

// introduce says in the header of a request which ledger it is meant for.
func (i *identity) introduce(h http.Header) {
	switch {
	case i == nil:
	case i.id.Load() == nil:
		h.Set(message.LedgerHeader, message.AnyLedger)
	default:
		h.Set(message.LedgerHeader, *i.id.Load())
	}
}

// check takes in what the header of an answer says, and returns an ErrOtherLedger for a server of another ledger. A
// server that says nothing has the ledger that it was asked for, or is older than the question.
func (i *identity) check(h http.Header) error {
	id := h.Get(message.LedgerHeader)
	if i == nil || id == "" || i.id.CompareAndSwap(nil, &id) {
		return nil
	}
	if known := *i.id.Load(); known != id {
		return fmt.Errorf("%w: it has %.64q, and another server of this client has %.64q", failure.ErrOtherLedger, id,
			known)
	}
	return nil
}
