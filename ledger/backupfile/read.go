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
)

func damage(at int64, what string) *DamageError { return &DamageError{Offset: at, What: what} }

// reader takes a backup apart.
type reader struct {
	ctx  context.Context //nolint:containedctx // It lives as long as one reading.
	r    io.Reader
	hash hash.Hash
	at   int64 // bytes read
}

// ErrIncremental refuses an incremental backup without those before it. ReadChain reads it with them.
var ErrIncremental = errors.New("it is incremental, and has only what is new since another backup: name those " +
	"before it as well, the full one first")

// Read checks a full backup to its very last byte, and copies the files in it, each
// chunk once its own checksum has been checked. It calls open before it writes a file, with 0 for
// the state file and with its number for a block file. The
// files are whole only when the error is nil. The error is a *DamageError when
// something is wrong with the backup. progress gets the number of bytes of the files
// copied so far, and of all; it may be nil.
func Read(
	ctx context.Context, backup io.Reader, open func(file uint64) (io.Writer, error), progress func(done, total int64),
) (info Info, err error) {
	return read(ctx, backup, open, progress, func(info *Info) error {
		if info.Incremental() {
			return ErrIncremental
		}
		return nil
	})
}

// read is Read for any backup that accept takes.
func read(
	ctx context.Context, backup io.Reader, open func(file uint64) (io.Writer, error), progress func(done, total int64),
	accept func(*Info) error,
) (info Info, err error) {
	r := &reader{ctx: ctx, r: backup, hash: sha256.New()}
	if info, err = r.header(); err != nil {
		return info, err
	}
	if err := accept(&info); err != nil {
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
	rest := b[len(magic):]
	if err := r.read(rest[4:], "its header"); err != nil {
		return info, err
	}
	wrong := damage(int64(len(magic)), "the checksum of its header is wrong")
	if sum := len(b) - 4; binary.BigEndian.Uint32(b[sum:]) != crc32.Checksum(b[:sum], castagnoli) {
		return info, wrong
	}
	if err := format.Check(binary.BigEndian.Uint32(rest), Version); err != nil {
		return info, fmt.Errorf("the backup: %w", err)
	}
	files := binary.BigEndian.Uint32(rest[20+sha256.Size:])
	if files == 0 || files > maxFiles {
		return info, damage(int64(len(magic)), fmt.Sprintf("its header speaks of %d files", files))
	}
	sizes := make([]byte, int(files)*sizeBytes+4)
	if err := r.read(sizes, "its header"); err != nil {
		return info, err
	}
	b, sum := append(b, sizes[:len(sizes)-4]...), sizes[len(sizes)-4:]
	if binary.BigEndian.Uint32(sum) != crc32.Checksum(b, castagnoli) {
		return info, wrong
	}
	info.LedgerID = machine.LedgerID(binary.BigEndian.Uint64(rest[4:]))
	info.Index = binary.BigEndian.Uint64(rest[12:])
	copy(info.Digest[:], rest[20:])
	info.readNumbers(b[plainBytes:])
	if err := info.readSizes(sizes[:len(sizes)-4]); err != nil {
		return info, err
	}
	return info, info.checkNumbers()
}

// readNumbers reads the numbers of the block files and the base of the backup.
func (i *Info) readNumbers(b []byte) {
	i.First, i.From = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	b = b[16:]
	copy(i.Sealed[:], b)
	b = b[sha256.Size:]
	i.Since.Index, i.Since.Last = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	copy(i.Since.Sum[:], b[16:])
}

// checkNumbers refuses numbers that no ledger makes, although their checksum is right.
func (i *Info) checkNumbers() error {
	at := int64(len(magic))
	if i.First > maxFirst || len(i.Sizes) > 1 && i.First == 0 {
		return damage(at, fmt.Sprintf("its header speaks of block file %d", i.First))
	}
	from := i.First
	if i.Incremental() {
		from = i.Since.From(i.First)
	}
	if i.From != from || i.Since.Index > i.Index || !i.Incremental() && i.Since != (Since{}) ||
		i.Incremental() && i.Last() < i.Since.Last {
		return damage(at, fmt.Sprintf("its header speaks of block files from %d on, behind %d of the backup "+
			"before it", i.From, i.Since.Last))
	}
	return nil
}

// From returns the first block file that a backup has which is made since this one, for a ledger that begins with block
// file first: the last one has grown since.
func (s *Since) From(first uint64) uint64 { return max(first, s.Last) }

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
	copy(info.Sum[:], want)
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
