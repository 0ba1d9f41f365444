package ledger_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

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
		l.wrong = fmt.Sprintf("%s: %q instead of %q", l.stage, b,
			l.want[min(l.at, len(l.want)):min(l.at+len(b), len(l.want))])
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
	if gone, ok := errors.AsType[*machine.GoneError](err); ok {
		l.say([]byte("gone"))
		l.sayNumbers(gone.Horizon, gone.FirstHeight)
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
	s, err := boltstore.Open(path, boltstore.Options{Identity: d.identity, NoSync: true, StepBytes: d.steps})
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
		err = s.EndReplay()
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
			l.sayNumbers(uint64(o.Code), o.Index, o.Receipt.Index, o.Receipt.Sequence, uint64(o.Receipt.Position),
				o.Receipt.BlockHeight, o.Last)
			l.say(o.Receipt.RequestHash[:])
			if o.Keyed != nil && o.Keyed.Record != nil {
				l.sayNumbers(uint64(o.Keyed.Record.State), o.Keyed.Record.Token)
			}
		}
		return err
	}
	var commands [][]byte
	for _, w := range d.writes {
		commands = append(commands, machine.AppendWrite(nil, w))
	}
	commands = append(commands, d.commands...)
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
			w.Operations = append(w.Operations, machine.Operation{Kind: machine.OpDeleteEntity,
				Key: []byte(d.keys[client])})
		}
		commands = append(commands, machine.AppendWrite(nil, w))
	}
	err := apply("new writes", 1e9, commands...)
	if err == nil {
		_, err = s.SyncBlocks()
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
	if err = errors.Join(err, s.Flush()); err != nil || !d.keyed {
		return err
	}
	l.stage = "when history is dropped"
	_, _, err = dropHistory(s, m)
	return err
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
			receipts, err := ledgermodel.Receipts(v, scope, name, 100)
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
		if err := d.sayKeyed(l, v); err != nil {
			return err
		}
		_, err := v.VisitStreams(nil, nil, func(key []byte, s machine.NamedStream) bool {
			l.say(key)
			l.sayNumbers(s.CreatedIndex, s.Last)
			return l.wrong == ""
		})
		return err
	})
}

func (d *stateImage) sayScope(l *stateLife, v machine.View, scope machine.Scope) error {
	// A copy, because the lives run at once and share the keys.
	for _, key := range slices.Concat(d.keys, []string{"account", "account/of/client/01", "zzz"}) {
		e, err := v.Entity(scope, key)
		if found, err := l.sayFound(err); err != nil {
			return err
		} else if found {
			l.say(e.Value)
			l.sayNumbers(e.Version, uint64(e.ExpiresAt))
		}
	}
	err := ledgermodel.VisitEntities(v, scope, func(e machine.Entity) bool {
		l.say([]byte(e.Key))
		l.say(e.Value)
		return l.wrong == ""
	})
	if err != nil {
		return err
	}
	_, err = v.VisitRelationships(scope, "", "", nil, func(key []byte, _ machine.Relationship) bool {
		l.say(key)
		return l.wrong == ""
	})
	if err != nil {
		return err
	}
	chain, err := v.Chain(scope)
	if err != nil {
		return err
	}
	l.sayNumbers(chain.Height)
	l.say(chain.Hash[:])
	for h := uint64(1); h <= chain.Height+1; h++ {
		header, err := v.BlockHeader(chain, h)
		if found, err := l.sayFound(err); err != nil {
			return err
		} else if found {
			hash := header.Hash()
			l.say(hash[:])
		}
	}
	return nil
}
