package archive

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// VisitScope calls visit for the blocks of a scope from a height on, in order, until it returns false. Each block
// is checked against its transactions and the block before it; damage is machine.ErrCorrupt.
func VisitScope(
	disk Disk, scope machine.Scope, from uint64, visit func(h machine.BlockHeader, txs []machine.Transaction) bool,
) (err error) {
	x, err := readIndex(disk)
	if err != nil || len(x.entries) == 0 {
		return err
	}
	entries := x.entries
	files, err := blockfile.OpenAllSealed(disk, entries[0].Number, entries[len(entries)-1].Number)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	reader := blocksReader{files.Reader()}
	defer reader.Close()
	return machine.NewBlocks(reader, machine.Horizon{}).VisitScope(scope, from, visit)
}

// blocksReader is a machine.Reader of block files alone.
type blocksReader struct{ *blockfile.Reader }

// Get implements machine.Reader.
func (r blocksReader) Get(table machine.Table, _ []byte) ([]byte, error) {
	return nil, fmt.Errorf("an archive has no table %d", table)
}

// Ascend implements machine.Reader, from the first record on.
func (r blocksReader) Ascend(table machine.Table, _ []byte, visit func(key, value []byte) bool) error {
	if table != machine.TableBlocks {
		return fmt.Errorf("an archive has no table %d", table)
	}
	var failed error
	err := r.Reader.Ascend(0, func(x blockfile.Record) bool {
		if failed = x.Check(); failed != nil {
			return false
		}
		return visit(binary.BigEndian.AppendUint64(nil, x.Last), x.Data)
	})
	return errors.Join(err, failed)
}
