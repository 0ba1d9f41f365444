package machine

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// forgetful is a state in which no stream remembers what it has committed: a
// stream always seems to stand just before the sequence that is asked for, with
// no receipts. The machine above it is a ledger without deduplication.
type forgetful struct {
	*Memory
	next uint64
}

func (f *forgetful) Get(table Table, key []byte) ([]byte, error) {
	b, err := f.Memory.Get(table, key)
	if err != nil || b == nil || table != TableStreams {
		return b, err
	}
	var s stream
	if err := s.decode(b); err != nil {
		return nil, err
	}
	s.last, s.window = f.next-1, window{}
	return s.append(nil), nil
}

// transcript is what clients with a bad connection send: every write, and now
// and then one of their last ones again. Each has a session.
func transcript(f *fixture, seed uint64) (sent []*Write) {
	random := rand.New(rand.NewPCG(seed, 0))
	sessions, next := map[string]uint64{}, map[string]uint64{}
	var mine []*Write
	for i := range 200 {
		client := string(rune('a' + random.IntN(3)))
		if sessions[client] == 0 {
			sessions[client] = f.open(client, byte(client[0]), 0, Committed).Session
		}
		next[client]++
		w := inSession(appendWrite(client, next[client], byte(i), client), sessions[client])
		mine = append(mine, w)
		sent = append(sent, w)
		if random.IntN(3) == 0 {
			sent = append(sent, mine[max(0, len(mine)-1-random.IntN(6))])
		}
	}
	return sent
}

// Invariant 1 and 6, with a control: the very checks that hold for the ledger
// must fail for a ledger whose deduplication is switched off. Otherwise they
// would prove nothing.
func TestInvariant1AtMostOnceWithControl(t *testing.T) {
	t.Parallel()
	const seed = 11
	run := func(forget bool) (f *fixture, ranAgain int, audit error) {
		f = newFixture(t, testConfig())
		double := &forgetful{Memory: f.mem}
		var tx Tx = f.mem
		if forget {
			tx = double
		}
		apply := func(w *Write) Outcome {
			double.next = w.Sequence
			out := must.Get(f.m.Apply(tx, AppendEntry(nil, f.now, AppendWrite(nil, w))))(t)
			return out[0]
		}
		var receipts []HandedOut
		sent := transcript(f, seed)
		for _, w := range sent {
			if out := apply(w); out.Code == Committed || out.Code == Replayed {
				receipts = append(receipts, HandedOut{w, out.Receipt})
			}
		}
		audit = readBack(f.mem, receipts)
		for _, h := range receipts { // invariant 6
			if apply(h.Write).Code == Committed {
				ranAgain++
			}
		}
		return f, ranAgain, audit
	}

	_, ranAgain, audit := run(false)
	if audit != nil || ranAgain != 0 {
		t.Errorf("with deduplication: audit says %v, %d requests ran again, want nothing", audit, ranAgain)
	}
	f, ranAgain, audit := run(true)
	if audit == nil || !strings.Contains(audit.Error(), "invariant 1") {
		t.Errorf("without deduplication: the audit says %v, it must find invariant 1 broken", audit)
	}
	if ranAgain == 0 {
		t.Error("without deduplication: invariant 6 must be found broken")
	}
	problems := 0
	if _, err := f.m.Audit(f.mem, func(Problem) { problems++ }, nil); err != nil || problems == 0 {
		t.Errorf("without deduplication: Audit reports %d problems, %v, want some", problems, err)
	}
}

// Invariant 3's control: a hole in a sequence must be found.
func TestInvariant3DenseSequencesWithControl(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	for i := range uint64(5) {
		f.commit(appendWrite("c", i+1, 0, "x"))
	}
	must.Do(t, readBack(f.mem, nil), "a dense sequence")
	double := &forgetful{f.mem, 9} // the stream forgets where it stands: 6, 7 and 8 are skipped
	must.Get(f.m.Apply(double, AppendEntry(nil, f.now, AppendWrite(nil, appendWrite("c", 9, 0, "x")))))(t)
	if err := readBack(f.mem, nil); err == nil || !strings.Contains(err.Error(), "invariant 3") {
		t.Errorf("a sequence with a hole: %v, want invariant 3 broken", err)
	}
}

// The audit's control: any byte of a block that is changed must be found, by
// the tests' own check or by the decoder.
func TestReadBackFindsEveryChangedByte(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	f.entry(AppendWrite(nil, appendWrite("a", 1, 1, "x")), AppendWrite(nil, appendWrite("b", 1, 0, "y")))
	f.commit(operations("a", 2, 2, set("k", "v"), unrelate("r", "r", "s")))
	var keys []string
	keys = append(keys, f.mem.tables[TableBlocks].keys...)
	for _, key := range keys {
		record := f.mem.tables[TableBlocks].values[key]
		for i := range record {
			for _, flip := range []byte{1, 0x80} {
				damaged := f.mem.Clone()
				damaged.tables[TableBlocks].values[key][i] ^= flip
				problems := 0
				_, err := f.m.Audit(damaged, func(Problem) { problems++ }, nil)
				// Only a walk through the record reads the number of blocks.
				if i != recordStart && readBack(damaged, nil) == nil {
					t.Errorf("byte %d of %d in record %x changed by %#x: not found", i, len(record), key, flip)
				}
				if err == nil && problems == 0 {
					t.Errorf("byte %d of %d in record %x changed by %#x: Audit finds nothing", i, len(record),
						key, flip)
				}
			}
		}
	}
}
