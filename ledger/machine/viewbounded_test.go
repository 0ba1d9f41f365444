package machine

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// hidingReader has a state in which some keys are deleted, which takes time.
type hidingReader struct {
	Reader

	bound int // what it takes for the bound of a listing
	walks int
	t     *testing.T
}

func hides(table Table, key []byte) bool {
	return table != TableBlocks && crc32.ChecksumIEEE(key)%5 != 0
}

func (h *hidingReader) Ascend(table Table, from []byte, visit func(key, value []byte) bool) error {
	return h.Reader.Ascend(table, from, func(key, value []byte) bool { return hides(table, key) || visit(key, value) })
}

func (h *hidingReader) AscendBounded(
	table Table, from []byte, deleted int, visit func(key, value []byte) bool,
) (resume []byte, err error) {
	check.Equal(h.t, deleted, maxDeletedScan, "a listing steps over %d deleted keys")
	h.walks++
	left := h.bound
	err = h.Reader.Ascend(table, from, func(key, value []byte) bool {
		if !hides(table, key) {
			return visit(key, value)
		}
		if left--; left == 0 {
			resume = bytes.Clone(key)
		}
		return left > 0
	})
	return resume, err
}

// unbounded is a reader without AscendBounded.
type unbounded struct{ Reader }

// listing is a listing of the state: it notes what it is shown, and returns where it goes on.
type listing func(v View, after []byte, note func(any)) (resume []byte, err error)

// listings are all that go on behind deleted keys.
func listings(now int64) map[string]listing {
	return map[string]listing{
		"streams": func(v View, after []byte, note func(any)) ([]byte, error) {
			return v.VisitStreams(&testScope, after, func(_ []byte, s NamedStream) bool {
				note(s.ClientID)
				return true
			})
		},
		"entities": func(v View, after []byte, note func(any)) ([]byte, error) {
			resume, err := v.VisitEntityRefs(testScope, "entity/", string(after), func(e EntityRef) bool {
				note(e.Key)
				return true
			})
			if resume == "" {
				return nil, err
			}
			return []byte(resume), err
		},
		"relationships": func(v View, after []byte, note func(any)) ([]byte, error) {
			return v.VisitRelationships(testScope, "doc", "", after, func(_ []byte, r Relationship) bool {
				note(r)
				return true
			})
		},
		"keyed records": func(v View, after []byte, note func(any)) ([]byte, error) {
			return v.VisitKeyed(testScope, "user:1", nil, after, now, func(_ []byte, k *KeyedRecord) bool {
				note(k.ID)
				return true
			})
		},
		"states": func(v View, after []byte, note func(any)) ([]byte, error) {
			return v.VisitKeyedStates(after, 7, func(key []byte, _ keyed.State) { note(string(key)) })
		},
		"reservations": func(v View, _ []byte, note func(any)) ([]byte, error) {
			return nil, v.VisitReservations(50, func(key []byte, _ int64) { note(string(key)) })
		},
		"live values": func(v View, from []byte, note func(any)) ([]byte, error) {
			live, next, err := v.FindLive(from, 1<<40)
			for _, l := range live {
				note(string(l.key))
			}
			return next, err
		},
		"unused values": func(v View, from []byte, note func(any)) ([]byte, error) {
			unused, next, err := v.FindUnused(from)
			for _, key := range unused {
				note(string(key))
			}
			return next, err
		},
	}
}

// all goes on until a listing has come to its end.
func (l listing) all(t *testing.T, v View) (got []string) {
	t.Helper()
	for after, more := []byte(nil), true; more; more = after != nil {
		after = must.Get(l(v, after, func(x any) { got = append(got, fmt.Sprint(x)) }))(t)
	}
	return got
}

// TestListingsGoOnBehindDeletedKeys: wherever a listing ends because of deleted keys, what follows from there on is
// what one listing of everything shows.
func TestListingsGoOnBehindDeletedKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testConfig())
	for i := range 60 {
		w := appendWrite(fmt.Sprint("client-", i), 1, 0, "x")
		w.Operations = append(w.Operations,
			Operation{Kind: OpSetEntity, Key: fmt.Appendf(nil, "entity/%03d", i), Value: bytes.Repeat([]byte("v"), 40)},
			Operation{Kind: OpCreateRelationship, Key: []byte("doc"), Relation: []byte("owner"),
				Subject: fmt.Appendf(nil, "user/%d", i)})
		f.commit(w)
		f.keyed(reserveKey(testKeyedID(byte(i)), 1, f.now), Keyed(keyed.Acquired))
	}
	// Values of entities that are gone.
	live, _, err := f.view().FindLive(nil, 1<<40)
	must.Do(t, firstErr(err, Carry(f.mem, live)))
	for i := range live {
		live[i].entity.version += 1_000
	}
	must.Do(t, Carry(f.mem, live))
	for i := range 30 { // and others that are not carried
		w := appendWrite("later", uint64(i)+1, 0, "x")
		w.Operations = append(w.Operations, Operation{Kind: OpSetEntity, Key: fmt.Appendf(nil, "entity/%03d", 2*i),
			Value: bytes.Repeat([]byte("w"), 40)})
		f.commit(w)
	}
	for name, list := range listings(f.now) {
		want := list.all(t, f.m.View(unbounded{&hidingReader{Reader: f.mem, t: t}}))
		if len(want) < 3 {
			t.Errorf("%s: only %d are shown", name, len(want))
		}
		for bound := 1; bound < 70; bound += 3 {
			reader := &hidingReader{Reader: f.mem, bound: bound, t: t}
			got := list.all(t, f.m.View(reader))
			if !slices.Equal(got, want) || reader.walks < 2 && bound < 10 {
				t.Errorf("%s, %d deleted keys at once, in %d walks:\n got %q\nwant %q",
					name, bound, reader.walks, got, want)
			}
		}
	}
}
