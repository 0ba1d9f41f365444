package ledger

import (
	"encoding/binary"
	"fmt"

	"github.com/seqledger/seqledger/ledger/machine"
)

// mustReachProven compares the ledger index after the replay with the last block
// that the state file has from before, ahead of its checkpoint. Only what was
// durable in the log and committed is ever applied, so a log that ends before
// that block has lost entries, perhaps acknowledged ones: a damaged batch at its
// very end looks like a torn write. Proven is the key of the block, or nil.
func mustReachProven(proven []byte, index uint64) error {
	if proven == nil {
		return nil
	}
	if len(proven) != 8 {
		return fmt.Errorf("%s: %w: the last block has a key of %d bytes instead of 8; restore the data directory from a backup",
			stateName, machine.ErrCorrupt, len(proven))
	}
	if last := binary.BigEndian.Uint64(proven); last > index {
		return fmt.Errorf("%w: the log reaches to ledger index %d, but %s proves that writes up to index %d were decided: "+
			"the end of the log is lost; restore the data directory from a backup", machine.ErrCorrupt, index, stateName, last)
	}
	return nil
}
