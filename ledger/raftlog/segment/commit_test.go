package segment_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/simdisk"
	"github.com/seqledger/seqledger/ledger/raftlog/segment"
)

// A state may say that entries are committed which the same Append writes in place of others. Whatever part of the
// write survives, the commit index covers no entry that was to be replaced, and neither the entries after the commit
// index nor those after a committed change of the members are in the log without it.
func TestCommitComesWithItsEntries(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"in one file": 300, "in several files": 1500} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := replacedTail(t, size)
			all := listed(t, after)
			for i := range all {
				cutEverywhere(t, before, after, all, i)
			}
		})
	}
}

// replacedTail returns a log that ends with entries 10 to 12 of term 1, and the same log after entries 10 to 14 of term
// 2 have replaced them, with commit index 12. Entry 10 of term 2 changes the members.
func replacedTail(t *testing.T, size int) (before, after *simdisk.Disk) {
	t.Helper()
	d := simdisk.New()
	l := create(t, d)
	write(t, l, &segment.State{Term: 1, Commit: 9}, entries(1, 12, 1, size))
	before = d.Clone()
	tail := entries(10, 14, 2, size)
	tail[0].Kind = segment.KindChange
	write(t, l, &segment.State{Term: 2, Vote: 3, Commit: 12}, tail)
	after = d.Clone()
	opened := open(t, d)
	if s := opened.State(); s != (segment.State{Term: 2, Vote: 3, Commit: 12}) || opened.Last().Index != 14 {
		t.Fatalf("state %+v, last %v", s, opened.Last())
	}
	return before, after
}

func create(t *testing.T, d *simdisk.Disk) *segment.Log {
	t.Helper()
	must.Do(t, segment.Create(options(d), segment.Checkpoint{}, segment.State{}))
	return open(t, d)
}

func open(t *testing.T, d *simdisk.Disk) *segment.Log {
	t.Helper()
	l := must.Get(segment.Open(options(d)))(t)
	return l
}

func write(t *testing.T, l *segment.Log, s *segment.State, entries []segment.Entry) {
	t.Helper()
	must.Do(t, errors.Join(l.Append(s, entries), l.Sync()))
}

func entries(from, to, term uint64, size int) (list []segment.Entry) {
	for i := from; i <= to; i++ {
		list = append(list, segment.Entry{Index: i, Term: term, Kind: 1, Data: bytes.Repeat([]byte{byte(i)}, size)})
	}
	return list
}

// cutEverywhere opens the log as a crash leaves it after each part of what was written to file i of all. The files
// before it are complete, and those after it do not exist yet. A file is sealed only after the first records of the
// next one are durable.
func cutEverywhere(t *testing.T, before, after *simdisk.Disk, all []string, i int) {
	t.Helper()
	_, _, end := written(before, after, all, i)
	const record = 40 // the minimum
	for cut := 0; cut <= end; cut += record {
		d := before.Clone()
		for k := range i + 1 {
			b, whole, end := written(before, after, all, k)
			switch {
			case k == i:
				copy(b[:cut], whole)
			case k == i-1:
				copy(b[:end], whole)
			default:
				b = whole
			}
			d.SetBytes(all[k], b)
		}
		l, err := segment.Open(options(d))
		if err == nil {
			err = commitFits(l)
		}
		if err != nil {
			t.Fatalf("%s cut at %d of %d: %v", all[i], cut, end, err)
		}
	}
}

// written returns the contents of a file before and after a write, and where the write ends, excluding the seal.
func written(before, after *simdisk.Disk, all []string, i int) (old, whole []byte, end int) {
	const header, seal = 4096, 40
	old, whole = bytes.Clone(before.Bytes(all[i])), after.Bytes(all[i])
	if old == nil { // created by the write; the header is durable before the file has its name
		old = make([]byte, len(whole))
		copy(old[:header], whole)
	}
	for end = len(whole); end > 0 && whole[end-1] == old[end-1]; {
		end--
	}
	if i < len(all)-1 {
		end = max((end+7)/8*8-seal, 0) // records are padded to 8 bytes
	}
	return old, whole, end
}

func commitFits(l *segment.Log) error {
	commit, last := l.State().Commit, l.Last()
	for i := uint64(10); i <= min(commit, last.Index); i++ {
		if term, err := l.Term(i); err != nil || term != 2 {
			return fmt.Errorf("entry %d of term %d counts as committed (%w); the state is %+v", i, term, err, l.State())
		}
	}
	if last.Index > 10 && last.Term == 2 && commit < 10 {
		return fmt.Errorf("the log has entry %d and has forgotten that the change at 10 is committed", last.Index)
	}
	if last.Index > 12 && last.Term == 2 && commit != 12 {
		return fmt.Errorf("the log has entry %d and has forgotten that 12 are committed", last.Index)
	}
	return nil
}

func listed(t *testing.T, d *simdisk.Disk) []string {
	t.Helper()
	list := must.Get(d.List())(t)
	return list
}
