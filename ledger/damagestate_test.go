package ledger_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/internal/boltpage"
	"github.com/seqledger/seqledger/ledger/machine"
)

// The tests below damage a small state file in every place in turn, and let the
// state machine live on it: it replays the log, answers every question, gets every
// acknowledged write again and new ones beside them, and writes checkpoints. Raft is
// left out, because it would take most of the time; package raftlog does the same
// with the log's files.

// damageStep is how many bits the tests of damage go on by: 1 with
// SEQLEDGER_DAMAGE_ALL, and otherwise a number that has no factor in common with a
// byte, so that bits of all kinds are among them.
func damageStep() int {
	if os.Getenv("SEQLEDGER_DAMAGE_ALL") != "" {
		return 1
	}
	return 1_009
}

// stateImage is a state file as a crash leaves it, with the log that belongs to it.
type stateImage struct {
	content  []byte
	identity []byte
	entries  [][]byte         // at Raft index 1 and following
	writes   []*machine.Write // committed, in their order
	keys     []string         // of entities
	time     int64            // of the last entry
	free     map[int]bool     // pages
	want     []byte           // what a sound life says
}

const (
	damageClients = 7
	damageRounds  = 4
)

const damagePageSize = 1024 // small, so that a small file has every kind of page

// damageScopes has a scope whose name is part of the other's.
var damageScopes = []machine.Scope{{Organization: "acme", Vault: "main"}, {Organization: "acme"}}

func newStateImage(t *testing.T) *stateImage {
	t.Helper()
	d := &stateImage{identity: []byte("0123456789abcdef"), time: 1}
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	s, m := d.open(t, path, true)
	config := machine.DefaultConfig()
	config.ReceiptWindow, config.EvictionInterval, config.ClientTTL = 4, 8, int64(3600e9)
	d.apply(t, s, m, machine.AppendCreate(nil, 7, 9, config))
	must(t, errors.Join(s.Flush(), s.Close()))

	// With small pages from now on.
	small := filepath.Join(dir, "small.db")
	from, err := bbolt.Open(path, 0o600, nil)
	must(t, err)
	to, err := bbolt.Open(small, 0o600, &bbolt.Options{PageSize: damagePageSize})
	must(t, err)
	must(t, errors.Join(bbolt.Compact(to, from, 0), from.Close(), to.Close()))

	s, m = d.open(t, small, false)
	for round := range damageRounds {
		for client := range damageClients {
			d.commit(t, s, m, client, round)
		}
		if round < damageRounds-2 {
			must(t, s.Flush())
		}
		if round == damageRounds-2 {
			_, err := s.Spill()
			must(t, err)
		}
	}
	must(t, s.Close())
	used := int64(0)
	from, err = bbolt.Open(small, 0o600, &bbolt.Options{ReadOnly: true})
	must(t, err)
	must(t, from.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil }))
	must(t, from.Close())
	d.content, err = os.ReadFile(small)
	must(t, err)
	d.content, d.free = d.content[:used], map[int]bool{}
	meta, err := boltpage.ReadMeta(bytes.NewReader(d.content))
	must(t, err)
	list := d.content[meta.FreeList*damagePageSize:]
	for i := range int(binary.NativeEndian.Uint16(list[10:])) {
		d.free[int(binary.NativeEndian.Uint64(list[16+8*i:]))] = true
	}
	life := &stateLife{}
	must(t, os.WriteFile(path, d.content, 0o600))
	if err := d.live(life, path); err != nil {
		t.Fatalf("the life of a sound state: %v", err)
	}
	d.want = life.said
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (d *stateImage) open(t *testing.T, path string, create bool) (*boltstore.Store, *machine.Machine) {
	t.Helper()
	s, err := boltstore.Open(path, boltstore.Options{Create: create, Identity: d.identity, NoSync: true})
	must(t, err)
	var m *machine.Machine
	must(t, s.View(func(r machine.Reader) (err error) { m, err = machine.Open(r); return err }))
	return s, m
}

// apply makes a log entry of commands and applies it.
func (d *stateImage) apply(t *testing.T, s *boltstore.Store, m *machine.Machine, commands ...[]byte) []machine.Outcome {
	t.Helper()
	d.time += 1e9
	d.entries = append(d.entries, machine.AppendEntry(nil, d.time, commands...))
	var outcomes []machine.Outcome
	must(t, s.Update(boltstore.Position{Index: uint64(len(d.entries)), Term: 1}, func(tx machine.Tx) (err error) {
		outcomes, err = m.Apply(tx, d.entries[len(d.entries)-1])
		return err
	}))
	return outcomes
}

// commit makes the write of a client and a round.
func (d *stateImage) commit(t *testing.T, s *boltstore.Store, m *machine.Machine, client, round int) {
	t.Helper()
	w := damageWrite(client, uint64(round)+1)
	outcomes := d.apply(t, s, m, machine.AppendWrite(nil, w))
	if outcomes[0].Code != machine.Committed {
		t.Fatalf("client %d, round %d: %v", client, round, outcomes[0].Code)
	}
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
		Scope: scope, ClientID: fmt.Sprintf("client-of-some-length-%02d", 2*client), Actor: "system:test", Sequence: sequence,
		Key: machine.Key{Present: client%3 != 0, UUID: [16]byte{byte(client), byte(sequence), 7}},
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
			Kind: machine.OpCreateRelationship, Key: fmt.Appendf(nil, "doc/%02d", client), Relation: []byte("owner"), Subject: []byte("user/1"),
		})
	default:
		size := 20
		if client == damageClients-1 {
			size = 1_500 // so that a page needs others behind it
		}
		w.Operations = append(w.Operations, machine.Operation{Kind: machine.OpAppend, Value: bytes.Repeat([]byte{byte(client)}, size)})
	}
	return w
}

// stateLife is what a life has said. With want it compares, and the first difference
// is kept.
type stateLife struct {
	said  []byte
	want  []byte
	wrong string
	at    int
	stage string
}

func (l *stateLife) say(b []byte) {
	if l.want == nil {
		l.said = append(l.said, b...)
		return
	}
	if l.wrong == "" && !bytes.HasPrefix(l.want[min(l.at, len(l.want)):], b) {
		l.wrong = fmt.Sprintf("%s: %q instead of %q", l.stage, b, l.want[min(l.at, len(l.want)):min(l.at+len(b), len(l.want))])
	}
	l.at += len(b)
}

func (l *stateLife) sayNumbers(numbers ...uint64) {
	var b []byte
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	l.say(b)
}

func (l *stateLife) sayTransaction(tx *machine.Transaction) {
	l.say(tx.Encode())
	l.sayNumbers(tx.BlockHeight, uint64(tx.Position))
	l.sayNumbers(tx.Versions...)
}

// sayFound says whether something was found. Any other error ends the life.
func (l *stateLife) sayFound(err error) (bool, error) {
	if errors.Is(err, machine.ErrNotFound) {
		l.say([]byte("not found"))
		return false, nil
	}
	return err == nil, err
}

// live opens a state, and goes on with it for a while.
func (d *stateImage) live(l *stateLife, path string) error {
	l.stage = "at the start"
	s, m, err := d.reopen(path)
	if err != nil {
		return err
	}
	err = d.session(l, s, m)
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	// What was written in that life is there in the next.
	l.stage = "after checkpoints"
	if s, m, err = d.reopen(path); err != nil {
		return err
	}
	return errors.Join(d.sayAll(l, s, m), s.Close())
}

// refusal is an error of a start.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// reopen opens the state and replays the log.
func (d *stateImage) reopen(path string) (*boltstore.Store, *machine.Machine, error) {
	s, err := boltstore.Open(path, boltstore.Options{Identity: d.identity, NoSync: true})
	if err != nil {
		return nil, nil, refusal{err}
	}
	var m *machine.Machine
	err = s.View(func(r machine.Reader) (err error) { m, err = machine.Open(r); return err })
	for i, entry := range d.entries {
		at := boltstore.Position{Index: uint64(i + 1), Term: 1}
		if err == nil && at.Index > s.Applied().Index {
			err = s.Update(at, func(tx machine.Tx) error { _, err := m.Apply(tx, entry); return err })
		}
	}
	if err == nil {
		return s, m, nil
	}
	return nil, nil, errors.Join(err, s.Close())
}

// session asks for everything, repeats every write, adds new ones and writes
// checkpoints.
func (d *stateImage) session(l *stateLife, s *boltstore.Store, m *machine.Machine) error {
	l.stage = "after the replay"
	if err := d.sayAll(l, s, m); err != nil {
		return err
	}
	now, index := d.time, uint64(len(d.entries))
	apply := func(stage string, later int64, commands ...[]byte) error {
		l.stage, now, index = stage, now+later, index+1
		var outcomes []machine.Outcome
		err := s.Update(boltstore.Position{Index: index, Term: 1}, func(tx machine.Tx) (err error) {
			outcomes, err = m.Apply(tx, machine.AppendEntry(nil, now, commands...))
			return err
		})
		for i := range outcomes {
			o := &outcomes[i]
			l.sayNumbers(uint64(o.Code), o.Index, o.Receipt.Index, o.Receipt.Sequence, uint64(o.Receipt.Position), o.Receipt.BlockHeight, o.Last)
			l.say(o.Receipt.RequestHash[:])
		}
		return err
	}
	var commands [][]byte
	for _, w := range d.writes {
		commands = append(commands, machine.AppendWrite(nil, w))
	}
	if err := errors.Join(apply("repeats", 1e9, commands...), s.Flush()); err != nil {
		return err
	}
	commands = commands[:0]
	for client := range damageClients + 2 { // some are new
		w := damageWrite(client, damageRounds+1)
		if client >= damageClients {
			w.Sequence = 1
		}
		if client%4 == 0 {
			w.Operations = append(w.Operations, machine.Operation{Kind: machine.OpDeleteEntity, Key: []byte(d.keys[client])})
		}
		commands = append(commands, machine.AppendWrite(nil, w))
	}
	err := apply("new writes", 1e9, commands...)
	if err == nil {
		_, err = s.Spill()
	}
	if err := errors.Join(err, s.Flush()); err != nil {
		return err
	}
	// Every client but the last has been idle for too long.
	late := damageWrite(damageClients+1, 1)
	for later := int64(3590e9); late.Sequence < 12 && err == nil; later = 2e9 {
		late.Sequence++
		err = apply("evictions", later, machine.AppendWrite(nil, late))
	}
	return errors.Join(err, s.Flush())
}

// sayAll asks for everything.
func (d *stateImage) sayAll(l *stateLife, s *boltstore.Store, m *machine.Machine) error {
	return s.View(func(r machine.Reader) error {
		v := m.View(r)
		digest := v.Digest()
		l.sayNumbers(v.Index(), uint64(v.Time()), v.Streams())
		l.say(digest[:])
		for client := range 2*damageClients + 6 { // every other one is not there
			scope, name := damageScopes[client/2%2], fmt.Sprintf("client-of-some-length-%02d", client)
			stream, found, err := v.Stream(scope, name)
			if err != nil {
				return err
			}
			if l.sayNumbers(stream.CreatedIndex, stream.Session, stream.Last, uint64(stream.LastSeen)); !found {
				continue
			}
			receipts, err := v.Receipts(scope, name, 100)
			if err != nil {
				return err
			}
			for _, receipt := range receipts {
				l.sayNumbers(receipt.Index, receipt.Sequence, receipt.BlockHeight)
			}
		}
		for index := uint64(0); index <= v.Index()+1; index++ {
			tx, err := v.Transaction(v.TxIDAt(index))
			if found, err := l.sayFound(err); err != nil {
				return err
			} else if found {
				l.sayTransaction(&tx)
			}
		}
		for _, scope := range damageScopes {
			if err := d.sayScope(l, v, scope); err != nil {
				return err
			}
		}
		return v.VisitStreams(nil, nil, func(key []byte, s machine.NamedStream) bool {
			l.say(key)
			l.sayNumbers(s.CreatedIndex, s.Last)
			return l.wrong == ""
		})
	})
}

func (d *stateImage) sayScope(l *stateLife, v machine.View, scope machine.Scope) error {
	for _, key := range append(d.keys, "account", "account/of/client/01", "zzz") {
		e, err := v.Entity(scope, key)
		if found, err := l.sayFound(err); err != nil {
			return err
		} else if found {
			l.say(e.Value)
			l.sayNumbers(e.Version, uint64(e.ExpiresAt))
		}
	}
	_, err := v.VisitEntities(scope, "", "", func(e machine.Entity) bool {
		l.say([]byte(e.Key))
		l.say(e.Value)
		return l.wrong == ""
	})
	if err != nil {
		return err
	}
	err = v.VisitRelationships(scope, "", "", nil, func(key []byte, _ machine.Relationship) bool {
		l.say(key)
		return l.wrong == ""
	})
	if err != nil {
		return err
	}
	height, hash, err := v.ChainHead(scope)
	if err != nil {
		return err
	}
	l.sayNumbers(height)
	l.say(hash[:])
	for h := uint64(1); h <= height+1; h++ {
		header, err := v.BlockHeader(scope, h)
		if found, err := l.sayFound(err); err != nil {
			return err
		} else if found {
			hash := header.Hash()
			l.say(hash[:])
		}
	}
	return nil
}

// stateTally counts what became of damage.
type stateTally struct{ all, refused, stopped, harmless atomic.Int64 }

func (c *stateTally) String() string {
	return fmt.Sprintf("%d: refused at the start %d, stopped later %d, no answer changed %d",
		c.all.Load(), c.refused.Load(), c.stopped.Load(), c.harmless.Load())
}

// check lets a damaged state live, and counts what comes of it.
func (d *stateImage) check(t *testing.T, c *stateTally, path string, damaged []byte, what string) {
	c.all.Add(1)
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Errorf("%v", err)
		return
	}
	life := &stateLife{want: d.want}
	err := d.live(life, path)
	_, refused := errors.AsType[refusal](err)
	switch {
	case life.wrong != "":
		t.Errorf("%s: %s (then %v)", what, life.wrong, err)
	case refused && life.stage == "at the start":
		c.refused.Add(1)
		if text := err.Error(); !strings.Contains(text, path) || !strings.Contains(text, "backup") {
			t.Errorf("%s: the message lacks the file or what to do: %v", what, err)
		}
	case err != nil:
		c.stopped.Add(1)
		if text := err.Error(); !errors.Is(err, machine.ErrCorrupt) || !strings.Contains(text, "table ") && !strings.Contains(text, path) {
			t.Errorf("%s: %s: the error names no damage or no place: %v", what, life.stage, err)
		}
	case life.at != len(d.want):
		t.Errorf("%s: %d bytes of answers are missing", what, len(d.want)-life.at)
	default:
		c.harmless.Add(1)
	}
}

// each calls damage with every number below n, on as many goroutines as there are
// processors, each with a file of its own.
func (d *stateImage) each(t *testing.T, n, step int, damage func(i int, path string)) {
	t.Helper()
	var next atomic.Int64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		path := filepath.Join(t.TempDir(), "state.db")
		workers.Go(func() { // ends with the numbers; waited for below
			for {
				i := int(next.Add(int64(step))) - step
				if i >= n {
					return
				}
				damage(i, path)
			}
		})
	}
	workers.Wait()
}

// pageKind names what a page of the image is.
func (d *stateImage) pageKind(page int) string {
	b := d.content[page*damagePageSize:]
	if d.free[page] {
		return "free page"
	}
	switch binary.NativeEndian.Uint16(b[8:]) {
	case 0x01:
		return "inner page"
	case 0x02:
		return "leaf"
	case 0x04:
		return "meta page"
	case 0x10:
		return "list of free pages"
	default:
		return "rest of a leaf"
	}
}

// TestDamage_StateBits flips each bit of a state file in turn. A start refuses it, or
// the store stops at what meets the damage, or every answer and every repeat is right.
func TestDamage_StateBits(t *testing.T) {
	t.Parallel()
	d := newStateImage(t)
	tallies := map[string]*stateTally{}
	for page := range len(d.content) / damagePageSize {
		tallies[d.pageKind(page)] = new(stateTally)
	}
	for _, kind := range []string{"inner page", "leaf", "meta page", "list of free pages", "rest of a leaf", "free page"} {
		if tallies[kind] == nil {
			t.Errorf("the file has no %s", kind)
		}
	}
	d.each(t, 8*len(d.content), damageStep(), func(bit int, path string) {
		b := bytes.Clone(d.content)
		b[bit/8] ^= 1 << (bit % 8)
		page := bit / 8 / damagePageSize
		what := fmt.Sprintf("bit %d of byte %d of page %d (%s)", bit%8, bit/8%damagePageSize, page, d.pageKind(page))
		d.check(t, tallies[d.pageKind(page)], path, b, what)
	})
	for kind, c := range tallies {
		t.Logf("flipped bits in pages of the kind %s: %s", kind, c)
	}
}

// TestDamage_StateCuts cuts a state file off at each length.
func TestDamage_StateCuts(t *testing.T) {
	t.Parallel()
	d := newStateImage(t)
	var c stateTally
	d.each(t, len(d.content), damageStep(), func(size int, path string) {
		d.check(t, &c, path, d.content[:size], fmt.Sprintf("%d bytes", size))
	})
	t.Logf("cuts: %s", &c)
}

// TestDamage_StateSectors zeroes each sector of a state file, and exchanges each two.
func TestDamage_StateSectors(t *testing.T) {
	t.Parallel()
	d := newStateImage(t)
	const size = 512
	n := len(d.content) / size
	var c stateTally
	step := damageStep()
	if step > 1 {
		step = 101
	}
	d.each(t, n*n, step, func(i int, path string) {
		one, other := i/n, i%n
		if one < other {
			return
		}
		b := bytes.Clone(d.content)
		if one == other {
			clear(b[size*one : size*one+size])
		} else {
			copy(b[size*one:], d.content[size*other:size*other+size])
			copy(b[size*other:], d.content[size*one:size*one+size])
		}
		d.check(t, &c, path, b, fmt.Sprintf("sectors %d and %d", other, one))
	})
	t.Logf("zeroed and exchanged sectors: %s", &c)
}
