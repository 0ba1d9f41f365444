package ledger_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/machine"
)

// stateImage is a state file as a crash leaves it, with the log that belongs to it.
type stateImage struct {
	content  []byte
	blocks   map[string][]byte // the block files, by name
	sums     []byte            // of its pages; nil for a file that has none
	identity []byte
	keyed    bool             // it has keyed records, and history was dropped
	steps    int64            // how many bytes of pages a step of its last checkpoint changes; 0 for one step
	rests    int              // of that checkpoint so far
	between  [2][]byte        // the state file and its sums after the second step
	entries  [][]byte         // at Raft index 1 and following
	writes   []*machine.Write // committed, in their order
	commands [][]byte         // on keyed records, in their order
	tokens   [damageClients]uint64
	keys     []string     // of entities
	time     int64        // of the last entry
	pace     int64        // how long an entry takes, in nanoseconds
	free     map[int]bool // pages
	inUse    bool         // damage these alone
	want     []byte       // what a sound life says
}

const (
	damageClients = 8
	damageRounds  = 4
)

const damagePageSize = 1024 // small, so that a small file has every kind of page

// damageScopes has a scope whose name is part of the other's.
var damageScopes = []machine.Scope{{Organization: "acme", Vault: "main"}, {Organization: "acme"}}

// newStateImage makes an image with streams, entities, relationships and blocks.
func newStateImage(t *testing.T) *stateImage { return makeStateImage(t, &stateImage{}) }

// newKeyedImage makes an image that has keyed records, attachments, principals, marks and carried values as well, and
// of which block files were dropped.
func newKeyedImage(t *testing.T) *stateImage { return makeStateImage(t, &stateImage{keyed: true}) }

// newJournalImage makes an image whose last checkpoint was interrupted after the first of the steps that put its
// changes into their tables.
func newJournalImage(t *testing.T) *stateImage {
	return makeStateImage(t, &stateImage{steps: 3 * damagePageSize})
}

func makeStateImage(t *testing.T, d *stateImage) *stateImage {
	t.Helper()
	d.identity, d.time, d.pace = []byte("0123456789abcdef"), 1, 1e9
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	s, m := d.open(t, path, true)
	config := machine.DefaultConfig()
	config.ReceiptWindow, config.EvictionInterval, config.ClientTTL = 4, 8, int64(3600e9)
	if d.keyed {
		config.RetainBlocks = int64(15e9)
	}
	d.apply(t, s, m, machine.AppendCreate(nil, 7, 9, config))
	must.Do(t, errors.Join(s.Flush(), s.Close()))

	// With small pages from now on.
	small := filepath.Join(dir, "small.db")
	from := must.Get(bbolt.Open(path, 0o600, nil))(t)
	to := must.Get(bbolt.Open(small, 0o600, &bbolt.Options{PageSize: damagePageSize}))(t)
	must.Do(t, errors.Join(bbolt.Compact(to, from, 0), from.Close(), to.Close()))

	s, m = d.open(t, small, false)
	for round := range damageRounds {
		d.round(t, s, m, round)
	}
	must.Do(t, s.Close())
	d.read(t, dir, small)
	life := &stateLife{}
	must.Do(t, d.put(path, d.content, d.sums, d.blocks))
	must.Do(t, d.live(life, path), "the life of a sound state")
	d.want = life.said
	return d
}

// round lets each client write once. The last two rounds are in no checkpoint, and the last one's blocks are not
// synced.
func (d *stateImage) round(t *testing.T, s *boltstore.Store, m *machine.Machine, round int) {
	t.Helper()
	for client := range damageClients {
		d.commit(t, s, m, client, round)
		if d.keyed {
			d.command(t, s, m, client, round)
		}
	}
	if round < damageRounds-2 {
		d.rests = 0
		must.Do(t, s.Flush())
	}
	if round == damageRounds-3 && d.keyed {
		dropped, carried, err := dropHistory(s, m)
		if must.Do(t, err); dropped == 0 || carried == 0 {
			t.Errorf("%d bytes of blocks are dropped, and %d values carried", dropped, carried)
		}
		d.pace = 1e8 // so that the horizon stays before blocks that are in the checkpoint
	}
	if round == damageRounds-2 {
		must.Get(s.SyncBlocks())(t)
	}
}

// read takes the files of the image over.
func (d *stateImage) read(t *testing.T, dir, small string) {
	t.Helper()
	if d.steps > 0 {
		must.Do(t, os.WriteFile(small, d.between[0], 0o600))
		must.Do(t, os.WriteFile(boltstore.SumsPath(small), d.between[1], 0o600))
	}
	used := int64(0)
	from := must.Get(bbolt.Open(small, 0o600, &bbolt.Options{ReadOnly: true}))(t)
	must.Do(t, from.View(func(tx *bbolt.Tx) error {
		check.Equal(t, tx.Bucket([]byte("journal")) != nil, d.steps > 0, "the image has a journal: %v")
		used = tx.Size()
		return nil
	}))
	must.Do(t, from.Close())
	d.content = must.Get(os.ReadFile(small))(t)
	d.blocks = map[string][]byte{}
	for _, name := range blockFiles(t, dir) {
		d.blocks[filepath.Base(name)] = must.Get(os.ReadFile(name))(t)
	}
	if len(d.blocks) < 3 {
		t.Errorf("the image has only %d block files", len(d.blocks))
	}
	d.content, d.free = d.content[:used], map[int]bool{}
	meta := must.Get(boltpage.ReadMeta(bytes.NewReader(d.content)))(t)
	list := d.content[meta.FreeList*damagePageSize:]
	for i := range int(binary.NativeEndian.Uint16(list[10:])) {
		d.free[int(binary.NativeEndian.Uint64(list[16+8*i:]))] = true
	}
	d.sums = must.Get(os.ReadFile(boltstore.SumsPath(small)))(t)
}

// put writes a state file, its sums, and the block files beside it.
func (d *stateImage) put(path string, state, sums []byte, blocks map[string][]byte) error {
	dir := boltstore.BlocksOf(path)
	err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.WriteFile(path, state, 0o600))
	for name, b := range blocks {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	if sums == nil {
		if removed := os.Remove(boltstore.SumsPath(path)); !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
		return err
	}
	return errors.Join(err, os.WriteFile(boltstore.SumsPath(path), sums, 0o600))
}

func (d *stateImage) open(t *testing.T, path string, create bool) (*boltstore.Store, *machine.Machine) {
	t.Helper()
	s, err := boltstore.Open(path, boltstore.Options{
		Create: create, Identity: d.identity, NoSync: true, SealBytes: 2_500, StepBytes: d.steps,
		Yield: func(time.Duration) {
			d.rests++ // after each step, and hardly ever within one
			if d.steps == 0 || d.rests != 2 {
				return
			}
			var errState, errSums error
			d.between[0], errState = os.ReadFile(path)
			d.between[1], errSums = os.ReadFile(boltstore.SumsPath(path))
			must.Do(t, errors.Join(errState, errSums))
		},
	})
	must.Do(t, err)
	var m *machine.Machine
	must.Do(t, s.View(func(r machine.Reader) (err error) { m, err = machine.Open(r); return err }))
	return s, m
}

// apply makes a log entry of commands and applies it.
func (d *stateImage) apply(t *testing.T, s *boltstore.Store, m *machine.Machine, commands ...[]byte) []machine.Outcome {
	t.Helper()
	d.time += d.pace
	d.entries = append(d.entries, machine.AppendEntry(nil, d.time, commands...))
	var outcomes []machine.Outcome
	must.Do(t, s.Update(boltstore.Position{Index: uint64(len(d.entries)), Term: 1}, func(tx machine.Tx) (err error) {
		outcomes, err = m.Apply(tx, d.entries[len(d.entries)-1])
		return err
	}))
	return outcomes
}

// commit makes the write of a client and a round.
func (d *stateImage) commit(t *testing.T, s *boltstore.Store, m *machine.Machine, client, round int) {
	t.Helper()
	w := damageWrite(client, uint64(round)+1)
	if d.keyed && round == 0 && client < 3 { // values that outlive their blocks
		w.Operations = append(w.Operations, machine.Operation{
			Kind: machine.OpSetEntity, Key: fmt.Appendf(nil, "kept/%d", client),
			Value: bytes.Repeat([]byte("kept"), 20+client),
		})
	}
	outcomes := d.apply(t, s, m, machine.AppendWrite(nil, w))
	must.Equal(t, outcomes[0].Code, machine.Committed, "client %d, round %d: %v", client, round)
	d.writes = append(d.writes, w)
	for _, o := range w.Operations {
		if o.Kind == machine.OpSetEntity {
			d.keys = append(d.keys, string(o.Key))
		}
	}
}

// damageWrite is the write of a client with a sequence, which has something of
// everything.
func damageWrite(client int, sequence uint64) *machine.Write {
	scope := damageScopes[client%len(damageScopes)]
	w := &machine.Write{
		Scope: scope, ClientID: fmt.Sprintf("client-of-some-length-%02d", 2*client), Actor: "system:test",
		Sequence: sequence,
		Key:      machine.Key{Present: client%3 != 0, UUID: [16]byte{byte(client), byte(sequence), 7}},
	}
	set := func(key, value string, expires int64) {
		w.Operations = append(w.Operations, machine.Operation{
			Kind: machine.OpSetEntity, Key: []byte(key), Value: []byte(value), ExpiresAt: expires,
		})
	}
	switch (client + int(sequence)) % 5 {
	case 0:
		set(fmt.Sprintf("account/of/client/%02d", 2*client), strings.Repeat("long value ", 5), 0)
	case 1:
		set(fmt.Sprintf("account/of/client/%02d", 2*client), "short", 0)
	case 2:
		set(fmt.Sprintf("expires/%02d/%d", client, sequence), "soon", int64(sequence+1)*60e9)
	case 3:
		w.Operations = append(w.Operations, machine.Operation{
			Kind: machine.OpCreateRelationship, Key: fmt.Appendf(nil, "doc/%02d", client), Relation: []byte("owner"),
			Subject: []byte("user/1"),
		})
	default:
		if client == 3 { // so that a page of the checkpoint needs others behind it
			w.Operations = append(w.Operations, machine.Operation{
				Kind: machine.OpCreateRelationship, Key: bytes.Repeat([]byte("k"), 600), Relation: []byte("of"),
				Subject: bytes.Repeat([]byte("s"), 600),
			})
		}
		size := 20
		if client == damageClients-1 {
			size = 1_100 // a record of several sectors
		}
		w.Operations = append(w.Operations, machine.Operation{Kind: machine.OpAppend,
			Value: bytes.Repeat([]byte{byte(client)}, size)})
	}
	return w
}
