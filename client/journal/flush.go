package journal

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Sync returns once everything that was appended before the call is on disk. One fsync serves
// many concurrent callers: those that arrive during an fsync wait for it, and the first of them
// then does the next one for all. There is no timer.
func (f *File) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	target := f.appended
	for f.durable < target {
		switch {
		case f.flushing:
			f.cond.Wait()
		case f.usable() != nil:
			return f.usable()
		default:
			f.flush()
		}
	}
	return nil
}

// flush writes the buffer and waits for the disk. mu is held on entry and on return, and released during the I/O.
func (f *File) flush() {
	f.flushing = true
	upTo := f.appended
	group := f.buffer
	rewrite := f.outweighed(len(group))
	if rewrite {
		// The snapshot includes the buffer's records and replaces them.
		group = f.snapshot()
		f.buffer = f.buffer[:0]
	} else {
		f.buffer, f.spare = f.spare[:0], nil
	}
	f.mu.Unlock()

	var err error
	if rewrite {
		err = f.replace(group)
	} else {
		err = f.extend(group)
	}

	f.mu.Lock()
	f.flushing = false
	if !rewrite && cap(group) <= keepBuffer {
		f.spare = group
	}
	if err != nil {
		// The error is final, because it is not known what reached the disk, and a later fsync that
		// succeeds does not cover the bytes of one that failed.
		f.err = fmt.Errorf("%w: %s: %w; writes that were not answered are unsettled until the journal is opened again",
			ErrFailed, f.path, err)
	} else {
		f.durable = upTo
	}
	f.cond.Broadcast()
}

// keepBuffer bounds the buffer that is kept for the next group.
const keepBuffer = 1 << 20

// outweighed reports whether to rewrite the file: the obsolete bytes must outweigh the
// result of a rewrite by enough to make rewrites rare. The result has at least the live bytes,
// and about the size of the last rewrite, which includes the streams' heads. mu is held.
func (f *File) outweighed(group int) bool {
	return f.size+int64(group) > f.options.MaxBytes/8+2*max(int64(f.live), f.rewritten)
}

// snapshot encodes a whole file with the present state, without unused streams. mu is held, or f is not shared yet.
func (f *File) snapshot() []byte {
	f.forgetTags()
	f.salt = newSalt()
	b := appendHeader(make([]byte, 0, headerBytes+groupHeader+f.live), f.salt)
	b = append(b, make([]byte, groupHeader)...)
	f.numbers = 0
	for name, s := range f.streams {
		if s.empty() {
			delete(f.streams, name)
			continue
		}
		f.numbers++
		s.number, s.written = f.numbers, true
		b = s.appendSnapshot(b)
	}
	if len(b) == headerBytes+groupHeader {
		return b[:headerBytes] // a group is never empty
	}
	sealGroup(b[headerBytes:], f.salt, headerBytes)
	return b
}

// extend adds a group to the file.
func (f *File) extend(group []byte) error {
	sealGroup(group, f.salt, f.size)
	end := f.size + int64(len(group))
	if end > f.allocated {
		// Allocate room for later groups, so that most fsyncs do not wait for the file system to record a new size.
		group = append(group, make([]byte, f.ahead())...)
	}
	if _, err := f.current.WriteAt(group, f.size); err != nil {
		return err
	}
	f.allocated = max(f.allocated, f.size+int64(len(group)))
	f.size = end
	return f.current.Sync()
}

// ahead is how many zeros are written ahead.
func (f *File) ahead() int { return int(min(maxAhead, f.options.MaxBytes/16)) }

const maxAhead = 256 << 10

// replace replaces the file by a new one. A crash at any point leaves one of the two, complete, under the name.
func (f *File) replace(content []byte) error {
	temporary := f.path + ".new"
	next, err := f.storage.create(temporary)
	if err != nil {
		return err
	}
	padded := append(content[:len(content):len(content)], make([]byte, f.ahead())...)
	_, err = next.WriteAt(padded, 0)
	if err == nil {
		err = next.Sync()
	}
	if err == nil {
		err = f.storage.rename(temporary, f.path)
	}
	if err == nil {
		// Sync the directory, because until it is on disk a power failure could bring the old
		// file back, without what is added to the new one from here on.
		err = f.storage.syncDir(filepath.Dir(f.path))
	}
	if err != nil {
		return errors.Join(err, next.Close())
	}
	if f.current != nil {
		// Because the old file is no longer needed, an error does not matter.
		_ = f.current.Close()
	}
	f.current, f.size, f.allocated = next, int64(len(content)), int64(len(padded))
	f.rewritten = f.size
	return nil
}
