package ledger

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

// A backup is a header, the state file in chunks, and a trailer; FORMAT.md has
// the bytes. The header says how long the state is, and every chunk but the
// last is full, so that a backup of a given header has one length, and nothing
// can be left out, added or moved without notice.

const (
	backupMagic = "seqledger backup"
	// BackupFormat is the version of the format of a backup.
	BackupFormat = 1

	backupHeaderBytes  = len(backupMagic) + 4 + 8 + 8 + sha256.Size + 8 + 4
	backupChunkBytes   = 256 << 10
	chunkOverhead      = 4 + 4
	backupTrailerBytes = 4 + 8 + sha256.Size
	// maxStateBytes keeps sums of sizes within 64 bits.
	maxStateBytes = 1 << 60
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// BackupInfo tells what a backup holds.
type BackupInfo struct {
	LedgerID   machine.LedgerID
	Index      uint64       // ledger index of the last command in it
	Digest     machine.Hash // running digest at that index
	StateBytes int64        // of the state file in it
	Bytes      int64        // of the whole backup
	SHA256     machine.Hash // of the whole backup; known at its end
}

// BackupDamageError says that something is no backup, or not as it was made.
type BackupDamageError struct {
	Offset int64 // of the part that is wrong, in bytes
	What   string
}

// Error says where and what is wrong, and what to do.
func (e *BackupDamageError) Error() string {
	return fmt.Sprintf("the backup is damaged at byte %d: %s; use another copy or another backup", e.Offset, e.What)
}

// backupBytes returns how long a backup of so much state is.
func backupBytes(state int64) int64 {
	chunks := (state + backupChunkBytes - 1) / backupChunkBytes
	return int64(backupHeaderBytes) + state + chunks*chunkOverhead + int64(backupTrailerBytes)
}

func (i *BackupInfo) header() []byte {
	b := []byte(backupMagic)
	b = binary.BigEndian.AppendUint32(b, BackupFormat)
	b = binary.BigEndian.AppendUint64(b, uint64(i.LedgerID))
	b = binary.BigEndian.AppendUint64(b, i.Index)
	b = append(b, i.Digest[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(i.StateBytes))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// chunkSum covers the place of a chunk too, so that one that was moved is found
// where it stands.
func chunkSum(at int64, chunk []byte) uint32 {
	place := binary.BigEndian.AppendUint64(nil, uint64(at))
	return crc32.Update(crc32.Checksum(place, castagnoli), castagnoli, chunk)
}

// backupWriter makes a backup of what is written to it.
type backupWriter struct {
	w     io.Writer
	hash  hash.Hash // over everything that was sent
	sent  int64     // of the state
	chunk []byte    // being gathered, behind its length
	pause func(n int) error
}

// newBackupWriter sends the header. pause is called before so many bytes are
// sent.
func newBackupWriter(w io.Writer, info *BackupInfo, pause func(n int) error) (*backupWriter, error) {
	b := &backupWriter{
		w: w, hash: sha256.New(), pause: pause, chunk: make([]byte, 4, 4+backupChunkBytes+4),
	}
	return b, b.send(info.header())
}

func (b *backupWriter) send(part []byte) error {
	if err := b.pause(len(part)); err != nil {
		return err
	}
	_, _ = b.hash.Write(part) // never fails
	_, err := b.w.Write(part)
	return err
}

// Write implements io.Writer.
func (b *backupWriter) Write(state []byte) (n int, err error) {
	for len(state) > 0 {
		taken := min(len(state), 4+backupChunkBytes-len(b.chunk))
		b.chunk = append(b.chunk, state[:taken]...)
		if len(b.chunk) == 4+backupChunkBytes {
			if err := b.sendChunk(); err != nil {
				return n, err
			}
		}
		state, n = state[taken:], n+taken
	}
	return n, nil
}

func (b *backupWriter) sendChunk() error {
	body := b.chunk[4:]
	binary.BigEndian.PutUint32(b.chunk, uint32(len(body)))
	err := b.send(binary.BigEndian.AppendUint32(b.chunk, chunkSum(b.sent, body)))
	b.sent += int64(len(body))
	b.chunk = b.chunk[:4]
	return err
}

// finish sends what is left, and the trailer. It returns the SHA-256 of
// everything, which the backup cannot hold itself.
func (b *backupWriter) finish() (whole machine.Hash, err error) {
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

// backupReader takes a backup apart.
type backupReader struct {
	ctx  context.Context //nolint:containedctx // It lives as long as one reading.
	r    io.Reader
	hash hash.Hash
	at   int64 // bytes read
}

// readBackup checks a backup to its very last byte. It hands the header to
// begin, and then the state to chunk, each piece once its own checksum has been
// checked: only a nil error says that the whole is right. What is wrong with
// the backup is a *BackupDamageError.
func readBackup(
	ctx context.Context, from io.Reader, begin func(BackupInfo) error, chunk func([]byte) error,
) (info BackupInfo, err error) {
	r := &backupReader{ctx: ctx, r: from, hash: sha256.New()}
	if info, err = r.header(); err != nil {
		return info, err
	}
	if err := begin(info); err != nil {
		return info, err
	}
	buffer := make([]byte, 4+backupChunkBytes+4)
	for done := int64(0); done < info.StateBytes; {
		body, err := r.chunk(buffer, done, info.StateBytes-done)
		if err != nil {
			return info, err
		}
		if err := chunk(body); err != nil {
			return info, err
		}
		done += int64(len(body))
	}
	if err := r.trailer(info.StateBytes); err != nil {
		return info, err
	}
	r.hash.Sum(info.SHA256[:0])
	return info, nil
}

// read fills b and counts it into the hash.
func (r *backupReader) read(b []byte, what string) error {
	if err := r.ctx.Err(); err != nil {
		return context.Cause(r.ctx)
	}
	n, err := io.ReadFull(r.r, b)
	r.at += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &BackupDamageError{r.at, "it ends in " + what}
	}
	if err != nil {
		return fmt.Errorf("read of the backup at byte %d: %w", r.at, err)
	}
	_, _ = r.hash.Write(b) // never fails
	return nil
}

func (r *backupReader) header() (info BackupInfo, err error) {
	b := make([]byte, backupHeaderBytes)
	err = r.read(b[:len(backupMagic)+4], "its header")
	if got := b[:min(r.at, int64(len(backupMagic)))]; !bytes.HasPrefix([]byte(backupMagic), got) {
		return info, &BackupDamageError{0, "it does not begin like a backup of seqledger"}
	}
	if err != nil {
		return info, err
	}
	rest := b[len(backupMagic):]
	if version := binary.BigEndian.Uint32(rest); version != BackupFormat {
		return info, &BackupDamageError{int64(len(backupMagic)),
			fmt.Sprintf("it has format version %d and this program reads version %d", version, BackupFormat)}
	}
	if err := r.read(rest[4:], "its header"); err != nil {
		return info, err
	}
	sum := len(b) - 4
	if binary.BigEndian.Uint32(b[sum:]) != crc32.Checksum(b[:sum], castagnoli) {
		return info, &BackupDamageError{int64(len(backupMagic)), "the checksum of its header is wrong"}
	}
	info.LedgerID = machine.LedgerID(binary.BigEndian.Uint64(rest[4:]))
	info.Index = binary.BigEndian.Uint64(rest[12:])
	copy(info.Digest[:], rest[20:])
	size := binary.BigEndian.Uint64(rest[20+sha256.Size:])
	if size == 0 || size > maxStateBytes {
		return info, &BackupDamageError{int64(len(backupMagic)), fmt.Sprintf("its header speaks of %d bytes of state", size)}
	}
	info.StateBytes, info.Bytes = int64(size), backupBytes(int64(size))
	return info, nil
}

// chunk reads the next chunk into the buffer and returns its body.
func (r *backupReader) chunk(buffer []byte, done, left int64) ([]byte, error) {
	at, size := r.at, int(min(left, backupChunkBytes))
	b := buffer[:4+size+4]
	if err := r.read(b, "a chunk"); err != nil {
		return nil, err
	}
	body := b[4 : 4+size]
	if n := binary.BigEndian.Uint32(b); int64(n) != int64(size) {
		return nil, &BackupDamageError{at, fmt.Sprintf("a chunk of %d bytes where one of %d was due", n, size)}
	}
	if binary.BigEndian.Uint32(b[4+size:]) != chunkSum(done, body) {
		return nil, &BackupDamageError{at, "the checksum of a chunk is wrong"}
	}
	return body, nil
}

func (r *backupReader) trailer(state int64) error {
	at := r.at
	end := make([]byte, 4+8)
	if err := r.read(end, "its trailer"); err != nil {
		return err
	}
	if binary.BigEndian.Uint32(end) != 0 || binary.BigEndian.Uint64(end[4:]) != uint64(state) {
		return &BackupDamageError{at, "its trailer makes no sense"}
	}
	want := r.hash.Sum(nil)
	got := make([]byte, sha256.Size)
	if err := r.read(got, "its trailer"); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return &BackupDamageError{at, fmt.Sprintf("its SHA-256 is %x and should be %x", want, got)}
	}
	switch _, err := io.ReadFull(r.r, make([]byte, 1)); {
	case err == nil:
		return &BackupDamageError{r.at, "something follows its end"}
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read of the backup at byte %d: %w", r.at, err)
	}
	return nil
}
