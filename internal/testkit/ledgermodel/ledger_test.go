package ledgermodel

import (
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
)

// A Ledger and a Model that get the same commands at the same times agree, also
// after something else has happened to the Ledger.
func TestLedgerDecidesLikeTheModel(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000, 0)
	config := machine.DefaultConfig()
	config.EvictionInterval, config.ClientTTL, config.ReceiptWindow = 1, 10*second, 1
	create := Create{ID: 7, Config: config}
	l, m := NewLedger(create, func() time.Time { return now }), NewModel()
	m.Begin(now.UnixNano())
	m.Apply(create)
	write := func(sequence uint64, value string) *machine.Write {
		return &machine.Write{
			Scope: machine.Scope{Organization: "acme"}, ClientID: "c", Actor: "system:test", Sequence: sequence,
			Operations: []machine.Operation{{Kind: machine.OpSetEntity, Key: []byte("k"), Value: []byte(value)}},
		}
	}
	other := write(1, "other")
	other.ClientID = "d"
	id := machine.KeyedID{Scope: other.Scope, Namespace: "work", Principal: "user:1", Key: [32]byte{1}}
	reserve := func(attempt byte) *machine.KeyedCommand {
		c := &machine.KeyedCommand{ID: id, Actor: "system:test", MaxKeys: 2}
		c.Kind, c.AttemptID, c.Lease, c.TTL = keyed.Reserve, keyed.AttemptID{attempt}, second, second
		c.ValidUntil = now.UnixNano()
		return c
	}
	job := &machine.KeyedWrite{ID: id, Actor: "system:test", TTL: second, MaxKeys: 2, Operations: other.Operations}
	job.ID.Namespace = "jobs"
	for _, command := range []any{
		write(1, "a"), write(1, "a"), write(1, "b"), write(3, "a"), write(2, "b"), write(1, "a"), other,
		&machine.OpenSession{Scope: other.Scope, ClientID: "c", Actor: "system:test", AttemptID: [16]byte{1}},
		reserve(1), reserve(1), reserve(2), job, job,
		write(3, "c"), Tick{}, &machine.ConfigUpdate{MaxStreams: new(uint64(0))}, Epoch{ID: 8}, write(3, "c"),
	} {
		m.Begin(now.UnixNano())
		got, want := l.Apply(command), m.Apply(command)
		if difference := Differ(&got, &want); difference != "" {
			t.Errorf("%T %+v %s", command, command, difference)
		}
	}
	l.Advance(11 * time.Second)
	l.View(func(v machine.View) {
		if v.Streams() != 0 {
			t.Errorf("%d streams are left after client_ttl", v.Streams())
		}
	})
	// Rewritten, it knows nothing of the writes of one client.
	index := uint64(0)
	l.View(func(v machine.View) { index = v.Index() })
	l.Rewrite(func(command any) any {
		if w, ok := command.(*machine.Write); ok && w.ClientID == "d" {
			return Tick{}
		}
		return command
	})
	l.View(func(v machine.View) {
		if _, err := v.Transaction(machine.NewTxID(7, 8)); err == nil || v.Index() != index {
			t.Errorf("a rewritten ledger has the transaction (%v), or index %d instead of %d", err, v.Index(), index)
		}
	})
}
