package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/seqledger/seqledger/ledger/internal/format"
)

// Entry is an entry of the replicated log.
type Entry struct {
	Index, Term uint64
	Kind        uint8 // describes Data; but for KindChange, the caller defines the values
	Data        []byte
}

// KindChange is the kind of an entry that changes the members; see [Log.Append].
const KindChange = 2

// Position is the place of an entry in the log. The zero Position is before the first entry.
type Position struct {
	Index uint64 // 1 for the first entry; entries of every kind count
	Term  uint64 // Raft term in which a leader appended the entry
}

// String returns "index N of term T".
func (p Position) String() string { return fmt.Sprintf("index %d of term %d", p.Index, p.Term) }

// State is the Raft state that must survive a crash.
type State struct {
	Term, Vote uint64 // the current term, and the node that this node voted for in it; 0: none
	Commit     uint64 // entries up to here are committed; not every advance is stored
}

// Checkpoint says how far the state store is durable, so that entries up to its position may be dropped.
type Checkpoint struct {
	Position
	Data []byte // defined by the caller, such as the members at the position; at most MaxCheckpointBytes
}

const (
	magic        = "seqseg\x00"
	version      = 1 // the byte after the magic
	headerBytes  = 4096
	recordBytes  = 40 // before the payload
	stateBytes   = 24
	maxIdentity  = 256
	sealedBytes  = recordBytes // space reserved in a segment for its seal
	fileTemplate = "%016x.log"
	temporary    = "new.tmp"
	alignment    = 8
	// MaxCheckpointBytes is the maximum length of Checkpoint.Data.
	MaxCheckpointBytes = 2 << 10
	// MaxEntryBytes is the maximum length of Entry.Data.
	MaxEntryBytes = 64 << 20
)

// Kinds of records.
const (
	kindEntry      = 1 // an entry; its index follows the previous one
	kindState      = 2 // payload: term, vote, commit
	kindRewind     = 3 // the entries after index are replaced from here on
	kindCheckpoint = 4 // payload: Checkpoint.Data
	kindSeal       = 5 // the log continues in the next segment, which has at least one record
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the beginning of a segment. It is durable before the segment has its name.
type header struct {
	number     uint64 // of the segment: 1, 2, 3, …
	size       int64  // of the whole file, in bytes
	salt       [8]byte
	marker     uint32 // in each record; unknown to clients, so that no payload is mistaken for a record
	previous   uint32 // checksum of the last record before this segment; 0 for the first
	reset      bool   // everything before this segment is obsolete
	base       Position
	state      State
	checkpoint Checkpoint
	identity   []byte
}

func (h *header) encode() []byte {
	b := make([]byte, 0, headerBytes)
	b = append(append(b, magic...), version)
	b = binary.LittleEndian.AppendUint64(b, h.number)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.size))
	b = append(b, h.salt[:]...)
	b = binary.LittleEndian.AppendUint32(b, h.marker)
	b = binary.LittleEndian.AppendUint32(b, h.previous)
	reset := uint64(0)
	if h.reset {
		reset = 1
	}
	for _, v := range []uint64{
		reset, h.base.Index, h.base.Term, h.state.Term, h.state.Vote, h.state.Commit,
		h.checkpoint.Index, h.checkpoint.Term, uint64(len(h.checkpoint.Data)), uint64(len(h.identity)),
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = append(b, h.checkpoint.Data...)
	b = append(b, h.identity...)
	b = b[:headerBytes-4]
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeHeader(b []byte) (*header, error) {
	if len(b) != headerBytes || string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("not a log segment: it begins with %q", b[:min(len(b), len(magic)+1)])
	}
	if crc32.Checksum(b[:headerBytes-4], castagnoli) != binary.LittleEndian.Uint32(b[headerBytes-4:]) {
		return nil, fmt.Errorf("the checksum of its header is wrong")
	}
	if err := format.Check(b[len(magic)], version); err != nil {
		return nil, err
	}
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	h := &header{
		number: u64(8), size: int64(u64(16)), salt: [8]byte(b[24:32]),
		marker: binary.LittleEndian.Uint32(b[32:]), previous: binary.LittleEndian.Uint32(b[36:]),
		reset: u64(40) == 1, base: Position{u64(48), u64(56)}, state: State{u64(64), u64(72), u64(80)},
		checkpoint: Checkpoint{Position: Position{u64(88), u64(96)}},
	}
	data, identity := u64(104), u64(112)
	const fixed = 120
	if data > MaxCheckpointBytes || identity > maxIdentity || h.size < headerBytes || h.size%alignment != 0 {
		return nil, fmt.Errorf("its header makes no sense")
	}
	h.checkpoint.Data = b[fixed : fixed+data]
	h.identity = b[fixed+data : fixed+data+identity]
	return h, nil
}

// seed is the initial checksum of each record in the segment.
func (h *header) seed() uint32 { return crc32.Checksum(h.salt[:], castagnoli) }

// record is one record as stored in a segment.
type record struct {
	crc       uint32
	previous  uint32 // checksum of the previous record
	length    int    // of the payload
	durable   int64  // durable length of the segment when the record was written
	kind      uint8
	entryKind uint8
	at        Position
}

func padded(n int) int64 { return int64((n + alignment - 1) &^ (alignment - 1)) }

// bytes returns the size of the record in the file.
func (r *record) bytes() int64 { return recordBytes + padded(r.length) }

// append appends the record to b and sets its checksum.
func (r *record) append(b []byte, h *header, seed uint32, payload []byte) []byte {
	begin := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, h.marker)
	b = binary.LittleEndian.AppendUint32(b, r.previous)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.durable/alignment))
	b = append(b, r.kind, r.entryKind, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, r.at.Index)
	b = binary.LittleEndian.AppendUint64(b, r.at.Term)
	b = append(b, payload...)
	r.length = len(payload)
	r.crc = crc32.Update(seed, castagnoli, b[begin+4:])
	binary.LittleEndian.PutUint32(b[begin:], r.crc)
	var zeros [alignment]byte
	return append(b, zeros[:int(padded(len(payload)))-len(payload)]...)
}

// decodeRecord decodes the fixed part of a record. It does not verify the checksum.
func decodeRecord(b []byte, h *header) (record, bool) {
	u32 := binary.LittleEndian.Uint32
	if u32(b[4:]) != h.marker {
		return record{}, false
	}
	r := record{
		crc: u32(b), previous: u32(b[8:]), length: int(u32(b[12:])), durable: int64(u32(b[16:])) * alignment,
		kind: b[20], entryKind: b[21],
		at: Position{binary.LittleEndian.Uint64(b[24:]), binary.LittleEndian.Uint64(b[32:])},
	}
	// Bounded here, because the checksum is not verified yet and the length may be damaged.
	return r, r.length <= MaxEntryBytes
}

// verify checks the checksum of a record; fixed is the record's fixed part.
func (r *record) verify(seed uint32, fixed, payload []byte) bool {
	return crc32.Update(crc32.Update(seed, castagnoli, fixed[4:recordBytes]), castagnoli, payload) == r.crc
}

func encodeState(s State) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, stateBytes), s.Term)
	b = binary.LittleEndian.AppendUint64(b, s.Vote)
	return binary.LittleEndian.AppendUint64(b, s.Commit)
}

func decodeState(b []byte) State {
	return State{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
}
