package sim

import (
	"context"
	"errors"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/engine"
	"github.com/seqledger/seqledger/ledger/machine"
)

// What the jobs of package ledger and its archiver do beside the commit path.

// retention is the retention work of one life of the node.
type retention struct {
	copying bool
	opened  *archive.Archive // nil until it could be opened
}

// risky is a step before which the node dies more often than before other steps.
func (n *node) risky(name string, do func()) {
	n.step(n.quick(), func() {
		if !n.w.calm && n.w.plan.crash > 0 && n.w.chance(12) {
			n.w.counted["died before: "+name]++
			n.die()
			return
		}
		do()
	})
}

// dropHistory has the block files before the horizon removed.
func (n *node) dropHistory() {
	if !n.ready {
		return
	}
	files := n.state.droppable(n.horizon())
	if files = files[:n.confirmed(files)]; len(files) > 0 {
		n.queue.Remove(files[len(files)-1].Last)
		n.work()
	}
}

// drop removes block files, unless a backup has just begun.
func (n *node) drop(job engine.Job) {
	n.risky("the record of where the files begin", func() {
		if n.w.chance(10) {
			n.worked(job, engine.JobResult{Refused: true})
			return
		}
		files := n.state.droppable(job.UpTo + 1)
		n.w.oracle.removing(files)
		n.w.must(n.state.recordStart(job.UpTo+1), "recording where the block files begin")
		n.risky("the removal of files", func() {
			n.w.must(n.state.removeFiles(), "removing block files")
			n.w.counted["block files removed"] += len(files)
			n.worked(job, engine.JobResult{})
		})
	})
}

func (n *node) horizon() (index uint64) {
	err := n.state.view(func(r machine.Reader) error {
		index = n.m.View(r).Horizon().Index()
		return nil
	})
	n.w.must(err, "reading the horizon")
	return index
}

// carry carries some of the live values in blocks.
func (n *node) carry(job engine.Job) {
	step := n.step
	if job.From == nil {
		step = func(_ int64, do func()) { n.risky("the carrying of values", do) }
	}
	step(n.quick(), func() {
		var live []machine.LiveValue
		var next []byte
		err := n.state.view(func(r machine.Reader) (err error) {
			live, next, err = n.m.View(r).FindLive(job.From, job.UpTo)
			return err
		})
		n.w.must(err, "looking for values that are alive")
		if !n.w.bugs.valuesLeft {
			err := n.state.amend(func(tx machine.Tx) error { return machine.Carry(tx, live) })
			n.w.must(err, "carrying values")
			n.w.counted["values carried"] += len(live)
		}
		n.worked(job, engine.JobResult{Next: next})
	})
}

// sweep removes some of the carried values that no entity refers to.
func (n *node) sweep(job engine.Job) {
	var unused [][]byte
	var next []byte
	err := n.state.view(func(r machine.Reader) (err error) {
		unused, next, err = n.m.View(r).FindUnused(job.From)
		return err
	})
	n.w.must(err, "looking for values that are not used")
	err = n.state.amend(func(tx machine.Tx) error { return machine.DropCarried(tx, unused) })
	n.w.must(err, "removing values that are not used")
	n.w.counted["carried values removed"] += len(unused)
	n.worked(job, engine.JobResult{Next: next})
}

// confirmed returns how many of the first files the archive confirms at this moment; 0 while it is busy.
func (n *node) confirmed(files []blockfile.SealedFile) int {
	switch {
	case n.w.archive == nil, n.w.bugs.dropUnconfirmed:
		return len(files)
	case n.retain.copying, n.retain.opened == nil:
		return 0
	}
	a, copied := n.retain.opened, 0
	for copied < len(files) && a.Has(&files[copied]) {
		copied++
	}
	confirmed, _ := a.Confirm(context.Background(), files[:copied]) // the next file may come later
	return confirmed
}

// archiveFiles copies sealed durable files, one per step. A slow archive delays each step.
func (n *node) archiveFiles() {
	if n.w.archive == nil || n.retain.copying || !n.ready || !n.m.View(nil).Created() {
		return
	}
	n.retain.copying = true
	n.step(n.w.upTo(n.w.plan.archiveTime), n.copyNext)
}

func (n *node) copyNext() {
	d := n.w.archive
	if !n.w.calm && n.w.plan.crash > 0 && n.w.chance(12) {
		d.left = n.w.rng.IntN(40)
	}
	copied, err := n.copyOne()
	if d.died {
		n.w.counted["died while the archive was used"]++
		n.die()
		return
	}
	d.left = -1
	switch {
	case err != nil:
		n.w.counted["archive: failed"]++
		if errors.Is(err, machine.ErrCorrupt) {
			n.w.fail(nil, "the archive: %v", err)
		}
		n.retain.copying = false
		n.step(n.w.upTo(second), n.archiveFiles)
	case copied:
		n.w.counted["archive: files copied"]++
		n.step(n.w.upTo(n.w.plan.archiveTime), n.copyNext)
	default:
		n.retain.copying = false
		n.dropHistory() // for files that waited for the copy
	}
}

// openArchive opens the archive of the ledger id of this moment, or creates it.
func (n *node) openArchive() error {
	w, o := n.w, archive.Options{Random: seeded{n.w}}
	err := n.state.view(func(r machine.Reader) error {
		v := n.m.View(r)
		o.Ledger, o.Parents = v.LedgerID(), v.ParentIDs()
		return nil
	})
	w.must(err, "reading the ledger id")
	if a := n.retain.opened; a != nil && a.Mark().Ledger == o.Ledger {
		return nil
	}
	o.Mark = w.archiveMark
	a, err := archive.Open(context.Background(), archive.OnDisk(w.archive), o)
	if err != nil {
		return err
	}
	w.archiveMark = a.Mark() // in a file beside the state, which is written atomically
	n.retain.opened = a
	return nil
}

// copyOne copies the next file, and reports whether there was one.
func (n *node) copyOne() (copied bool, err error) {
	if err := n.openArchive(); err != nil {
		return false, err
	}
	a := n.retain.opened
	if err := a.Check(context.Background()); err != nil {
		return false, err
	}
	sealed := n.state.sealed()
	for i := range sealed {
		if a.Has(&sealed[i]) {
			continue
		}
		source, err := n.state.sealedFile(sealed[i].Number)
		n.w.must(err, "opening a sealed file")
		err = errors.Join(a.Add(context.Background(), &sealed[i], source), source.Close())
		return err == nil, err
	}
	return false, nil
}
