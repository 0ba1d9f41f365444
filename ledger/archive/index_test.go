package archive

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/ledger/machine"
)

// chained is an index with these lines, each with the hash that a writer would have added: what is wrong with it is
// then in the line itself, and not in its hash.
func chained(entries ...string) []byte {
	out := []byte((&index{id: strings.Repeat("0a", 16)}).head())
	chain := sha256.Sum256(out)
	for _, entry := range entries {
		chain = link(chain, entry)
		out = fmt.Appendf(out, "%s %x\n", entry, chain)
	}
	return out
}

// TestIndexLines: a line that no writer makes is refused as damage, and the error names it, although the hashes are
// right: otherwise an archive with a gap would be taken for a whole one.
func TestIndexLines(t *testing.T) {
	t.Parallel()
	line := func(number, last uint64, size int64) string {
		return (&Entry{Number: number, Last: last, Size: size, SHA256: sha256.Sum256([]byte("file"))}).text()
	}
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte("file")))
	name := strings.Fields(line(3, 10, 5))[0]
	for _, test := range []struct {
		name    string
		lines   []string
		refused string // a part of the error; empty for an index that is right
	}{
		{"none", nil, ""},
		{"one", []string{line(3, 10, 5)}, ""},
		{"three", []string{line(3, 10, 5), line(4, 11, 1), line(5, 90, 7)}, ""},
		{"a gap", []string{line(3, 10, 5), line(5, 11, 5)}, "line 3 makes no sense"},
		{"a file twice", []string{line(3, 10, 5), line(3, 11, 5)}, "line 3 makes no sense"},
		{"files backwards", []string{line(3, 10, 5), line(2, 11, 5)}, "line 3 makes no sense"},
		{"records backwards", []string{line(3, 10, 5), line(4, 9, 5)}, "line 3 makes no sense"},
		{"no new records", []string{line(3, 10, 5), line(4, 10, 5)}, "line 3 makes no sense"},
		{"file 0", []string{line(0, 10, 5)}, "line 2 makes no sense"},
		{"record 0", []string{line(3, 0, 5)}, "line 2 makes no sense"},
		{"an empty file", []string{line(3, 10, 0)}, "line 2 makes no sense"},
		{"a negative size", []string{line(3, 10, -1)}, "line 2 makes no sense"},
		{"a short name", []string{"3.blocks 10 5 " + sum}, "line 2 makes no sense"},
		{"a short hash", []string{name + " 10 5 " + sum[2:]}, "line 2 makes no sense"},
		{"no hash", []string{name + " 10 5"}, "line 2 makes no sense"},
		{"one field more", []string{line(3, 10, 5) + " 1"}, "line 2 makes no sense"},
		{"an empty line", []string{""}, "line 2 makes no sense"},
		{"another form of a number", []string{name + " 010 5 " + sum},
			"line 2, or one before it, is not what was written"},
		{"a plus sign", []string{name + " 10 +5 " + sum}, "line 2, or one before it, is not what was written"},
		{"a hash in capitals", []string{name + " 10 5 " + strings.ToUpper(sum)},
			"line 2, or one before it, is not what was written"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			x, err := decodeIndex(chained(test.lines...))
			if test.refused != "" {
				if !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("want damage and %q, got %v", test.refused, err)
				}
				return
			}
			if err != nil || len(x.entries) != len(test.lines) {
				t.Fatalf("want %d files, got %v (%v)", len(test.lines), x, err)
			}
			for i := range x.entries {
				check.Equal(t, x.entries[i].text(), test.lines[i])
			}
		})
	}
}

// TestIndexHead: the first line is the magic and an id of 16 bytes, in one form.
func TestIndexHead(t *testing.T) {
	t.Parallel()
	id, magic := strings.Repeat("0a", 16), indexMagic+" 1"
	for _, head := range []string{
		"", id, indexMagic, magic, indexMagic + " 01 " + id, magic + " ", magic + "  " + id, magic + " " + id[2:],
		magic + " " + id + "0a", magic + " " + strings.ToUpper(id) + "x", "seqledger archive 2 " + id,
		magic + " " + id + "\r", " " + id,
	} {
		for _, end := range []string{"", "\n"} {
			if _, err := decodeIndex([]byte(head + end)); !errors.Is(err, machine.ErrCorrupt) {
				t.Errorf("%q: want damage, got %v", head+end, err)
			}
		}
	}
	if _, err := decodeIndex([]byte(magic + " " + id)); !errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("an index without the end of its first line: want damage, got %v", err)
	}
}
