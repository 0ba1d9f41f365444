package server

import (
	"context"
	"fmt"
	"net/http"

	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/read"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// staleReads are the reads that a caller may have from the node that it asks, without a word from the others. Not among
// them is GetClientState: a client decides by it which number comes next, and an older answer would make it repeat one
// that is taken. What is about keys is answered by the leader alone.
var staleReads = map[string]bool{
	seqledgerv1connect.LedgerServiceGetEntityProcedure:         true,
	seqledgerv1connect.LedgerServiceListEntitiesProcedure:      true,
	seqledgerv1connect.LedgerServiceListRelationshipsProcedure: true,
	seqledgerv1connect.LedgerServiceGetTransactionProcedure:    true,
	seqledgerv1connect.LedgerServiceGetBlockProcedure:          true,
	seqledgerv1connect.LedgerServiceListBlocksProcedure:        true,
	seqledgerv1connect.AdminServiceListClientsProcedure:        true,
}

// withStaleRead returns the context of a call whose header asks for a stale read, and where its index will be; nil for
// a call that does not.
func withStaleRead(
	ctx context.Context, procedure string, h http.Header,
) (context.Context, *read.Stale, error) {
	switch asked := h.Get(message.ReadHeader); {
	case asked == "":
		return ctx, nil, nil
	case asked != message.ReadStale:
		return ctx, nil, &machine.FieldError{Field: message.ReadHeader,
			Problem: fmt.Sprintf("is %.64q: the header is %q or absent", asked, message.ReadStale)}
	case !staleReads[procedure]:
		return ctx, nil, &machine.FieldError{Field: message.ReadHeader, Problem: "is for reads of entities, " +
			"relationships, transactions, blocks and the list of clients; no other call may be answered by old data"}
	}
	stale := new(read.Stale)
	return read.WithStale(ctx, stale), stale, nil
}
