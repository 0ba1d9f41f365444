package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
)

// IndexName is the name of the index in the directory.
const IndexName = "INDEX"

const (
	indexMagic   = "seqledger archive"
	indexVersion = 1
)

var (
	// ErrNone means a directory without an index: it is no archive, or its file system is not mounted.
	ErrNone = errors.New("there is no archive: no " + IndexName)
	// ErrOther means an archive that is not the one that was expected, or that is of another ledger.
	ErrOther = errors.New("this is another archive, or that of another ledger")
)

// Entry is a file in the archive.
type Entry struct {
	Number uint64 // of the file
	Last   uint64 // ledger index of its last record
	Size   int64  // bytes
	SHA256 [sha256.Size]byte
}

// index is the content of INDEX.
type index struct {
	id      string // 32 hex digits
	entries []Entry
	chain   [sha256.Size]byte // over all lines
}

func (x *index) head() string { return fmt.Sprintf("%s %d %s\n", indexMagic, indexVersion, x.id) }

func (e *Entry) text() string {
	return fmt.Sprintf("%s %d %d %x", blockfile.Name(e.Number), e.Last, e.Size, e.SHA256)
}

// link is the hash of a line and all before it.
func link(chain [sha256.Size]byte, text string) [sha256.Size]byte {
	return sha256.Sum256(append(chain[:], text...))
}

func (x *index) encode() []byte {
	out := []byte(x.head())
	chain := sha256.Sum256(out)
	for i := range x.entries {
		text := x.entries[i].text()
		chain = link(chain, text)
		out = fmt.Appendf(out, "%s %x\n", text, chain)
	}
	return out
}

// add returns the index with one more file.
func (x *index) add(e Entry) *index {
	// The capacity is clipped, so that append copies and x stays as it is.
	more := &index{id: x.id, entries: append(x.entries[:len(x.entries):len(x.entries)], e)}
	more.chain = link(x.chain, e.text())
	return more
}

// last returns the last file, or none.
func (x *index) last() (e Entry, ok bool) {
	if len(x.entries) == 0 {
		return e, false
	}
	return x.entries[len(x.entries)-1], true
}

// entry returns the entry of a file, or none.
func (x *index) entry(number uint64) (e Entry, ok bool) {
	if len(x.entries) == 0 || number < x.entries[0].Number || number-x.entries[0].Number >= uint64(len(x.entries)) {
		return e, false
	}
	return x.entries[number-x.entries[0].Number], true
}

// readIndex reads INDEX and checks its chain. Damage is machine.ErrCorrupt.
func readIndex(disk Disk) (x *index, err error) {
	file, err := disk.OpenSealed(IndexName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w; is its file system mounted?", disk, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	b, err := io.ReadAll(io.NewSectionReader(file, 0, math.MaxInt64))
	if err != nil {
		return nil, err
	}
	if x, err = decodeIndex(b); err != nil {
		return nil, fmt.Errorf("%s in %s: %w", IndexName, disk, err)
	}
	return x, nil
}

func decodeIndex(b []byte) (*index, error) {
	head, rest, _ := strings.Cut(string(b), "\n")
	version, name, _ := strings.Cut(strings.TrimPrefix(head, indexMagic+" "), " ")
	found, err := strconv.Atoi(version)
	if id, wrong := hex.DecodeString(name); err != nil || wrong != nil || len(id) != 16 {
		return nil, fmt.Errorf("%w: it does not begin like the index of an archive", machine.ErrCorrupt)
	}
	x := &index{id: name, chain: sha256.Sum256([]byte(head + "\n"))} // of any version
	first, _, _ := strings.Cut(rest, "\n")
	text := first[:max(0, strings.LastIndexByte(first, ' '))]
	if first == fmt.Sprintf("%s %x", text, link(x.chain, text)) { // so the first line is what was written
		if err := format.Check(found, indexVersion); err != nil {
			return nil, err
		}
	}
	for number := 2; rest != ""; number++ {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		e, ok := decodeEntry(line)
		if before, any := x.last(); !ok || any && (e.Number != before.Number+1 || e.Last <= before.Last) {
			return nil, fmt.Errorf("%w: line %d makes no sense", machine.ErrCorrupt, number)
		}
		x.chain = link(x.chain, e.text())
		if !strings.HasSuffix(line, fmt.Sprintf(" %x", x.chain)) {
			return nil, fmt.Errorf("%w: line %d, or one before it, is not what was written", machine.ErrCorrupt, number)
		}
		x.entries = append(x.entries, e)
	}
	if !bytes.Equal(x.encode(), b) { // one form alone
		return nil, fmt.Errorf("%w: it is not written as an index is", machine.ErrCorrupt)
	}
	return x, nil
}

func decodeEntry(line string) (e Entry, ok bool) {
	fields := strings.Split(line, " ")
	if len(fields) != 5 {
		return e, false
	}
	number, err1 := strconv.ParseUint(strings.TrimSuffix(fields[0], ".blocks"), 10, 64)
	last, err2 := strconv.ParseUint(fields[1], 10, 64)
	size, err3 := strconv.ParseInt(fields[2], 10, 64)
	sum, err4 := hex.DecodeString(fields[3])
	if errors.Join(err1, err2, err3, err4) != nil || number == 0 || last == 0 || size <= 0 || len(sum) != sha256.Size {
		return e, false
	}
	e = Entry{Number: number, Last: last, Size: size, SHA256: [sha256.Size]byte(sum)}
	return e, blockfile.Name(number) == fields[0]
}
