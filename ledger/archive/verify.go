package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Report is the result of a check of an archive.
type Report struct {
	ID       string
	Files    uint64 // in the index
	Bytes    int64  // of the files that were checked
	First    uint64 // number of the first file; 0 for none
	Last     uint64 // ledger index of the last record
	Problems []machine.Problem
	Unlisted []string // names that the index does not have: a copy that was interrupted, or something else
}

// Verify checks an archive: the chain of its index, and every byte of every file, which must be what the index
// says and follow the file before it. It needs no ledger. progress is called after each file; it may be
// nil. An error means that the check itself could not be done.
func Verify(ctx context.Context, disk Disk, progress func(Report)) (report Report, err error) {
	names, err := disk.List()
	if err != nil {
		return report, err
	}
	x, err := readIndex(disk)
	if errors.Is(err, machine.ErrCorrupt) {
		report.add(IndexName, err)
		return report, nil
	}
	if err != nil {
		return report, err
	}
	a := &Archive{disk: disk, index: x}
	report.ID, report.Files = x.id, uint64(len(x.entries))
	listed := map[string]bool{IndexName: true, lockName: true}
	var before *blockfile.SealedInfo
	for i := range x.entries {
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		e := &x.entries[i]
		name := blockfile.Name(e.Number)
		listed[name] = true
		if i == 0 {
			report.First = e.Number
		}
		report.Last = e.Last
		info, err := a.check(name)
		if err == nil {
			err = sameAs(&info, e, before)
		}
		// The file after a bad one is compared only with its own line, so that one damage is one problem.
		if errors.Is(err, format.ErrVersion) {
			return report, fmt.Errorf("%s in %s: %w", name, disk, err)
		}
		if before = nil; err != nil {
			report.add(name, err)
		} else {
			before = &info
			report.Bytes += info.Size
		}
		if progress != nil {
			progress(report)
		}
	}
	for _, n := range names {
		if !listed[n] {
			report.Unlisted = append(report.Unlisted, n)
		}
	}
	return report, nil
}

func (r *Report) add(where string, err error) {
	r.Problems = append(r.Problems, machine.Problem{Where: where, What: err.Error()})
}

// sameAs compares a file with its line of the index, and with the file before it.
func sameAs(info *blockfile.SealedInfo, e *Entry, before *blockfile.SealedInfo) error {
	if info.SHA256 != e.SHA256 || info.Size != e.Size || info.Last != e.Last || info.Number != e.Number {
		return fmt.Errorf("%w: it is not the file that the index speaks of", machine.ErrCorrupt)
	}
	if before == nil {
		return nil
	}
	return info.Follows(before)
}

// With returns a disk with the block files of a ledger and those of its archive. A file that both have is read from
// the ledger. An error of a file says which of the two has it.
func With(own, archive blockfile.Disk) blockfile.Disk {
	return joined{own, archive}
}

// joined reads a file from the archive if the ledger does not have it.
type joined struct {
	blockfile.Disk

	archive blockfile.Disk
}

// OpenSealed implements [blockfile.Disk].
func (d joined) OpenSealed(name string) (blockfile.File, error) {
	f, err := d.Disk.OpenSealed(name)
	if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(name, ".blocks") {
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
