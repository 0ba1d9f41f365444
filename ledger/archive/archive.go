package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Archive is an archive that is written to. It belongs to one goroutine.
type Archive struct {
	target Target
	mark   Mark
	files  map[uint64]entry // of the last list, and what was added since
	listed bool             // false: the target is to be listed again before anything is added
}

// Options says whose archive to open.
type Options struct {
	Ledger  machine.LedgerID
	Parents []machine.LedgerID // ids that the ledger had before it was restored or recovered, the latest first
	// Mark is the archive that the ledger has, which the target must have. If there is none, any archive of the ledger
	// will do, and one is made if there is none. One is also made if the mark is of an earlier id of the ledger.
	Mark   Mark
	Random io.Reader // for the id of an archive that is made: crypto/rand.Reader except in simulations
}

// Open opens the archive of a ledger.
func Open(ctx context.Context, t Target, o Options) (*Archive, error) {
	if o.Mark != (Mark{}) {
		if err := checkMark(ctx, t, o.Mark); err != nil {
			return nil, err
		}
	}
	h, err := readHeader(ctx, t, o.Ledger)
	if errors.Is(err, ErrNone) {
		failed := create(ctx, t, o)
		h, err = readHeader(ctx, t, o.Ledger) // another process may have been first
		if errors.Is(err, ErrNone) && failed != nil {
			err = failed
		}
	}
	if err != nil {
		return nil, err
	}
	a := &Archive{target: t, mark: Mark{h.ledger, h.id}}
	if err := a.list(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// checkMark returns an error unless the target has an archive.
func checkMark(ctx context.Context, t Target, m Mark) error {
	h, err := readHeader(ctx, t, m.Ledger)
	if err == nil && h.id != m.ID {
		err = fmt.Errorf("%s: %w: it has id %s, and %s was expected", t, ErrOther, h.id, m.ID)
	}
	return err
}

// create makes FORMAT.
func create(ctx context.Context, t Target, o Options) error {
	var drawn [16]byte
	if _, err := io.ReadFull(o.Random, drawn[:]); err != nil {
		return err
	}
	h := header{id: hex.EncodeToString(drawn[:]), ledger: o.Ledger, parents: o.Parents}
	content := h.encode()
	name := folder(o.Ledger) + formatName
	return t.Put(ctx, name, bytes.NewReader(content), int64(len(content)), sha256.Sum256(content))
}

// Mark returns what the ledger must remember of the archive.
func (a *Archive) Mark() Mark { return a.mark }

// Count returns how many files the archive has, their bytes, and the ledger index of the last record.
func (a *Archive) Count() (files, bytes, last uint64) {
	for _, f := range a.files {
		files, bytes, last = files+1, bytes+uint64(f.Size), max(last, f.Last)
	}
	return files, bytes, last
}

// Has reports whether a file is in the archive, as of the last list and what was added since.
func (a *Archive) Has(f *blockfile.SealedFile) bool { return a.files[f.Number] == a.fileOf(f) }

func (a *Archive) fileOf(f *blockfile.SealedFile) entry {
	return entry{Number: f.Number, Last: f.Last, Hash: f.Hash, Size: f.Size, ledger: a.mark.Ledger}
}

// Check returns an error unless the target can be reached and has the archive.
func (a *Archive) Check(ctx context.Context) error {
	if !a.listed {
		return a.list(ctx)
	}
	return checkMark(ctx, a.target, a.mark)
}

// list checks the archive, and lists its files.
func (a *Archive) list(ctx context.Context) error {
	a.listed = false
	if err := checkMark(ctx, a.target, a.mark); err != nil {
		return err
	}
	found, err := list(ctx, a.target, a.mark.Ledger)
	if err != nil {
		return err
	}
	a.files = make(map[uint64]entry, len(found.files))
	for _, f := range found.files {
		if before, twice := a.files[f.Number]; twice {
			return a.otherf("it has both %s and %s", before.name(), f.name())
		}
		a.files[f.Number] = f
	}
	a.listed = true
	return nil
}

// unbroken returns the number of the last file before the first gap; 0 for none.
func (a *Archive) unbroken() uint64 {
	first := uint64(0)
	for number := range a.files {
		if first == 0 || number < first {
			first = number
		}
	}
	end := first
	for ; a.files[end].Number != 0; end++ {
	}
	return max(end, 1) - 1
}

// Add copies a sealed file of the ledger. Files must come in the order of their numbers; the first may have any. Damage
// of the ledger's own file is machine.ErrCorrupt; an archive with another history is ErrOther; every other error is the
// target's, and leaves the archive as it was.
func (a *Archive) Add(ctx context.Context, f *blockfile.SealedFile, source blockfile.File) error {
	if found, is := a.files[f.Number]; is {
		return a.same(&found, f)
	}
	if last := a.unbroken(); last != 0 && f.Number > last+1 {
		return a.otherf("%s is missing in it", blockfile.Name(last+1))
	}
	info, err := blockfile.CheckSealed(source)
	if err == nil && (info.Number != f.Number || info.Last != f.Last || info.Hash != f.Hash || info.Size != f.Size) {
		err = fmt.Errorf("%w: it is not the file that was sealed", machine.ErrCorrupt)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", blockfile.Name(f.Number), err)
	}
	before, is := a.files[f.Number-1]
	if is && (info.Previous != before.Hash || info.After != before.Last) {
		return a.otherf("%s does not follow %s", blockfile.Name(f.Number), before.name())
	}
	added := a.fileOf(f)
	if err := a.target.Put(ctx, added.name(), source, f.Size, info.SHA256); err != nil {
		return err
	}
	a.files[f.Number] = added
	return nil
}

// same returns an error unless a file in the archive is one of the ledger.
func (a *Archive) same(found *entry, f *blockfile.SealedFile) error {
	want := a.fileOf(f)
	if *found == want {
		return nil
	}
	if found.name() == want.name() {
		a.listed = false
		return fmt.Errorf("%s in %s has %d bytes and must have %d: remove it, and it is made again",
			found.name(), a.target, found.Size, want.Size)
	}
	return a.otherf("it has %s", found.name())
}

// otherf returns an ErrOther. The next pass lists the archive again, because an operator or another node may mend it.
func (a *Archive) otherf(format string, args ...any) error {
	a.listed = false
	return fmt.Errorf("%s: %w: %s", a.target, ErrOther, fmt.Sprintf(format, args...))
}

// Confirm returns how many of the first files are in the archive at this moment, with all files before them, and why no
// more are. It lists the target again.
func (a *Archive) Confirm(ctx context.Context, files []blockfile.SealedFile) (confirmed int, err error) {
	if err := a.list(ctx); err != nil {
		return 0, err
	}
	last := a.unbroken()
	for i := range files {
		found, is := a.files[files[i].Number]
		switch {
		case !is:
			want := a.fileOf(&files[i])
			return i, fmt.Errorf("%s is not in %s", want.name(), a.target)
		case found.Number > last:
			return i, fmt.Errorf("%s is missing in %s", blockfile.Name(last+1), a.target)
		}
		if err := a.same(&found, &files[i]); err != nil {
			return i, err
		}
	}
	return len(files), nil
}
