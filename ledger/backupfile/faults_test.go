package backupfile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

var errFault = errors.New("the fault of the test")

// failingWriter takes so many bytes and then fails for good.
type failingWriter struct {
	bytes.Buffer

	room int
}

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.room -= len(b); w.room < 0 {
		return 0, errFault
	}
	return w.Buffer.Write(b)
}

// writeAll makes a backup of one file on a writer, in steps of some bytes.
func writeAll(w io.Writer, state []byte, step int, pause func(n int) error) error {
	info := Info{LedgerID: 7, Index: 9}
	info.SetSizes([]int64{int64(len(state))})
	b, err := NewWriter(w, &info, pause)
	for len(state) > 0 && err == nil {
		n := min(step, len(state))
		_, err = b.Write(state[:n])
		state = state[n:]
	}
	if err == nil {
		_, err = b.Finish()
	}
	return err
}

func neverPause(int) error { return nil }

// Wherever the place that a backup goes to fails, the backup fails with its error, and what is there
// is refused.
func TestWriterReportsFailures(t *testing.T) {
	t.Parallel()
	state := bytes.Repeat([]byte("state"), chunkBytes/2)
	var whole bytes.Buffer
	must.Do(t, writeAll(&whole, state, 1_000, neverPause))
	for room := 0; room < whole.Len(); room += max(1, whole.Len()/40) {
		w := &failingWriter{room: room}
		if err := writeAll(w, state, 1_000, neverPause); !errors.Is(err, errFault) {
			t.Fatalf("with room for %d of %d bytes: %v", room, whole.Len(), err)
		}
		if !bytes.HasPrefix(whole.Bytes(), w.Bytes()) {
			t.Errorf("with room for %d bytes something else is there", room)
		}
		_, _, err := decoded(w.Bytes())
		if _, damaged := errors.AsType[*DamageError](err); !damaged {
			t.Errorf("%d of %d bytes are read: %v", w.Len(), whole.Len(), err)
		}
	}
}

// A pause that ends with an error ends the backup before the bytes that it was for, and is told of every
// byte but the trailer's.
func TestWriterPauses(t *testing.T) {
	t.Parallel()
	state := bytes.Repeat([]byte("state"), chunkBytes/2)
	var whole bytes.Buffer
	calls, paced := 0, 0
	count := func(n int) error { calls, paced = calls+1, paced+n; return nil }
	must.Do(t, writeAll(&whole, state, len(state), count))
	if paced != whole.Len()-trailerBytes {
		t.Errorf("it was paced for %d of %d bytes", paced, whole.Len())
	}
	for stop := range calls {
		var out bytes.Buffer
		left, allowed := stop, 0
		err := writeAll(&out, state, len(state), func(n int) error {
			if left == 0 {
				return errFault
			}
			left, allowed = left-1, allowed+n
			return nil
		})
		if !errors.Is(err, errFault) || out.Len() != allowed {
			t.Errorf("stopped at call %d: %v, with %d bytes written of %d allowed", stop, err, out.Len(), allowed)
		}
	}
}

// How the caller cuts the state into writes makes no difference to the backup.
func TestWriterIgnoresTheSizeOfWrites(t *testing.T) {
	t.Parallel()
	state := bytes.Repeat([]byte("0123456789"), chunkBytes/4)
	var want bytes.Buffer
	must.Do(t, writeAll(&want, state, len(state), neverPause))
	for _, step := range []int{7, 4096, chunkBytes - 1, chunkBytes, chunkBytes + 1} {
		var got bytes.Buffer
		if err := writeAll(&got, state, step, neverPause); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("in steps of %d bytes it is another backup: %v", step, err)
		}
	}
}

// failingReader gives so many bytes and then fails.
type failingReader struct {
	b    []byte
	left int
}

func (r *failingReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, errFault
	}
	n := copy(p[:min(len(p), r.left)], r.b)
	r.b, r.left = r.b[n:], r.left-n
	return n, nil
}

// A backup that cannot be read is no damage: another try may read it. That holds for the byte behind its
// end, too, because what follows there is not known.
func TestReadReportsFailures(t *testing.T) {
	t.Parallel()
	b := encoded(t, bytes.Repeat([]byte("state"), chunkBytes/4))
	for left := 0; left <= len(b); left += max(1, len(b)/60) {
		_, err := Read(t.Context(), &failingReader{b, left}, nil, discardFiles, nil)
		if _, damaged := errors.AsType[*DamageError](err); damaged || !errors.Is(err, errFault) ||
			!strings.Contains(err.Error(), fmt.Sprintf("byte %d", left)) {
			t.Errorf("a failure behind byte %d of %d: %v", left, len(b), err)
		}
	}
	check.Is(t, check.Err(Read(t.Context(), &failingReader{b, len(b)}, nil, discardFiles, nil)), errFault,
		"a failure at the very end")
}

func discardFiles(uint64) (io.Writer, error) { return io.Discard, nil }

// A disk that fails below a restored file is no damage of the backup, and its error is kept.
func TestReadReportsItsWriter(t *testing.T) {
	t.Parallel()
	b := encoded(t, []byte("the state of a ledger"))
	for name, open := range map[string]func(uint64) (io.Writer, error){
		"open":  func(uint64) (io.Writer, error) { return nil, errFault },
		"write": func(uint64) (io.Writer, error) { return &failingWriter{room: 3}, nil },
		"the second file": func(file uint64) (io.Writer, error) {
			if file == testFirst {
				return nil, errFault
			}
			return io.Discard, nil
		},
	} {
		_, err := Read(t.Context(), bytes.NewReader(b), nil, open, nil)
		if _, damaged := errors.AsType[*DamageError](err); damaged || !errors.Is(err, errFault) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A reading ends with its context, with the cause as the error.
func TestReadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := encoded(t, bytes.Repeat([]byte("state"), chunkBytes))
	for _, after := range []int{0, 1, 3} { // chunks
		ctx, cancel := context.WithCancelCause(t.Context())
		if after == 0 {
			cancel(errFault)
		}
		chunks := 0
		_, err := Read(ctx, bytes.NewReader(b), nil, discardFiles, func(done, total int64) {
			if chunks++; chunks == after {
				cancel(errFault)
			}
			if done > total {
				t.Errorf("%d of %d bytes are done", done, total)
			}
		})
		if !errors.Is(err, errFault) || chunks != after {
			t.Errorf("cancelled behind %d chunks, it ended behind %d: %v", after, chunks, err)
		}
		cancel(nil)
	}
}

// forged is a header of the given version and sizes, all of whose checksums are right.
func forged(version uint32, sizes ...uint64) []byte {
	info := Info{First: testFirst, From: testFirst}
	b := info.header()[:headerBytes]
	binary.BigEndian.PutUint32(b[len(magic):], version)
	binary.BigEndian.PutUint32(b[headerBytes-8:], uint32(len(sizes)))
	seal(b)
	for _, size := range sizes {
		b = binary.BigEndian.AppendUint64(b, size)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// seal gives a header that was changed its right checksum.
func seal(b []byte) {
	binary.BigEndian.PutUint32(b[headerBytes-4:], crc32.Checksum(b[:headerBytes-4], castagnoli))
}

// A header that no backup has is refused, although its checksums are right, and takes no memory.
func TestReadRefusesHeaders(t *testing.T) {
	t.Parallel()
	many := forged(Version, 1)
	binary.BigEndian.PutUint32(many[headerBytes-8:], maxFiles+1)
	seal(many)
	members := forged(Version, 1)
	binary.BigEndian.PutUint32(members[headerBytes-12:], maxMembers+1)
	seal(members)
	apart := func(from uint64, sizes ...int64) []byte {
		info := Info{First: testFirst, From: from}
		info.SetSizes(sizes)
		return info.header()
	}
	for name, test := range map[string]struct {
		b    []byte
		want string
	}{
		"no files":        {forged(Version), "0 files"},
		"too many files":  {many, "1048577 files"},
		"long members":    {members, "members in 65537 bytes"},
		"a file before":   {apart(testFirst-1, 1, 1), "block files from 40 on, 1 of them in it from 39 on"},
		"several apart":   {apart(testFirst+1, 1, 1, 1), "2 of them in it"},
		"huge numbers":    {apart(maxFirst+1, 1, 1), "1 of them in it"},
		"an empty file":   {forged(Version, 5, 0), "a file of 0 bytes"},
		"a huge file":     {forged(Version, maxStateBytes+1), "a file of"},
		"sizes that wrap": {forged(Version, maxStateBytes, 1), "a file of 1 bytes"},
		"a negative size": {forged(Version, 1<<63), "a file of"},
		"something else":  {[]byte("PK\x03\x04 an archive of another kind"), "does not begin like a backup"},
		"nothing":         {nil, "it ends in its header"},
	} {
		opened := false
		_, err := Read(t.Context(), bytes.NewReader(test.b), nil, func(uint64) (io.Writer, error) {
			opened = true
			return io.Discard, nil
		}, nil)
		damage, ok := errors.AsType[*DamageError](err)
		if !ok || !strings.Contains(damage.Error(), test.want) || opened {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	// That of an archive is refused where the whole state is read.
	parts := bytes.NewReader(apart(testFirst+1, 1, 1))
	check.Is(t, check.Err(Read(t.Context(), parts, nil, discardFiles, nil)), errParts)
	// With a header that is right, the control of the test, it is the state that is missing.
	_, err := Read(t.Context(), bytes.NewReader(forged(Version, 5)), nil, discardFiles, nil)
	if err == nil || !strings.Contains(err.Error(), "it ends in a chunk") {
		t.Errorf("a header alone: %v", err)
	}
}

// A trailer that counts other bytes than the chunks have is refused before its hash is looked at.
func TestReadRefusesTrailer(t *testing.T) {
	t.Parallel()
	b := encoded(t, []byte("the state of a ledger"))
	at := len(b) - trailerBytes
	for name, change := range map[string]func(b []byte){
		"a chunk in its place": func(b []byte) { b[at] = 1 },
		"another count":        func(b []byte) { b[at+11]++ },
	} {
		changed := bytes.Clone(b)
		change(changed)
		_, _, err := decoded(changed)
		if err == nil || !strings.Contains(err.Error(), "its trailer makes no sense") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
