package sim

import (
	"context"
	"errors"

	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// What retain.go and archiver.go of package ledger do beside the commit path, as steps in the same order.

// retention is the retention work of one life of the node.
type retention struct {
	dropping bool
	copying  bool
	opened   *archive.Archive // nil until it could be opened
	checked  uint64           // number of the last file of the archive that is known to equal the ledger's
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

// flushThen writes a checkpoint that includes everything so far, and then runs do.
func (n *node) flushThen(do func()) {
	if n.flushing {
		n.step(n.w.upTo(n.w.plan.syncTime), func() { n.flushThen(do) })
		return
	}
	n.writeCheckpoint(do)
}

// dropHistory removes the block files before the horizon.
func (n *node) dropHistory() {
	if n.retain.dropping || !n.ready {
		return
	}
	files := n.state.droppable(n.horizon())
	files = files[:n.confirmed(files)]
	if len(files) == 0 {
		return
	}
	n.retain.dropping = true
	upTo := files[len(files)-1].Last
	remove := func() {
		n.risky("the record of where the files begin", func() {
			n.w.oracle.removing(files)
			n.w.must(n.state.recordStart(upTo+1), "recording where the block files begin")
			n.risky("the removal of files", func() {
				n.w.must(n.state.removeFiles(), "removing block files")
				n.w.counted["block files removed"] += len(files)
				n.retain.dropping = false
				n.removeUnused()
			})
		})
	}
	if n.w.bugs.horizonVolatile {
		n.carryValues(nil, upTo, remove)
		return
	}
	n.flushThen(func() {
		n.risky("the carrying of values", func() {
			n.carryValues(nil, upTo, func() { n.flushThen(remove) })
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

// carryValues carries the live values in blocks up to a ledger index, some per step.
func (n *node) carryValues(from []byte, upTo uint64, do func()) {
	if n.w.bugs.valuesLeft {
		do()
		return
	}
	var live []machine.LiveValue
	var next []byte
	err := n.state.view(func(r machine.Reader) (err error) {
		live, next, err = n.m.View(r).FindLive(from, upTo)
		return err
	})
	n.w.must(err, "looking for values that are alive")
	n.w.must(n.state.amend(func(tx machine.Tx) error { return machine.Carry(tx, live) }), "carrying values")
	n.w.counted["values carried"] += len(live)
	if next == nil {
		do()
		return
	}
	n.step(n.quick(), func() { n.carryValues(next, upTo, do) })
}

// removeUnused removes the carried values that no entity refers to. There are few here, so it takes one step.
func (n *node) removeUnused() {
	n.step(n.quick(), func() {
		for from, more := []byte(nil), true; more; more = from != nil {
			var unused [][]byte
			err := n.state.view(func(r machine.Reader) (err error) {
				unused, from, err = n.m.View(r).FindUnused(from)
				return err
			})
			n.w.must(err, "looking for values that are not used")
			err = n.state.amend(func(tx machine.Tx) error { return machine.DropCarried(tx, unused) })
			n.w.must(err, "removing values that are not used")
			n.w.counted["carried values removed"] += len(unused)
		}
	})
}

// confirmed returns how many of the first files the archive confirms at this moment; 0 while it is busy.
func (n *node) confirmed(files []blockfile.SealedFile) int {
	switch {
	case n.w.archive == nil, n.w.bugs.dropUnconfirmed:
		return len(files)
	case n.retain.copying, n.retain.opened == nil:
		return 0
	}
	for i := range files {
		if files[i].Number > n.retain.checked || n.retain.opened.Confirmed(files[i].Number) != nil {
			return i
		}
	}
	return len(files)
}

// archiveFiles copies sealed durable files, one per step. A slow archive delays each step.
func (n *node) archiveFiles() {
	if n.w.archive == nil || n.retain.copying || !n.ready {
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

// openArchive opens the archive, or creates it.
func (n *node) openArchive() (err error) {
	d, w := n.w.archive, n.w
	if w.archiveID == "" {
		id := ""
		a, err := archive.Open(d, "")
		switch {
		case err == nil:
			id = a.ID()
		case errors.Is(err, archive.ErrNone):
			if id, err = archive.Create(d, seeded{w}); err != nil {
				return err
			}
		default:
			return err
		}
		w.archiveID = id // in a file beside the state, which is written atomically
	}
	n.retain.opened, err = archive.Open(d, w.archiveID)
	return err
}

// copyOne copies the next file, and reports whether there was one.
func (n *node) copyOne() (copied bool, err error) {
	r := &n.retain
	if r.opened == nil {
		if err := n.openArchive(); err != nil {
			return false, err
		}
	}
	archived := uint64(0)
	if entries := r.opened.Entries(); len(entries) > 0 {
		archived = entries[len(entries)-1].Number
		if err := r.opened.Confirmed(archived); err != nil {
			return false, err
		}
	}
	sealed := n.state.sealed()
	if r.checked == 0 { // if the last common file matches, so do all files before it
		for len(sealed) > 1 && sealed[1].Number <= archived {
			sealed = sealed[1:]
		}
	}
	for _, f := range sealed {
		if f.Number <= r.checked {
			continue
		}
		source, err := n.state.sealedFile(f.Number)
		n.w.must(err, "opening a sealed file")
		err = errors.Join(r.opened.Add(context.Background(), f.Number, source), source.Close())
		if err == nil {
			r.checked = f.Number
		}
		return err == nil, err
	}
	return false, nil
}
