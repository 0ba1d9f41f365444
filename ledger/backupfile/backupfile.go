// Package backupfile is the format of a backup: it writes one, and reads one with
// every check that it allows.
//
// A backup is a header, the state file and the block files in chunks, and a trailer;
// FORMAT.md of package ledger has the bytes. The header says how long each file is,
// and every chunk but the last is full, so that a backup of a given header has one
// length, and nothing can be left out, added or moved without notice.
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

	"github.com/seqledger/seqledger/ledger/machine"
)

const (
	// Version is the version of the format.
	Version = 3
	// version2 does not say which block file is the first: none had been dropped.
	version2 = 2

	magic         = "seqledger backup"
	headerBytes   = len(magic) + 4 + 8 + 8 + sha256.Size + 4 + firstBytes + 4 // up to the sizes of the files
	firstBytes    = 8
	sizeBytes     = 8
	chunkBytes    = 256 << 10
	chunkOverhead = 4 + 4
	trailerBytes  = 4 + 8 + sha256.Size
	// maxStateBytes keeps sums of sizes within 64 bits.
	maxStateBytes = 1 << 60
	// maxFirst keeps numbers of files within 64 bits.
	maxFirst = 1 << 60
	// maxFiles bounds what is read before the checksum of a header.
	maxFiles = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Info tells what a backup holds.
type Info struct {
	LedgerID   machine.LedgerID
	Index      uint64       // ledger index of the last command in it
	Digest     machine.Hash // running digest at that index
	Sizes      []int64      // of the files in it, in bytes: the state file, then the block files
	First      uint64       // number of the first block file; 0 for a backup without any
	StateBytes int64        // of all these files
	Bytes      int64        // of the whole backup
	SHA256     machine.Hash // of the whole backup; known at its end
}

// DamageError says that something is no backup, or not as it was made.
type DamageError struct {
	Offset int64 // of the part that is wrong, in bytes
	What   string
}

// Error says where and what is wrong, and what to do.
func (e *DamageError) Error() string {
	return fmt.Sprintf("the backup is damaged at byte %d: %s; use another copy or another backup", e.Offset, e.What)
}

// SetSizes takes over how long the files are that go into a backup, and with that
// how long the backup is.
func (i *Info) SetSizes(sizes []int64) {
	i.Sizes, i.StateBytes = sizes, 0
	for _, size := range sizes {
		i.StateBytes += size
	}
	chunks := (i.StateBytes + chunkBytes - 1) / chunkBytes
	i.Bytes = int64(headerBytes+len(sizes)*sizeBytes+4) + i.StateBytes + chunks*chunkOverhead + int64(trailerBytes)
}

func (i *Info) header() []byte {
	b := []byte(magic)
	b = binary.BigEndian.AppendUint32(b, Version)
	b = binary.BigEndian.AppendUint64(b, uint64(i.LedgerID))
	b = binary.BigEndian.AppendUint64(b, i.Index)
	b = append(b, i.Digest[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(i.Sizes)))
	b = binary.BigEndian.AppendUint64(b, i.First)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) // before the number is believed
	for _, size := range i.Sizes {
		b = binary.BigEndian.AppendUint64(b, uint64(size))
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// chunkSum covers the place of a chunk too, so that one that was moved is found
// where it stands.
func chunkSum(at int64, chunk []byte) uint32 {
	place := binary.BigEndian.AppendUint64(nil, uint64(at))
	return crc32.Update(crc32.Checksum(place, castagnoli), castagnoli, chunk)
}

// Writer makes a backup of the files that are written to it, one after another.
type Writer struct {
	w     io.Writer
	hash  hash.Hash // over everything that was sent
	sent  int64     // of the state
	chunk []byte    // being gathered, behind its length
	pause func(n int) error
}

// NewWriter writes the header. The writer calls pause before it writes n bytes;
// an error of it ends the backup.
func NewWriter(w io.Writer, info *Info, pause func(n int) error) (*Writer, error) {
	b := &Writer{
		w: w, hash: sha256.New(), pause: pause, chunk: make([]byte, 4, 4+chunkBytes+4),
	}
	return b, b.send(info.header())
}

func (b *Writer) send(part []byte) error {
	if err := b.pause(len(part)); err != nil {
		return err
	}
	_, _ = b.hash.Write(part) // never fails
	_, err := b.w.Write(part)
	return err
}

// Write takes the next bytes of the state. It implements io.Writer.
func (b *Writer) Write(state []byte) (n int, err error) {
	for len(state) > 0 {
		taken := min(len(state), 4+chunkBytes-len(b.chunk))
		b.chunk = append(b.chunk, state[:taken]...)
		if len(b.chunk) == 4+chunkBytes {
			if err := b.sendChunk(); err != nil {
				return n, err
			}
		}
		state, n = state[taken:], n+taken
	}
	return n, nil
}

func (b *Writer) sendChunk() error {
	body := b.chunk[4:]
	binary.BigEndian.PutUint32(b.chunk, uint32(len(body)))
	err := b.send(binary.BigEndian.AppendUint32(b.chunk, chunkSum(b.sent, body)))
	b.sent += int64(len(body))
	b.chunk = b.chunk[:4]
	return err
}

// Finish writes what is left, and the trailer. It returns the SHA-256 of
// everything, because the backup cannot hold that itself.
func (b *Writer) Finish() (whole machine.Hash, err error) {
	if len(b.chunk) > 4 {
		if err := b.sendChunk(); err != nil {
			return whole, err
		}
	}
	end := binary.BigEndian.AppendUint64(make([]byte, 4), uint64(b.sent))
	_, _ = b.hash.Write(end) // never fails
	sum := b.hash.Sum(nil)
	_, _ = b.hash.Write(sum)
	b.hash.Sum(whole[:0])
	_, err = b.w.Write(append(end, sum...))
	return whole, err
}

// reader takes a backup apart.
type reader struct {
	ctx  context.Context //nolint:containedctx // It lives as long as one reading.
	r    io.Reader
	hash hash.Hash
	at   int64 // bytes read
}

// Read checks a backup to its very last byte, and copies the files in it, each
// chunk once its own checksum has been checked. It calls open before it writes a file, with 0 for
// the state file and with its number for a block file. Only a nil error says that the
// whole is right. The error is a *DamageError when something is wrong with the
// backup. progress is told how many bytes of the files have been copied, of how
// many; may be nil.
func Read(
	ctx context.Context, backup io.Reader, open func(file uint64) (io.Writer, error), progress func(done, total int64),
) (info Info, err error) {
	r := &reader{ctx: ctx, r: backup, hash: sha256.New()}
	if info, err = r.header(); err != nil {
		return info, err
	}
	files := splitter{sizes: info.Sizes, first: info.First, open: open}
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
	if err := r.trailer(info.StateBytes); err != nil {
		return info, err
	}
	r.hash.Sum(info.SHA256[:0])
	return info, nil
}

// splitter writes bytes to one file after another.
type splitter struct {
	sizes []int64
	first uint64 // number of the first block file
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
		return &DamageError{r.at, "it ends in " + what}
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
		return info, &DamageError{0, "it does not begin like a backup of seqledger"}
	}
	if err != nil {
		return info, err
	}
	rest := b[len(magic):]
	version := binary.BigEndian.Uint32(rest)
	switch version {
	case Version:
	case version2:
		b = b[:headerBytes-firstBytes]
		rest = b[len(magic):]
	default:
		return info, &DamageError{int64(len(magic)),
			fmt.Sprintf("it has format version %d and this program reads versions %d and %d",
				version, version2, Version)}
	}
	if err := r.read(rest[4:], "its header"); err != nil {
		return info, err
	}
	wrong := &DamageError{int64(len(magic)), "the checksum of its header is wrong"}
	if sum := len(b) - 4; binary.BigEndian.Uint32(b[sum:]) != crc32.Checksum(b[:sum], castagnoli) {
		return info, wrong
	}
	files := binary.BigEndian.Uint32(rest[20+sha256.Size:])
	if files == 0 || files > maxFiles {
		return info, &DamageError{int64(len(magic)), fmt.Sprintf("its header speaks of %d files", files)}
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
	if info.First = 1; version == Version {
		info.First = binary.BigEndian.Uint64(rest[24+sha256.Size:])
	}
	if info.First > maxFirst || files > 1 && info.First == 0 {
		return info, &DamageError{int64(len(magic)), fmt.Sprintf("its header speaks of block file %d", info.First)}
	}
	if err := info.readSizes(sizes[:len(sizes)-4]); err != nil {
		return info, err
	}
	if version == version2 {
		info.Bytes -= firstBytes
	}
	return info, nil
}

// readSizes takes the sizes of the files from a header.
func (i *Info) readSizes(b []byte) error {
	var sizes []int64
	total := uint64(0)
	for ; len(b) > 0; b = b[sizeBytes:] {
		size := binary.BigEndian.Uint64(b)
		if size == 0 || size > maxStateBytes || total+size > maxStateBytes {
			return &DamageError{int64(len(magic)), fmt.Sprintf("its header speaks of a file of %d bytes", size)}
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
		return nil, &DamageError{at, fmt.Sprintf("a chunk of %d bytes where one of %d was due", n, size)}
	}
	if binary.BigEndian.Uint32(b[4+size:]) != chunkSum(done, body) {
		return nil, &DamageError{at, "the checksum of a chunk is wrong"}
	}
	return body, nil
}

func (r *reader) trailer(state int64) error {
	at := r.at
	end := make([]byte, 4+8)
	if err := r.read(end, "its trailer"); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(end) != 0 || binary.BigEndian.Uint64(end[4:]) != uint64(state) {
		return &DamageError{at, "its trailer makes no sense"}
	}
	want := r.hash.Sum(nil)
	got := make([]byte, sha256.Size)
	if err := r.read(got, "its trailer"); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return &DamageError{at, fmt.Sprintf("its SHA-256 is %x and should be %x", want, got)}
	}
	switch _, err := io.ReadFull(r.r, make([]byte, 1)); {
	case err == nil:
		return &DamageError{r.at, "something follows its end"}
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read of the backup at byte %d: %w", r.at, err)
	}
	return nil
}
