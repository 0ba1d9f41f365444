package conformance

import (
	"context"
	"fmt"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/cmd/seqledger/child"
)

// found is a transaction of the client's stream.
type found struct {
	id       string // the text that was written
	sequence uint64
	txID     string
}

// readLedger returns the transactions of the client under test, in commit order.
func readLedger(ctx context.Context, conn *client.Client) (all []found, err error) {
	transactions, err := child.Transactions(ctx, conn, scope())
	if err != nil {
		return nil, err
	}
	for _, t := range transactions {
		if t.GetClientId() != clientID {
			continue
		}
		if len(t.GetOperations()) != 1 {
			return nil, fmt.Errorf("transaction %s has %d operations, one was submitted", t.GetTxId(),
				len(t.GetOperations()))
		}
		all = append(all, found{textOf(t.GetOperations()), t.GetSequence(), t.GetTxId()})
	}
	return all, nil
}

// compare returns the first contradiction between the books and the ledger, or nil.
func (b *books) compare(ledger []found) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.problem != nil {
		return b.problem
	}
	times := make(map[string]int)
	receipt := make(map[string]found)
	for _, f := range ledger {
		if b.writes[f.id] == nil {
			return fmt.Errorf("transaction %s has %q, which was never submitted", f.txID, f.id)
		}
		times[f.id]++
		receipt[f.id] = f
	}
	for _, id := range b.order {
		e, n := b.writes[id].outcome, times[id]
		switch {
		case n > 1:
			return fmt.Errorf("%s is in the ledger %d times", id, n)
		case e.Outcome == notExecuted && n > 0:
			return fmt.Errorf("the client said that %s was not executed, and it is in the ledger", id)
		case (e.Outcome == committed || e.Outcome == known) && n == 0:
			return fmt.Errorf("the client said that %s is committed, and it is not in the ledger", id)
		case e.Outcome == committed && e.Sequence != receipt[id].sequence:
			return fmt.Errorf("the client said that %s has sequence %d, and it has %d",
				id, e.Sequence, receipt[id].sequence)
		case e.Outcome == committed && e.TxID != "" && e.TxID != receipt[id].txID:
			return fmt.Errorf("the client said that %s is transaction %s, and it is %s",
				id, e.TxID, receipt[id].txID)
		}
	}
	return nil
}
