// Package backupfile is the format of a backup: it writes one, and reads one with
// every check that it allows.
//
// A backup is a header, the state file and the block files in chunks, and a trailer;
// FORMAT.md of package ledger has the bytes. The header says how long each file is,
// and every chunk but the last is full, so that a backup of a given header has one
// length, and nothing can be left out, added or moved without notice.
//
// An incremental backup is made since another one, its base, and leaves out the block
// files that the base has whole, or has from its own base. Each is named in the next by
// the hash in its trailer, so that a chain of them has one order and no gap.
package backupfile

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	// Version is the version of the format.
	Version = 1

	magic         = "seqledger backup"
	headerBytes   = plainBytes + 8 + sinceBytes + 4 // up to the sizes of the files
	plainBytes    = len(magic) + 4 + 8 + 8 + sha256.Size + 4
	sinceBytes    = 8 + sha256.Size + 8 + 8 + sha256.Size
	sizeBytes     = 8
	chunkBytes    = 256 << 10
	chunkOverhead = 4 + 4
	trailerBytes  = 4 + 8 + sha256.Size
	// maxStateBytes keeps sums of sizes within 64 bits.
	maxStateBytes = 1 << 60
	// maxFirst keeps numbers of files within 64 bits.
	maxFirst = 1 << 60
	// maxFiles bounds what is read before the checksum of a header.
	maxFiles = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Info tells what a backup holds.
type Info struct {
	LedgerID   machine.LedgerID
	Index      uint64       // ledger index of the last command in it
	Digest     machine.Hash // running digest at that index
	Sizes      []int64      // of the files in it, in bytes: the state file, then the block files
	First      uint64       // number of the first block file of the ledger
	From       uint64       // number of the first block file in it; those before are in the backups before it
	Sealed     machine.Hash // of the block file before the last one, as the last one's header has it; 0 for none
	Since      Since        // for an incremental backup
	StateBytes int64        // of all these files
	Bytes      int64        // of the whole backup
	SHA256     machine.Hash // of the whole backup; known at its end
	Sum        machine.Hash // of all but the trailer's hash, which this is; known at its end
}

// Since names the backup that an incremental one was made since. It is zero for a full one.
type Since struct {
	Sum   machine.Hash // as in Info
	Index uint64       // as in Info
	Last  uint64       // number of the last block file, which is not whole; 0 for none
}

// Incremental reports whether the backup leaves out what the one before it has.
func (i *Info) Incremental() bool { return i.Since.Sum != machine.Hash{} }

// Last returns the number of the last block file, which grows after the backup; 0 for none.
func (i *Info) Last() uint64 {
	if len(i.Sizes) < 2 {
		return 0
	}
	return i.From + uint64(len(i.Sizes)) - 2
}

// Base returns what identifies this backup as the base of an incremental one.
func (i *Info) Base() Base {
	return Base{LedgerID: i.LedgerID, Sealed: i.Sealed, Since: Since{Sum: i.Sum, Index: i.Index, Last: i.Last()}}
}

// ErrBase says that no backup can be made since the given one, because that is not of the ledger's history. The error's
// text says what does not fit. A full backup can be made.
var ErrBase = errors.New("no backup can be made since this one")

// Base is a backup that another one is made since.
type Base struct {
	LedgerID machine.LedgerID
	Sealed   machine.Hash // as in Info
	Since
}

// DamageError says that something is no backup, or not as it was made.
type DamageError struct {
	Offset int64 // of the part that is wrong, in bytes
	What   string
	Backup string // which one of a chain, as File names it; empty for a single one
}

// Error returns the defect, its offset, and what to do.
func (e *DamageError) Error() string {
	name := "the backup"
	if e.Backup != "" {
		name = e.Backup
	}
	return fmt.Sprintf("%s is damaged at byte %d: %s; use another copy or another backup", name, e.Offset, e.What)
}

// SetSizes takes over how long the files are that go into a backup, and with that
// how long the backup is.
func (i *Info) SetSizes(sizes []int64) {
	i.Sizes, i.StateBytes = sizes, 0
	for _, size := range sizes {
		i.StateBytes += size
	}
	chunks := (i.StateBytes + chunkBytes - 1) / chunkBytes
	i.Bytes = int64(headerBytes+len(sizes)*sizeBytes+4) + i.StateBytes + chunks*chunkOverhead + int64(trailerBytes)
}

func (i *Info) header() []byte {
	b := []byte(magic)
	b = binary.BigEndian.AppendUint32(b, Version)
	b = binary.BigEndian.AppendUint64(b, uint64(i.LedgerID))
	b = binary.BigEndian.AppendUint64(b, i.Index)
	b = append(b, i.Digest[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(i.Sizes)))
	b = binary.BigEndian.AppendUint64(b, i.First)
	b = binary.BigEndian.AppendUint64(b, i.From)
	b = append(b, i.Sealed[:]...)
	b = binary.BigEndian.AppendUint64(b, i.Since.Index)
	b = binary.BigEndian.AppendUint64(b, i.Since.Last)
	b = append(b, i.Since.Sum[:]...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) // checked before the number is used
	for _, size := range i.Sizes {
		b = binary.BigEndian.AppendUint64(b, uint64(size))
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// chunkSum covers the place of a chunk too, so that one that was moved is found
// where it stands.
func chunkSum(at int64, chunk []byte) uint32 {
	place := binary.BigEndian.AppendUint64(nil, uint64(at))
	return crc32.Update(crc32.Checksum(place, castagnoli), castagnoli, chunk)
}

// Writer makes a backup of the files that are written to it, one after another.
type Writer struct {
	w     io.Writer
	hash  hash.Hash // over everything that was sent
	sent  int64     // of the state
	chunk []byte    // being gathered, after its length
	pause func(n int) error
	sum   machine.Hash // in the trailer
}

// Sum returns the hash in the trailer, as in Info, once Finish has returned.
func (b *Writer) Sum() machine.Hash { return b.sum }

// NewWriter writes the header. The writer calls pause before it writes n bytes;
// an error of it ends the backup.
func NewWriter(w io.Writer, info *Info, pause func(n int) error) (*Writer, error) {
	b := &Writer{
		w: w, hash: sha256.New(), pause: pause, chunk: make([]byte, 4, 4+chunkBytes+4),
	}
	return b, b.send(info.header())
}

func (b *Writer) send(part []byte) error {
	if err := b.pause(len(part)); err != nil {
		return err
	}
	_, _ = b.hash.Write(part) // never fails
	_, err := b.w.Write(part)
	return err
}

// Write takes the next bytes of the state. It implements io.Writer.
func (b *Writer) Write(state []byte) (n int, err error) {
	for len(state) > 0 {
		taken := min(len(state), 4+chunkBytes-len(b.chunk))
		b.chunk = append(b.chunk, state[:taken]...)
		if len(b.chunk) == 4+chunkBytes {
			if err := b.sendChunk(); err != nil {
				return n, err
			}
		}
		state, n = state[taken:], n+taken
	}
	return n, nil
}

func (b *Writer) sendChunk() error {
	body := b.chunk[4:]
	binary.BigEndian.PutUint32(b.chunk, uint32(len(body)))
	err := b.send(binary.BigEndian.AppendUint32(b.chunk, chunkSum(b.sent, body)))
	b.sent += int64(len(body))
	b.chunk = b.chunk[:4]
	return err
}

// Finish writes the last chunk and the trailer. It returns the SHA-256 of
// everything, because the backup cannot hold that itself.
func (b *Writer) Finish() (whole machine.Hash, err error) {
	if len(b.chunk) > 4 {
		if err := b.sendChunk(); err != nil {
			return whole, err
		}
	}
	end := binary.BigEndian.AppendUint64(make([]byte, 4), uint64(b.sent))
	_, _ = b.hash.Write(end) // never fails
	sum := b.hash.Sum(nil)
	copy(b.sum[:], sum)
	_, _ = b.hash.Write(sum)
	b.hash.Sum(whole[:0])
	_, err = b.w.Write(append(end, sum...))
	return whole, err
}
