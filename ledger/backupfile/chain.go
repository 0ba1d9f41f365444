package backupfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/seqledger/seqledger/ledger/machine"
)

// ErrChain says that backups are no chain: one is missing, they are not in order, or one is of another ledger.
// The error's text says which, and what to do.
var ErrChain = errors.New("these backups do not go together")

// File is a backup that can be read more than once.
type File struct {
	Name    string // for messages
	Content io.ReaderAt
	Size    int64 // bytes
}

// error makes an error of reading the file say which one it is.
func (f *File) error(err error) error {
	if damage, ok := errors.AsType[*DamageError](err); ok {
		return f.damage(damage.Offset, damage.What)
	}
	return fmt.Errorf("%s: %w", f.Name, err)
}

func (f *File) damage(at int64, what string) error { return &DamageError{at, what, f.Name} }

// Head reads the header and the trailer of a backup: what it holds, and which backup is its base. It reads nothing
// between them. The error is a *DamageError if the file is no backup, or not a whole one.
func Head(f *File) (info Info, err error) {
	r := &reader{ctx: context.Background(), r: io.NewSectionReader(f.Content, 0, f.Size), hash: sha256.New()}
	if info, err = r.header(); err != nil {
		return info, err
	}
	if f.Size != info.Bytes {
		return info, f.damage(min(f.Size, info.Bytes), fmt.Sprintf("it has %d bytes, and by its header %d",
			f.Size, info.Bytes))
	}
	if _, err := f.Content.ReadAt(info.Sum[:], f.Size-sha256.Size); err != nil && !errors.Is(err, io.EOF) {
		return info, fmt.Errorf("read of the backup at byte %d: %w", f.Size-sha256.Size, err)
	}
	return info, nil
}

// CheckChain looks at the heads of a full backup and of the incremental ones that were made since it, and refuses with
// ErrChain those that do not go together. A single incremental one is refused as well.
func CheckChain(chain []File) error {
	_, err := readHeads(chain)
	return err
}

// ReadChain is Read for a full backup and the incremental ones that were made since it, each since the one before.
// The files that it copies are those of the last one. It does what CheckChain does before it opens a file.
// The newest is read first, because it says which files of the others are wanted. Every backup is checked
// to its last byte. The info is that of the last one.
func ReadChain(
	ctx context.Context, chain []File, open func(file uint64) (io.Writer, error), progress func(done, total int64),
) (last Info, err error) {
	heads, err := readHeads(chain)
	if err != nil {
		return last, err
	}
	done, total := int64(0), int64(0)
	for i := range heads {
		total += heads[i].StateBytes
	}
	newest := len(chain) - 1
	first, below := heads[newest].First, uint64(maxFirst+maxFiles) // which block files are still wanted
	for i := newest; i >= 0; i-- {
		wanted := func(file uint64) (io.Writer, error) {
			if file == 0 && i < newest || file > 0 && (file < first || file >= below) {
				return io.Discard, nil
			}
			return open(file)
		}
		var told func(of, size int64)
		if progress != nil {
			told = func(of, _ int64) { progress(done+of, total) }
		}
		content := io.NewSectionReader(chain[i].Content, 0, chain[i].Size)
		info, err := read(ctx, content, wanted, told, func(*Info) error { return nil })
		if err == nil && info.Sum != heads[i].Sum {
			err = errors.New("it has changed while it was read")
		}
		if err != nil {
			return last, chain[i].error(err)
		}
		if i == newest {
			last = info
		}
		done, below = done+info.StateBytes, info.From
	}
	return last, nil
}

// readHeads returns the heads of a chain, or why it is none.
func readHeads(chain []File) ([]Info, error) {
	heads := make([]Info, len(chain))
	named := map[machine.Hash]string{}
	for i, f := range chain {
		var err error
		if heads[i], err = Head(&f); err != nil {
			return nil, f.error(err)
		}
		if other, twice := named[heads[i].Sum]; twice {
			return nil, fmt.Errorf("%w: %s and %s are the same backup; name it once", ErrChain, other, f.Name)
		}
		named[heads[i].Sum] = f.Name
	}
	if len(chain) == 0 {
		return nil, fmt.Errorf("%w: there is none", ErrChain)
	}
	for i := range heads {
		switch info := &heads[i]; {
		case info.LedgerID != heads[0].LedgerID:
			return nil, fmt.Errorf("%w: %s is of ledger %s, and %s of ledger %s, another one or another epoch of it",
				ErrChain, chain[0].Name, heads[0].LedgerID, chain[i].Name, info.LedgerID)
		case !info.Incremental() && i > 0:
			return nil, fmt.Errorf("%w: %s is a full backup and needs none before it; name it first, or leave out "+
				"what is before it", ErrChain, chain[i].Name)
		case info.Incremental() && (i == 0 || info.Since.Sum != heads[i-1].Sum):
			return nil, missing(chain[i].Name, &info.Since, named)
		case i > 0 && (info.Since.Index != heads[i-1].Index || info.Since.Last != heads[i-1].Last()):
			return nil, chain[i].damage(int64(len(magic)),
				"it says something else of "+chain[i-1].Name+" than is there")
		case i > 0 && info.First < heads[i-1].First: // a file that was dropped would be missing
			return nil, chain[i].damage(int64(len(magic)), fmt.Sprintf("its ledger begins with block file %d, and in "+
				"%s with %d", info.First, chain[i-1].Name, heads[i-1].First))
		}
	}
	return heads, nil
}

// missing says which backup is not in the place before one that was made since it.
func missing(name string, since *Since, named map[machine.Hash]string) error {
	if before, there := named[since.Sum]; there {
		return fmt.Errorf("%w: they are not in order: %s was made since %s, which must come directly before it",
			ErrChain, name, before)
	}
	return fmt.Errorf("%w: one is missing: %s was made since a backup of ledger index %d, whose trailer has the "+
		"SHA-256 %s; name it before this one", ErrChain, name, since.Index, since.Sum)
}
