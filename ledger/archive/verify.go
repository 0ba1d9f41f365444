package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
)

// Report is the result of a check of an archive.
type Report struct {
	Ledger  machine.LedgerID
	Parents []machine.LedgerID // that it had before it was restored or recovered, the latest first
	ID      string
	Files   uint64  // in the list
	Bytes   int64   // of the files and states that were checked
	First   uint64  // number of the first file; 0 for none
	Last    uint64  // ledger index of the last record
	States  []State // the oldest first
	// LogFirst and LogLast are the first and the last index of the entries of the log; 0 for none.
	LogFirst, LogLast uint64
	Problems          []machine.Problem
	Unlisted          []string // names that no file has: a copy that was interrupted, or something else
}

// Verify checks the archive of a ledger: every byte of every file, which must be what its name says and follow the file
// before it, every part of every state, and the log. It needs no ledger. progress is called after each of them; it may
// be nil. An error means that the check itself could not be done.
func Verify(
	ctx context.Context, t Target, ledger machine.LedgerID, progress func(Report),
) (report Report, err error) {
	report.Ledger = ledger
	h, err := readHeader(ctx, t, ledger)
	switch {
	case errors.Is(err, machine.ErrCorrupt):
		report.add(folder(ledger)+formatName, err)
	case err != nil:
		return report, err
	}
	report.ID, report.Parents = h.id, h.parents
	found, err := list(ctx, t, ledger)
	if err != nil {
		return report, err
	}
	report.Files, report.Unlisted = uint64(len(found.files)), found.unlisted
	if len(found.files) > 0 {
		report.First = found.files[0].Number
	}
	var before *blockfile.SealedInfo
	for i := range found.files {
		f := &found.files[i]
		report.Last = max(report.Last, f.Last)
		if i > 0 {
			report.addGap(&found.files[i-1], f)
		}
		info, err := checkFile(ctx, t, f)
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		if err == nil && before != nil && f.Number == before.Number+1 {
			err = info.Follows(before)
		}
		if errors.Is(err, format.ErrVersion) {
			return report, fmt.Errorf("%s in %s: %w", f.name(), t, err)
		}
		// The file after a bad one is compared only with its own name, so that one damage is one problem.
		if before = nil; err != nil {
			report.add(f.name(), err)
		} else {
			before = &info
			report.Bytes += info.Size
		}
		if progress != nil {
			progress(report)
		}
	}
	if err := report.addStates(ctx, t, found.files, progress); err != nil {
		return report, err
	}
	return report, report.addLog(ctx, t, progress)
}

// addLog checks the log, which must follow the oldest state without a gap.
func (r *Report) addLog(ctx context.Context, t Target, progress func(Report)) error {
	log, err := ListLog(ctx, t, r.Ledger)
	if err != nil {
		return err
	}
	left, err := t.List(ctx, folder(r.Ledger)+temporaryFolder+"/")
	if err != nil {
		return err
	}
	for _, o := range left {
		log.unlisted = append(log.unlisted, o.Name)
	}
	r.Unlisted = append(r.Unlisted, log.unlisted...)
	if len(log.objects) > 0 {
		r.LogFirst = log.objects[0].first
		r.LogLast = slices.MaxFunc(log.objects, func(a, b logObject) int { return cmp.Compare(a.last, b.last) }).last
	}
	return log.verify(ctx, func(bytes int64) {
		r.Bytes += bytes
		if progress != nil {
			progress(*r)
		}
	}, r.add)
}

// addStates checks the states.
func (r *Report) addStates(ctx context.Context, t Target, files []entry, progress func(Report)) error {
	found, err := listStates(ctx, t, r.Ledger)
	if err != nil {
		return err
	}
	r.Unlisted = append(r.Unlisted, found.unlisted...)
	for _, s := range found.begun {
		if !slices.Contains(found.whole, s) {
			r.Unlisted = append(r.Unlisted, s.folder())
		}
	}
	for _, s := range found.whole {
		info, err := s.read(ctx, t, s.check, func(uint64) (io.Writer, error) { return io.Discard, nil }, nil)
		if err == nil {
			err = filesOf(&info, files).all()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, format.ErrVersion):
			return err
		case err != nil:
			r.add(s.listName(), err)
		}
		r.States, r.Bytes = append(r.States, s), r.Bytes+info.Bytes
		if progress != nil {
			progress(*r)
		}
	}
	return nil
}

func (r *Report) add(where string, err error) {
	r.Problems = append(r.Problems, machine.Problem{Where: where, What: err.Error()})
}

// addGap compares the numbers of a file and the one before it.
func (r *Report) addGap(before, f *entry) {
	switch {
	case f.Number == before.Number:
		r.add(f.name(), fmt.Errorf("there is also %s: two copies of the ledger went on by themselves", before.name()))
	case f.Number != before.Number+1:
		r.add(f.name(), fmt.Errorf("%s is missing before it", blockfile.Name(before.Number+1)))
	}
}

// checkFile reads all of a file, which must be what its name says.
func checkFile(ctx context.Context, t Target, f *entry) (info blockfile.SealedInfo, err error) {
	file, err := t.Open(ctx, f.name())
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if info, err = blockfile.CheckSealed(file); err == nil {
		err = f.check(&info)
	}
	return info, err
}

// check returns an error unless a file is what its name says.
func (f *entry) check(info *blockfile.SealedInfo) error {
	if info.Number != f.Number || info.Last != f.Last || info.Hash != f.Hash {
		return fmt.Errorf("%w: it is not the file that its name speaks of", machine.ErrCorrupt)
	}
	return nil
}
