package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	formatName    = "FORMAT"
	formatMagic   = "seqledger archive"
	formatVersion = 1
	maxFormat     = 1 << 20 // bytes
)

var (
	// ErrNone means a target without an archive of the ledger: it is the wrong one, or its file system is not mounted.
	ErrNone = errors.New("there is no archive of the ledger: no " + formatName)
	// ErrOther means an archive that is not the one that was expected, or that has another history.
	ErrOther = errors.New("this is another archive, or one with another history")
)

// header is the content of FORMAT.
type header struct {
	id      string // 32 hex digits
	ledger  machine.LedgerID
	parents []machine.LedgerID // that the ledger had before it was restored or recovered, the latest first
}

func (h *header) encode() []byte {
	line := fmt.Sprintf("%s %d %s %s", formatMagic, formatVersion, h.id, h.ledger)
	for _, p := range h.parents {
		line += " " + p.String()
	}
	line += "\n"
	return fmt.Appendf([]byte(line), "%x\n", sha256.Sum256([]byte(line)))
}

func decodeHeader(b []byte) (h header, err error) {
	line, rest, _ := strings.Cut(string(b), "\n")
	if rest != fmt.Sprintf("%x\n", sha256.Sum256([]byte(line+"\n"))) {
		return h, fmt.Errorf("%w: its hash does not match", machine.ErrCorrupt)
	}
	fields := strings.Split(strings.TrimPrefix(line, formatMagic+" "), " ")
	version, err := strconv.Atoi(fields[0])
	if err != nil {
		return h, fmt.Errorf("%w: it does not begin like that of an archive", machine.ErrCorrupt)
	}
	if err := format.Check(version, formatVersion); err != nil {
		return h, err
	}
	if len(fields) > 2 {
		h.id = fields[1]
		h.ledger, _ = ParseLedger(fields[2])
		for _, text := range fields[3:] {
			parent, _ := ParseLedger(text)
			h.parents = append(h.parents, parent)
		}
	}
	if string(h.encode()) != string(b) || !validID(h.id) {
		return header{}, fmt.Errorf("%w: it is not written as that of an archive is", machine.ErrCorrupt)
	}
	return h, nil
}

func validID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == 16 && hex.EncodeToString(raw) == id
}

// Mark says which archive a ledger has, so that another one, or the empty mount point of a file system, is not taken
// for it.
type Mark struct {
	Ledger machine.LedgerID // an epoch begins another archive
	ID     string           // the random id that the archive got when it was made
}

// Encode returns the one form of a mark in text.
func (m Mark) Encode() []byte { return fmt.Appendf(nil, "%s %s\n", m.ID, m.Ledger) }

// ParseMark is the inverse of Encode.
func ParseMark(content []byte) (m Mark, err error) {
	id, ledger, _ := strings.Cut(strings.TrimSuffix(string(content), "\n"), " ")
	m.ID = id
	m.Ledger, _ = ParseLedger(ledger)
	if !validID(id) || string(m.Encode()) != string(content) {
		return Mark{}, fmt.Errorf("%w: it is not the id of an archive, 32 hex digits, and that of a ledger, 16",
			machine.ErrCorrupt)
	}
	return m, nil
}

// ParseLedger reads the id of a ledger, 16 hex digits.
func ParseLedger(text string) (machine.LedgerID, bool) {
	id, err := strconv.ParseUint(text, 16, 64)
	return machine.LedgerID(id), err == nil && machine.LedgerID(id).String() == text
}

// readHeader reads FORMAT of a ledger.
func readHeader(ctx context.Context, t Target, ledger machine.LedgerID) (h header, err error) {
	b, err := readSmall(ctx, t, folder(ledger)+formatName, maxFormat)
	if errors.Is(err, fs.ErrNotExist) {
		return h, fmt.Errorf("%s: %w below %s; is its file system mounted?", t, ErrNone, ledger)
	}
	if err != nil {
		return h, err
	}
	if h, err = decodeHeader(b); err == nil && h.ledger != ledger {
		err = fmt.Errorf("%w: it is of ledger %s", machine.ErrCorrupt, h.ledger)
	}
	if errors.Is(err, machine.ErrCorrupt) {
		err = fmt.Errorf("%w; if it stays so stop the server, remove this object and ARCHIVE in the data directory, "+
			"and start: it is made again, and the files stay", err)
	}
	if err != nil {
		return header{}, fmt.Errorf("%s%s in %s: %w", folder(ledger), formatName, t, err)
	}
	return h, nil
}

func folder(ledger machine.LedgerID) string { return ledger.String() + "/" }

func blocksFolder(ledger machine.LedgerID) string { return folder(ledger) + "blocks/" }

// entry is a file in the archive, as its name and the list say.
type entry struct {
	Number uint64
	Last   uint64 // ledger index of its last record
	Hash   machine.Hash
	Size   int64 // bytes

	ledger machine.LedgerID // below whose id it is
}

// name returns the name of the object.
func (f *entry) name() string {
	number := strings.TrimSuffix(blockfile.Name(f.Number), ".blocks")
	return fmt.Sprintf("%s%s-%020d-%s.blocks", blocksFolder(f.ledger), number, f.Last, f.Hash)
}

// parseFile is the inverse of name.
func parseFile(ledger machine.LedgerID, o Object) (f entry, ok bool) {
	text := strings.TrimSuffix(strings.TrimPrefix(o.Name, blocksFolder(ledger)), ".blocks")
	fields := strings.Split(text, "-")
	if len(fields) != 3 {
		return f, false
	}
	number, err1 := strconv.ParseUint(fields[0], 10, 64)
	last, err2 := strconv.ParseUint(fields[1], 10, 64)
	hash, err3 := hex.DecodeString(fields[2])
	if errors.Join(err1, err2, err3) != nil || len(hash) != len(f.Hash) || number == 0 || number == math.MaxUint64 {
		return f, false
	}
	f = entry{Number: number, Last: last, Hash: machine.Hash(hash), Size: o.Size, ledger: ledger}
	return f, f.name() == o.Name
}

// listed is what a ledger has on a target.
type listed struct {
	files    []entry // in the order of their numbers
	unlisted []string
}

// list returns the files of a ledger. There may be several of one number.
func list(ctx context.Context, t Target, ledger machine.LedgerID) (l listed, err error) {
	found, err := t.List(ctx, blocksFolder(ledger))
	if err != nil {
		return l, err
	}
	for _, o := range found {
		f, ok := parseFile(ledger, o)
		if !ok {
			l.unlisted = append(l.unlisted, o.Name)
			continue
		}
		l.files = append(l.files, f)
	}
	slices.SortFunc(l.files, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), strings.Compare(a.name(), b.name()))
	})
	return l, nil
}
