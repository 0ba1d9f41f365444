package archive

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/seqledger/seqledger/ledger/machine"
)

// FuzzHeader: what is read as FORMAT is written in the same way.
func FuzzHeader(f *testing.F) {
	h := header{id: strings.Repeat("0a", 16), ledger: 7, parents: []machine.LedgerID{9, 8}}
	f.Add(h.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHeader(b)
		if err == nil && !bytes.Equal(h.encode(), b) {
			t.Errorf("%q reads as another one", b)
		}
	})
}

// FuzzFileName: what is read as the name of a file is written in the same way.
func FuzzFileName(f *testing.F) {
	file := entry{Number: 3, Last: 4, Hash: machine.Hash{5}, ledger: 7}
	f.Add(file.name())
	f.Add("0000000000000007/blocks/0000000003-4-0500.blocks")
	f.Fuzz(func(t *testing.T, name string) {
		file, ok := parseFile(7, Object{Name: name})
		if ok && file.name() != name {
			t.Errorf("%q reads as %+v", name, file)
		}
	})
}

// FuzzState: what is read as the name of a state, or as the list of its parts, is written in the same way.
func FuzzState(f *testing.F) {
	s := State{Index: 3, Time: time.Unix(4, 5), ledger: 7, unique: 6}
	f.Add(s.name(), encodeParts([]part{{8, [32]byte{9}}, {10, [32]byte{11}}}))
	f.Add("0000000000000007/state/3-4-05", []byte("seqledger state 1\n"))
	f.Fuzz(func(t *testing.T, name string, list []byte) {
		if s, ok := parseState(7, name); ok && s.name() != name {
			t.Errorf("%q reads as %+v", name, s)
		}
		if parts, err := decodeParts(list); err == nil && !bytes.Equal(encodeParts(parts), list) {
			t.Errorf("%q reads as %+v", list, parts)
		}
	})
}

// TestDamage_Mark flips each bit of a mark, and cuts it at each length: what is read is another archive's, or refused.
func TestDamage_Mark(t *testing.T) {
	t.Parallel()
	mark := Mark{Ledger: 0xabc, ID: strings.Repeat("0a", 16)}
	whole := mark.Encode()
	damaged := [][]byte{append(bytes.Clone(whole), '\n'), append(bytes.Clone(whole), whole...)}
	for bit := range 8 * len(whole) {
		b := bytes.Clone(whole)
		b[bit/8] ^= 1 << (bit % 8)
		damaged = append(damaged, b)
	}
	for size := range whole {
		damaged = append(damaged, whole[:size])
	}
	for _, b := range damaged {
		if read, err := ParseMark(b); err == nil && (read == mark || !bytes.Equal(read.Encode(), b)) {
			t.Errorf("%q reads as %+v", b, read)
		}
	}
	if read, err := ParseMark(whole); err != nil || read != mark {
		t.Errorf("%q reads as %+v, %v", whole, read, err)
	}
}
