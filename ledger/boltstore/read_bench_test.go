package boltstore

import (
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// BenchmarkStoredGet looks records up that are in the file, or are not: the first
// write of a stream asks for one that is not there.
func BenchmarkStoredGet(b *testing.B) {
	const records = 200_000
	s := reopen(b, filled(b, records))
	for name, key := range map[string]func(i int) []byte{
		"hit":  func(i int) []byte { return recordKey(i * 7919 % records) },
		"miss": func(i int) []byte { return append(recordKey(i*7919%records), '-') },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				must.Do(b, s.View(func(r machine.Reader) error {
					value, err := r.Get(streams, key(i))
					if (value != nil) != (name == "hit") {
						b.Errorf("record %d: %q", i, value)
					}
					return err
				}))
			}
		})
	}
	b.Run("walk of 100", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			must.Do(b, s.View(func(r machine.Reader) error {
				n := 0
				return r.Ascend(streams, recordKey(i*7919%(records-100)),
					func(_, _ []byte) bool { n++; return n < 100 })
			}))
		}
	})
}
