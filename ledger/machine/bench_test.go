package machine

import (
	"fmt"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// endlessWrites encodes one append from each of n streams, with their next
// sequences.
type endlessWrites struct {
	streams  []*Write
	commands [][]byte
	entry    []byte
}

func newEndlessWrites(n int) *endlessWrites {
	e := &endlessWrites{commands: make([][]byte, n)}
	for i := range n {
		w := appendWrite(fmt.Sprintf("client-%04d", i), 0, byte(i+1), "a payload of some thirty-two bytes")
		e.streams = append(e.streams, w)
	}
	return e
}

func (e *endlessWrites) next() []byte {
	for i, w := range e.streams {
		w.Sequence++
		w.Key.UUID[8], w.Key.UUID[9], w.Key.UUID[10] = byte(w.Sequence>>16), byte(w.Sequence>>8), byte(w.Sequence)
		e.commands[i] = AppendWrite(e.commands[i][:0], w)
	}
	e.entry = AppendEntry(e.entry[:0], testStart, e.commands...)
	return e.entry
}

func benchmarkApply(b *testing.B, streams int) {
	config := DefaultConfig()
	f := newFixture(b, config)
	writes := newEndlessWrites(streams)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		out, err := f.m.Apply(f.mem, writes.next())
		if err != nil || out[0].Code != Committed {
			b.Fatal(out, err)
		}
		n += len(out)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/write")
}

// BenchmarkApply measures commits on the state in memory, encoding of the entry
// included: one write an entry, and 256 from as many streams.
func BenchmarkApply(b *testing.B) {
	b.Run("writes=1", func(b *testing.B) { benchmarkApply(b, 1) })
	b.Run("writes=256", func(b *testing.B) { benchmarkApply(b, 256) })
}

// BenchmarkReplay measures a retry that the log answers, from the oldest
// receipt of a full window.
func BenchmarkReplay(b *testing.B) {
	f := newFixture(b, DefaultConfig())
	writes := newEndlessWrites(256)
	var oldest []byte
	for i := range 64 {
		entry := writes.next()
		if i == 0 {
			oldest = append(oldest, entry...)
		}
		must.Get(f.m.Apply(f.mem, entry))(b)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		out, err := f.m.Apply(f.mem, oldest)
		if err != nil || out[255].Code != Replayed {
			b.Fatal(out[255].Code, err)
		}
		n += len(out)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/retry")
}

// BenchmarkEviction measures a round that removes as many streams as the
// default limit lets it.
func BenchmarkEviction(b *testing.B) {
	config := DefaultConfig()
	f := newFixture(b, config)
	f.entry(newEndlessWritesCommands(2_000)...)
	full := f.mem.Clone()
	round := AppendEntry(nil, f.now+config.ClientTTL+1,
		AppendUpdateConfig(nil, &ConfigUpdate{EvictionInterval: new(uint64(1))}, "a"))
	for b.Loop() {
		b.StopTimer()
		mem := full.Clone()
		m := must.Get(Open(mem))(b)
		b.StartTimer()
		if _, err := m.Apply(mem, round); err != nil || m.View(mem).Streams() != 0 {
			b.Fatal(m.View(mem).Streams(), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2_000, "ns/stream")
}

func newEndlessWritesCommands(n int) [][]byte {
	e := newEndlessWrites(n)
	e.next()
	return e.commands
}
