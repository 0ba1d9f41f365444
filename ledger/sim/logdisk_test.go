package sim

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// logDisk is a file of records on a disk with a cache in front of it. Synced data survives everything. Unsynced data
// survives the death of the process, except for the write in progress. After a power loss any part of it may remain, up
// to any byte.
type logDisk struct {
	records []record
	synced  int    // how many of records are on the disk
	rest    []byte // the bytes after the records when a start finds the file
	// deaf is set after a failed sync. The system marks the pages clean, so that no later sync writes them; they must
	// be written again.
	deaf bool
}

type record struct {
	index, term uint64
	data        []byte
}

const recordHeader = 4 + 4 + 8 + 8

func (r record) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(r.data)))
	body := binary.BigEndian.AppendUint64(nil, r.index)
	body = binary.BigEndian.AppendUint64(body, r.term)
	body = append(body, r.data...)
	dst = binary.BigEndian.AppendUint32(dst, crc32.Checksum(body, castagnoli))
	return append(dst, body...)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readRecord decodes the first record of b. With believe, a control, it accepts incomplete records.
func readRecord(b []byte, believe bool) (r record, rest []byte, ok bool) {
	if len(b) < recordHeader {
		return record{}, b, false
	}
	size := int(binary.BigEndian.Uint32(b))
	if size < 0 || size > len(b)-recordHeader {
		if !believe {
			return record{}, b, false
		}
		size = len(b) - recordHeader
	}
	body := b[8 : recordHeader+size]
	if !believe && crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b[4:]) {
		return record{}, b, false
	}
	r = record{binary.BigEndian.Uint64(body), binary.BigEndian.Uint64(body[8:]), slices.Clone(body[16:])}
	return r, b[recordHeader+size:], true
}

func (d *logDisk) last() uint64 {
	if len(d.records) == 0 {
		return 0
	}
	return d.records[len(d.records)-1].index
}

// sync ends a sync that began when upTo was the last record.
func (d *logDisk) sync(upTo uint64) {
	for !d.deaf && d.synced < len(d.records) && d.records[d.synced].index <= upTo {
		d.synced++
	}
}

// rewrite writes what was read again, and syncs it.
func (d *logDisk) rewrite() { d.synced, d.deaf = len(d.records), false }

// kill is the death of the process. The system's cache stays, so that its content can be read back although it is not
// on the disk.
func (d *logDisk) kill(w *world) {
	if n := len(d.records); n > d.synced && w.chance(4) {
		torn := d.records[n-1].append(nil)
		d.records = d.records[:n-1]
		d.rest = torn[:w.rng.IntN(len(torn))]
	}
}

// powerLoss keeps any part of the unsynced data.
func (d *logDisk) powerLoss(w *world) {
	var loose []byte
	for _, r := range d.records[d.synced:] {
		loose = r.append(loose)
	}
	loose = append(loose, d.rest...)
	d.records, d.rest, d.deaf = slices.Clone(d.records[:d.synced]), nil, false
	if len(loose) == 0 {
		return
	}
	switch w.rng.IntN(4) {
	case 0: // all of it is lost
		loose = nil
	case 1: // a prefix remains
		loose = loose[:w.rng.IntN(len(loose))]
	case 2: // a hole, because pages are written in any order
		from := w.rng.IntN(len(loose))
		clear(loose[from:min(len(loose), from+1+w.rng.IntN(64))])
	case 3: // everything had just been written
	}
	d.rest = loose
}

// open reads the file. It keeps complete records and truncates the rest.
func (d *logDisk) open(believe bool) (torn bool) {
	for len(d.rest) > 0 {
		r, rest, ok := readRecord(d.rest, believe)
		if !ok || len(d.records) > 0 && r.index != d.last()+1 {
			break
		}
		d.records, d.rest = append(d.records, r), rest
	}
	torn = len(d.rest) > 0
	d.rest = nil
	return torn
}

// truncate drops the records up to an index. The last one stays, as the newest file does.
func (d *logDisk) truncate(upTo uint64) {
	n := 0
	for n < len(d.records)-1 && d.records[n].index <= upTo && n < d.synced {
		n++
	}
	d.records = slices.Clone(d.records[n:])
	d.synced -= n
}
