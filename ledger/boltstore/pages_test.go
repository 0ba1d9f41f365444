package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// treePage is a page of a tree in a file.
type treePage struct {
	at     int // its place in the file
	branch bool
	count  int
}

// pagesOf returns the pages of trees in a file.
func pagesOf(b []byte) (found []treePage) {
	for at := 2 * testPageSize; at+testPageSize <= len(b); at += testPageSize {
		kind, count := binary.NativeEndian.Uint16(b[at+8:]), int(binary.NativeEndian.Uint16(b[at+10:]))
		if kind == 1 || kind == 2 {
			found = append(found, treePage{at, kind == 1, count})
		}
	}
	return found
}

// askedFor opens a state and asks for n records, and returns how many were absent.
func askedFor(path string, n int) (absent int, err error) {
	s, err := Open(path, Options{Identity: testIdentity, NoSync: true})
	if err != nil {
		return 0, err
	}
	err = s.View(func(r machine.Reader) error {
		for i := range n {
			value, err := r.Get(streams, recordKey(i))
			if err != nil {
				return err
			}
			if value == nil {
				absent++
			}
		}
		return nil
	})
	return absent, errors.Join(err, s.Close())
}

// A flipped bit in a key of an inner page leads a lookup beside the record, and one
// in the header of a page hides records at its end. Neither may look like a miss: the
// first write of a stream would run a second time.
func TestDamagedPagesHideNothing(t *testing.T) {
	t.Parallel()
	const n = 600
	path := filled(t, n)
	image := must.Get(os.ReadFile(path))(t)
	image = image[:int64(metaOf(t, path).Pages)*testPageSize] // bbolt makes a file grow by 16 MiB
	var bits []int
	branches := 0
	for _, p := range pagesOf(image) {
		for bit := range 16 {
			bits = append(bits, 8*(p.at+10)+bit) // the count
		}
		if !p.branch {
			continue
		}
		branches++
		for i := range p.count {
			e := p.at + 16 + 16*i
			end := e + int(binary.NativeEndian.Uint32(image[e:])) + int(binary.NativeEndian.Uint32(image[e+4:]))
			bits = append(bits, 8*(end-1)+i%8, 8*(end-2)+i%4) // of the key
		}
	}
	if branches == 0 {
		t.Fatal("there is no inner page")
	}
	noticed, step := 0, 1
	if testing.Short() {
		step = 7
	}
	for i := 0; i < len(bits); i += step {
		bit := bits[i]
		b := bytes.Clone(image)
		b[bit/8] ^= 1 << (bit % 8)
		edit(t, path, func([]byte) []byte { return b })
		switch absent, err := askedFor(path, n); {
		case errors.Is(err, machine.ErrCorrupt):
			noticed++
		case err != nil || absent > 0:
			t.Errorf("bit %d of byte %d of page %d: %d records are absent, %v",
				bit%8, bit/8%testPageSize, bit/8/testPageSize, absent, err)
		}
	}
	if noticed == 0 {
		t.Error("no damage was noticed: this test tests nothing")
	}
}

// A flush rewrites the pages that it changes. What a damaged header hides of them
// would be gone for good then, in a file that makes sense: so it is refused.
func TestFlushChecksWhatItRewrites(t *testing.T) {
	t.Parallel()
	const n = 3_000
	for name, tt := range map[string]struct {
		field int // of the page's header
		bit   byte
		write func(tx machine.Tx, key []byte) error
	}{
		"fewer records, and one more": {10, 1,
			func(tx machine.Tx, key []byte) error { return tx.Put(streams, append(key, '+'), []byte("v")) }},
		"fewer records, and one less": {10, 1,
			func(tx machine.Tx, key []byte) error { return tx.Delete(streams, key) }},
		"a million pages, and another": {14, 1 << 4,
			func(tx machine.Tx, key []byte) error { return tx.Put(streams, key, []byte("v")) }},
		"beside one that is emptied": {10, 1, func(tx machine.Tx, key []byte) error {
			for i := range n {
				if bytes.Compare(recordKey(i), key) < 0 {
					if err := tx.Delete(streams, recordKey(i)); err != nil {
						return err
					}
				}
			}
			return nil
		}},
	} {
		path := filled(t, n)
		var key []byte // the first of the damaged page
		edit(t, path, func(b []byte) []byte {
			for _, p := range pagesOf(b) {
				if !p.branch && bytes.Contains(b[p.at:p.at+testPageSize], recordKey(n/2)) {
					key = bytes.Clone(b[p.at+bytes.Index(b[p.at:], []byte("stream-")):][:len(recordKey(0))])
					b[p.at+tt.field] ^= tt.bit
				}
			}
			return b
		})
		s := reopen(t, path)
		must.Do(t, s.Update(next(s), func(tx machine.Tx) error { return tt.write(tx, key) }))
		if err := s.Flush(); !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), "page") {
			t.Errorf("%s: Flush = %v, want ErrCorrupt", name, err)
		}
	}
}
