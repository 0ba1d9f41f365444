package ledger_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/boltstore"
	"github.com/seqledger/seqledger/ledger/machine"
)

// damageKey is the key of a client, of which three share a principal.
func damageKey(client int) machine.KeyedID {
	return machine.KeyedID{
		Scope: damageScopes[client%len(damageScopes)], Namespace: "jobs", Principal: fmt.Sprint("user:", client%3),
		Key: [32]byte{byte(client), 1},
	}
}

// command makes the command of a client and a round on a keyed record: a reservation, then what becomes of it, with a
// response or a checkpoint of either size, and then a keyed write.
func (d *stateImage) command(t *testing.T, s *boltstore.Store, m *machine.Machine, client, round int) {
	t.Helper()
	c := &machine.KeyedCommand{ID: damageKey(client), Actor: "client:test", MaxKeys: 100}
	c.AttemptID = keyed.AttemptID{byte(client), 9}
	c.Token = d.tokens[client]
	content := bytes.Repeat([]byte{byte('a' + client)}, 10+client%2*700)
	switch {
	case round == 0:
		c.Kind, c.ValidUntil, c.Lease, c.TTL = keyed.Reserve, d.time+100e9, int64(3600e9), int64(7200e9)
		c.Fingerprint = keyed.Fingerprint{Algorithm: 1, Digest: [32]byte{7}}
	case round == 1 && client < 4:
		c.Kind, c.TTL, c.Response = keyed.Complete, int64(7200e9), content
	case round == 1 && client < 6:
		c.Kind, c.Data = keyed.Checkpoint, content
	case round == 2:
		d.keyedWrite(t, s, m, client)
		return
	default:
		return
	}
	command := machine.AppendKeyed(nil, c)
	out := d.apply(t, s, m, command)[0]
	if out.Code != machine.Keyed(keyed.Acquired) && out.Code != machine.Keyed(keyed.OK) {
		t.Fatalf("client %d, round %d: %v", client, round, out.Code)
	}
	d.tokens[client] = out.Keyed.Record.Token
	d.commands = append(d.commands, command)
}

func (d *stateImage) keyedWrite(t *testing.T, s *boltstore.Store, m *machine.Machine, client int) {
	t.Helper()
	w := &machine.KeyedWrite{
		ID: damageKey(client), ClientID: "keyed", Actor: "client:test", TTL: int64(7200e9), MaxKeys: 100,
		Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte("by key")}},
	}
	w.ID.Key[1] = 2
	command := machine.AppendKeyedWrite(nil, w)
	must.Equal(t, d.apply(t, s, m, command)[0].Code, machine.Committed, "keyed write of client %d: %v", client)
	d.commands = append(d.commands, command)
}

// dropHistory does what a ledger does with the history before the horizon.
func dropHistory(s *boltstore.Store, m *machine.Machine) (dropped int64, carried int, err error) {
	var horizon uint64
	var live []machine.LiveValue
	err = s.View(func(r machine.Reader) (err error) {
		v := m.View(r)
		horizon = v.Horizon().Index()
		live, _, err = v.FindLive(nil, max(horizon, 1)-1)
		return err
	})
	if err == nil {
		err = s.Amend(func(tx machine.Tx) error { return machine.Carry(tx, live) })
	}
	if err == nil {
		err = s.Flush()
	}
	if err == nil {
		dropped, err = s.DropBlocks(horizon)
	}
	return dropped, len(live), err
}

// sayKeyed asks for everything about keyed records.
func (d *stateImage) sayKeyed(l *stateLife, v machine.View) error {
	l.sayNumbers(v.PendingKeys(), v.Horizon().Index())
	for _, scope := range damageScopes {
		for principal := range 4 { // the last one has none
			n, err := v.Keys(scope, fmt.Sprint("user:", principal))
			if err != nil {
				return err
			}
			l.sayNumbers(n)
		}
		var found []*machine.KeyedRecord
		_, err := v.VisitKeyed(scope, "", nil, nil, d.time, func(key []byte, k *machine.KeyedRecord) bool {
			l.say(key)
			found = append(found, k)
			return l.wrong == ""
		})
		if err != nil {
			return err
		}
		for _, k := range found {
			whole, err := v.ReadAttachments(k)
			if err != nil {
				return err
			}
			l.say(fmt.Appendf(nil, "%v %d %d %x", whole, k.State, k.Token, k.AttemptID))
			l.say(k.Response)
			l.say(k.Checkpoint)
		}
	}
	return nil
}
