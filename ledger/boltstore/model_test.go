package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
)

// modelState is what the state is at one position, without any cleverness.
type modelState struct {
	at     Position
	tables [machine.TableCount]map[string]string
}

func (m *modelState) clone() *modelState {
	c := &modelState{at: m.at}
	for i, table := range m.tables {
		c.tables[i] = maps.Clone(table)
	}
	return c
}

// page is what Ascend from a key must show, up to limit records.
func (m *modelState) page(table machine.Table, from string, limit int) string {
	var out bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(m.tables[table])) {
		if key >= from && limit > 0 {
			fmt.Fprintf(&out, "%x=%x ", key, m.tables[table][key])
			limit--
		}
	}
	return out.String()
}

// rig drives a store and its model through the same steps.
type rig struct {
	path   string
	store  *Store
	now    *modelState
	stored *modelState // what the file holds

	log []logged // everything that was ever applied

	frozen      *frozenState // set while a flush is held between its steps
	frozenModel *modelState
	committed   bool
	aside       *changes // of frozen, or of a process before, that are not in their tables yet; nil for none
}

// logged is one entry of the log that a start replays.
type logged struct {
	at      Position
	changes []change
}

type change struct {
	table   machine.Table
	key     string
	value   []byte
	deleted bool
}

// Few tables and short keys over few letters, so that the layers overlap.
var (
	genTable = rapid.SampledFrom([]machine.Table{machine.TableStreams, machine.TableExpiry})
	genKey   = rapid.StringOfN(rapid.RuneFrom([]rune{'\x00', 'a', 'b', '~'}), 1, 3, -1)
	genValue = rapid.OneOf(rapid.SliceOfN(rapid.Byte(), 0, 40), rapid.SliceOfN(rapid.Just(byte(7)), 3000, 6000))
)

func (g *rig) open(t *rapid.T) {
	s, err := Open(g.path, Options{Create: true, Identity: testIdentity, SealBytes: 4000, NoSync: true,
		StepBytes: rapid.SampledFrom([]int64{1, 10_000, 40_000, 1 << 30}).Draw(t, "bytes in a step")})
	must.Do(t, err, "open")
	g.store, g.now = s, g.stored.clone()
	if s.Applied() != g.now.at || s.Checkpoint() != g.now.at {
		t.Fatalf("opened at %v, checkpoint %v, want %v", s.Applied(), s.Checkpoint(), g.now.at)
	}
}

// draw makes an entry that the log does not have yet, with at most one block.
func (g *rig) draw(t *rapid.T) (e logged) {
	e.at = Position{g.now.at.Index + rapid.Uint64Range(1, 3).Draw(t, "step"), g.now.at.Term +
		rapid.Uint64Range(0, 1).Draw(t, "terms")}
	for range rapid.IntRange(0, 12).Draw(t, "changes") {
		c := change{table: genTable.Draw(t, "table"), key: genKey.Draw(t, "key")}
		if c.deleted = rapid.IntRange(0, 2).Draw(t, "delete") == 0; !c.deleted {
			c.value = genValue.Draw(t, "value")
		}
		e.changes = append(e.changes, c)
	}
	if rapid.Bool().Draw(t, "block") {
		e.changes = append(e.changes, change{table: machine.TableBlocks, key: string(blockKey(e.at.Index)),
			value: append([]byte("block "), genValue.Draw(t, "value")...)})
	}
	g.log = append(g.log, e)
	return e
}

// update applies the next entry of the log, or a new one behind its end.
func (g *rig) update(t *rapid.T) {
	i := slices.IndexFunc(g.log, func(e logged) bool { return e.at.Index > g.now.at.Index })
	var e logged
	if i >= 0 {
		e = g.log[i]
	} else {
		e = g.draw(t)
	}
	must.Do(t, g.store.Update(e.at, func(tx machine.Tx) (err error) {
		for _, c := range e.changes {
			g.compareKey(t, tx, c.table, c.key)
			if c.deleted {
				delete(g.now.tables[c.table], c.key)
				err = tx.Delete(c.table, []byte(c.key))
			} else {
				g.now.tables[c.table][c.key] = string(c.value)
				err = tx.Put(c.table, []byte(c.key), c.value)
			}
			if err != nil {
				return err
			}
			g.compareKey(t, tx, c.table, c.key)
		}
		g.comparePage(t, tx)
		g.compareBlocks(t, tx, g.now, g.blockFrom(t))
		return nil
	}), "update")
	g.now.at = e.at
}

func (g *rig) view(t *rapid.T) {
	must.Do(t, g.store.View(func(r machine.Reader) error {
		for range 5 {
			g.compareKey(t, r, genTable.Draw(t, "table"), genKey.Draw(t, "key"))
		}
		g.comparePage(t, r)
		g.compareBlocks(t, r, g.now, g.blockFrom(t))
		return nil
	}), "view")
	g.compareSizes(t)
}

// snapshot looks at the file alone, as a backup does.
func (g *rig) snapshot(t *rapid.T) {
	if g.aside != nil {
		return // the test stands still in the middle of a flush, for which Snapshot would wait
	}
	sn, err := g.store.Snapshot()
	must.Do(t, err, "snapshot")
	defer func() { _ = sn.Close() }() // if the test fails, else the store would wait for it when it is closed
	from := g.blockFrom(t)            // not inside: rapid panics when it has no more to draw from
	err = sn.View(func(r machine.Reader) error {
		g.compareBlocks(t, r, g.stored, from)
		for _, table := range []machine.Table{machine.TableStreams, machine.TableExpiry} {
			var got bytes.Buffer
			err := r.Ascend(table, nil, func(key, value []byte) bool {
				fmt.Fprintf(&got, "%x=%x ", key, value)
				return true
			})
			if want := g.stored.page(table, "", math.MaxInt); err != nil || got.String() != want {
				t.Fatalf("table %d of a snapshot:\n got %s (%v)\nwant %s", table, got.String(), err, want)
			}
		}
		return nil
	})
	must.Do(t, errors.Join(err, sn.Close()), "snapshot")
}

// compareBlocks looks for every block that was ever made, and from any of them
// on at what Ascend shows.
func (g *rig) compareBlocks(t *rapid.T, r machine.Reader, want *modelState, from string) {
	for _, e := range g.log {
		key := string(blockKey(e.at.Index))
		value, err := r.Get(machine.TableBlocks, []byte(key))
		expected, present := want.tables[machine.TableBlocks][key]
		if err != nil || string(value) != expected || (value != nil) != present {
			t.Fatalf("block %x is %x, %v; want %x, present %v", key, value, err, expected, present)
		}
	}
	var got bytes.Buffer
	err := r.Ascend(machine.TableBlocks, []byte(from), func(key, value []byte) bool {
		fmt.Fprintf(&got, "%x=%x ", key, value)
		return true
	})
	if want := want.page(machine.TableBlocks, from, len(g.log)); err != nil || got.String() != want {
		t.Fatalf("blocks from %x:\n got %s (%v)\nwant %s", from, got.String(), err, want)
	}
}

// blockFrom draws where to read the blocks from.
func (g *rig) blockFrom(t *rapid.T) string {
	return string(blockKey(rapid.Uint64Range(0, g.now.at.Index+2).Draw(t, "from block")))
}

// compareSizes adds up what the overlays hold, entry by entry.
func (g *rig) compareSizes(t *rapid.T) {
	var pending int64
	for _, o := range []*overlay{g.store.active, g.store.frozen} {
		for table := 0; o != nil && table < int(machine.TableCount); table++ {
			changes := o.table(machine.Table(table))
			least := int64(0)
			for id := range changes.count {
				r := changes.record(id)
				least += int64(r.keySize) + int64(r.room) + recordOverhead
			}
			if least > changes.size() {
				t.Fatalf("table %d takes %d bytes at least, and says %d", table, least, changes.size())
			}
			pending += changes.size()
		}
	}
	must.Equal(t, g.store.PendingBytes(), pending, "%d bytes pending")
}

func (g *rig) compareKey(t *rapid.T, r machine.Reader, table machine.Table, key string) {
	value, err := r.Get(table, []byte(key))
	want, present := g.now.tables[table][key]
	if err != nil || string(value) != want || (value != nil) != present {
		t.Fatalf("Get(%d, %x) = %x, %v; want %x, present %v", table, key, value, err, want, present)
	}
}

func (g *rig) comparePage(t *rapid.T, r machine.Reader) {
	table, from := genTable.Draw(t, "table"), genKey.Draw(t, "from")
	if rapid.Bool().Draw(t, "from the start") {
		from = ""
	}
	limit := rapid.IntRange(1, 40).Draw(t, "limit")
	var got bytes.Buffer
	left := limit
	err := r.Ascend(table, []byte(from), func(key, value []byte) bool {
		fmt.Fprintf(&got, "%x=%x ", key, value)
		left--
		return left > 0
	})
	if want := g.now.page(table, from, limit); err != nil || got.String() != want {
		t.Fatalf("Ascend(%d, %x) up to %d:\n got %s (%v)\nwant %s", table, from, limit, got.String(), err, want)
	}
	g.compareBounded(t, r, table, from)
}

// compareBounded goes on behind each place where a bounded Ascend ends.
func (g *rig) compareBounded(t *rapid.T, r machine.Reader, table machine.Table, from string) {
	bounded, ok := r.(machine.BoundedReader)
	if !ok {
		t.Fatal("a reader of the store steps over any number of deleted keys")
	}
	bound := rapid.IntRange(1, 6).Draw(t, "deleted keys at once")
	var got bytes.Buffer
	for next := []byte(from); next != nil; {
		resume, err := bounded.AscendBounded(table, next, bound, func(key, value []byte) bool {
			fmt.Fprintf(&got, "%x=%x ", key, value)
			return true
		})
		if err != nil || resume != nil && bytes.Compare(resume, next) < 0 {
			t.Fatalf("AscendBounded(%d, %x) by %d goes on behind %x, %v", table, next, bound, resume, err)
		}
		if next = nil; resume != nil {
			next = append(resume, 0)
		}
	}
	if want := g.now.page(table, from, math.MaxInt); got.String() != want {
		t.Fatalf("AscendBounded(%d, %x) by %d:\n got %s\nwant %s", table, from, bound, got.String(), want)
	}
}

// flush takes one step of a flush that stands still in between, or does a whole
// one, or syncs the blocks alone.
func (g *rig) flush(t *rapid.T) {
	var err error
	switch {
	case rapid.IntRange(0, 3).Draw(t, "blocks alone") == 0:
		_, err = g.store.SyncBlocks()
	case g.store.unmerged && rapid.Bool().Draw(t, "a step of the journal alone"):
		c := g.store.frozen.changes()
		if _, err = g.store.mergeSome(c, g.store.pacer()); c.len() == 0 {
			g.store.merged()
		}
	case g.frozen == nil && rapid.Bool().Draw(t, "whole"):
		err = g.store.Flush()
		g.stored = g.now.clone()
	case g.frozen == nil:
		g.frozenModel, g.committed = g.now.clone(), false
		if err = g.store.finish(); err == nil {
			g.frozen, err = g.store.freeze()
		}
	case !g.committed && rapid.Bool().Draw(t, "at once"):
		err = g.store.commit(g.frozen)
		g.stored, g.committed = g.frozenModel, true
	case !g.committed:
		g.aside = g.frozen.overlay.changes()
		if _, err = g.store.blocks.Sync(); err == nil {
			err = g.store.commitJournal(g.frozen, g.aside, g.store.pacer())
		}
		g.stored, g.committed = g.frozenModel, true
	case g.aside != nil:
		if _, err = g.store.mergeSome(g.aside, g.store.pacer()); g.aside.len() == 0 {
			g.aside = nil
		}
	default:
		g.store.thaw(g.frozen)
		g.frozen = nil
	}
	must.Do(t, err, "flush")
}

// endReplay cuts what a crash has left, or finds that the log has not come to its
// end yet.
func (g *rig) endReplay(t *rapid.T) {
	behind, err := g.store.blocks.Finish()
	must.Do(t, err, "end of the replay")
	want := uint64(0)
	for _, e := range g.log {
		for _, c := range e.changes {
			if c.table == machine.TableBlocks && e.at.Index > g.now.at.Index {
				want = e.at.Index
			}
		}
	}
	must.Equal(t, behind, want, "the blocks prove ledger index %d")
}

// restart drops the overlays, as a crash does.
func (g *rig) restart(t *rapid.T) {
	must.Do(t, g.store.Close(), "close")
	g.frozen, g.aside = nil, nil
	g.open(t)
}

// Any sequence of steps must leave the store equal to a sorted map, and a
// restart must lead back to the map as it was at the checkpoint, whatever was
// spilled since.
func TestStoreEqualsModel(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir := must.Get(os.MkdirTemp(root, ""))(t)
		g := &rig{path: filepath.Join(dir, "state.db"), stored: new(modelState)}
		for i := range g.stored.tables {
			g.stored.tables[i] = map[string]string{}
		}
		g.open(t)
		defer func() { _ = g.store.Close(); _ = os.RemoveAll(dir) }()
		t.Repeat(map[string]func(*rapid.T){
			"update": g.update, "view": g.view, "flush": g.flush, "restart": g.restart, "snapshot": g.snapshot,
			"end of replay": g.endReplay,
		})
	})
}
