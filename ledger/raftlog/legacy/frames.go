package legacy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
)

// The layout of a segment, as raft-wal's segment/format.go gives it: a header,
// then frames of 8-byte aligned length. A batch is entries and a commit frame
// with the CRC-32C of everything since the commit before; the batch that fills
// the segment has an index of it between them.
const (
	segmentHeader = 32
	frameHeader   = 8
	// minEntryFrame is an entry without data: four numbers of one byte, an empty
	// Extensions and a time, with the frame's header, rounded up.
	minEntryFrame = 32
	timeBytes     = 15 // of AppendedAt; 16 where the zone has seconds
)

// batches is what the whole batches at the beginning of a segment hold.
type batches struct {
	end     int // offset behind the last of them
	entries int
	index   int // offset of the segment's index, 0 if it is not full
}

func readBatches(content []byte) batches {
	var whole, read batches
	begin := 0 // of the batch; the first one includes the segment's header
	for at := segmentHeader; at+frameHeader <= len(content); {
		kind, number := content[at], binary.LittleEndian.Uint32(content[at+4:])
		next := at + frameHeader
		switch kind {
		case segment.FrameEntry, segment.FrameIndex:
			next += int(number+7) &^ 7
			if number > 1<<31 || next > len(content) {
				return whole
			}
			if kind == segment.FrameEntry {
				read.entries++
			} else {
				read.index = at + frameHeader
			}
		case segment.FrameCommit:
			if crc32.Checksum(content[begin:at], castagnoli) != number {
				return whole
			}
			read.end, begin = next, next
			whole = read
		default:
			return whole
		}
		at = next
	}
	return whole
}

// remains looks through what follows the last whole batch of a segment, which is
// either what a torn write left or damage. A write is one batch with one commit
// frame at its end, and the next is made only after the one before is on disk or
// its remains are zeroed. So a whole batch behind bytes that make no sense means
// that those were once whole, too: they were acknowledged, and must not go.
//
// The bytes of a torn write are in part a client's, who may have put something
// there that looks like a batch: it would keep the node from starting after a
// power loss. Two things are in the way.
//
//   - The walk: from the end of the last whole batch the frames are followed by
//     their lengths, so that the inside of an entry is never searched. A length counts only
//     when the entry's own numbers, which stand right behind it, give the same
//     one and the very next Raft index: a damaged length would otherwise lead
//     past acknowledged batches. A client controls neither.
//   - The search, behind the first frame that cannot be followed, takes a batch
//     for real only if each of its entries is well-formed, they have successive
//     indexes that leave room for what is missing and no more, the sum of each
//     command fits, and a commit frame with the sum of all of it ends them.
//
// What remains: a client who imitates all that, with indexes of the very moment,
// while the power fails in the write of that entry, and the page with the
// entry's header is lost though later pages of the same write arrive. Then the
// node refuses to start. Nothing on the disk tells that from damage, and of the
// two errors only the other one would lose what was acknowledged.
type remains struct {
	content []byte
	base    uint64 // index of the segment's first entry
	budget  int    // bytes that may still be checked
}

// checksPerByte bounds the search: entries that imitate each other in layers
// could otherwise make it quadratic. A real log takes less, because a batch has
// at most queuedEntries entries and each of them is tried as the first.
const checksPerByte = 2 * queuedEntries

// checkTorn returns an error if what follows the whole batches of content is no
// torn write. Base is the index of the segment's first entry.
func checkTorn(content []byte, whole batches, base uint64) error {
	r := &remains{content: content, base: base, budget: (len(content) - whole.end + 1<<10) * checksPerByte}
	at, next, found := r.walk(max(whole.end, segmentHeader), base+uint64(whole.entries))
	if found < 0 {
		found = r.search(at, next)
	}
	switch {
	case r.budget < 0:
		// To refuse is the error that loses nothing.
		return fmt.Errorf("%w: unreadable from offset %d, and what follows is made to look like entries",
			wal.ErrCorrupt, whole.end)
	case found >= 0:
		return fmt.Errorf("%w: unreadable from offset %d, and readable again from offset %d", wal.ErrCorrupt,
			whole.end, found)
	}
	return nil
}

// walk follows the frames from at, where the entry with the index next should
// be. It returns where it had to stop, the index expected there, and where a
// whole batch begins that it came by, or -1.
func (r *remains) walk(at int, next uint64) (stop int, expected uint64, found int) {
	begin := -1 // of a batch behind a commit frame; the first one is known not to be whole
	for {
		kind, size := r.frame(at, next)
		switch kind {
		case segment.FrameEntry:
			next++
		case segment.FrameCommit:
			if begin >= 0 && r.whole(begin, at) {
				return at, next, begin
			}
			begin = at + size
		case segment.FrameInvalid:
			return at, next, -1
		}
		at += size
	}
}

// search returns where behind at a whole batch begins, or -1. Next is the lowest
// index that it may begin with.
func (r *remains) search(from int, next uint64) int {
	for at := from; at+frameHeader <= len(r.content) && r.budget >= 0; at += frameHeader {
		index, _, ok := entryFrame(r.content[at:])
		if !ok || index < next || index-next > uint64((at-from)/minEntryFrame) {
			continue
		}
		end := at
		kind, size := r.frame(end, index)
		for kind == segment.FrameEntry || kind == segment.FrameIndex {
			if kind == segment.FrameEntry {
				index++
			}
			end += size
			r.budget -= minEntryFrame
			kind, size = r.frame(end, index)
		}
		if kind == segment.FrameCommit && r.whole(at, end) {
			return at
		}
	}
	return -1
}

// frame returns the kind and the size of the frame at an offset. It is
// FrameInvalid if the frame cannot be followed; an entry must have the index next.
func (r *remains) frame(at int, next uint64) (kind uint8, size int) {
	if at+frameHeader > len(r.content) {
		return segment.FrameInvalid, 0
	}
	head, number := binary.LittleEndian.Uint32(r.content[at:]), binary.LittleEndian.Uint32(r.content[at+4:])
	switch head {
	case uint32(segment.FrameEntry):
		if index, size, ok := entryFrame(r.content[at:]); ok && index == next {
			return segment.FrameEntry, size
		}
	case uint32(segment.FrameIndex):
		// It has four bytes for each entry of the segment.
		if uint64(number) == 4*(next-r.base) {
			return segment.FrameIndex, frameHeader + int(number+7)&^7
		}
	case uint32(segment.FrameCommit):
		return segment.FrameCommit, frameHeader
	}
	return segment.FrameInvalid, 0
}

// entryFrame reads the beginning of an entry's frame: its Raft index and the
// frame's size. It is ok if the two lengths in it, the frame's and the data's,
// agree to the byte. The rest of the frame may be missing.
func entryFrame(b []byte) (index uint64, size int, ok bool) {
	if len(b) < minEntryFrame || binary.LittleEndian.Uint32(b) != uint32(segment.FrameEntry) {
		return 0, 0, false
	}
	length := uint64(binary.LittleEndian.Uint32(b[4:]))
	var numbers [4]uint64 // index, term, type, bytes of data
	head := b[frameHeader:]
	for i := range numbers {
		n := 0
		if numbers[i], n = binary.Uvarint(head); n <= 0 {
			return 0, 0, false
		}
		head = head[n:]
	}
	prefix := uint64(len(b) - frameHeader - len(head))
	rest := uint64(1 + timeBytes) // behind the data
	if raft.LogType(numbers[2]) == raft.LogCommand {
		rest += crc32.Size
	}
	if length > segment.MaxEntrySize || numbers[3] > length {
		return 0, 0, false
	}
	if want := prefix + numbers[3] + rest; length != want && length != want+1 {
		return 0, 0, false
	}
	return numbers[0], frameHeader + int(length+7)&^7, true
}

// whole tells whether the frames from begin to the commit frame at end are a
// batch that was written as it is here.
func (r *remains) whole(begin, end int) bool {
	r.budget -= end - begin
	if begin == end || r.budget < 0 ||
		crc32.Checksum(r.content[begin:end], castagnoli) != binary.LittleEndian.Uint32(r.content[end+4:]) {
		return false
	}
	for at := begin; at < end; {
		index, size, ok := entryFrame(r.content[at:])
		if !ok {
			break // the index of the segment: frame has checked it
		}
		length := int(binary.LittleEndian.Uint32(r.content[at+4:]))
		if decodeVerified(r.content[at+frameHeader:at+frameHeader+length], index) != nil {
			return false
		}
		at += size
	}
	return true
}

// decodeVerified checks an entry as raft-wal encodes it.
func decodeVerified(encoded []byte, index uint64) (err error) {
	defer func() {
		if recover() != nil { // as in getVerified
			err = errors.New("malformed entry")
		}
	}()
	var e raft.Log
	if err := (&wal.BinaryCodec{}).Decode(encoded, &e); err != nil {
		return err
	}
	return verify(&e, index)
}
