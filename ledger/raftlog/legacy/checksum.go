package legacy

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum is what a command carries in raft.Log.Extensions: the CRC-32C of its
// data. raft-wal checks the last batch only, when it opens; without a sum for
// each entry a bit that flips at rest would be applied as if a client had sent
// it. It travels with the entry, so that a follower checks it, too. (raft-wal
// has an option for an entry codec of one's own, but marks every segment with
// its built-in codec and then refuses to open it again.)
func sum(entry []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(entry, castagnoli))
}

// verify checks an entry read from disk as the one at index. An entry that was
// no command when it was written has no sum: its kinds are Raft's own.
func verify(e *raft.Log, index uint64) error {
	if e.Index != index {
		return fmt.Errorf("%w: the entry at index %d says that it is at %d", wal.ErrCorrupt, index, e.Index)
	}
	if e.Type != raft.LogCommand {
		if len(e.Extensions) != 0 {
			// Only its type can have changed; it would be skipped in silence.
			return fmt.Errorf("%w: entry %d has the checksum of a command and is a %s", wal.ErrCorrupt, index, e.Type)
		}
		return nil
	}
	if len(e.Extensions) != crc32.Size {
		return fmt.Errorf("%w: entry %d has no checksum", wal.ErrCorrupt, index)
	}
	got, want := crc32.Checksum(e.Data, castagnoli), binary.BigEndian.Uint32(e.Extensions)
	if got != want {
		return fmt.Errorf("%w: entry %d has checksum %08x, and %08x was written", wal.ErrCorrupt, index, got, want)
	}
	return nil
}

// getVerified reads the entry at index. raft-wal's decoder panics on some
// malformed numbers, which is damage like any other.
func getVerified(disk raft.LogStore, index uint64, e *raft.Log) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: entry %d cannot be decoded: %v", wal.ErrCorrupt, index, p)
		}
	}()
	if err := disk.GetLog(index, e); err != nil {
		return err
	}
	return verify(e, index)
}
