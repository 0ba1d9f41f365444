package ledger_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The tests below damage a small state file in every place in turn, and let the
// state machine live on it: it replays the log, answers every question, gets every
// acknowledged write again and new ones beside them, and writes checkpoints. Raft is
// left out, because it would take most of the time; package raftlog does the same
// with the log's files.

// damageStep is how many bits the tests of damage go on by: 1 with
// SEQLEDGER_DAMAGE_ALL, and otherwise a number that has no factor in common with a
// byte, so that bits of all kinds are among them.
func damageStep() int {
	if os.Getenv("SEQLEDGER_DAMAGE_ALL") != "" {
		return 1
	}
	return 1_009
}

// stateTally counts what became of damage.
type stateTally struct{ all, refused, stopped, harmless atomic.Int64 }

func (c *stateTally) String() string {
	return fmt.Sprintf("%d: refused at the start %d, stopped later %d, no answer changed %d",
		c.all.Load(), c.refused.Load(), c.stopped.Load(), c.harmless.Load())
}

// check lets a damaged state live, and counts what comes of it.
func (d *stateImage) check(t *testing.T, c *stateTally, path string, damaged []byte, what string) {
	d.checkAll(t, c, path, damaged, d.sums, d.blocks, what)
}

// checkWith is check for a state whose sums may be damaged, too.
func (d *stateImage) checkWith(t *testing.T, c *stateTally, path string, damaged, sums []byte, what string) {
	d.checkAll(t, c, path, damaged, sums, d.blocks, what)
}

// checkBlocks is check of a block file.
func (d *stateImage) checkBlocks(t *testing.T, c *stateTally, path, name string, damaged []byte, what string) {
	blocks := maps.Clone(d.blocks)
	blocks[name] = damaged
	d.checkAll(t, c, path, d.content, d.sums, blocks, fmt.Sprintf("%s: %s", name, what))
}

func (d *stateImage) checkAll(
	t *testing.T, c *stateTally, path string, state, sums []byte, blocks map[string][]byte, what string,
) {
	c.all.Add(1)
	if err := d.put(path, state, sums, blocks); err != nil {
		t.Errorf("%v", err)
		return
	}
	life := &stateLife{want: d.want}
	err := d.live(life, path)
	_, refused := errors.AsType[refusal](err)
	switch {
	case life.wrong != "":
		t.Errorf("%s: %s (then %v)", what, life.wrong, err)
	case refused && life.stage == "at the start":
		c.refused.Add(1)
		text := err.Error()
		named := strings.Contains(text, path) || strings.Contains(text, boltstore.SumsPath(path))
		if !named || !strings.Contains(text, "backup") && !strings.Contains(text, "verify") {
			t.Errorf("%s: the message lacks the file or what to do: %v", what, err)
		}
	case err != nil:
		c.stopped.Add(1)
		if text := err.Error(); !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(text, "table ") &&
			!strings.Contains(text, "ledger index") && !strings.Contains(text, "block file 0") &&
			!strings.Contains(text, path) {
			t.Errorf("%s: %s: the error names no damage or no place: %v", what, life.stage, err)
		}
	case life.at != len(d.want):
		t.Errorf("%s: %d bytes of answers are missing", what, len(d.want)-life.at)
	default:
		c.harmless.Add(1)
	}
}

// each calls damage with every number below n, on as many goroutines as there are
// processors, each with a file of its own.
func (d *stateImage) each(t *testing.T, n, step int, damage func(i int, path string)) {
	t.Helper()
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		path := filepath.Join(t.TempDir(), "state.db")
		workers.Go(func() { // ends with the numbers; waited for below
			for {
				i := int(next.Add(int64(step))) - step
				if i >= n {
					return
				}
				damage(i, path)
			}
		})
	}
	workers.Wait()
}

// pageKind names what a page of the image is.
func (d *stateImage) pageKind(page int) string {
	b := d.content[page*damagePageSize:]
	if d.free[page] {
		return "free page"
	}
	switch binary.NativeEndian.Uint16(b[8:]) {
	case 0x01:
		return "inner page"
	case 0x02:
		return "leaf"
	case 0x04:
		return "meta page"
	case 0x10:
		return "list of free pages"
	default:
		return "rest of a leaf"
	}
}

// TestDamage_StateBits flips each bit of a state file in turn; where nothing is read, one of each byte. A start refuses
// it, or the store stops at what meets the damage, or every answer and every repeat is right.
func TestDamage_StateBits(t *testing.T) {
	t.Parallel()
	d := newStateImage(t)
	d.flipEach(t, damageStep())
}

// TestDamage_KeyedStateBits does the same with a fifth of the bits, in pages that are in use, of a state that has keyed
// records and dropped history.
func TestDamage_KeyedStateBits(t *testing.T) {
	t.Parallel()
	d := newKeyedImage(t)
	d.inUse = true
	d.flipEach(t, max(5, damageStep()))
}

// TestDamage_JournalBits does the same with the bits of pages that are in use, of a state whose last checkpoint a crash
// has interrupted between its steps.
func TestDamage_JournalBits(t *testing.T) {
	t.Parallel()
	d := newJournalImage(t)
	d.inUse = true
	d.flipEach(t, damageStep())
}

// TestDamage_JournalBitsWithoutSums does it without page checksums.
func TestDamage_JournalBitsWithoutSums(t *testing.T) {
	t.Parallel()
	d := newJournalImage(t)
	d.sums, d.inUse = nil, true
	d.flipEach(t, max(61, damageStep()))
}

// TestDamage_StateBitsWithoutSums does the same with a file whose page checksums are missing: each start makes them of
// the damaged pages. What is left to notice it are the checksums of records and what pages say twice.
func TestDamage_StateBitsWithoutSums(t *testing.T) {
	t.Parallel()
	d := newStateImage(t)
	d.sums = nil
	d.flipEach(t, max(61, damageStep()))
}

// TestDamage_Sums flips each bit of the file of page checksums, one of each byte amid zeros, and cuts it off at each
// length. A start refuses it, or it has found the right checksums, so that nothing that follows is
// different; some live on to show that.
func TestDamage_Sums(t *testing.T) {
	t.Parallel()
	d := newStateImage(t)
	var bits, cuts, lives stateTally
	check := func(c *stateTally, i int, path string, sums []byte, what string) {
		if i%(damageStep()*101) == 0 {
			d.checkWith(t, &lives, path, d.content, sums, what)
		}
		c.all.Add(1)
		err := d.put(path, d.content, sums, d.blocks)
		if err != nil {
			t.Error(err)
			return
		}
		s, err := boltstore.Open(path, boltstore.Options{Identity: d.identity, NoSync: true})
		if err != nil {
			if c.refused.Add(1); !errors.Is(err, machine.ErrCorrupt) {
				t.Errorf("%s: %v", what, err)
			}
			return
		}
		_, compared, err := s.Scrub(0, math.MaxInt)
		if err = errors.Join(err, s.Close()); err != nil || compared == 0 {
			t.Errorf("%s: %d pages compared, %v", what, compared, err)
		}
		c.harmless.Add(1)
	}
	d.each(t, 8*len(d.sums), damageStep(), func(bit int, path string) {
		if damageStep() == 1 && blank(d.sums, bit/8) && bit%8 != bit/8%8 {
			return
		}
		b := bytes.Clone(d.sums)
		b[bit/8] ^= 1 << (bit % 8)
		check(&bits, bit, path, b, fmt.Sprintf("bit %d of the sums", bit))
	})
	t.Logf("flipped bits in page checksums: %s", &bits)
	d.each(t, len(d.sums), damageStep(), func(size int, path string) {
		check(&cuts, size, path, d.sums[:size:size], fmt.Sprintf("sums of %d bytes", size))
	})
	t.Logf("cuts of page checksums: %s", &cuts)
	t.Logf("lives among these: %s", &lives)
}

// TestDamage_KeyedStateBitsWithoutSums does it without page checksums.
func TestDamage_KeyedStateBitsWithoutSums(t *testing.T) {
	t.Parallel()
	d := newKeyedImage(t)
	d.sums, d.inUse = nil, true
	d.flipEach(t, max(61, damageStep()))
}

// blank tells whether a byte is in the middle of zeros, as behind the records of a page: of such a byte one bit is
// enough.
func blank(content []byte, at int) bool {
	const around = 16
	return len(bytes.Trim(content[max(0, at-around):min(len(content), at+around)], "\x00")) == 0
}

func (d *stateImage) flipEach(t *testing.T, step int) {
	t.Helper()
	tallies := map[string]*stateTally{}
	for page := range len(d.content) / damagePageSize {
		tallies[d.pageKind(page)] = new(stateTally)
	}
	for _, kind := range []string{"inner page", "leaf", "meta page", "list of free pages", "rest of a leaf",
		"free page"} {
		if tallies[kind] == nil && !d.keyed {
			t.Errorf("the file has no %s", kind)
		}
	}
	d.each(t, 8*len(d.content), step, func(bit int, path string) {
		b := bytes.Clone(d.content)
		b[bit/8] ^= 1 << (bit % 8)
		page := bit / 8 / damagePageSize
		if d.inUse && d.free[page] {
			return
		}
		unread := d.free[page] || blank(d.content, bit/8)
		if unread && step == 1 && bit%8 != bit/8%8 {
			return
		}
		what := fmt.Sprintf("bit %d of byte %d of page %d (%s)", bit%8, bit/8%damagePageSize, page, d.pageKind(page))
		d.check(t, tallies[d.pageKind(page)], path, b, what)
	})
	for kind, c := range tallies {
		t.Logf("flipped bits in pages of the kind %s: %s", kind, c)
	}
}

// damageImages are the kinds of state files.
var damageImages = map[string]func(*testing.T) *stateImage{
	"streams": newStateImage, "keys": newKeyedImage, "journal": newJournalImage,
}

// TestDamage_StateCuts cuts a state file of each kind off at each length.
func TestDamage_StateCuts(t *testing.T) {
	t.Parallel()
	for kind, image := range damageImages {
		t.Run(kind, func(t *testing.T) { image(t).cutEach(t) })
	}
}

func (d *stateImage) cutEach(t *testing.T) {
	t.Helper()
	var c stateTally
	d.each(t, len(d.content), damageStep(), func(size int, path string) {
		d.check(t, &c, path, d.content[:size], fmt.Sprintf("%d bytes", size))
	})
	t.Logf("cuts: %s", &c)
}

// TestDamage_StateSectors zeroes each sector of a state file of each kind, and exchanges each two, with page checksums
// and without.
func TestDamage_StateSectors(t *testing.T) {
	t.Parallel()
	for kind, image := range damageImages {
		t.Run(kind, func(t *testing.T) {
			d := image(t)
			d.exchangeSectors(t)
			d.sums = nil
			d.exchangeSectors(t)
		})
	}
}

func (d *stateImage) exchangeSectors(t *testing.T) {
	t.Helper()
	const size = 512
	n := len(d.content) / size
	var c stateTally
	step := damageStep()
	if step > 1 {
		step = 101
	}
	d.each(t, n*n, step, func(i int, path string) {
		one, other := i/n, i%n
		if one < other {
			return
		}
		b := bytes.Clone(d.content)
		if one == other {
			clear(b[size*one : size*one+size])
		} else {
			copy(b[size*one:], d.content[size*other:size*other+size])
			copy(b[size*other:], d.content[size*one:size*one+size])
		}
		d.check(t, &c, path, b, fmt.Sprintf("sectors %d and %d", other, one))
	})
	t.Logf("zeroed and exchanged sectors: %s", &c)
}

// TestDamage_Blocks flips a bit in almost every byte of each block file, each of the eight in turn, cuts it off at a
// third of the lengths, and zeroes as many sectors. Package blockfile tries every bit and every length, without the
// life after it.
func TestDamage_Blocks(t *testing.T) {
	t.Parallel()
	newStateImage(t).damageBlocks(t, max(9, damageStep()), 3)
}

// TestDamage_KeyedBlocks does the same, with some of the bits and places, where block files were dropped.
func TestDamage_KeyedBlocks(t *testing.T) {
	t.Parallel()
	newKeyedImage(t).damageBlocks(t, max(25, damageStep()), 13)
}

func (d *stateImage) damageBlocks(t *testing.T, bitStep, step int) {
	t.Helper()
	if damageStep() > 1 {
		step = 23
	}
	if testing.Short() {
		step = 149 // a prime as the other step is: it meets all places in a record
	}
	var bits, cuts, sectors stateTally
	for name, content := range d.blocks {
		d.each(t, 8*len(content), bitStep, func(bit int, path string) {
			b := bytes.Clone(content)
			b[bit/8] ^= 1 << (bit % 8)
			d.checkBlocks(t, &bits, path, name, b, fmt.Sprintf("bit %d of byte %d", bit%8, bit/8))
		})
		d.each(t, len(content), step, func(size int, path string) {
			d.checkBlocks(t, &cuts, path, name, content[:size], fmt.Sprintf("%d bytes", size))
		})
		d.each(t, len(content)-512, step, func(at int, path string) {
			b := bytes.Clone(content)
			clear(b[at : at+512])
			d.checkBlocks(t, &sectors, path, name, b, fmt.Sprintf("512 bytes from byte %d on", at))
		})
	}
	t.Logf("flipped bits: %s; cuts: %s; zeroed sectors: %s", &bits, &cuts, &sectors)
	for _, c := range []*stateTally{&bits, &cuts, &sectors} {
		if c.refused.Load()+c.stopped.Load() == 0 || c.harmless.Load() == 0 {
			t.Error("damage of one kind is never noticed, or never made good")
		}
	}
}

// TestDamage_Marker flips each bit of the marker LEDGER, and cuts it off at each
// length: the start is refused.
func TestDamage_Marker(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	l := open(t, faultOptions(dir))
	mustWrite(t, l, faultWrite(1), machine.Committed)
	closeLedger(t, l)
	path := filepath.Join(dir, "LEDGER")
	content := must.Get(os.ReadFile(path))(t)
	var damaged [][]byte
	for bit := range 8 * len(content) {
		b := bytes.Clone(content)
		b[bit/8] ^= 1 << (bit % 8)
		damaged = append(damaged, b)
	}
	for size := range len(content) {
		damaged = append(damaged, content[:size])
	}
	for _, b := range damaged {
		must.Do(t, os.WriteFile(path, b, 0o600))
		l, err := ledger.Open(t.Context(), faultOptions(dir))
		if err == nil {
			t.Fatalf("a directory with the marker %q was opened: %v", b, l.Close())
		}
		if !strings.Contains(err.Error(), dir) {
			t.Errorf("marker %q: the message does not name the directory: %v", b, err)
		}
	}
	must.Do(t, os.WriteFile(path, content, 0o600))
	l = open(t, faultOptions(dir))
	mustWrite(t, l, faultWrite(1), machine.Replayed)
	t.Logf("flipped bits and cuts: %d: refused at the start %d", len(damaged), len(damaged))
}
