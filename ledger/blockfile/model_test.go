package blockfile

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
)

// filesModel is what the files must have: a list of records, of which the first may have been dropped.
type filesModel struct {
	disk    *MemoryDisk
	files   *Files
	records []stored // all that are not dropped
	last    uint64   // ledger index of the last record ever appended

	// As of the last checkpoint.
	mark    Mark
	start   Start
	sealed  []SealedFile // some of those before the mark
	covered uint64       // ledger index of the last record that the mark covers
}

func (m *filesModel) open(t *rapid.T) {
	m.files = must.Get(Open(Options{Disk: m.disk, Mark: m.mark, Start: m.start, Sealed: m.sealed}))(t)
	must.Do(t, m.files.RemoveDropped())
	// What the log has behind the checkpoint.
	for _, r := range m.records {
		if r.last > m.covered {
			must.Do(t, m.files.Append(r.last, r.data))
		}
	}
	m.files.Publish()
	must.Equal(t, must.Get(m.files.Finish())(t), 0)
}

func (m *filesModel) append(t *rapid.T) {
	for range rapid.IntRange(1, 8).Draw(t, "records") {
		m.last += rapid.Uint64Range(1, 3).Draw(t, "gap")
		r := stored{m.last, bytes.Repeat([]byte{byte(m.last)}, rapid.IntRange(0, 120).Draw(t, "size"))}
		must.Do(t, m.files.Append(r.last, r.data))
		m.records = append(m.records, r)
	}
	m.files.Publish()
}

func (m *filesModel) checkpoint(t *rapid.T) {
	must.Get(m.files.Sync())(t)
	must.Equal(t, m.files.Unsynced(), 0, "%d bytes are not synced behind a sync")
	m.mark, m.covered = m.files.Mark(), m.last
	m.sealed = nil
	for _, s := range m.files.Sealed(m.mark.Number) {
		again, err := DecodeSealed(s.Number, s.Append(nil))
		if err != nil || again != s {
			t.Fatalf("%+v is decoded as %+v: %v", s, again, err)
		}
		if rapid.IntRange(0, 4).Draw(t, "recorded") > 0 {
			m.sealed = append(m.sealed, again)
		}
	}
}

// restart begins at the last checkpoint, and with crash after a loss of power.
func (m *filesModel) restart(t *rapid.T, crash bool) {
	must.Do(t, m.files.Close())
	if crash {
		m.disk.Crash(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "survives") })
	}
	m.open(t)
}

// drop drops the files before some record.
func (m *filesModel) drop(t *rapid.T) {
	horizon := rapid.Uint64Range(0, m.last+1).Draw(t, "horizon")
	start, ok, err := m.files.Before(horizon, m.mark)
	must.Do(t, err)
	if !ok {
		return
	}
	if start.After >= horizon {
		t.Fatalf("records up to %d would go, and those from %d on are kept", start.After, horizon)
	}
	m.start = start
	m.records = slices.DeleteFunc(m.records, func(r stored) bool { return r.last <= start.After })
	m.files.Forget(start)
	if rapid.Bool().Draw(t, "removed") { // otherwise the next start does it
		must.Do(t, m.files.RemoveDropped())
	}
}

// check compares every way of reading with the model.
func (m *filesModel) check(t *rapid.T) {
	got, err := contents(m.files)
	if err != nil || !same(got, m.records) {
		t.Fatalf("%d records (%v), want %d", len(got), err, len(m.records))
	}
	r := m.files.Reader()
	defer r.Close()
	from := rapid.Uint64Range(m.start.After+1, m.last+2).Draw(t, "from")
	at := slices.IndexFunc(m.records, func(r stored) bool { return r.last >= from })
	x, found, err := r.Find(from)
	if err != nil || found != (at >= 0) || found && x.Last != m.records[at].last {
		t.Fatalf("the record at %d: %v %d (%v)", from, found, x.Last, err)
	}
	limit := rapid.Uint64Range(0, m.last+1).Draw(t, "limit")
	bounded := m.files.ReaderTo(limit)
	defer bounded.Close()
	n := 0
	must.Do(t, bounded.Ascend(0, func(Record) bool { n++; return true }))
	want := 0
	for _, r := range m.records {
		if r.last <= limit {
			want++
		}
	}
	must.Equal(t, n, want, "a reader to %d finds %d records", limit)
	compared, err := scrubAll(m.files, rapid.IntRange(1, 500).Draw(t, "scrubbed at once"))
	if err != nil || int64(compared) > m.files.Bytes() {
		t.Fatalf("%d of %d bytes scrubbed: %v", compared, m.files.Bytes(), err)
	}
	m.checkParts(t)
}

// checkParts adds the parts up to the mark up.
func (m *filesModel) checkParts(t *rapid.T) {
	var size int64
	var whole bytes.Buffer
	for _, part := range m.files.Parts(m.mark) {
		size += part.Size
		must.Do(t, part.CopyTo(&whole))
	}
	if int64(whole.Len()) != size || size > m.files.Bytes() {
		t.Fatalf("the parts have %d bytes, %d were copied, and the files have %d", size, whole.Len(), m.files.Bytes())
	}
	must.Equal(t, m.files.Base(), m.start.Base, "the files begin at %d")
}

// Whatever is appended, dropped, and cut by losses of power: the files have what the model has.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &filesModel{disk: NewMemoryDisk(), mark: Mark{
			ID: testID, SealBytes: rapid.SampledFrom([]int64{1, 300, 1500}).Draw(t, "seal"),
		}}
		m.open(t)
		t.Repeat(map[string]func(*rapid.T){
			"append":     m.append,
			"checkpoint": m.checkpoint,
			"restart":    func(t *rapid.T) { m.restart(t, false) },
			"crash":      func(t *rapid.T) { m.restart(t, true) },
			"drop":       m.drop,
			"":           m.check,
		})
		must.Do(t, m.files.Close())
	})
}
