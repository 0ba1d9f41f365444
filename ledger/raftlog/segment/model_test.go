package segment_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/rapidtest"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

var identity = []byte("node-1/ledger-7")

// seeded is a source of salts.
type seeded struct{ *rand.ChaCha8 }

func newSeeded(seed uint64) seeded {
	return seeded{rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})}
}

func options(d segment.Disk) segment.Options {
	return segment.Options{
		Disk: d, Identity: identity, SegmentBytes: 8 << 10, Random: newSeeded(1), Logger: slog.New(slog.DiscardHandler),
	}
}

// model is the expected content of a log.
type model struct {
	entries    map[uint64]segment.Entry
	last       segment.Position
	state      segment.State
	checkpoint segment.Position
}

func (m model) clone() model {
	m.entries = maps.Clone(m.entries)
	return m
}

// term returns the term of an entry, or of the position before the first one.
func (m model) term(i uint64) uint64 {
	if i == m.checkpoint.Index {
		return m.checkpoint.Term
	}
	return m.entries[i].Term
}

// differs returns how a log differs from the model, or nil.
func (m model) differs(l *segment.Log) error {
	if l.Last() != m.last || l.State() != m.state || l.Checkpoint().Position != m.checkpoint {
		return fmt.Errorf("last %v, state %v, checkpoint %v; want %v, %v, %v",
			l.Last(), l.State(), l.Checkpoint().Position, m.last, m.state, m.checkpoint)
	}
	if first := l.First(); first > m.checkpoint.Index+1 {
		return fmt.Errorf("it begins at %d behind the checkpoint at %d", first, m.checkpoint.Index)
	} else if first <= m.last.Index {
		found, err := l.Entries(first, m.last.Index+1, 1<<30)
		if err != nil {
			return err
		}
		for i, e := range found {
			want := m.entries[first+uint64(i)]
			if term, err := l.Term(e.Index); err != nil || term != e.Term {
				return fmt.Errorf("term of %d: %d, want %d: %w", e.Index, term, e.Term, err)
			}
			if e.Index != want.Index || e.Term != want.Term || e.Kind != want.Kind || !bytes.Equal(e.Data, want.Data) {
				return fmt.Errorf("entry %d of term %d with %d bytes, want %d of term %d with %d bytes",
					e.Index, e.Term, len(e.Data), want.Index, want.Term, len(want.Data))
			}
		}
	}
	return nil
}

// run is a log and its model. The elements of may are the states in which a crash may leave the log now: the first is
// what was last synced, the last what was last appended.
type run struct {
	t    *rapid.T
	disk *simdisk.Disk
	rng  *rand.Rand
	log  *segment.Log
	may  []model
	met  map[string]int
}

func (r *run) now() *model { return &r.may[len(r.may)-1] }

func (r *run) open() {
	r.t.Helper()
	l, err := segment.Open(options(r.disk))
	if err != nil {
		r.t.Fatalf("open: %v", err)
	}
	var differs []error
	for i := len(r.may) - 1; i >= 0; i-- {
		err := r.may[i].differs(l)
		if err == nil {
			r.log, r.may = l, []model{r.may[i]}
			return
		}
		differs = append(differs, err)
	}
	r.t.Fatalf("the log is none of what it may be: %v", errors.Join(differs...))
}

// crash ends the process, either after an error or at once.
func (r *run) crash() {
	if r.rng.IntN(2) == 0 {
		r.met["kill"]++
		r.disk.Kill()
	} else {
		r.met["power loss"]++
		r.disk.PowerLoss(r.rng)
	}
	r.open()
}

func (r *run) append() {
	m := r.now().clone()
	from, term, count := m.last.Index+1, m.last.Term, r.rng.IntN(4)
	if live := m.last.Index - m.checkpoint.Index; count > 0 && live > 0 && r.rng.IntN(8) == 0 {
		from -= 1 + r.rng.Uint64N(live)
		term++
		r.met["tail replaced"]++
	} else if r.rng.IntN(10) == 0 {
		term++
	}
	term = max(term, 1)
	var state *segment.State
	if r.rng.IntN(4) == 0 {
		// The entries that the log keeps are committed, and possibly some of the new ones.
		state = &segment.State{Term: term, Vote: r.rng.Uint64N(3), Commit: from - 1 + r.rng.Uint64N(uint64(count)+1)}
		m.state = *state
		m.state.Commit = from - 1 // until the entries are there
		r.may = append(r.may, m.clone())
	}
	if from <= m.last.Index {
		m.last = segment.Position{Index: from - 1, Term: m.term(from - 1)}
		r.may = append(r.may, m.clone()) // possibly only the rewind has arrived
	}
	var entries []segment.Entry
	for i := range uint64(count) {
		e := segment.Entry{Index: from + i, Term: term, Kind: uint8(r.rng.IntN(3)), Data: r.data()}
		entries = append(entries, e)
		m.entries[e.Index], m.last = e, segment.Position{Index: e.Index, Term: e.Term}
		r.may = append(r.may, m.clone())
		switch {
		case state == nil || e.Index > state.Commit:
		case e.Index == state.Commit:
			m.state = *state
			r.may = append(r.may, m.clone())
			r.met["commit with its entries"]++
		case e.Kind == segment.KindChange:
			m.state.Commit = e.Index
			r.may = append(r.may, m.clone())
			r.met["commit behind a change"]++
		}
	}
	err := r.log.Append(state, entries)
	if err == nil && r.rng.IntN(3) > 0 {
		if err = r.log.Sync(); err == nil {
			r.may = []model{*r.now()}
		}
	}
	if err != nil {
		r.crash()
	}
}

func (r *run) data() []byte {
	data := make([]byte, r.rng.IntN(300))
	if r.rng.IntN(15) == 0 {
		data = make([]byte, 9000)
		r.met["entry larger than a segment"]++
	}
	for i := range data {
		data[i] = byte(r.rng.Uint32())
	}
	return data
}

func (r *run) truncate() {
	m := r.now().clone()
	if m.last.Index == m.checkpoint.Index {
		return
	}
	to := m.checkpoint.Index + 1 + r.rng.Uint64N(m.last.Index-m.checkpoint.Index)
	m.checkpoint = segment.Position{Index: to, Term: m.term(to)}
	r.may = append(r.may, m)
	if err := r.log.Truncate(segment.Checkpoint{Position: m.checkpoint, Data: []byte("members")}); err != nil {
		r.crash()
		return
	}
	r.met["truncation"]++
	r.may = []model{m}
}

func (r *run) reset() {
	m := r.now().clone()
	m.checkpoint = segment.Position{Index: m.checkpoint.Index + r.rng.Uint64N(50), Term: m.last.Term + 1}
	m.last, m.entries = m.checkpoint, map[uint64]segment.Entry{}
	m.state = segment.State{Term: m.last.Term}
	r.may = append(r.may, m)
	if err := r.log.Reset(segment.Checkpoint{Position: m.checkpoint}, m.state); err != nil {
		r.crash()
		return
	}
	r.met["reset"]++
	r.may = []model{m}
}

// TestLogIsItsModel runs random changes, crashes and faults, and compares what a start finds with what was synced.
func TestLogIsItsModel(t *testing.T) {
	t.Parallel()
	met := map[string]int{}
	missing := func() string {
		for _, what := range []string{
			"kill", "power loss", "fault", "tail replaced", "truncation", "reset", "clean stop",
			"entry larger than a segment", "commit with its entries", "commit behind a change",
		} {
			if met[what] == 0 {
				return "never met: " + what
			}
		}
		return ""
	}
	rapidtest.CheckUntil(t, missing, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		r := &run{t: t, disk: simdisk.New(), rng: rand.New(rand.NewPCG(seed, 1)), met: met}
		must.Do(t, segment.Create(options(r.disk), segment.Checkpoint{}, segment.State{}))
		r.may = []model{{entries: map[uint64]segment.Entry{}}}
		r.open()
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			if r.rng.IntN(10) == 0 {
				met["fault"]++
				r.disk.FailAt(1+r.rng.IntN(12), errors.New("input/output error"))
			}
			switch n := r.rng.IntN(40); {
			case n == 0:
				r.reset()
			case n < 4:
				r.truncate()
			case n == 4:
				r.crash()
			case n == 5:
				met["clean stop"]++
				_ = r.log.Close() // may fail because of the fault
				r.crash()
			default:
				r.append()
			}
			must.Do(t, r.now().differs(r.log))
		}
	})
}
