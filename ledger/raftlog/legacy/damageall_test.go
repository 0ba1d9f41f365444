package legacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft-wal/metadb"
	"go.etcd.io/bbolt"
)

// damageImage is a log as a crash leaves it, with two segments, a snapshot, and
// entries behind it.
type damageImage struct {
	files   map[string][]byte // by path
	machine *recorder
	texts   []string
	tail    string // path of the newest segment
	ends    []int  // where its batches end, each of which has one entry
}

func newDamageImage(t *testing.T) *damageImage {
	t.Helper()
	dir, m := t.TempDir(), &recorder{}
	o := options(dir, m)
	o.Create, o.SegmentBytes = true, 4<<10
	l := open(t, o)
	for i := range 5 {
		write(t, l, fmt.Sprintf("before %d %s", i, strings.Repeat("x", 500)))
	}
	must(t, l.Truncate())
	for i := range 7 {
		write(t, l, fmt.Sprintf("behind %d %s", i, strings.Repeat("y", 300)))
	}
	image := &damageImage{files: map[string][]byte{}, machine: m.restarted(), texts: m.texts()}
	image.read(t, dir)
	l.Fail(errors.New("power loss")) // no orderly end, which would append a barrier
	_ = l.Close()
	names := segments(t, dir)
	if len(names) != 2 {
		t.Fatalf("%d segments, want 2", len(names))
	}
	image.tail = filepath.Join(walDir, filepath.Base(names[1]))
	for end := range image.files[image.tail] {
		if whole := readBatches(image.files[image.tail][:end+1]); whole.end > 0 &&
			!slices.Contains(image.ends, whole.end) {
			image.ends = append(image.ends, whole.end)
		}
	}
	return image
}

// least returns how many entries must be there when the newest segment is damaged
// from one offset to another. Damage that reaches into the last batch cannot be told
// from a torn write.
func (d *damageImage) least(from, to int) int {
	n := len(d.ends)
	if n == 1 || to <= d.ends[n-2] || from >= d.ends[n-1] {
		return len(d.texts)
	}
	gone := 0
	for _, end := range d.ends {
		if end > from {
			gone++
		}
	}
	return len(d.texts) - gone
}

// read takes over the files of a directory. The index gets small pages, so that a
// small file has all kinds of them.
func (d *damageImage) read(t *testing.T, dir string) {
	t.Helper()
	small := filepath.Join(t.TempDir(), metadb.FileName)
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if filepath.Base(path) == metadb.FileName {
			// bbolt must not meet the file that is open.
			copied := filepath.Join(t.TempDir(), "copy")
			must(t, copyFile(copied, path))
			compact(t, small, copied)
			d.files[filepath.Join(walDir, metadb.FileName)] = readFile(t, small)
			return nil
		}
		relative, err := filepath.Rel(dir, path)
		must(t, err)
		d.files[relative] = readFile(t, path)
		return nil
	})
	must(t, err)
}

// compact copies a bbolt file to one with small pages, of which some are free and
// have old content.
func compact(t *testing.T, to, from string) {
	t.Helper()
	src, err := bbolt.Open(from, 0o600, &bbolt.Options{ReadOnly: true})
	must(t, err)
	dst, err := bbolt.Open(to, 0o600, &bbolt.Options{PageSize: 1024})
	must(t, err)
	must(t, bbolt.Compact(dst, src, 0))
	for range 3 {
		must(t, dst.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(metadb.StableBucket))
			return b.Put(keyCurrentTerm, bytes.Clone(b.Get(keyCurrentTerm)))
		}))
	}
	used := int64(0)
	must(t, dst.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil }))
	must(t, errors.Join(src.Close(), dst.Close()))
	must(t, os.Truncate(to, used))
}

// put makes dir a directory with these files.
func (d *damageImage) put(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for name, content := range d.files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// found is what an opened log gave to its machine, and whether it warned.
type found struct {
	texts  []string
	warned bool
}

// reopen opens the log in dir, appends an entry, and reads it again.
func (d *damageImage) reopen(t *testing.T, dir string) (f found, err error) {
	var lines strings.Builder
	more := "more " + strings.Repeat("z", 2<<10) // so that the next segment begins
	again := d.machine.restarted()
	o := options(dir, again)
	must(t, o.validate())
	o.SegmentBytes, o.Logger = 4<<10, slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
	l, err := Open(o)
	if err != nil {
		return f, err
	}
	ready, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err = l.Ready(ready); err == nil {
		f.texts = again.texts()
		_, err = l.Propose([]byte(more)).Wait()
	}
	if err := errors.Join(err, l.Close()); err != nil {
		return f, err
	}
	f.warned = strings.Contains(lines.String(), "was interrupted and never acknowledged")
	disk, err := openDisk(&o)
	if err != nil {
		return f, err
	}
	texts := d.machine.texts()
	err = visitEntries(disk, o.Checkpoint, func(e *Entry) error {
		if e.Command != nil {
			texts = append(texts, string(e.Command))
		}
		return nil
	})
	err = errors.Join(err, disk.Close())
	if err == nil && !slices.Equal(texts, append(slices.Clone(f.texts), more)) {
		err = errors.New("after another entry, the log has others than before")
	}
	return f, err
}

// tally counts what became of damage.
type tally struct{ refused, harmless, torn, all atomic.Int64 }

func (c *tally) String() string {
	return fmt.Sprintf("%d: refused at the start %d, no answer changed %d, taken for a torn write %d",
		c.all.Load(), c.refused.Load(), c.harmless.Load(), c.torn.Load())
}

// check opens a directory with damage in one file and counts what comes of it. At
// least so many entries must be there; fewer than all only with a warning.
func (d *damageImage) check(t *testing.T, c *tally, dir, what string, least int) {
	c.all.Add(1)
	must(t, d.put(dir))
	got, err := d.reopen(t, dir)
	damage, refused := errors.AsType[*DamageError](err)
	switch {
	case refused:
		c.refused.Add(1)
		d.wantUnchanged(t, dir, what)
		if text := damage.Error(); !strings.Contains(text, dir) || !strings.Contains(text, "backup") {
			t.Errorf("%s: the message lacks the directory or what to do: %s", what, text)
		}
	case err != nil:
		t.Errorf("%s: %v", what, err)
	case slices.Equal(got.texts, d.texts):
		c.harmless.Add(1)
	case got.warned && len(got.texts) >= least && slices.Equal(got.texts, d.texts[:len(got.texts)]):
		c.torn.Add(1)
	default:
		t.Errorf("%s: %d entries, want %d; warned: %t %q", what, len(got.texts), len(d.texts), got.warned, got.texts)
	}
}

// wantUnchanged: a log that was refused is as it was, so that what can be repaired by
// other means is still there.
func (d *damageImage) wantUnchanged(t *testing.T, dir, what string) {
	for name, content := range d.files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: the refused start changed %s (%v)", what, name, err)
		}
	}
}

// damageStep is how many bits the tests of damage go on by: 7 with SEQLEDGER_DAMAGE_ALL, so that each byte is hit and
// each of the eight bits in turn (1 has been run for as long as such logs were written), and otherwise a number that
// has no factor in common with a byte, so that bits of all kinds are among them.
func damageStep() int {
	if os.Getenv("SEQLEDGER_DAMAGE_ALL") != "" {
		return 7
	}
	return 1_009
}

// eachDamage calls damage with every number below n, on some goroutines that each
// have a directory.
func eachDamage(t *testing.T, n, step int, damage func(i int, dir string)) {
	t.Helper()
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) { // each has files of its own in memory
		dir := filepath.Join(t.TempDir(), "log")
		workers.Go(func() { // ends with the numbers; waited for below
			for {
				i := int(next.Add(int64(step))) - step
				if i >= n {
					return
				}
				damage(i, dir)
			}
		})
	}
	workers.Wait()
}

// with returns the image with another content of a file, or without the file.
func (d *damageImage) with(name string, content []byte) *damageImage {
	changed := *d
	changed.files = maps.Clone(d.files)
	if changed.files[name] = content; content == nil {
		delete(changed.files, name)
	}
	return &changed
}

// eachFile runs a test of each file of the image.
func (d *damageImage) eachFile(
	t *testing.T, what string, test func(t *testing.T, c *tally, name string, content []byte),
) {
	t.Helper()
	for name, content := range d.files {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c tally
			test(t, &c, name, content)
			t.Logf("%s: %s", what, &c)
		})
	}
}

// TestDamage_LogBits flips bits of each file of a log in turn: the log is
// refused, or the machine gets every entry that was acknowledged, and the log goes
// on. Only damage to the very last batch looks like a torn write.
func TestDamage_LogBits(t *testing.T) {
	t.Parallel()
	image := newDamageImage(t)
	image.eachFile(t, "flipped bits", func(t *testing.T, c *tally, name string, content []byte) {
		eachDamage(t, 8*len(content), damageStep(), func(bit int, dir string) {
			b, least := bytes.Clone(content), len(image.texts)
			b[bit/8] ^= 1 << (bit % 8)
			if name == image.tail {
				least = image.least(bit/8, bit/8+1)
			}
			image.with(name, b).check(t, c, dir, fmt.Sprintf("bit %d of byte %d of %s", bit%8, bit/8, name), least)
		})
	})
}

// TestDamage_LogCuts cuts each file of a log off at such lengths: the same.
func TestDamage_LogCuts(t *testing.T) {
	t.Parallel()
	image := newDamageImage(t)
	image.eachFile(t, "cuts", func(t *testing.T, c *tally, name string, content []byte) {
		eachDamage(t, len(content), damageStep(), func(size int, dir string) {
			image.with(name, content[:size]).check(t, c, dir, fmt.Sprintf("%d bytes of %s", size, name),
				len(image.texts))
		})
	})
}

// TestDamage_LogSectors zeroes each sector of each file of a log, exchanges each two
// of a file, and removes each file: the same.
func TestDamage_LogSectors(t *testing.T) {
	t.Parallel()
	image := newDamageImage(t)
	const size = 512
	sector := func(b []byte, i int) []byte { return b[size*i : min(size*i+size, len(b))] }
	image.eachFile(t, "zeroed and exchanged sectors, and no file", func(t *testing.T, c *tally, name string,
		content []byte) {
		n := (len(content) + size - 1) / size
		eachDamage(t, n*n+1, 1, func(i int, dir string) {
			if i == n*n {
				image.with(name, nil).check(t, c, dir, "without "+name, len(image.texts))
				return
			}
			one, other := i/n, i%n
			if one < other {
				return
			}
			b := bytes.Clone(content)
			if one == other {
				clear(sector(b, one))
			} else {
				copy(sector(b, other), sector(content, one))
				copy(sector(b, one), sector(content, other))
			}
			least := len(image.texts)
			if name == image.tail {
				least = image.least(size*other, size*one+size)
			}
			image.with(name, b).check(t, c, dir, fmt.Sprintf("sectors %d and %d of %s", other, one, name), least)
		})
	})
}
