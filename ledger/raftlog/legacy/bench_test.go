package legacy

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// discard is a Machine that does nothing, so that the log alone is measured.
type discard struct{}

func (discard) Apply(at Position, _ []byte) any { return at }
func (discard) Checkpoint(Position) error       { return nil }

func benchLog(b *testing.B) *Log {
	b.Helper()
	return open(b, Options{
		Dir: b.TempDir(), NodeID: "one", Identity: []byte("bench"), Machine: discard{},
		Create: true, Logger: slog.New(slog.DiscardHandler),
	})
}

// BenchmarkPropose measures a commit, disk and all, of 200-byte entries. Run it
// on the file system that will hold the data: the disk is most of it.
func BenchmarkPropose(b *testing.B) {
	entry := bytes.Repeat([]byte("x"), 200)
	b.Run("callers=1", func(b *testing.B) {
		l := benchLog(b)
		for b.Loop() {
			if _, err := l.Propose(entry).Wait(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("callers=256", func(b *testing.B) {
		l := benchLog(b)
		work := make(chan struct{}, 256)
		var callers sync.WaitGroup
		for range 256 {
			// Ended by closing work, waited for below.
			callers.Go(func() {
				for range work {
					if _, err := l.Propose(entry).Wait(); err != nil {
						b.Error(err)
					}
				}
			})
		}
		for b.Loop() {
			work <- struct{}{}
		}
		close(work)
		callers.Wait()
	})
}

// BenchmarkReadBarrier measures what a linearizable read pays on a sole voter.
func BenchmarkReadBarrier(b *testing.B) {
	l := benchLog(b)
	for b.Loop() {
		if err := l.ReadBarrier(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
