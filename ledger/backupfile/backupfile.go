// Package backupfile is the format of a state: it writes one, and reads one with every check that it allows. A backup
// is a state in a file; a node that joins gets one over the network; an archive has states in parts.
//
// A state is a header, the state file and the block files in chunks, and a trailer; FORMAT.md of package ledger has the
// bytes. The header says how long each file is, and every chunk but the last is full, so that a state of a given header
// has one length, and nothing can be left out, added or moved without notice.
//
// A state in an archive has only the last block file, which was not sealed. The archive has the others.
package backupfile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

const (
	// Version is the version of the format.
	Version = 1

	magic         = "seqledger backup"
	headerBytes   = len(magic) + 4 + 8 + 8 + sha256.Size + 8 + 8 + 8 + 8 + 8 + sha256.Size + 4 + 4 + 4
	sizeBytes     = 8
	chunkBytes    = 256 << 10
	chunkOverhead = 4 + 4
	trailerBytes  = 4 + 8 + sha256.Size
	// maxStateBytes keeps sums of sizes within 64 bits.
	maxStateBytes = 1 << 60
	// maxFirst keeps numbers of files within 64 bits.
	maxFirst = 1 << 60
	// maxFiles and maxMembers bound what is read before its checksum.
	maxFiles   = 1 << 20
	maxMembers = 64 << 10 // bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Info tells what a state holds.
type Info struct {
	LedgerID   machine.LedgerID
	Index      uint64           // ledger index of the last command in it
	Digest     machine.Hash     // running digest at that index
	Time       int64            // ledger time at that index, Unix nanoseconds
	At         raftlog.Position // of the log, up to which it has everything
	Members    []byte           // as of there, as raftlog.Members.Encode writes them; empty if that is not known
	Sizes      []int64          // of the files in it, in bytes: the state file, then the block files
	First      uint64           // number of the first block file of the ledger
	From       uint64           // number of the first block file in it
	Sealed     machine.Hash     // of the block file before the last one, as the last one's header has it; 0 for none
	StateBytes int64            // of all these files
	Bytes      int64            // of the whole state with its header, chunks and trailer
	SHA256     machine.Hash     // of the same; known at its end
}

// Whole reports whether the state has all block files. An archive has the others otherwise.
func (i *Info) Whole() bool { return i.From == i.First }

// Check returns the index and the digest as an entry of the log has them.
func (i *Info) Check() machine.Check {
	return machine.Check{Index: i.Index, Digest: binary.BigEndian.Uint64(i.Digest[:])}
}

// Last returns the number of the last block file, which is not sealed; 0 for none.
func (i *Info) Last() uint64 {
	if len(i.Sizes) < 2 {
		return 0
	}
	return i.From + uint64(len(i.Sizes)) - 2
}

// DamageError says that something is no backup, or not as it was made.
type DamageError struct {
	Offset int64 // of the part that is wrong, in bytes
	What   string
}

// Error returns the defect, its offset, and what to do.
func (e *DamageError) Error() string {
	return fmt.Sprintf("the backup is damaged at byte %d: %s; use another copy or another backup", e.Offset, e.What)
}

// SetSizes takes over how long the files are that go into a state, and with that how long the state is.
func (i *Info) SetSizes(sizes []int64) {
	i.Sizes, i.StateBytes = sizes, 0
	for _, size := range sizes {
		i.StateBytes += size
	}
	chunks := (i.StateBytes + chunkBytes - 1) / chunkBytes
	i.Bytes = int64(headerBytes+len(i.Members)+len(sizes)*sizeBytes+4+trailerBytes) + i.StateBytes +
		chunks*chunkOverhead
}

func (i *Info) header() []byte {
	b := []byte(magic)
	b = binary.BigEndian.AppendUint32(b, Version)
	b = binary.BigEndian.AppendUint64(b, uint64(i.LedgerID))
	b = binary.BigEndian.AppendUint64(b, i.Index)
	b = append(b, i.Digest[:]...)
	for _, n := range []uint64{uint64(i.Time), i.At.Index, i.At.Term, i.First, i.From} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(b, i.Sealed[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(i.Members)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(i.Sizes)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) // checked before the numbers are used
	b = append(b, i.Members...)
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
}

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
	end = b.hash.Sum(end)
	_, _ = b.hash.Write(end[len(end)-sha256.Size:])
	b.hash.Sum(whole[:0])
	_, err = b.w.Write(end)
	return whole, err
}
