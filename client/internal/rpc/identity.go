package rpc

import (
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/wire/message"
)

// identity is the id of the ledger that all servers of a Client must have: that of the first answer. Otherwise a client
// could read from one ledger and write to another. It is nil for a single server, which may be restored under its
// address. It is safe for concurrent use.
type identity struct{ id atomic.Pointer[string] }

// introduce sets the header of a request that names the expected ledger.
func (i *identity) introduce(h http.Header) {
	switch {
	case i == nil:
	case i.id.Load() == nil:
		h.Set(message.LedgerHeader, message.AnyLedger)
	default:
		h.Set(message.LedgerHeader, *i.id.Load())
	}
}

// check compares the header of an answer with the known ledger, and returns ErrOtherLedger if it names another one. A
// server of the ledger that the request names sends no header; nor does one that does not know its ledger yet, or that
// refuses the credential.
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
