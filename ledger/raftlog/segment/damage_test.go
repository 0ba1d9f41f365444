package segment_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// image returns a small log of three segments, and its model.
func image(t testing.TB, stop bool) (*simdisk.Disk, model) {
	t.Helper()
	d := simdisk.New()
	must.Do(t, segment.Create(options(d), segment.Checkpoint{}, segment.State{}))
	l := must.Get(segment.Open(options(d)))(t)
	m := model{entries: map[uint64]segment.Entry{}}
	for i := uint64(1); i <= 24; i++ {
		at := i
		if i == 6 {
			at = 4 // replaces 4 and 5
		} else if i > 6 {
			at = i - 2
		}
		m.state = segment.State{Term: 1 + i/6, Vote: i % 3}
		e := segment.Entry{Index: at, Term: 1 + i/6, Kind: 1, Data: bytes.Repeat([]byte{byte(i)}, 400+int(i))}
		m.entries[at], m.last = e, segment.Position{Index: at, Term: e.Term}
		must.Do(t, errors.Join(l.Append(&m.state, []segment.Entry{e}), l.Sync()))
	}
	m.checkpoint = segment.Position{Index: 2, Term: 1}
	must.Do(t, l.Truncate(segment.Checkpoint{Position: m.checkpoint}))
	if stop {
		must.Do(t, l.Close())
	}
	d.Kill()
	return d, m
}

// tryOpen opens a damaged copy, and reports whether it was refused or, if not, how it differs from the model.
func tryOpen(t testing.TB, d *simdisk.Disk, m model) (refused bool, differs error) {
	t.Helper()
	l, err := segment.Open(options(d))
	if err != nil {
		if _, ok := errors.AsType[*segment.DamageError](err); !ok {
			t.Fatalf("refused, but not for damage: %v", err)
		}
		return true, nil
	}
	differs = m.differs(l)
	must.Do(t, l.Close())
	return false, differs
}

func names(t testing.TB, d *simdisk.Disk) []string {
	t.Helper()
	list, err := d.List()
	if err != nil || len(list) < 3 {
		t.Fatalf("%v, %v", list, err)
	}
	return list
}

// stride is the distance between the damaged places that a test tries: 1 with SEQLEDGER_DAMAGE_ALL, otherwise a number
// coprime to the bits of a byte and the bytes of a sector.
func stride() int {
	if os.Getenv("SEQLEDGER_DAMAGE_ALL") != "" {
		return 1
	}
	return 41
}

// TestDamage_SegmentBits flips bits of a log that was closed. Each one is refused or does not change the log's content.
func TestDamage_SegmentBits(t *testing.T) {
	t.Parallel()
	d, m := image(t, true)
	refusals, same := 0, 0
	for _, name := range names(t, d) {
		for i := 0; i < 8*len(d.Bytes(name)); i += stride() {
			copied := d.Clone()
			copied.Bytes(name)[i/8] ^= 1 << (i % 8)
			refused, differs := tryOpen(t, copied, m)
			switch {
			case differs != nil:
				t.Fatalf("%s, bit %d: opened with other content: %v", name, i, differs)
			case refused:
				refusals++
			default:
				same++
			}
		}
	}
	t.Logf("%d bits refused, %d without effect", refusals, same)
	if refusals == 0 || same == 0 {
		t.Fatal("the damage did not reach the log")
	}
}

// TestDamage_SegmentCuts shortens each segment file.
func TestDamage_SegmentCuts(t *testing.T) {
	t.Parallel()
	d, m := image(t, true)
	for _, name := range names(t, d) {
		whole := slices.Clone(d.Bytes(name))
		for n := 0; n < len(whole); n += stride() {
			copied := d.Clone()
			copied.SetBytes(name, whole[:n])
			if refused, _ := tryOpen(t, copied, m); !refused {
				t.Fatalf("%s, cut to %d of %d bytes, was not refused", name, n, len(whole))
			}
		}
	}
}

// TestDamage_SegmentSectors zeroes and swaps sectors. Damage to the last sector with records cannot be told from a torn
// write, so the entries before it stay.
func TestDamage_SegmentSectors(t *testing.T) {
	t.Parallel()
	d, m := image(t, true)
	const sector = simdisk.SectorBytes
	for _, name := range names(t, d) {
		n := len(d.Bytes(name)) / sector
		for a := range n {
			for b := range n {
				copied := d.Clone()
				content := copied.Bytes(name)
				x, y := content[a*sector:(a+1)*sector], content[b*sector:(b+1)*sector]
				if a == b {
					clear(x)
				} else {
					was := slices.Clone(x)
					copy(x, y)
					copy(y, was)
				}
				lastOne := len(bytes.TrimRight(d.Bytes(name), "\x00"))-1 < sector*(max(a, b)+1)
				if _, differs := tryOpen(t, copied, m); differs != nil && !lastOne {
					t.Fatalf("%s, sectors %d and %d: opened with other content: %v", name, a, b, differs)
				}
			}
		}
	}
}

// TestDamage_SegmentFiles removes, empties and swaps whole segments.
func TestDamage_SegmentFiles(t *testing.T) {
	t.Parallel()
	for _, stop := range []bool{true, false} {
		d, m := image(t, stop)
		list := names(t, d)
		for i, name := range list {
			for what, damage := range map[string]func(*simdisk.Disk) error{
				"removed": func(d *simdisk.Disk) error { return d.Remove(name) },
				"empty":   func(d *simdisk.Disk) error { d.SetBytes(name, nil); return nil },
				"zeros":   func(d *simdisk.Disk) error { clear(d.Bytes(name)); return nil },
				"no records": func(d *simdisk.Disk) error {
					clear(d.Bytes(name)[4096:])
					return nil
				},
				"exchanged": func(d *simdisk.Disk) error {
					other := list[(i+1)%len(list)]
					was := slices.Clone(d.Bytes(name))
					d.SetBytes(name, d.Bytes(other))
					d.SetBytes(other, was)
					return nil
				},
				"of another log": func(d *simdisk.Disk) error {
					other, _ := image(t, stop)
					d.SetBytes(name, bytes.Replace(other.Bytes(name), identity, bytes.ToUpper(identity), 1))
					return nil
				},
			} {
				copied := d.Clone()
				must.Do(t, damage(copied))
				if refused, _ := tryOpen(t, copied, m); !refused {
					t.Errorf("%s is %s (closed before: %t): not refused", name, what, stop)
				}
			}
		}
	}
}

// TestTornTail cuts the last write of a log that was not closed at each byte. The entries before it stay, and the log
// accepts new ones.
func TestTornTail(t *testing.T) {
	t.Parallel()
	d, m := image(t, false)
	list := names(t, d)
	newest := list[len(list)-1]
	l := must.Get(segment.Open(options(d)))(t)
	before := slices.Clone(d.Bytes(newest))
	// The payload imitates the preceding records, as a malicious client could.
	e := segment.Entry{Index: m.last.Index + 1, Term: m.last.Term, Data: before[4096 : 4096+900]}
	must.Do(t, l.Append(nil, []segment.Entry{e}))
	after := slices.Clone(d.Bytes(newest))
	from := slices.IndexFunc(after, func(byte) bool { return true })
	for from < len(after) && after[from] == before[from] {
		from++
	}
	for cut := from; cut < len(after) && !bytes.Equal(after[cut:], before[cut:]); cut++ {
		copied := d.Clone()
		copied.SetBytes(newest, append(slices.Clone(after[:cut]), before[cut:]...))
		torn, err := segment.Open(options(copied))
		must.Do(t, err, "cut at %d", cut)
		if err := m.differs(torn); err != nil && torn.Last().Index != e.Index {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		next := segment.Entry{Index: torn.Last().Index + 1, Term: m.last.Term + 1}
		must.Do(t, errors.Join(torn.Append(nil, []segment.Entry{next}), torn.Sync(), torn.Close()), "cut at %d", cut)
	}
}

// TestAcknowledgedDamageIsNotTorn damages the second to last entry of a log that was not closed.
func TestAcknowledgedDamageIsNotTorn(t *testing.T) {
	t.Parallel()
	d, m := image(t, false)
	list := names(t, d)
	newest := d.Bytes(list[len(list)-1])
	payload := bytes.Repeat([]byte{23}, 100)
	at := bytes.Index(newest, payload)
	if at < 0 {
		t.Fatal("the entry is not in the newest segment")
	}
	newest[at] ^= 4
	if refused, _ := tryOpen(t, d, m); !refused {
		t.Fatal("damage with an acknowledged entry behind it was taken for a torn write")
	}
}

// TestFirstErrorIsFinal fails each step of a series of writes. Nothing is written after the failure, and the next start
// finds what was synced.
func TestFirstErrorIsFinal(t *testing.T) {
	t.Parallel()
	for step := 1; ; step++ {
		d, m := image(t, false)
		l, err := segment.Open(options(d))
		must.Do(t, err)
		d.FailAt(step, syscall.EIO)
		for range 20 {
			e := segment.Entry{Index: m.last.Index + 1, Term: m.last.Term, Data: make([]byte, 700)}
			if err = l.Append(nil, []segment.Entry{e}); err == nil {
				err = l.Sync()
			}
			if err != nil {
				break
			}
			m.entries[e.Index], m.last = e, segment.Position{Index: e.Index, Term: e.Term}
		}
		if err == nil {
			return // the series has no more steps
		}
		must.Is(t, err, syscall.EIO, "step %d", step)
		d.FailAt(1<<30, nil)
		steps := d.Steps()
		again := l.Append(nil, []segment.Entry{{Index: m.last.Index + 1, Term: m.last.Term}})
		if !errors.Is(again, syscall.EIO) || !errors.Is(l.Sync(), syscall.EIO) || d.Steps() != steps {
			t.Fatalf("step %d: the log went on after its first error: %v", step, again)
		}
		d.PowerLoss(rand.New(rand.NewPCG(uint64(step), 2)))
		if l, err = segment.Open(options(d)); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if found := l.Last().Index; found < m.last.Index || found > m.last.Index+1 {
			t.Fatalf("step %d: it ends at %d, and %d was synced", step, found, m.last.Index)
		}
	}
}

// TestFullDisk leaves no space for the next segment.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	d, m := image(t, false)
	l, err := segment.Open(options(d))
	must.Do(t, err)
	d.SetFree(100)
	for err == nil {
		e := segment.Entry{Index: m.last.Index + 1, Term: m.last.Term, Data: make([]byte, 700)}
		if err = l.Append(nil, []segment.Entry{e}); err == nil {
			if err = l.Sync(); err != nil {
				t.Fatal(err)
			}
			m.entries[e.Index], m.last = e, segment.Position{Index: e.Index, Term: e.Term}
		}
	}
	must.Is(t, err, syscall.ENOSPC)
	d.Kill()
	d.SetFree(-1)
	must.Get(tryOpen(t, d, m))(t)
}

// FuzzOpen opens logs in which any bytes were changed. Nothing panics, and a log that opens holds a prefix of what was
// written, because a change of the last record looks like a torn write.
func FuzzOpen(f *testing.F) {
	f.Add([]byte{0, 16, 0, 1}, true)
	f.Add([]byte{2, 17, 7, 255, 1, 20, 3, 9}, false)
	d, m := image(f, false)
	closed, _ := image(f, true)
	list := names(f, d)
	f.Fuzz(func(t *testing.T, changes []byte, stop bool) {
		copied := d.Clone()
		if stop {
			copied = closed.Clone()
		}
		for ; len(changes) >= 4; changes = changes[4:] {
			b := copied.Bytes(list[int(changes[0])%len(list)])
			b[(int(changes[1])<<8|int(changes[2]))%len(b)] ^= changes[3]
		}
		l, err := segment.Open(options(copied))
		if err != nil {
			if _, ok := errors.AsType[*segment.DamageError](err); !ok {
				t.Fatal(err)
			}
			return
		}
		for i := l.First(); i <= l.Last().Index; i++ {
			found, err := l.Entries(i, i+1, 0)
			if err != nil || !bytes.Equal(found[0].Data, m.entries[i].Data) || found[0].Term != m.entries[i].Term {
				t.Fatalf("entry %d: %v", i, err)
			}
		}
	})
}

// TestReadOnlyChangesNothing opens torn logs for reading.
func TestReadOnlyChangesNothing(t *testing.T) {
	t.Parallel()
	d, m := image(t, false)
	steps := d.Steps()
	o := options(d)
	o.ReadOnly, o.Random = true, nil
	l := must.Get(segment.Open(o))(t)
	must.Do(t, m.differs(l))
	if err := l.Append(nil, []segment.Entry{{Index: m.last.Index + 1, Term: 9}}); err == nil {
		t.Fatal("a log that was opened for reading takes entries")
	}
	if err := l.Close(); err == nil || d.Steps() != steps {
		t.Fatalf("it was changed: %d steps, %v", d.Steps()-steps, err)
	}
}

// TestOperatingSystemsDirectory runs the log in a real directory.
func TestOperatingSystemsDirectory(t *testing.T) {
	t.Parallel()
	o := options(segment.OpenDirectory(t.TempDir()))
	must.Do(t, segment.Create(o, segment.Checkpoint{}, segment.State{}))
	if err := segment.Create(o, segment.Checkpoint{}, segment.State{}); err == nil ||
		!strings.Contains(err.Error(), "already") {
		t.Fatalf("a second log in the same place: %v", err)
	}
	m := model{entries: map[uint64]segment.Entry{}}
	for life := range 3 {
		l := must.Get(segment.Open(o))(t)
		must.Do(t, m.differs(l))
		for range 40 {
			data := fmt.Append(nil, m.last.Index, life)
			e := segment.Entry{Index: m.last.Index + 1, Term: uint64(life + 1), Data: data}
			m.entries[e.Index], m.last = e, segment.Position{Index: e.Index, Term: e.Term}
			must.Do(t, errors.Join(l.Append(nil, []segment.Entry{e}), l.Sync()))
		}
		m.checkpoint = segment.Position{Index: m.last.Index - 10, Term: uint64(life + 1)}
		must.Do(t, errors.Join(l.Truncate(segment.Checkpoint{Position: m.checkpoint}), l.Close()))
	}
}
