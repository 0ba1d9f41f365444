package legacy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
)

func appendFrame(b []byte, kind byte, payload []byte) []byte {
	b = append(b, kind, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	return append(b, make([]byte, -len(payload)&7)...)
}

// appendBatch appends commands as raft-wal writes them, from an index on.
func appendBatch(t testing.TB, b []byte, begin int, index uint64, commands ...[]byte) []byte {
	t.Helper()
	for i, data := range commands {
		var encoded bytes.Buffer
		must(t, (&wal.BinaryCodec{}).Encode(&raft.Log{
			Index: index + uint64(i), Term: 3, Type: raft.LogCommand, Data: data, Extensions: sum(data),
			AppendedAt: time.Unix(1, 0),
		}, &encoded))
		b = appendFrame(b, segment.FrameEntry, encoded.Bytes())
	}
	crc := crc32.Checksum(b[begin:], castagnoli)
	b = append(b, segment.FrameCommit, 0, 0, 0)
	return binary.LittleEndian.AppendUint32(b, crc)
}

// imitation is what a client may send: batches with the indexes from first on,
// behind residue bytes.
func imitation(t testing.TB, first uint64, residue int) []byte {
	t.Helper()
	b := bytes.Repeat([]byte{'x'}, residue)
	for i := range uint64(40) {
		b = appendBatch(t, b, len(b), first+i, []byte("never written"))
	}
	return b
}

// twoCommits is the least that once passed for a batch: two commit frames, the
// second with the sum of what is between them, at every alignment.
func twoCommits() []byte {
	var b []byte
	for range 8 {
		b = append(b, segment.FrameCommit, 0, 0, 0, 0, 0, 0, 0)
		b = append(b, "12345678"...)
		b = append(b, segment.FrameCommit, 0, 0, 0)
		b = binary.LittleEndian.AppendUint32(b, crc32.Checksum([]byte("12345678"), castagnoli))
		b = append(b, 'x') // shifts the next one
	}
	return b
}

// tornSegment returns a segment with some whole batches and a last one that
// holds payload, and where that begins. The first entry has index 100.
func tornSegment(t testing.TB, payload []byte) (content []byte, start int) {
	t.Helper()
	content = make([]byte, segmentHeader)
	begin := 0
	for i := range uint64(5) {
		content = appendBatch(t, content, begin, 100+2*i, []byte("first"), fmt.Append(nil, "second of ", i))
		begin = len(content)
	}
	return appendBatch(t, content, begin, 110, payload, []byte("more")), begin
}

// A client's bytes cannot turn a torn write into damage while the header of
// their entry arrived: at every alignment, wherever the write was cut, and
// whatever hole it has.
func TestCraftedPayloadIsNotRead(t *testing.T) {
	t.Parallel()
	payloads := [][]byte{twoCommits()}
	for residue := range 8 {
		for first := range uint64(3) {
			payloads = append(payloads, imitation(t, 110+first, residue))
		}
	}
	for i, payload := range payloads {
		content, start := tornSegment(t, payload)
		if whole := readBatches(content); whole.end != len(content) || whole.entries != 12 {
			t.Fatalf("payload %d: the segment reads as %+v of %d bytes", i, whole, len(content))
		}
		check := func(torn []byte, how string) {
			t.Helper()
			whole := readBatches(torn)
			if whole.end != start {
				t.Fatalf("payload %d, %s: whole up to %d, want %d", i, how, whole.end, start)
			}
			if err := checkTorn(torn, whole, 100); err != nil {
				t.Fatalf("payload %d, %s: a torn write keeps the node from starting: %v", i, how, err)
			}
		}
		for cut := start + 64; cut < len(content); cut += 8 {
			check(bytes.Clone(content[:cut]), fmt.Sprintf("cut at %d", cut))
			hole := bytes.Clone(content)
			clear(hole[cut:min(cut+512, len(hole))])
			check(hole, fmt.Sprintf("hole at %d", cut))
		}
	}
}

// Without the header of its entry the payload is searched. What is not an exact
// continuation is no batch; what is one is refused, as damage would be.
func TestCraftedPayloadWithoutItsHeader(t *testing.T) {
	t.Parallel()
	forgedSum := func() []byte { // the commit frame fits, the entry's own sum does not
		b := appendBatch(t, nil, 0, 111, []byte("data"))
		at := bytes.Index(b, sum([]byte("data")))
		b[at] ^= 1
		b = b[:len(b)-4]
		return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[:len(b)-4], castagnoli))
	}()
	jump := appendBatch(t, nil, 0, 111, []byte("one"))
	jump = appendBatch(t, jump[:len(jump)-frameHeader], 0, 113, []byte("not the next one"))
	for name, tt := range map[string]struct {
		payload []byte
		refused bool
	}{
		"commit frames alone": {twoCommits(), false},
		"indexes of the past": {imitation(t, 60, 0), false},
		"indexes to come":     {imitation(t, 1000, 0), false},
		"sum that is wrong":   {forgedSum, false},
		"indexes that jump":   {jump, false},
		"one whole batch":     {appendBatch(t, nil, 0, 111, []byte("data")), true},
		"exact continuation":  {imitation(t, 111, 0), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for residue := range 8 {
				// Room for the entry that is missing, which has the index 110.
				payload := append(bytes.Repeat([]byte{'x'}, 2*minEntryFrame+residue), tt.payload...)
				content, start := tornSegment(t, payload)
				clear(content[start : start+8])
				err := checkTorn(content, readBatches(content), 100)
				aligned := bytes.Index(content, tt.payload)%8 == 0
				if want := tt.refused && aligned; errors.Is(err, wal.ErrCorrupt) != want {
					t.Errorf("residue %d: %v, want refused %t", residue, err, want)
				}
			}
		})
	}
}

// Any byte that changed, and any stretch that was lost, with an acknowledged
// batch behind it, is damage. Entries with a client's imitations hide none of it.
func TestDamageBeforeWholeBatchesIsRefused(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string][]byte{
		"plain": []byte("plain"), "crafted": imitation(t, 111, 5)[:300], "two commits": twoCommits(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content, _ := tornSegment(t, payload)
			last := len(content)
			content = appendBatch(t, content, last, 112, []byte("acknowledged"))
			check := func(damaged []byte, how string) {
				t.Helper()
				whole := readBatches(damaged)
				if whole == readBatches(content) {
					return // an unused byte of a commit frame: nothing is lost
				}
				if err := checkTorn(damaged, whole, 100); !errors.Is(err, wal.ErrCorrupt) {
					t.Fatalf("%s: %v, and what was acknowledged behind it would be removed", how, err)
				}
			}
			for at := range last {
				for _, mask := range []byte{0x01, 0x40, 0x80, 0xff} {
					damaged := bytes.Clone(content)
					damaged[at] ^= mask
					check(damaged, fmt.Sprintf("byte %d ^ %#x", at, mask))
				}
				for _, size := range []int{8, 64, 512} {
					damaged := bytes.Clone(content)
					clear(damaged[at:min(at+size, last)])
					if !bytes.Equal(damaged, content) {
						check(damaged, fmt.Sprintf("%d bytes at %d", size, at))
					}
				}
			}
		})
	}
}

// A full segment's last batch is found behind damage, too: it has an index.
func TestDamageBeforeTheIndexIsRefused(t *testing.T) {
	t.Parallel()
	content, _ := tornSegment(t, []byte("payload"))
	last := len(content)
	content = appendBatch(t, content, last, 112, []byte("fills the segment"))
	content = content[:len(content)-frameHeader]
	content = appendFrame(content, segment.FrameIndex, make([]byte, 13*4))
	crc := crc32.Checksum(content[last:], castagnoli)
	content = append(content, segment.FrameCommit, 0, 0, 0)
	content = binary.LittleEndian.AppendUint32(content, crc)
	if whole := readBatches(content); whole.end != len(content) || whole.index == 0 {
		t.Fatalf("the segment reads as %+v", whole)
	}
	for at := range last {
		damaged := bytes.Clone(content)
		damaged[at] ^= 0x10
		whole := readBatches(damaged)
		if whole.end == len(damaged) {
			continue // an unused byte of a commit frame: nothing is lost
		}
		if err := checkTorn(damaged, whole, 100); !errors.Is(err, wal.ErrCorrupt) {
			t.Fatalf("byte %d: %v", at, err)
		}
	}
}

// Layers of entries in each other would take the search for ever: it gives up,
// and refuses.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	const layers = 3000
	// Each entry holds all that are behind it, and all end in the same place.
	tail := make([]byte, 1+4+timeBytes)
	tail[0] = 4
	var b []byte
	for range layers {
		inner := len(b) + len(tail)
		entry := binary.AppendUvarint([]byte{111, 3, byte(raft.LogCommand)}, uint64(len(b)))
		for (len(entry))%8 != 0 { // an uvarint may be longer than it needs to be
			entry[len(entry)-1] |= 0x80
			entry = append(entry, 0)
		}
		length := len(entry) + inner
		head := binary.LittleEndian.AppendUint32([]byte{segment.FrameEntry, 0, 0, 0}, uint32(length))
		b = append(append(head, entry...), b...)
	}
	b = append(b, tail...)
	b = append(b, make([]byte, -len(b)&7)...)
	b = append(b, segment.FrameCommit, 0, 0, 0, 1, 2, 3, 4)
	content, start := tornSegment(t, []byte("x"))
	content = append(append(content[:start:start], make([]byte, 8)...), b...)
	if err := checkTorn(content, readBatches(content), 100); !errors.Is(err, wal.ErrCorrupt) ||
		!strings.Contains(err.Error(), "made to look like") {
		t.Errorf("got %v, want the search to end and refuse", err)
	}
}

// The node starts after a power loss in the write of a crafted payload.
func TestCraftedPayloadDoesNotStopTheNode(t *testing.T) {
	t.Parallel()
	for residue := range 9 {
		t.Run(fmt.Sprint(residue), func(t *testing.T) {
			t.Parallel()
			dir, m := t.TempDir(), &recorder{}
			l := created(t, dir, m)
			write(t, l, numbered(30)...)
			acknowledged := len(m.texts())
			payload := twoCommits()
			if residue < 8 {
				next := m.applied[len(m.applied)-1].Index + 1
				payload = append(bytes.Repeat([]byte{'x'}, residue), imitation(t, next+1, 0)...)
			}
			write(t, l, string(payload)+strings.Repeat("y", 8000))
			l.Fail(errors.New("power loss"))
			_ = l.Close()
			file := segments(t, dir)[0]
			content := readFile(t, file)
			end := readBatches(content).end
			clear(content[lastFrame(content, end)+4096 : end]) // the later pages did not arrive
			must(t, os.WriteFile(file, content, 0o644))
			again := &recorder{}
			l = open(t, options(dir, again))
			if got := len(again.texts()); got != acknowledged {
				t.Errorf("found %d entries, want %d", got, acknowledged)
			}
			write(t, l, "more")
		})
	}
}

// FuzzCheckTorn: whatever the bytes, the look through them ends and stays inside.
func FuzzCheckTorn(f *testing.F) {
	content, start := tornSegment(f, imitation(f, 111, 3))
	f.Add(content[start:], uint64(110))
	f.Add(content[start+1:], uint64(111))
	f.Add(twoCommits(), uint64(0))
	f.Fuzz(func(t *testing.T, behind []byte, base uint64) {
		whole := content[:start:start]
		_ = checkTorn(append(whole, behind...), batches{end: start}, base)
		_ = checkTorn(behind, batches{}, base)
		if index, size, ok := entryFrame(behind); ok && size < minEntryFrame {
			t.Fatalf("entry %d in %d bytes", index, size)
		}
	})
}
