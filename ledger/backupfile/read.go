package backupfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/seqledger/seqledger/ledger/internal/format"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/raftlog"
)

func damage(at int64, what string) *DamageError { return &DamageError{Offset: at, What: what} }

// reader takes a backup apart.
type reader struct {
	ctx  context.Context //nolint:containedctx // It lives as long as one reading.
	r    io.Reader
	hash hash.Hash
	at   int64 // bytes read
}

// errParts refuses a state of an archive where a whole one is read.
var errParts = errors.New("it is the state of an archive, which has its block files: name the archive")

// Read checks a state to its very last byte, and copies the files in it, each
// chunk once its own checksum has been checked. It calls open before it writes a file, with 0 for
// the state file and with its number for a block file. The
// files are whole only when the error is nil. The error is a *DamageError when
// something is wrong with the state. progress gets the number of bytes of the files
// copied so far, and of all. accept is told what is in it before a file is opened, and its error ends the reading; it
// and progress may be nil. Without it a state is refused that does not have all block files.
func Read(
	ctx context.Context, backup io.Reader, accept func(*Info) error, open func(file uint64) (io.Writer, error),
	progress func(done, total int64),
) (info Info, err error) {
	r := &reader{ctx: ctx, r: backup, hash: sha256.New()}
	if info, err = r.header(); err != nil {
		return info, err
	}
	switch {
	case accept != nil:
		err = accept(&info)
	case !info.Whole():
		err = errParts
	}
	if err != nil {
		return info, err
	}
	files := splitter{sizes: info.Sizes, first: info.From, open: open}
	buffer := make([]byte, 4+chunkBytes+4)
	for done := int64(0); done < info.StateBytes; {
		body, err := r.chunk(buffer, done, info.StateBytes-done)
		if err != nil {
			return info, err
		}
		if err := files.write(body); err != nil {
			return info, err
		}
		done += int64(len(body))
		if progress != nil {
			progress(done, info.StateBytes)
		}
	}
	if err := r.trailer(&info); err != nil {
		return info, err
	}
	r.hash.Sum(info.SHA256[:0])
	return info, nil
}

// splitter writes bytes to one file after another.
type splitter struct {
	sizes []int64
	first uint64 // number of the first block file in the backup
	open  func(file uint64) (io.Writer, error)
	next  int // the file that is opened next
	w     io.Writer
	left  int64 // of the current file
}

func (s *splitter) write(b []byte) (err error) {
	for len(b) > 0 {
		for s.left == 0 {
			number := uint64(0)
			if s.next > 0 {
				number = s.first + uint64(s.next) - 1
			}
			if s.w, err = s.open(number); err != nil {
				return err
			}
			s.left = s.sizes[s.next]
			s.next++
		}
		n := min(int64(len(b)), s.left)
		if _, err := s.w.Write(b[:n]); err != nil {
			return err
		}
		b, s.left = b[n:], s.left-n
	}
	return nil
}

// read fills b and counts it into the hash.
func (r *reader) read(b []byte, what string) error {
	if err := r.ctx.Err(); err != nil {
		return context.Cause(r.ctx)
	}
	n, err := io.ReadFull(r.r, b)
	r.at += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damage(r.at, "it ends in "+what)
	}
	if err != nil {
		return fmt.Errorf("read of the backup at byte %d: %w", r.at, err)
	}
	_, _ = r.hash.Write(b) // never fails
	return nil
}

func (r *reader) header() (info Info, err error) {
	b := make([]byte, headerBytes)
	err = r.read(b[:len(magic)+4], "its header")
	if got := b[:min(r.at, int64(len(magic)))]; !bytes.HasPrefix([]byte(magic), got) {
		return info, damage(0, "it does not begin like a backup of seqledger")
	}
	if err != nil {
		return info, err
	}
	if err := r.read(b[r.at:], "its header"); err != nil {
		return info, err
	}
	wrong := damage(int64(len(magic)), "the checksum of its header is wrong")
	if sum := len(b) - 4; binary.BigEndian.Uint32(b[sum:]) != crc32.Checksum(b[:sum], castagnoli) {
		return info, wrong
	}
	if err := format.Check(binary.BigEndian.Uint32(b[len(magic):]), Version); err != nil {
		return info, fmt.Errorf("the backup: %w", err)
	}
	members, files := info.readNumbers(b[len(magic)+4:])
	if files == 0 || files > maxFiles || members > maxMembers {
		return info, damage(int64(len(magic)), fmt.Sprintf("its header speaks of %d files, and members in %d bytes",
			files, members))
	}
	rest := make([]byte, int(members)+int(files)*sizeBytes+4)
	if err := r.read(rest, "its header"); err != nil {
		return info, err
	}
	rest, sum := rest[:len(rest)-4], rest[len(rest)-4:]
	if binary.BigEndian.Uint32(sum) != crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, rest) {
		return info, wrong
	}
	info.Members = rest[:members:members]
	if err := info.readSizes(rest[members:]); err != nil {
		return info, err
	}
	return info, info.checkNumbers()
}

// readNumbers reads what has the same length in each header, and returns the length of the members and the number of
// files.
func (i *Info) readNumbers(b []byte) (members, files uint32) {
	next := func() (n uint64) {
		n, b = binary.BigEndian.Uint64(b), b[8:]
		return n
	}
	i.LedgerID, i.Index = machine.LedgerID(next()), next()
	b = b[copy(i.Digest[:], b):]
	i.Time = int64(next())
	i.At = raftlog.Position{Index: next(), Term: next()}
	i.First, i.From = next(), next()
	b = b[copy(i.Sealed[:], b):]
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
}

// checkNumbers refuses numbers that no ledger makes, although their checksum is right.
func (i *Info) checkNumbers() error {
	at := int64(len(magic))
	if i.First > maxFirst || len(i.Sizes) > 1 && i.First == 0 {
		return damage(at, fmt.Sprintf("its header speaks of block file %d", i.First))
	}
	if !i.Whole() && (i.From < i.First || i.From > maxFirst || len(i.Sizes) != 2) {
		return damage(at, fmt.Sprintf("its header speaks of block files from %d on, %d of them in it from %d on",
			i.First, len(i.Sizes)-1, i.From))
	}
	return nil
}

// readSizes takes the sizes of the files from a header.
func (i *Info) readSizes(b []byte) error {
	var sizes []int64
	total := uint64(0)
	for ; len(b) > 0; b = b[sizeBytes:] {
		size := binary.BigEndian.Uint64(b)
		if size == 0 || size > maxStateBytes || total+size > maxStateBytes {
			return damage(int64(len(magic)), fmt.Sprintf("its header speaks of a file of %d bytes", size))
		}
		total += size
		sizes = append(sizes, int64(size))
	}
	i.SetSizes(sizes)
	return nil
}

// chunk reads the next chunk into the buffer and returns its body.
func (r *reader) chunk(buffer []byte, done, left int64) ([]byte, error) {
	at, size := r.at, int(min(left, chunkBytes))
	b := buffer[:4+size+4]
	if err := r.read(b, "a chunk"); err != nil {
		return nil, err
	}
	body := b[4 : 4+size]
	if n := binary.BigEndian.Uint32(b); int64(n) != int64(size) {
		return nil, damage(at, fmt.Sprintf("a chunk of %d bytes where one of %d was due", n, size))
	}
	if binary.BigEndian.Uint32(b[4+size:]) != chunkSum(done, body) {
		return nil, damage(at, "the checksum of a chunk is wrong")
	}
	return body, nil
}

func (r *reader) trailer(info *Info) error {
	at := r.at
	end := make([]byte, 4+8)
	if err := r.read(end, "its trailer"); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(end) != 0 || binary.BigEndian.Uint64(end[4:]) != uint64(info.StateBytes) {
		return damage(at, "its trailer makes no sense")
	}
	want := r.hash.Sum(nil)
	got := make([]byte, sha256.Size)
	if err := r.read(got, "its trailer"); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return damage(at, fmt.Sprintf("its SHA-256 is %x and should be %x", want, got))
	}
	switch _, err := io.ReadFull(r.r, make([]byte, 1)); {
	case err == nil:
		return damage(r.at, "something follows its end")
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read of the backup at byte %d: %w", r.at, err)
	}
	return nil
}
