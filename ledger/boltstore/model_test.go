package boltstore

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

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

	frozen      *frozenState // set while a flush is held between its steps
	frozenModel *modelState
	committed   bool
}

// Few tables and short keys over few letters, so that the layers overlap.
var (
	genTable = rapid.SampledFrom([]machine.Table{machine.TableStreams, machine.TableExpiry, machine.TableBlocks})
	genKey   = rapid.StringOfN(rapid.RuneFrom([]rune{'\x00', 'a', 'b', '~'}), 1, 3, -1)
	genValue = rapid.OneOf(rapid.SliceOfN(rapid.Byte(), 0, 40), rapid.SliceOfN(rapid.Just(byte(7)), 3000, 6000))
)

func (g *rig) open(t *rapid.T) {
	s, err := Open(g.path, Options{Create: true, Identity: testIdentity, NoSync: true})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	g.store, g.now = s, g.stored.clone()
	if s.Applied() != g.now.at || s.Checkpoint() != g.now.at {
		t.Fatalf("opened at %v, checkpoint %v, want %v", s.Applied(), s.Checkpoint(), g.now.at)
	}
}

func (g *rig) update(t *rapid.T) {
	at := Position{g.now.at.Index + rapid.Uint64Range(1, 3).Draw(t, "step"), g.now.at.Term + rapid.Uint64Range(0, 1).Draw(t, "terms")}
	err := g.store.Update(at, func(tx machine.Tx) error {
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			table, key := genTable.Draw(t, "table"), genKey.Draw(t, "key")
			g.compareKey(t, tx, table, key)
			if rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
				delete(g.now.tables[table], key)
				if err := tx.Delete(table, []byte(key)); err != nil {
					return err
				}
			} else {
				value := genValue.Draw(t, "value")
				g.now.tables[table][key] = string(value)
				if err := tx.Put(table, []byte(key), value); err != nil {
					return err
				}
			}
			g.compareKey(t, tx, table, key)
		}
		g.comparePage(t, tx)
		return nil
	})
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	g.now.at = at
}

func (g *rig) view(t *rapid.T) {
	err := g.store.View(func(r machine.Reader) error {
		for range 5 {
			g.compareKey(t, r, genTable.Draw(t, "table"), genKey.Draw(t, "key"))
		}
		g.comparePage(t, r)
		return nil
	})
	if err != nil {
		t.Fatalf("view: %v", err)
	}
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
}

// flush takes one step of a flush that stands still in between, or a whole one.
func (g *rig) flush(t *rapid.T) {
	var err error
	switch {
	case g.frozen == nil && rapid.Bool().Draw(t, "whole"):
		err = g.store.Flush()
		g.stored = g.now.clone()
	case g.frozen == nil:
		g.frozen, err = g.store.freeze()
		g.frozenModel, g.committed = g.now.clone(), false
	case !g.committed:
		err = g.store.commit(g.frozen)
		g.stored, g.committed = g.frozenModel, true
	default:
		g.store.thaw(g.frozen)
		g.frozen = nil
	}
	if err != nil {
		t.Fatalf("flush: %v", err)
	}
}

// restart drops the overlays, as a crash does.
func (g *rig) restart(t *rapid.T) {
	if err := g.store.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	g.frozen = nil
	g.open(t)
}

// Any sequence of steps must leave the store equal to a sorted map, and a
// restart must lead back to the map as it was at the checkpoint.
func TestStoreEqualsModel(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		if err != nil {
			t.Fatal(err)
		}
		g := &rig{path: filepath.Join(dir, "state.db"), stored: new(modelState)}
		for i := range g.stored.tables {
			g.stored.tables[i] = map[string]string{}
		}
		g.open(t)
		defer func() { _ = g.store.Close(); _ = os.RemoveAll(dir) }()
		t.Repeat(map[string]func(*rapid.T){
			"update": g.update, "view": g.view, "flush": g.flush, "restart": g.restart,
		})
	})
}
