package demo

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Side is the outcome of one side's payments. The payment logs show what was attempted and
// acknowledged, the ledger what was found, the proxy the rest.
type Side struct {
	Attempted    uint64 `json:"attempted,string"`    // payments that clients intended
	Acknowledged uint64 `json:"acknowledged,string"` // of those, recorded as paid by their client
	Found        uint64 `json:"found,string"`        // transactions in the ledger
	Duplicates   uint64 `json:"duplicates,string"`   // transactions beyond the first of a payment
	Lost         uint64 `json:"lost,string"`         // payments acknowledged and not in the ledger
	Extra        uint64 `json:"extra,string"`        // transactions that no client intended in this form
	// CentsAcknowledged is the sum of the payments acknowledged, CentsFound
	// that of the transactions in the ledger.
	CentsAcknowledged int64 `json:"centsAcknowledged,string"`
	CentsFound        int64 `json:"centsFound,string"`
	// Counts are the counts of the proxy and of the kills.
	Counts
}

// Correct reports whether the ledger has each acknowledged payment exactly once, and nothing else.
func (c *Side) Correct() bool { return c.Duplicates == 0 && c.Lost == 0 && c.Extra == 0 }

// audit reads the payment logs and the ledger, bypassing the proxy, and compares them.
func (s *side) audit(ctx context.Context) (_ *Side, err error) {
	var intended []*payments.Payment
	for i := range s.clients {
		all, err := payments.ReadLog(filepath.Join(s.clientDir(i), logName))
		if err != nil {
			return nil, fmt.Errorf("the payment log of %s: %w", clientName(i), err)
		}
		intended = append(intended, all...)
	}
	conn, err := client.New(client.Options{Server: s.address})
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // read only
	found, err := child.Transactions(ctx, conn, scope())
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	result := compare(intended, found)
	result.Counts = s.tally.snapshot()
	return result, nil
}

// compare counts how often each intended payment is in the ledger.
func compare(intended []*payments.Payment, found []*seqledgerv1.Transaction) *Side {
	result := &Side{Attempted: uint64(len(intended)), Found: uint64(len(found))}
	cents := make(map[string]int64, len(intended))
	for _, p := range intended {
		cents[p.Tag] = p.Cents
	}
	times := make(map[string]uint64, len(intended))
	for _, transaction := range found {
		p, ok := payments.Of(transaction.GetOperations())
		result.CentsFound += p.Cents
		if amount, known := cents[p.Tag]; !ok || !known || amount != p.Cents {
			result.Extra++
			continue
		}
		if times[p.Tag]++; times[p.Tag] > 1 {
			result.Duplicates++
		}
	}
	for _, p := range intended {
		if !p.Paid {
			continue
		}
		result.Acknowledged++
		result.CentsAcknowledged += p.Cents
		if times[p.Tag] == 0 {
			result.Lost++
		}
	}
	return result
}
