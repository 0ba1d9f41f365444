package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/seqledger/seqledger/ledger/blockfile"
	"github.com/seqledger/seqledger/ledger/machine"
)

// newSuffix is what a name ends with until what bears it is whole.
const newSuffix = ".new"

// Archive is an archive that is written to. It belongs to one goroutine, and to one ledger: what another one has
// changed since it was opened is ErrOther.
type Archive struct {
	disk  Disk
	index *index                // durable
	doubt *index                // one whose writing has failed, so that either may be on the disk; nil for none
	last  *blockfile.SealedInfo // of the last file; nil until it has been read

	step func(name string) // for tests; may be nil
}

// Create makes an archive of an existing directory without an index, and returns its id, which is drawn from random
// (crypto/rand.Reader except in simulations).
func Create(disk Disk, random io.Reader) (id string, err error) {
	unlock, err := disk.Lock()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if _, err := readIndex(disk); !errors.Is(err, ErrNone) {
		if err == nil {
			err = fmt.Errorf("%s: there is an archive already", disk)
		}
		return "", err
	}
	var drawn [16]byte
	if _, err := io.ReadFull(random, drawn[:]); err != nil {
		return "", err
	}
	id = hex.EncodeToString(drawn[:])
	x := &index{id: id}
	x.chain = sha256.Sum256([]byte(x.head()))
	return id, (&Archive{disk: disk, index: x}).write(x)
}

// Open opens the archive of an id; any one for an empty id. It writes the index again, because that of a process that
// was killed may be in the cache alone, and what it says must not be gone once the ledger has removed the file.
func Open(disk Disk, id string) (*Archive, error) {
	x, err := readIndex(disk)
	if err != nil {
		return nil, err
	}
	if id != "" && x.id != id {
		return nil, fmt.Errorf("%s: %w: it has id %s, and %s was expected", disk, ErrOther, x.id, id)
	}
	a := &Archive{disk: disk, index: x, doubt: x}
	if err := a.lockAndSettle(); err != nil {
		return nil, err
	}
	return a, nil
}

// ID returns the random id that the archive got when it was made.
func (a *Archive) ID() string { return a.index.id }

// Entries returns the confirmed files in order.
func (a *Archive) Entries() []Entry { return a.index.entries }

// Disk returns where the archive is.
func (a *Archive) Disk() Disk { return a.disk }

func (a *Archive) at(step string) {
	if a.step != nil {
		a.step(step)
	}
}

// Add copies a sealed file of the ledger, and confirms it. The files must come in the order of their numbers; the
// first may have any. One that is confirmed already must be the same. Damage of the ledger's own file is
// machine.ErrCorrupt; an archive of another ledger is ErrOther; every other error is the archive's, and
// leaves what was confirmed as it was.
func (a *Archive) Add(ctx context.Context, number uint64, source blockfile.File) (err error) {
	if _, err := a.read(); err != nil { // before a lock is made where nothing is mounted
		return err
	}
	unlock, err := a.disk.Lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	// Read again, because another process may have written before this one had the lock.
	if err := a.settle(); err != nil {
		return err
	}
	if last, any := a.index.last(); any && number != last.Number+1 {
		if number <= last.Number {
			return a.compare(number, source)
		}
		return fmt.Errorf("%s: %w: it ends with %s, and %s is missing in it",
			a.disk, ErrOther, blockfile.Name(last.Number), blockfile.Name(last.Number+1))
	}
	name := blockfile.Name(number)
	a.at("copy")
	if err := a.copyFile(ctx, name+newSuffix, source); err != nil {
		return err
	}
	a.at("check")
	info, err := a.check(name + newSuffix)
	if err == nil && info.Number != number {
		err = fmt.Errorf("%w: it has the header of %s", machine.ErrCorrupt, blockfile.Name(info.Number))
	}
	if err != nil {
		return fmt.Errorf("copy of %s in %s: %w", name, a.disk, errors.Join(err, sourceError(source)))
	}
	if err := a.follows(&info); err != nil {
		return err
	}
	a.at("rename")
	if err := a.disk.Rename(name+newSuffix, name); err != nil {
		return err
	}
	// The name is durable before its line in the index, so that a confirmed file is never missing.
	if err := a.disk.Sync(); err != nil {
		return err
	}
	a.at("index")
	if _, err := a.read(); err != nil { // where locks are none, this leaves an instant
		return err
	}
	entry := Entry{Number: number, Last: info.Last, Size: info.Size, SHA256: info.SHA256}
	if err := a.write(a.index.add(entry)); err != nil {
		return err
	}
	a.last = &info
	a.at("done")
	return nil
}

// sourceError checks the source of a bad copy: a defect there is damage of the ledger.
func sourceError(source blockfile.File) error {
	if _, err := blockfile.CheckSealed(source); err != nil {
		return fmt.Errorf("and so is the file itself: %w", err)
	}
	return nil
}

// compare compares a file of the ledger with the confirmed one of its number.
func (a *Archive) compare(number uint64, source blockfile.File) error {
	info, err := blockfile.CheckSealed(source)
	if err != nil {
		return err
	}
	if e, ok := a.index.entry(number); !ok || e.SHA256 != info.SHA256 {
		return fmt.Errorf("%s: %w: it has another %s", a.disk, ErrOther, blockfile.Name(number))
	}
	return nil
}

// follows compares a new file with the last one that is confirmed.
func (a *Archive) follows(info *blockfile.SealedInfo) error {
	last, any := a.index.last()
	if !any {
		return nil
	}
	if a.last == nil || a.last.Number != last.Number {
		before, err := a.check(blockfile.Name(last.Number))
		if err != nil {
			return fmt.Errorf("%s in %s: %w", blockfile.Name(last.Number), a.disk, err)
		}
		a.last = &before
	}
	if err := info.Follows(a.last); err != nil {
		return fmt.Errorf("%s: %w: %w", a.disk, ErrOther, err)
	}
	return nil
}

// Confirmed returns an error unless a file is in the index as it is on the disk now, with its size.
func (a *Archive) Confirmed(number uint64) error {
	return a.Confirm([]uint64{number}, func() bool { return true })
}

// Confirm calls confirmed for each file that is confirmed, until one is not, which is an error, or until confirmed
// returns false. It reads the index again, so that an archive which has gone away, or was exchanged, confirms nothing.
func (a *Archive) Confirm(numbers []uint64, confirmed func() (more bool)) error {
	if _, err := a.read(); err != nil {
		return err
	}
	if a.doubt != nil {
		if err := a.lockAndSettle(); err != nil {
			return err
		}
	}
	for _, number := range numbers {
		e, ok := a.index.entry(number)
		if !ok {
			return fmt.Errorf("%s in %s is not confirmed", blockfile.Name(number), a.disk)
		}
		size, err := a.sizeOf(blockfile.Name(number))
		if err == nil && size != e.Size {
			err = fmt.Errorf("%s in %s has %d bytes and must have %d", blockfile.Name(number), a.disk, size, e.Size)
		}
		if err != nil || !confirmed() {
			return err
		}
	}
	return nil
}

func (a *Archive) sizeOf(name string) (size int64, err error) {
	file, err := a.disk.OpenSealed(name)
	if err != nil {
		return 0, err
	}
	size, err = file.Size()
	return size, errors.Join(err, file.Close())
}

// read returns the index on the disk if it is the one that was read or written last.
func (a *Archive) read() (*index, error) {
	x, err := readIndex(a.disk)
	if err == nil && x.chain != a.index.chain && (a.doubt == nil || x.chain != a.doubt.chain) {
		err = fmt.Errorf("%s: %w: its index has changed", a.disk, ErrOther)
	}
	return x, err
}

func (a *Archive) lockAndSettle() error {
	unlock, err := a.disk.Lock()
	if err != nil {
		return err
	}
	return errors.Join(a.settle(), unlock())
}

// settle writes the index on the disk again if it may be in the cache alone. It needs the lock.
func (a *Archive) settle() error {
	x, err := a.read()
	if err != nil || a.doubt == nil {
		return err
	}
	return a.write(x)
}

// copyFile makes a synced copy.
func (a *Archive) copyFile(ctx context.Context, name string, source blockfile.File) (err error) {
	size, err := source.Size()
	if err != nil {
		return err
	}
	to, err := a.disk.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // a full archive needs the bytes of the copy
			_ = a.disk.Remove(name)
		}
	}()
	in := readerWith{ctx, io.NewSectionReader(source, 0, size)}
	// Only the Write of to, because its ReadFrom would not use the buffer.
	_, err = io.CopyBuffer(struct{ io.Writer }{to}, in, make([]byte, 256<<10))
	if err == nil {
		err = to.Sync()
	}
	return errors.Join(err, to.Close())
}

type readerWith struct {
	ctx context.Context //nolint:containedctx // It lives as long as one copy.
	io.Reader
}

func (r readerWith) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(b)
}

// check reads all of a file in the archive.
func (a *Archive) check(name string) (info blockfile.SealedInfo, err error) {
	file, err := a.disk.OpenSealed(name)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return blockfile.CheckSealed(file)
}

// write makes an index the one of the archive.
func (a *Archive) write(x *index) (err error) {
	content := x.encode()
	f, err := a.disk.Create(IndexName + newSuffix)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	a.at("index written")
	if x.chain != a.index.chain { // else either may be on the disk already
		a.doubt = x
	}
	if err := a.disk.Rename(IndexName+newSuffix, IndexName); err != nil {
		return err
	}
	if err := a.disk.Sync(); err != nil {
		return err
	}
	a.index, a.doubt = x, nil
	_, err = a.read()
	return err
}
