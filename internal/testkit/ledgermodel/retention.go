package ledgermodel

import (
	"encoding/binary"

	"github.com/seqledger/seqledger/ledger/machine"
)

// mark is a moment that the horizon may move to.
type mark struct {
	index uint64 // the last that is before it
	time  int64
	bytes uint64
}

// retain follows each pass.
func (m *Model) retain() {
	between := func(bound, least, most int64) int64 {
		if bound == 0 {
			return most
		}
		return min(max(bound/256, least), most)
	}
	since := m.Bytes - m.marked.bytes
	interval := between(m.Config.RetainBlocks, second, 3600*second)
	if since >= uint64(between(int64(m.Config.RetainBytes), 64<<10, 64<<20)) ||
		since > 0 && m.Time-m.marked.time >= interval {
		m.mark()
		m.Fired["mark"]++
	}
	for range 64 {
		if len(m.marks) == 0 {
			return
		}
		first := m.marks[0]
		old := m.Config.RetainBlocks != 0 && m.Time-first.time > m.Config.RetainBlocks
		much := m.Config.RetainBytes != 0 && m.Bytes-first.bytes >= m.Config.RetainBytes
		if !old && !much {
			return
		}
		m.Horizon, m.marks = first.index+1, m.marks[1:]
		m.Fired["horizon moved"]++
	}
}

func (m *Model) mark() {
	m.marked = mark{m.Index, m.Time, m.Bytes}
	m.marks = append(m.marks, m.marked)
}

func (m *Model) setMarksBack(now int64) {
	m.marked.time = min(m.marked.time, now)
	for i := range m.marks {
		m.marks[i].time = min(m.marks[i].time, now)
	}
}

// Drop does with a state in memory what a ledger does with its files: it carries the values that are alive in
// the blocks before the horizon, removes these blocks, and then the values that nothing leads to.
func Drop(state *machine.Memory, m *machine.Machine) {
	view := m.View(state)
	var old [][]byte
	upTo := uint64(0)
	must(state.Ascend(machine.TableBlocks, nil, func(key, _ []byte) bool {
		last := binary.BigEndian.Uint64(key)
		if last < view.Horizon().Index() {
			old, upTo = append(old, key), last
		}
		return last < view.Horizon().Index()
	}))
	for from, more := []byte(nil), true; more && len(old) > 0; more = from != nil {
		live, next, err := view.FindLive(from, upTo)
		must(err)
		must(machine.Carry(state, live))
		from = next
	}
	for _, key := range old {
		must(state.Delete(machine.TableBlocks, key))
	}
	for from, more := []byte(nil), true; more; more = from != nil {
		unused, next, err := view.FindUnused(from)
		must(err)
		must(machine.DropCarried(state, unused))
		from = next
	}
}
