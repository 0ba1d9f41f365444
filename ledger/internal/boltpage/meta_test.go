package boltpage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"testing"
)

// metaBytes is a meta page with its header, as bbolt writes it.
func metaBytes(pageSize uint32, pages, txid uint64) []byte {
	order := binary.NativeEndian
	b := make([]byte, headerSize, headerSize+metaSize)
	b = order.AppendUint32(b, boltMagic)
	b = order.AppendUint32(b, 2)
	b = order.AppendUint32(b, pageSize)
	b = order.AppendUint32(b, 0)
	for _, v := range []uint64{3, 0, 2, pages, txid} {
		b = order.AppendUint64(b, v)
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[headerSize:])
	return order.AppendUint64(b, sum.Sum64())
}

// image lays pages out in a file of the given size.
func image(size int, pages map[int][]byte) []byte {
	b := make([]byte, size)
	for offset, page := range pages {
		copy(b[offset:], page)
	}
	return b
}

// The meta page that counts must be the one that bbolt takes: the valid one
// with the higher transaction id, wherever the page size puts it.
func TestReadMetaTakesTheNewestValidPage(t *testing.T) {
	t.Parallel()
	torn := metaBytes(4096, 9, 9)
	torn[headerSize+metaSumOffset] ^= 1
	for name, c := range map[string]struct {
		file  []byte
		pages uint64
		want  error
	}{
		"first newer": {image(9<<12, map[int][]byte{0: metaBytes(4096, 7, 2), 4096: metaBytes(4096, 5, 1)}),
			7, nil},
		"second newer": {image(9<<12, map[int][]byte{0: metaBytes(4096, 7, 2), 4096: metaBytes(4096, 5, 3)}),
			5, nil},
		"newer one torn": {image(9<<12, map[int][]byte{0: metaBytes(4096, 7, 2), 4096: torn}), 7, nil},
		"first torn":     {image(9<<12, map[int][]byte{0: torn, 4096: metaBytes(4096, 5, 1)}), 5, nil},
		"large pages":    {image(9<<16, map[int][]byte{0: torn, 65536: metaBytes(65536, 6, 1)}), 6, nil},
		"look-alike in a value": {image(9<<12, map[int][]byte{0: metaBytes(4096, 7, 2), 8192: metaBytes(4096, 5, 99)}),
			7, nil},
		"both torn": {image(9<<12, map[int][]byte{0: torn, 4096: torn}), 0, ErrDamaged},
		"senseless page size": {image(9<<12, map[int][]byte{0: metaBytes(0, 7, 2), 4096: metaBytes(1<<30, 7, 3)}), 0,
			ErrDamaged},
		"neither is a meta page": {image(9<<12, nil), 0, ErrNotBolt},
		"cut inside the first":   {metaBytes(4096, 7, 2)[:50], 0, ErrNotBolt},
	} {
		meta, err := ReadMeta(bytes.NewReader(c.file))
		if !errors.Is(err, c.want) || meta.Pages != c.pages {
			t.Errorf("%s: %d pages, %v; want %d, %v", name, meta.Pages, err, c.pages, c.want)
		}
	}
}

// Any bytes at all: no panic, and what is accepted makes sense.
func FuzzReadMeta(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(metaBytes(4096, 7, 2))
	f.Add(image(3<<12, map[int][]byte{0: metaBytes(4096, 7, 2), 4096: metaBytes(4096, 5, 3)}))
	f.Fuzz(func(t *testing.T, file []byte) {
		meta, err := ReadMeta(bytes.NewReader(file))
		if err == nil && (meta.PageSize < minPageSize || meta.PageSize > maxPageSize ||
			meta.Offset > int64(len(file))) {
			t.Errorf("accepted %+v", meta)
		}
	})
}
