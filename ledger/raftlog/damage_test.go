package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// damageStep is the step, in bits, of the damage tests: 1 with SEQLEDGER_DAMAGE_ALL, otherwise a number coprime to 8,
// so that every bit position of a byte is hit.
func damageStep() int {
	if os.Getenv("SEQLEDGER_DAMAGE_ALL") != "" {
		return 1
	}
	return 1_009
}

// image is a log as it looks after a crash, with a truncation and several files.
type image struct {
	dir     string
	machine *recorder
	files   []string
	content map[string][]byte // of each file, up to its last nonzero byte
}

func newImage(t *testing.T) *image {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	m := &recorder{}
	o := options(dir, m)
	o.Create, o.SegmentBytes = true, 8<<10
	l := open(t, o)
	text := func(i int) string { return fmt.Sprint(i, strings.Repeat("x", 300)) }
	for i := range 20 {
		write(t, l, text(i))
	}
	must.Do(t, m.truncate(l))
	closeLog(t, l)
	o.Create, o.Checkpoint = false, m.durable
	l = open(t, o)
	for i := range 30 {
		write(t, l, text(20+i))
	}
	i := &image{dir: copyOf(t, dir), machine: m, content: map[string][]byte{}}
	closeLog(t, l)
	names, err := filepath.Glob(filepath.Join(i.dir, segmentsDir, "*.log"))
	if err != nil || len(names) < 3 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, name := range names {
		content := must.Get(os.ReadFile(name))(t)
		i.files, i.content[filepath.Base(name)] = append(i.files, filepath.Base(name)), content
	}
	return i
}

// fate opens the image with the content of one file replaced. It wants the log refused or every entry in it. Only the
// last record may be missing, and only if the damage hit it, because that looks like an interrupted write.
func (i *image) fate(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	for _, file := range i.files {
		b := i.content[file]
		if file == name {
			b = content
		}
		must.Do(t, os.WriteFile(filepath.Join(dir, segmentsDir, file), b, 0o600))
	}
	return i.fateOf(t, options(dir, i.machine.restarted()), name, content)
}

// fateOf is fate for the files that the options name.
func (i *image) fateOf(t *testing.T, o Options, name string, content []byte) string {
	t.Helper()
	m := o.Machine.(*recorder)
	l, err := Open(o)
	if err == nil {
		err = errors.Join(l.Ready(t.Context()), l.Close())
	}
	want := i.machine.entries
	switch {
	case err != nil && !IsDamage(err):
		t.Errorf("%s: %v", name, err)
	case err != nil:
		return "refused"
	case slices.Equal(m.entries, want):
		return "harmless"
	case i.hitsEnd(name, content) && len(m.entries) >= len(want)-2 && slices.Equal(m.entries, want[:len(m.entries)]):
		return "torn"
	default:
		t.Errorf("%s: %d entries of %d", name, len(m.entries), len(want))
	}
	return "wrong"
}

// hitsEnd reports whether content differs in the last record of the log.
func (i *image) hitsEnd(name string, content []byte) bool {
	whole := i.content[name]
	end := used(whole)
	const record = 40 + 302
	return name == i.files[len(i.files)-1] && !bytes.Equal(content[end-record:end], whole[end-record:end])
}

// workspace returns a function that returns a directory for one image at a time. Files that a start creates in it are
// removed.
func (i *image) workspace(t *testing.T) func() string {
	dir := t.TempDir()
	return func() string {
		err := os.RemoveAll(filepath.Join(dir, segmentsDir))
		must.Do(t, errors.Join(err, os.MkdirAll(filepath.Join(dir, segmentsDir), 0o700)))
		return dir
	}
}

func used(content []byte) int { return len(bytes.TrimRight(content, "\x00")) }

// TestDamage_LogBits flips each bit of each file of a log. The files are in memory, because creating and removing them
// on a real disk, as the other tests do, would take most of the time.
func TestDamage_LogBits(t *testing.T) {
	t.Parallel()
	i := newImage(t)
	fates := map[string]int{}
	sound, dir := simdisk.New(), i.workspace(t)()
	for _, name := range i.files {
		sound.SetBytes(name, i.content[name])
	}
	for _, name := range i.files {
		for bit := 0; bit < 8*(used(i.content[name])+16); bit += damageStep() {
			disk := sound.Clone()
			disk.Bytes(name)[bit/8] ^= 1 << (bit % 8)
			content := bytes.Clone(disk.Bytes(name)) // a start may write to the disk's own bytes
			o := options(dir, i.machine.restarted())
			o.disk = func(string) segment.Disk { return disk }
			fates[i.fateOf(t, o, name, content)]++
		}
	}
	t.Logf("%v", fates)
	if fates["refused"] < 50 {
		t.Errorf("%v: the test tested too little", fates)
	}
}

// TestDamage_LogCuts truncates each file at and around each sector boundary, with and without zeros after the cut.
func TestDamage_LogCuts(t *testing.T) {
	t.Parallel()
	i := newImage(t)
	fates := map[string]int{}
	dir := i.workspace(t)
	for n, name := range i.files {
		for at := 0; at < used(i.content[name]); at += 512 {
			for _, length := range []int{at, at + 1, at + 511} {
				content := i.content[name]
				if length >= used(content) {
					continue
				}
				if got := i.fate(t, dir(), name, content[:length]); got != "refused" {
					t.Errorf("%s of %d bytes: %s", name, length, got)
				}
				zeroed := make([]byte, len(content))
				copy(zeroed, content[:length])
				fate := i.fateOfEnd(t, dir(), name, zeroed)
				if fates[fate]++; fate == "shorter" && n < len(i.files)-1 {
					t.Errorf("%s is zeros behind %d bytes: %s", name, length, fate)
				}
			}
		}
	}
	t.Logf("%v", fates)
}

// fateOfEnd is fate for a file that is zero from some byte on. The end of the newest file then looks as if it had never
// been written, unless another record shows that it was durable.
func (i *image) fateOfEnd(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	if name != i.files[len(i.files)-1] {
		return i.fate(t, dir, name, content)
	}
	for _, file := range i.files {
		b := i.content[file]
		if file == name {
			b = content
		}
		must.Do(t, os.WriteFile(filepath.Join(dir, segmentsDir, file), b, 0o600))
	}
	m := i.machine.restarted()
	l, err := Open(options(dir, m))
	if err == nil {
		err = errors.Join(l.Ready(t.Context()), l.Close())
	}
	switch {
	case err != nil && !IsDamage(err):
		t.Errorf("%s: %v", name, err)
	case err == nil && !slices.Equal(m.entries, i.machine.entries[:len(m.entries)]):
		t.Errorf("%s: other entries", name)
	case err != nil:
		return "refused"
	}
	return "shorter"
}

// TestDamage_LogSectors drops each sector of each file, and swaps it with another one.
func TestDamage_LogSectors(t *testing.T) {
	t.Parallel()
	const sector = 512
	i := newImage(t)
	fates := map[string]int{}
	dir := i.workspace(t)
	for _, name := range i.files {
		whole := i.content[name]
		for at := 0; at+sector <= used(whole); at += sector {
			lost := bytes.Clone(whole)
			clear(lost[at : at+sector])
			fates[i.fate(t, dir(), name, lost)]++
			exchanged := bytes.Clone(whole)
			other := (at + 3*sector) % (used(whole) / sector * sector)
			copy(exchanged[at:at+sector], whole[other:other+sector])
			copy(exchanged[other:other+sector], whole[at:at+sector])
			fates[i.fate(t, dir(), name, exchanged)]++
		}
	}
	t.Logf("%v", fates)
	if fates["refused"] < 20 {
		t.Errorf("%v: the test tested too little", fates)
	}
}
