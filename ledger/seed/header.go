package seed

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

// header precedes the backup. Its format is
//
//	8 bytes   "SQLGSEED"
//	u32       version, 1
//	u32       length of the JSON
//	JSON      header
//	u32       CRC-32C of everything before
//
// with numbers in big-endian order.
type header struct {
	Index   uint64 `json:"index"` // log index up to which the state is complete
	Term    uint64 `json:"term"`
	Members []byte `json:"members"` // as of Index; see raftlog.Members.Encode
}

const (
	magic          = "SQLGSEED"
	version        = 1
	maxHeaderBytes = 64 << 10
	prefixBytes    = len(magic) + 8
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	// ErrDamaged means that a seed is not what a node sent.
	ErrDamaged = errors.New("the state that was received is damaged or cut off")
)

// writeHeader writes the beginning of a seed.
func writeHeader(w io.Writer, info *cluster.SeedInfo) error {
	content, err := json.Marshal(header{Index: info.At.Index, Term: info.At.Term, Members: info.Members})
	if err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint32([]byte(magic), version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(content)))
	b = append(b, content...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	_, err = w.Write(b)
	return err
}

// readHeader reads the beginning of a seed.
func readHeader(r io.Reader) (h header, at raftlog.Position, err error) {
	b := make([]byte, prefixBytes)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, at, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if string(b[:len(magic)]) != magic {
		return h, at, fmt.Errorf("%w: it does not begin like one", ErrDamaged)
	}
	size := binary.BigEndian.Uint32(b[len(magic)+4:])
	if size > maxHeaderBytes {
		return h, at, fmt.Errorf("%w: a header of %d bytes", ErrDamaged, size)
	}
	b = append(b, make([]byte, size+4)...)
	if _, err := io.ReadFull(r, b[prefixBytes:]); err != nil {
		return h, at, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	end := len(b) - 4
	if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return h, at, fmt.Errorf("%w: the header's checksum is wrong", ErrDamaged)
	}
	if err := format.Check(binary.BigEndian.Uint32(b[len(magic):]), version); err != nil {
		return h, at, fmt.Errorf("the other node's state: %w", err)
	}
	if err := json.Unmarshal(b[prefixBytes:end], &h); err != nil {
		return h, at, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return h, raftlog.Position{Index: h.Index, Term: h.Term}, nil
}
