package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// The file is a header and then groups, one for each fsync. client/JOURNAL.md has the bytes.
const (
	magic       = "seqljrnl"
	version     = 1 // of the format
	headerBytes = 24
	groupHeader = 12
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	marker     = []byte("\xf7GRP")
)

// appendHeader encodes a file header. salt makes the groups of one file invalid in every other,
// so that a journal inside a payload is not taken for one.
func appendHeader(b []byte, salt uint64) []byte {
	start := len(b)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint64(b, salt)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// parseHeader returns the salt, or ErrVersion or a *DamageError.
func parseHeader(path string, b []byte) (uint64, error) {
	damaged := func(reason string, args ...any) error {
		return &DamageError{Path: path, Reason: fmt.Sprintf(reason, args...)}
	}
	if len(b) < headerBytes {
		return 0, damaged("%d bytes are too few for a header, which no crash leaves behind", len(b))
	}
	if string(b[:len(magic)]) != magic {
		return 0, damaged("it begins with %q, a journal with %q", b[:len(magic)], magic)
	}
	if crc32.Checksum(b[:headerBytes-4], castagnoli) != binary.LittleEndian.Uint32(b[headerBytes-4:]) {
		return 0, damaged("the header's checksum does not match")
	}
	if v := binary.LittleEndian.Uint32(b[len(magic):]); v != version {
		return 0, fmt.Errorf("%w: %s has format version %d, and this program reads version %d; keep it and use the "+
			"program that wrote it", ErrVersion, path, v, version)
	}
	return binary.LittleEndian.Uint64(b[len(magic)+4:]), nil
}

// sealGroup fills in the header of a group: b has groupHeader free bytes, followed by the records.
func sealGroup(b []byte, salt uint64, offset int64) {
	copy(b, marker)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-groupHeader))
	binary.LittleEndian.PutUint32(b[8:], groupSum(b, salt, offset))
}

// groupSum covers the group's position too: a group that was moved or written twice is as
// invalid as one with a flipped bit.
func groupSum(b []byte, salt uint64, offset int64) uint32 {
	var seed [16]byte
	binary.LittleEndian.PutUint64(seed[:], salt)
	binary.LittleEndian.PutUint64(seed[8:], uint64(offset))
	sum := crc32.Checksum(seed[:], castagnoli)
	sum = crc32.Update(sum, castagnoli, b[4:8])
	return crc32.Update(sum, castagnoli, b[groupHeader:])
}

// groupAt returns the records of the group at offset, or why there is no valid group.
func groupAt(content []byte, salt uint64, offset int) ([]byte, string) {
	rest := content[offset:]
	switch {
	case len(rest) < groupHeader:
		return nil, "a group's header ends in the middle"
	case !bytes.Equal(rest[:len(marker)], marker):
		return nil, "no group begins here"
	}
	n := uint64(binary.LittleEndian.Uint32(rest[4:]))
	switch {
	case n == 0:
		return nil, "a group without records"
	case n > uint64(len(rest)-groupHeader):
		return nil, "a group ends in the middle"
	}
	whole := rest[:groupHeader+n]
	if groupSum(whole, salt, int64(offset)) != binary.LittleEndian.Uint32(rest[8:]) {
		return nil, "a group's checksum does not match"
	}
	return whole[groupHeader:], ""
}

// scan calls visit for each group in order and returns where the good ones end.
//
// A bad group at the end is torn: it was being written when the process or the machine stopped,
// so its fsync had not returned and nothing in it had been sent. A bad group before a good one
// is damage, because the next group is only written after that fsync.
func scan(path string, content []byte, visit func(offset int64, records []byte) error) (int64, error) {
	salt, err := parseHeader(path, content)
	if err != nil {
		return 0, err
	}
	offset := headerBytes
	for offset < len(content) {
		records, reason := groupAt(content, salt, offset)
		if reason != "" && offset >= written(content) {
			return int64(offset), nil // the rest is room for groups to come
		}
		if reason != "" {
			if next, found := nextGroup(content, salt, offset); found {
				return int64(offset), &DamageError{path, int64(offset),
					fmt.Sprintf("%s, and a good group follows at byte %d", reason, next)}
			}
			return int64(offset), nil
		}
		if err := visit(int64(offset), records); err != nil {
			return int64(offset), &DamageError{path, int64(offset), err.Error()}
		}
		offset += groupHeader + len(records)
	}
	return int64(offset), nil
}

// written returns where the zeros at the end begin.
func written(content []byte) int { return len(bytes.TrimRight(content, "\x00")) }

// nextGroup looks for a good group anywhere after offset.
func nextGroup(content []byte, salt uint64, offset int) (int, bool) {
	for at := offset + 1; ; at++ {
		next := bytes.Index(content[at:], marker)
		if next < 0 {
			return 0, false
		}
		at += next
		if _, reason := groupAt(content, salt, at); reason == "" {
			return at, true
		}
	}
}
