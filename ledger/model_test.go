package ledger_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
)

// modelled is a ledger, one client's view of it, and the model that says what every
// command ought to give.
type modelled struct {
	*testing.T
	random *rand.Rand
	l      *ledger.Ledger
	model  *ledgermodel.Model
	sent   []*machine.Write
	// stateAnswered counts the retries that did not reach the log.
	stateAnswered, committed int
	keysAnswered             int // commands on keys, of the same kind
}

// look returns the index and the time of the state.
func (d *modelled) look() (index uint64, now int64) {
	d.Helper()
	must.Do(d, d.l.View(d.Context(), func(v machine.View) error {
		index, now = v.Index(), v.Time()
		return nil
	}))
	return index, now
}

// decided compares the outcome of a command with the model's. A retry that was
// answered from the state took no ledger index.
func (d *modelled) decided(command any, got machine.Outcome, err error) {
	d.Helper()
	must.Do(d, err)
	index, now := d.look()
	if _, write := command.(*machine.Write); !write && index == d.model.Index {
		d.keysAnswered++
		want := d.model.Ask(command, now)
		if got.Keyed != nil && want.Keyed != nil { // the clock has gone on since
			got.Keyed.RetryAfter = want.Keyed.RetryAfter
		}
		if difference := ledgermodel.Differ(&got, &want); difference != "" {
			d.Fatalf("%+v was answered from the state: %s", command, difference)
		}
		return
	}
	if w, ok := command.(*machine.Write); ok && index == d.model.Index {
		d.stateAnswered++
		want := d.model.Retry(w)
		if got.Code != machine.Replayed || want.Code != machine.Replayed ||
			!ledgermodel.SameReceipt(&got.Receipt, &want.Receipt) {
			d.Fatalf("%+v was answered from the state with %+v, want %+v", w, got, want)
		}
		return
	}
	d.model.Begin(now)
	want := d.model.Apply(command)
	if difference := ledgermodel.Differ(&got, &want); difference != "" {
		d.Fatalf("%T %+v %s", command, command, difference)
	}
	if got.Code == machine.Committed {
		d.committed++
	}
}

func (d *modelled) write() *machine.Write {
	// Of the latest ones, because the windows of receipts are short: else hardly one is answered from the state.
	if n := len(d.sent); n > 0 && d.random.IntN(3) == 0 {
		return d.sent[n-1-d.random.IntN(min(n, 1<<d.random.IntN(9)))]
	}
	w := appendWrite([]string{"a", "b", "c"}[d.random.IntN(3)], 0, nil)
	s := d.model.Stream(w.Scope, w.ClientID)
	w.Session, w.Sequence = s.Session, max(1, s.Last+1+uint64(d.random.IntN(8)/6)-uint64(d.random.IntN(8)/7))
	key := []byte{'k', byte('0' + d.random.IntN(3))}
	w.Operations = append(w.Operations, machine.Operation{
		Kind: machine.OpSetEntity, Key: key, Value: []byte{byte(d.random.IntN(256))},
		Condition: machine.Condition{Kind: machine.ConditionKind(d.random.IntN(4))},
	})
	if w.Operations[1].Condition.Kind == machine.ConditionVersion {
		w.Operations[1].Condition.Version = d.model.Entities[ledgermodel.Name{Scope: w.Scope, ID: string(key)}].Version
	}
	d.sent = append(d.sent, w)
	return w
}

// keyed makes a command on one of two keys: a Reserve, or a command of its owner or of another caller.
func (d *modelled) keyed() *machine.KeyedCommand {
	id := machine.KeyedID{Scope: d.scope(), Principal: "user:1", Key: [32]byte{d.byte(2)}}
	c := &machine.KeyedCommand{ID: id, Actor: "system:test", MaxKeys: 10}
	c.Kind, c.AttemptID, c.ValidUntil = keyed.Reserve, keyed.AttemptID{1 + d.byte(250)}, d.model.Time+int64(time.Minute)
	c.Lease, c.TTL, c.Policy = int64(time.Hour), int64(time.Hour), keyed.Policy(d.byte(2))
	r := d.model.Key(id)
	if r == nil || d.byte(4) == 0 {
		return c
	}
	if c.Kind = keyed.Kind(2 + d.byte(7)); c.Kind == keyed.Resolve {
		c.State = keyed.Committed
	}
	c.AttemptID, c.Token, c.Lease, c.TTL = r.AttemptID, r.Token-uint64(d.byte(8)/7), int64(time.Hour), 0
	c.Response, c.Data = bytes.Repeat([]byte{'r'}, int(d.byte(3))*400), []byte("half")
	return c
}

func (d *modelled) scope() machine.Scope { return appendWrite("a", 1, nil).Scope }
func (d *modelled) byte(n int) byte      { return byte(d.random.IntN(n)) }

func (d *modelled) step() {
	switch d.random.IntN(18) {
	case 2, 3, 4:
		c := d.keyed()
		out, err := d.l.Keyed(d.Context(), c, 0, nil)
		d.decided(c, out, err)
	case 5, 6:
		w := &machine.KeyedWrite{
			ID:    machine.KeyedID{Scope: d.scope(), Namespace: "jobs", Principal: "user:1", Key: [32]byte{d.byte(20)}},
			Actor: "system:test", TTL: int64(time.Hour), MaxKeys: 15,
			Operations: []machine.Operation{{Kind: machine.OpAppend, Value: []byte{d.byte(2)}}},
		}
		out, err := d.l.WriteKeyed(d.Context(), w, nil)
		d.decided(w, out, err)
	case 0:
		o := &machine.OpenSession{
			Scope: appendWrite("a", 1, nil).Scope, ClientID: "a", Actor: "system:test",
			AttemptID: [16]byte{byte(d.random.IntN(6))}, ExpectedSession: uint64(d.random.IntN(2)),
		}
		out, err := d.l.OpenSession(d.Context(), o)
		d.decided(o, out, err)
	case 1:
		window := uint64(d.random.IntN(5))
		u := &machine.ConfigUpdate{ReceiptWindow: &window}
		out, err := d.l.UpdateConfig(d.Context(), u, "system:test")
		d.decided(u, out, err)
	default:
		w := d.write()
		out, err := d.l.Write(d.Context(), w)
		d.decided(w, out, err)
	}
}

// TestLedgerDecidesLikeTheModel: the engine answers every command as the model does,
// from the log or from the state, with the cache and without, also after a restart.
func TestLedgerDecidesLikeTheModel(t *testing.T) {
	t.Parallel()
	for _, cache := range []int64{0, -1} {
		seed := must.Seed(t)
		o := ledger.Options{Dir: t.TempDir(), CacheBytes: cache, Config: machine.DefaultConfig()}
		o.Config.ReceiptWindow = 3
		d := &modelled{T: t, random: rand.New(rand.NewPCG(seed, 0)), l: open(t, o), model: ledgermodel.NewModel()}
		_, now := d.look()
		d.model.Begin(now)
		must.Do(t, d.l.View(t.Context(), func(v machine.View) error {
			d.model.Apply(ledgermodel.Create{ID: v.LedgerID(), Config: o.Config})
			return nil
		}))
		for i := range 400 {
			if i%130 == 129 {
				closeLedger(t, d.l)
				d.l = open(t, o)
			}
			d.step()
		}
		if d.stateAnswered == 0 || d.keysAnswered == 0 || d.committed < 50 {
			t.Errorf("%d and %d answers from the state and %d commits: the commands are too tame", d.stateAnswered,
				d.keysAnswered, d.committed)
		}
		for index, x := range d.model.Transactions {
			must.Do(t, d.l.View(t.Context(), func(v machine.View) error {
				got, err := v.Transaction(machine.NewTxID(x.Receipt.LedgerID, index))
				if err == nil && (got.ClientID != x.Stream.ID || got.Sequence != x.Receipt.Sequence) {
					t.Errorf("transaction %d is %+v, want %+v", index, got, x)
				}
				return err
			}))
		}
	}
}
