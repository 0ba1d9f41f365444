package engine

import "github.com/seqledger/seqledger/ledger/machine"

// ReceiptName names a receipt permanently: a creation index is never used twice.
type ReceiptName struct{ CreatedIndex, Sequence uint64 }

// Receipts is a cache of receipts. No answer depends on what it holds.
type Receipts interface {
	Get(name ReceiptName) *machine.Receipt // nil: not there
	Put(name ReceiptName, r *machine.Receipt)
}

// Buffer is scratch space for Retry. The zero value is ready.
type Buffer struct{ streamKey []byte }

// Retry returns the receipt that answers a write without the log, or nil when
// the log must decide it. The view must be as fresh as every acknowledgement.
// Whether the write is a retry at all is read from its stream's record, and
// only then are receipts asked, so that none of them can be stale.
func Retry(v machine.View, c *machine.Command, receipts Receipts, b *Buffer) (*machine.Receipt, error) {
	w := c.Write()
	name := ReceiptName{Sequence: w.Sequence}
	var ok bool
	var err error
	b.streamKey, name.CreatedIndex, ok, err = v.InWindow(b.streamKey, w)
	if !ok || err != nil {
		return nil, err
	}
	hash := c.RequestHash()
	if cached := receipts.Get(name); cached != nil {
		if !cached.Answers(w.Key, hash) {
			return nil, nil
		}
		return cached, nil
	}
	found, ok, err := v.Replay(w, hash)
	if err != nil || !ok {
		return nil, err
	}
	receipts.Put(name, &found)
	return &found, nil
}
