package sim

import (
	"context"
	"errors"
	"io"

	"github.com/seqledger/seqledger/internal/testkit/memorytarget"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/blockfile"
)

// archiveDisk is the directory of an archive, on a disk of its own. Its file system may be unmounted, full, or replaced
// by another one. It may also stop responding in the middle of a call, and then the process that uses it dies.
type archiveDisk struct {
	own   *memorytarget.Disk
	other *memorytarget.Disk // mounted in place of own; nil: own is mounted
	gone  bool               // every call fails
	left  int                // calls until the process dies; negative for never
	died  bool               // the process died during a call, and no call reaches the disk any more

	unsynced bool // a control: copies are not synced
}

func newArchiveDisk(b bugs) *archiveDisk {
	return &archiveDisk{own: memorytarget.New(), left: -1, unsynced: b.archiveUnsynced}
}

var (
	errGone = errors.New("the archive's file system: input/output error")
	errFull = errors.New("the archive's file system: no space left on device")
	errDied = errors.New("the process has died")
)

// now returns the mounted disk if it responds.
func (d *archiveDisk) now() (*memorytarget.Disk, error) {
	if d.left == 0 {
		d.died = true
	}
	d.left--
	switch {
	case d.died:
		return nil, errDied
	case d.gone:
		return nil, errGone
	case d.other != nil:
		return d.other, nil
	}
	return d.own, nil
}

// revive starts the next process.
func (d *archiveDisk) revive() { d.died, d.left = false, -1 }

// mend repairs the faults of the file system.
func (d *archiveDisk) mend() {
	d.other, d.gone = nil, false
	d.own.FailAfter(-1, nil)
}

// String implements archive.Disk.
func (*archiveDisk) String() string { return "the archive" }

// Create implements archive.Disk.
func (d *archiveDisk) Create(object string) (archive.Writer, string, error) {
	disk, err := d.now()
	if err != nil {
		return nil, "", err
	}
	w, name, err := disk.Create(object)
	return &archiveWriter{disk: d, file: w}, name, err
}

// Publish implements archive.Disk.
func (d *archiveDisk) Publish(temporary, object string) error {
	disk, err := d.now()
	if err != nil {
		return err
	}
	return disk.Publish(temporary, object)
}

// Remove implements archive.Disk.
func (d *archiveDisk) Remove(name string) error {
	disk, err := d.now()
	if err != nil {
		return err
	}
	return disk.Remove(name)
}

// Sync implements archive.Disk.
func (d *archiveDisk) Sync(folder string) error {
	disk, err := d.now()
	if err != nil {
		return err
	}
	return disk.Sync(folder)
}

// Open implements archive.Disk.
func (d *archiveDisk) Open(name string) (blockfile.File, error) {
	disk, err := d.now()
	if err != nil {
		return nil, err
	}
	return disk.Open(name)
}

// List implements archive.Disk.
func (d *archiveDisk) List(folder string) ([]archive.Object, error) {
	disk, err := d.now()
	if err != nil {
		return nil, err
	}
	return disk.List(folder)
}

// archiveWriter writes a file of an archiveDisk.
type archiveWriter struct {
	disk *archiveDisk
	file archive.Writer
}

// Write implements io.Writer. The process may die with half of b written.
func (w *archiveWriter) Write(b []byte) (n int, err error) {
	if _, err = w.disk.now(); err != nil {
		b = b[:len(b)/2]
	}
	n, failed := w.file.Write(b)
	return n, errors.Join(err, failed)
}

// Sync implements archive.Writer.
func (w *archiveWriter) Sync() error {
	if _, err := w.disk.now(); err != nil || w.disk.unsynced {
		return err
	}
	return w.file.Sync()
}

// Close implements io.Closer.
func (w *archiveWriter) Close() error { return w.file.Close() }

// mount injects faults into the file system of the archive.
type mount struct{ w *world }

func (m *mount) start()            { m.w.after(m.w.upTo(second), m.act) }
func (m *mount) unsettled() string { return "" }

func (m *mount) act() {
	w, d := m.w, m.w.archive
	d.mend()
	if w.calm {
		return
	}
	if w.archiveMark != (archive.Mark{}) { // before that, the ledger accepts whatever is there as its archive
		switch w.rng.IntN(8) {
		case 0:
			w.counted["archive: away"]++
			d.other = memorytarget.New()
		case 1:
			w.counted["archive: exchanged"]++
			d.other = m.another()
		case 2:
			w.counted["archive: gone"]++
			d.gone = true
		case 3:
			w.counted["archive: full"]++
			d.own.FailAfter(w.rng.IntN(4), errFull)
		case 4:
			w.counted["archive: power losses"]++
			d.own.Crash(w.rng.IntN)
		}
	}
	w.after(w.upTo(3*second), m.act)
}

// another returns another archive of the same ledger.
func (m *mount) another() *memorytarget.Disk {
	d := memorytarget.New()
	o := archive.Options{Ledger: m.w.archiveMark.Ledger, Random: seeded{m.w}}
	_, err := archive.Open(context.Background(), archive.OnDisk(d), o)
	m.w.must(err, "making another archive")
	return d
}

// seeded is a source of random bytes determined by the seed.
type seeded struct{ w *world }

// Read implements io.Reader.
func (s seeded) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(s.w.rng.Uint32())
	}
	return len(b), nil
}

var (
	_ archive.Disk = (*archiveDisk)(nil)
	_ io.Reader    = seeded{}
)
