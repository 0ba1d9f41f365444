package boltstore

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

const sectorSize = 512

// contentOf opens a state, and returns all streams in it.
func contentOf(path string) (content string, err error) {
	s, err := Open(path, Options{Identity: testIdentity, NoSync: true})
	if err != nil {
		return "", err
	}
	err = s.View(func(r machine.Reader) (err error) {
		content, err = list(r, machine.TableStreams, "")
		return err
	})
	return content, errors.Join(err, s.Close())
}

func mustContain(t *testing.T, path string, f files) string {
	t.Helper()
	f.write(t, path)
	content := must.Get(contentOf(path))(t)
	return content
}

// TestDamage_OlderSectors puts sectors, and whole pages, of older copies of state.db and of state.sum in the place of
// newer ones, as a disk leaves them that has lost a write: the start is refused, or everything is there, or, where the
// newest meta page is the older one, everything of the checkpoint before.
func TestDamage_OlderSectors(t *testing.T) {
	t.Parallel()
	const n = 3_000
	path := filled(t, n)
	s := reopen(t, path)
	var copies []files
	for i := range 6 {
		changeSome(t, s, n, 50+i*37, string(rune('a'+i)))
		copies = append(copies, readFiles(t, path))
	}
	must.Do(t, s.Close())
	now, older := copies[len(copies)-1], copies[:len(copies)-1]
	want, before := mustContain(t, path, now), mustContain(t, path, older[len(older)-1])
	step := 61
	if os.Getenv("SEQLEDGER_DAMAGE_ALL") != "" {
		step = 1
	}
	refused, same, previous, tried := 0, 0, 0, 0
	try := func(what string, unit int, old, new []byte, put func(b []byte) files) {
		for at := 0; at+unit <= min(len(old), len(new)); at += unit {
			if bytes.Equal(old[at:at+unit], new[at:at+unit]) {
				continue
			}
			if tried++; tried%step != 0 {
				continue
			}
			b := bytes.Clone(new)
			copy(b[at:at+unit], old[at:])
			put(b).write(t, path)
			switch got, err := contentOf(path); {
			case errors.Is(err, machine.ErrCorrupt):
				refused++
			case err != nil:
				t.Errorf("%d bytes of %s at byte %d: %v", unit, what, at, err)
			case got == want:
				same++
			case got == before && what == "state.db":
				previous++
			default:
				t.Errorf("%d bytes of %s at byte %d: a wrong answer", unit, what, at)
			}
		}
	}
	for {
		for _, f := range older {
			for _, unit := range []int{sectorSize, 4096} {
				try("state.db", unit, f.state, now.state, func(b []byte) files { return files{b, now.sums} })
				try("state.sum", unit, f.sums, now.sums, func(b []byte) files { return files{now.state, b} })
			}
		}
		// Which sectors differ is random, and the sample may have missed one kind of them.
		if step == 1 || refused > 0 && same > 0 {
			break
		}
		step = max(step/8, 1)
	}
	t.Logf("older sectors and pages: %d refused, %d without effect, %d led to the checkpoint before",
		refused, same, previous)
	if refused == 0 || same == 0 {
		t.Error("older sectors or pages of one kind are missing")
	}
}

// TestDamage_OlderRecord puts an older record, with its own checksum, in the place of one of the same length, as a disk
// does that has lost the write of a page which had held the same records before. The CRC-32C of the page stays what it
// was.
func TestDamage_OlderRecord(t *testing.T) {
	t.Parallel()
	path := filled(t, 100)
	s := reopen(t, path)
	changeSome(t, s, 100, 200, "newer")
	must.Do(t, s.Close())
	now := readFiles(t, path)
	record := func(value string) []byte {
		return append(recordKey(0), sealed(machine.TableStreams, recordKey(0), []byte(value))...)
	}
	damaged := bytes.ReplaceAll(now.state, record("newer"), record("older"))
	if bytes.Equal(damaged, now.state) {
		t.Fatal("the record is not in the file as it was expected")
	}
	files{damaged, now.sums}.write(t, path)
	if content, err := contentOf(path); !errors.Is(err, machine.ErrCorrupt) {
		t.Errorf("an older record is not noticed: %v, %.40s", err, content)
	}
	now.write(t, path)
	check.Contains(t, must.Get(contentOf(path))(t), "newer")
}

// TestPowerLossWithinACommit: of the sectors that a commit changes any part is on the disk, each of them torn or not,
// as a loss of power leaves them before the sync of the pages, before that of the meta page, and before that of the
// page checksums. What is there is the checkpoint before or the new one, and never refused.
func TestPowerLossWithinACommit(t *testing.T) {
	t.Parallel()
	const n = 3_000
	path := filled(t, n)
	s := reopen(t, path)
	changeSome(t, s, n, 50, "first")
	changeSome(t, s, n, 70, "second")
	before := readFiles(t, path)
	changeSome(t, s, n, 30, "third")
	after := readFiles(t, path)
	must.Do(t, s.Close())
	old, new := mustContain(t, path, before), mustContain(t, path, after)
	random := powerRandom(t)
	losses := 150
	if testing.Short() {
		losses = 30
	}
	led := map[string]int{}
	for i := range losses {
		stage := powerLoss(i % 3)
		stage.files(random, before, after).write(t, path)
		got, err := contentOf(path)
		if err != nil || got != old && got != new {
			t.Fatalf("a loss of power %s: %v", stage, err)
		}
		led[got]++
	}
	t.Logf("%d losses of power led to the checkpoint before, %d to the new one", led[old], led[new])
	if led[old] == 0 || led[new] == 0 {
		t.Error("the losses led to one checkpoint alone")
	}
}

// powerRandom returns what the losses of power are drawn from.
func powerRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := must.Seed(t)
	return rand.New(rand.NewPCG(seed, 0))
}

// powerLoss is when power fails: before what is synced.
type powerLoss int

func (p powerLoss) String() string {
	return [...]string{"before the pages are synced", "before the meta page is", "before the checksums are"}[p]
}

// files returns what is on the disk.
func (p powerLoss) files(random *rand.Rand, before, after files) files {
	const metaPages = 2 * testPageSize
	f := files{bytes.Clone(before.state), bytes.Clone(before.sums)}
	f.state = append(f.state, make([]byte, max(0, len(after.state)-len(f.state)))...)
	f.sums = append(f.sums, make([]byte, max(0, len(after.sums)-len(f.sums)))...)
	some := func(to, from []byte) {
		for at := 0; at < len(from); at += sectorSize {
			if n := min(sectorSize, len(from)-at); random.IntN(2) == 0 {
				if random.IntN(4) == 0 { // it is torn
					n = random.IntN(n)
				}
				copy(to[at:at+n], from[at:])
			}
		}
	}
	if p == 0 {
		some(f.state[metaPages:], after.state[metaPages:])
		return f
	}
	copy(f.state[metaPages:], after.state[metaPages:])
	if p == 1 {
		some(f.state[:metaPages], after.state[:metaPages])
		return f
	}
	copy(f.state, after.state)
	if bytes.HasPrefix(after.sums, before.sums) {
		some(f.sums[len(before.sums):], after.sums[len(before.sums):])
	} else if f.sums = before.sums; random.IntN(2) == 0 { // a new file is there or not
		f.sums = after.sums
	}
	return f
}
