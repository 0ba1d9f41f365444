package archive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Ledgers returns the ids of the ledgers that a target has archives of.
func Ledgers(ctx context.Context, t Target) (ids []machine.LedgerID, err error) {
	found, err := t.List(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, o := range found {
		id, is := ParseLedger(strings.TrimSuffix(o.Name, "/"))
		if !is || !strings.HasSuffix(o.Name, "/") {
			continue
		}
		if _, err := readHeader(ctx, t, id); !errors.Is(err, ErrNone) { // one that is damaged is one
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Reader reads the block files of a ledger, and, from before those, of the ones that it was restored from.
type Reader struct {
	ctx    context.Context //nolint:containedctx // A reader is a blockfile.Disk, whose methods have none.
	target Target
	files  map[uint64]entry
	twice  map[uint64]error // of the files of which there are several
	// first and last are the numbers of the ledger's files and those before them without a gap; 0 for none.
	first, last uint64
}

// NewReader returns a reader of the archive of a ledger, which can be used until ctx ends.
func NewReader(ctx context.Context, t Target, ledger machine.LedgerID) (*Reader, error) {
	r := &Reader{ctx: ctx, target: t, files: map[uint64]entry{}, twice: map[uint64]error{}}
	h, err := readHeader(ctx, t, ledger)
	if err != nil {
		return nil, err
	}
	for i, id := range append([]machine.LedgerID{ledger}, h.parents...) {
		l, err := list(ctx, t, id)
		if err != nil {
			return nil, err
		}
		if i == 0 && len(l.files) > 0 {
			r.first, r.last = l.files[0].Number, l.files[len(l.files)-1].Number
		}
		below := r.first
		for _, f := range l.files {
			before := r.files[f.Number]
			if before.ledger == id && r.twice[f.Number] == nil {
				r.twice[f.Number] = fmt.Errorf("%s: %w: it has both %s and %s", t, ErrOther, before.name(), f.name())
			}
			if i == 0 || below == 0 && before.Number == 0 || f.Number < below {
				r.files[f.Number] = f
			}
		}
		for r.first > 1 && r.files[r.first-1].Number != 0 {
			r.first--
		}
	}
	return r, nil
}

var errReadOnly = errors.New("an archive is not written to as a disk is")

// Open implements [blockfile.Disk].
func (*Reader) Open(string, bool) (blockfile.File, error) { return nil, errReadOnly }

// Remove implements [blockfile.Disk].
func (*Reader) Remove(string) error { return errReadOnly }

// Sync implements [blockfile.Disk].
func (*Reader) Sync() error { return errReadOnly }

// List implements [blockfile.Disk].
func (r *Reader) List() (names []string, err error) {
	for number := range r.files {
		names = append(names, blockfile.Name(number))
	}
	return names, nil
}

// OpenSealed implements [blockfile.Disk].
func (r *Reader) OpenSealed(name string) (blockfile.File, error) {
	number, is := blockfile.ParseName(name)
	f, found := r.files[number]
	if !is || !found {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if twice := r.twice[number]; twice != nil {
		return nil, twice // which of them is the ledger's is not known
	}
	return r.target.Open(r.ctx, f.name())
}

// String names the archive.
func (r *Reader) String() string { return r.target.String() }

// VisitScope calls visit for the blocks of a scope from a height on, in order, until it returns false. Each block
// is checked against its transactions and the block before it; damage is machine.ErrCorrupt.
func (r *Reader) VisitScope(
	scope machine.Scope, from uint64, visit func(h machine.BlockHeader, txs []machine.Transaction) bool,
) (err error) {
	if r.first == 0 {
		return nil
	}
	files, err := blockfile.OpenAllSealed(r, r.first, r.last)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	reader := blocksReader{files.Reader()}
	defer reader.Close()
	return machine.NewBlocks(reader, machine.Horizon{}).VisitScope(scope, from, visit)
}

// blocksReader is a machine.Reader of block files alone.
type blocksReader struct{ *blockfile.Reader }

// Get implements machine.Reader.
func (r blocksReader) Get(table machine.Table, _ []byte) ([]byte, error) {
	return nil, fmt.Errorf("an archive has no table %d", table)
}

// Ascend implements machine.Reader, from the first record on.
func (r blocksReader) Ascend(table machine.Table, _ []byte, visit func(key, value []byte) bool) error {
	if table != machine.TableBlocks {
		return fmt.Errorf("an archive has no table %d", table)
	}
	var failed error
	err := r.Reader.Ascend(0, func(x blockfile.Record) bool {
		if failed = x.Check(); failed != nil {
			return false
		}
		return visit(binary.BigEndian.AppendUint64(nil, x.Last), x.Data)
	})
	return errors.Join(err, failed)
}

// With returns a disk with the block files of a ledger and those of its archive. A file that both have is read from
// the ledger. An error of a file says which of the two has it.
func (r *Reader) With(own blockfile.Disk) blockfile.Disk { return joined{own, r} }

// joined reads a file from the archive if the ledger does not have it.
type joined struct {
	blockfile.Disk

	archive *Reader
}

// OpenSealed implements [blockfile.Disk].
func (d joined) OpenSealed(name string) (blockfile.File, error) {
	f, err := d.Disk.OpenSealed(name)
	if errors.Is(err, fs.ErrNotExist) {
		return d.archive.OpenSealed(name)
	}
	return f, err
}

// Place implements [blockfile.Placer]. A file that is in neither was dropped, so that the archive must have it.
func (d joined) Place(name string) (p blockfile.Place) {
	f, err := d.Disk.OpenSealed(name)
	if err == nil {
		_ = f.Close() // it was not read
	}
	if errors.Is(err, fs.ErrNotExist) {
		p.Where = fmt.Sprintf("in the archive %v", d.archive)
		p.Advice = fmt.Sprintf("seqledger archive verify %v tells what the archive lacks; use another copy of it, or "+
			"check the data directory without it", d.archive)
	}
	return p
}
