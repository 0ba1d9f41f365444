package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seqledger/seqledger/internal/testkit/ledgermodel"
	"github.com/seqledger/seqledger/ledger/archive"
	"github.com/seqledger/seqledger/ledger/machine"
)

// audit checks what an episode leaves behind, after one more power loss, so that only what is on the disk counts.
func (w *world) audit() {
	w.node.stop(true)
	for len(w.events) > 0 {
		w.next()
	}
	if !w.node.ready {
		w.fail(nil, "the node does not come back")
	}
	w.auditApps()
	w.auditState(w.node.m, w.node.state)
	w.auditArchive(w.node.m, w.node.state)
	w.mark(w.oracle.model.Index)
}

// auditState compares a node's state with the model.
func (w *world) auditState(m *machine.Machine, state stateDisk) {
	err := state.view(func(r machine.Reader) error {
		v := m.View(r)
		w.auditHead(v)
		w.auditStreams(v)
		w.auditEntities(v)
		w.auditKeys(v)
		w.auditTransactions(v)
		_, err := m.Audit(r, w.auditProblem, nil)
		if err == nil && w.plan.replays {
			w.auditReplays(r)
		}
		return err
	})
	w.must(err, "reading the state")
}

func (w *world) auditProblem(p machine.Problem) { w.fail(nil, "the audit of the state: %+v", p) }

// auditArchive checks every byte of the archive, and recomputes the state from the first block on with it.
func (w *world) auditArchive(m *machine.Machine, state stateDisk) {
	if w.archive == nil {
		return
	}
	w.archive.mend()
	state.beginFlush()
	w.must(state.endFlush(), "writing the last checkpoint")
	if w.archiveMark == (archive.Mark{}) {
		return // the ledger never ran for long enough
	}
	report, err := archive.Verify(context.Background(), archive.OnDisk(w.archive), w.archiveMark.Ledger, nil)
	w.must(err, "reading the archive")
	for _, p := range report.Problems {
		w.fail(nil, "the archive: %+v", p)
	}
	if report.Files == 0 {
		return
	}
	w.counted["states recomputed with an archive"]++
	archived, err := archive.NewReader(context.Background(), archive.OnDisk(w.archive), w.archiveMark.Ledger)
	w.must(err, "reading the archive")
	w.must(state.whole(archived, func(r machine.Reader) error {
		_, err := m.AuditWhole(r, w.auditProblem, nil)
		return err
	}), "reading the state with the archive")
}

// auditApps checks invariants 1 and 2 end to end.
func (w *world) auditApps() {
	for _, a := range w.oracle.apps {
		switch {
		case a.state == appOpen:
			w.fail(&a.stream, "write %d has no outcome", a.id)
		case a.state == appDone && len(a.commits) == 0:
			w.fail(&a.stream, "invariant 2: write %d was acknowledged and is not there", a.id)
		case a.state == appNotExecuted && len(a.commits) > 0, a.withSession && len(a.commits) > 1:
			w.fail(&a.stream, "invariant 1: write %d committed %v in state %d", a.id, a.commits, a.state)
		case a.index != 0 && !slices.ContainsFunc(a.commits, func(c commitOf) bool { return c.index == a.index }):
			w.fail(&a.stream, "invariant 2: write %d has a receipt of ledger index %d and commits %v", a.id, a.index,
				a.commits)
		}
	}
}

func (w *world) auditHead(v machine.View) {
	m := w.oracle.model
	if v.Index() != m.Index || v.Time() != m.Time || v.Config() != m.Config || v.Streams() != uint64(len(m.Streams)) {
		w.fail(nil, "the state stands at index %d, time %d, %d streams, %+v\nthe model at index %d, time %d, %d "+
			"streams, %+v",
			v.Index(), v.Time(), v.Streams(), v.Config(), m.Index, m.Time, len(m.Streams), m.Config)
	}
	last := &w.oracle.entries[len(w.oracle.entries)-1]
	if v.Digest() != last.digest {
		w.fail(nil, "invariant 8: the digest is %s, it was %s", v.Digest(), last.digest)
	}
}

func (w *world) auditStreams(v machine.View) {
	m := w.oracle.model
	seen := 0
	var found []machine.NamedStream
	_, err := v.VisitStreams(nil, nil, func(_ []byte, s machine.NamedStream) bool {
		seen++
		found = append(found, s)
		return true
	})
	w.must(err, "reading the streams")
	for _, s := range found {
		n := name{Scope: s.Scope, ID: s.ClientID}
		want := m.Streams[n]
		if want == nil || s.StreamState != want.StreamState {
			w.fail(&n, "the stream is at %+v, the model's at %+v", s, want)
		}
		receipts, err := ledgermodel.Receipts(v, s.Scope, s.ClientID, 2_000)
		w.must(err, "reading receipts")
		window := m.Window(want)
		if len(receipts) != len(window) {
			w.fail(&n, "the stream has %d receipts, the model %d", len(receipts), len(window))
		}
		for i := range receipts {
			if x := window[len(window)-1-i].Receipt; !ledgermodel.SameReceipt(&receipts[i], &x) {
				w.fail(&n, "invariant 2: the receipt is\n%+v\nand was\n%+v", receipts[i], x)
			}
		}
	}
	if seen != len(m.Streams) {
		w.fail(nil, "%d streams, the model has %d", seen, len(m.Streams))
	}
}

func (w *world) auditEntities(v machine.View) {
	m := w.oracle.model
	live, related := 0, 0
	for _, scope := range scopes {
		err := ledgermodel.VisitEntities(v, scope, func(e machine.Entity) bool {
			live++
			if want := m.Entities[name{Scope: scope, ID: e.Key}]; want.Value != string(e.Value) ||
				want.Version != e.Version ||
				want.ExpiresAt != e.ExpiresAt {
				w.fail(nil, "entity %s %q is %+v, the model's %+v", scope, e.Key, e, want)
			}
			return true
		})
		w.must(err, "reading the entities")
		_, err = v.VisitRelationships(scope, "", "", nil, func(_ []byte, r machine.Relationship) bool {
			related++
			if !m.Related[ledgermodel.Relation{
				Scope: scope, Resource: r.Resource, Relation: r.Relation, Subject: r.Subject,
			}] {
				w.fail(nil, "relationship %s %+v is not the model's", scope, r)
			}
			return true
		})
		w.must(err, "reading the relationships")
	}
	want := 0
	for _, e := range m.Entities {
		if e.ExpiresAt == 0 || e.ExpiresAt > m.Time {
			want++
		}
	}
	if live != want || related != len(m.Related) {
		w.fail(nil, "%d entities and %d relationships, the model has %d and %d", live, related, want, len(m.Related))
	}
}

// auditTransactions reads back everything that was ever committed.
func (w *world) auditTransactions(v machine.View) {
	txs := w.oracle.model.Transactions
	for _, index := range slices.Sorted(maps.Keys(txs)) {
		w.auditTransaction(v, w.oracle.model.Horizon, index)
	}
}

// auditAround reads the last transaction before a ledger index and the first one from it on, if they are near: an epoch
// skips billions of indexes.
func (w *world) auditAround(v machine.View, index, last uint64) {
	const near = 1_000
	horizon, txs := v.Horizon().Index(), w.oracle.model.Transactions
	for i := index; i > index-min(index, near); i-- {
		if txs[i-1] != nil {
			w.auditTransaction(v, horizon, i-1)
			break
		}
	}
	for i := index; i <= min(last, index+near); i++ {
		if txs[i] != nil {
			w.auditTransaction(v, horizon, i)
			break
		}
	}
}

// auditTransaction reads back one transaction. It must be unchanged, or missing if it lies before the horizon.
func (w *world) auditTransaction(v machine.View, horizon, index uint64) {
	x := w.oracle.model.Transactions[index]
	got, err := v.Transaction(machine.NewTxID(x.Receipt.LedgerID, index))
	switch gone, ok := errors.AsType[*machine.GoneError](err); {
	case index < horizon && (!ok || gone.Horizon != horizon):
		w.fail(&x.Stream, "transaction at ledger index %d, before the horizon at %d: %v", index, horizon, err)
	case index < horizon:
		w.counted["transactions that are gone"]++
	case err != nil:
		w.fail(&x.Stream, "transaction at ledger index %d: %v", index, err)
	default:
		r := &x.Receipt
		if got.Index != index || got.Sequence != r.Sequence || got.Session != r.Session || got.Key != r.Key ||
			got.RequestHash != r.RequestHash || got.CommittedAt != r.CommittedAt || got.Actor != r.Actor ||
			got.BlockHeight != r.BlockHeight || got.Position != r.Position || got.Scope != x.Stream.Scope ||
			got.ClientID != x.Stream.ID || got.CreatedIndex != x.Created || len(got.Operations) != len(x.Operations) {
			w.fail(&x.Stream, "the transaction at ledger index %d is\n%+v\nthe model's %+v", index, got, *x)
		}
	}
}

// auditReplays applies the log again in other ways (invariant 8), and then every request that has committed (invariant
// 6).
func (w *world) auditReplays(state machine.Reader) {
	whole := w.replay(func(data []byte) [][]byte { return [][]byte{data} })
	if where := difference(state, keptOf(state, whole.state)); where != "" {
		w.fail(nil, "invariant 8: the log applied once more gives another state: %s", where)
	}
	pieces := w.replay(w.recut)
	if a, b := whole.m.View(whole.state).Digest(), pieces.m.View(pieces.state).Digest(); a != b {
		w.fail(nil, "invariant 8: cut into other entries the log gives digest %s, not %s", b, a)
	}
	for _, table := range []machine.Table{machine.TableStreams, machine.TableEntities, machine.TableRelationships,
		machine.TableExpiry, machine.TableKeyed, machine.TablePrincipals, machine.TableAttachments} {
		if where := tableDifference(table, whole.state, pieces.state); where != "" {
			w.fail(nil, "invariant 8: cut into other entries the log gives another state: %s", where)
		}
	}
	w.auditRepeats(whole)
}

// keptOf returns the state in all without the blocks before the first block of state.
func keptOf(state machine.Reader, all *machine.Memory) machine.Reader {
	first := []byte(nil)
	_ = state.Ascend(machine.TableBlocks, nil, func(k, _ []byte) bool { // the comparison finds unreadable blocks
		first = bytes.Clone(k)
		return false
	})
	return keptBlocks{all, first}
}

type keptBlocks struct {
	machine.Reader
	first []byte
}

// Ascend implements machine.Reader.
func (r keptBlocks) Ascend(table machine.Table, from []byte, visit func(k, v []byte) bool) error {
	if table == machine.TableBlocks && bytes.Compare(from, r.first) < 0 {
		from = r.first
	}
	return r.Reader.Ascend(table, from, visit)
}

type replayed struct {
	m     *machine.Machine
	state *machine.Memory
}

// replay applies the whole log to an empty state, with restarts.
func (w *world) replay(cut func(entry []byte) [][]byte) (r replayed) {
	r.state = machine.NewMemory()
	for i := range w.oracle.entries {
		for _, entry := range cut(w.oracle.entries[i].record.data) {
			if r.m == nil || w.chance(100) {
				var err error
				r.m, err = machine.Open(r.state)
				w.must(err, "opening a state")
			}
			_, err := r.m.Apply(r.state, entry)
			w.must(err, "applying an entry again")
		}
	}
	return r
}

// recut splits an entry into several entries with the same time.
func (w *world) recut(entry []byte) (pieces [][]byte) {
	header, commands, err := machine.DecodeEntry(entry)
	w.must(err, "decoding an entry")
	for len(commands) > 0 {
		n := 1 + w.rng.IntN(len(commands))
		pieces = append(pieces, machine.AppendEntry(nil, header.UnixNanos, commands[:n]...))
		commands = commands[n:]
	}
	return pieces
}

// auditRepeats repeats every committed request at the current ledger time. Requests with a session add nothing, whether
// or not their stream was evicted. Requests without one add nothing unless their stream was evicted or is about to be.
func (w *world) auditRepeats(r replayed) {
	m := w.oracle.model
	for _, index := range slices.Sorted(maps.Keys(m.Transactions)) {
		x := m.Transactions[index]
		s := m.Streams[x.Stream]
		if k := m.Keys[keyOf(x)]; x.Keyed != nil && m.Speaks(k) && k.Record.Token == index {
			out, err := r.m.Apply(r.state, machine.AppendEntry(nil, m.Time, machine.AppendKeyedWrite(nil, x.Keyed)))
			w.must(err, "repeating a keyed write")
			if out[0].Code == machine.Committed {
				w.fail(nil, "invariant 6: the keyed write that committed at ledger index %d commits again", index)
			}
		}
		living := s != nil && s.CreatedIndex == x.Created && m.Time-s.LastSeen <= m.Config.ClientTTL
		if x.Write == nil || x.Receipt.Session == 0 && !living {
			continue
		}
		out, err := r.m.Apply(r.state, machine.AppendEntry(nil, m.Time, machine.AppendWrite(nil, x.Write)))
		w.must(err, "repeating a request")
		if out[0].Code == machine.Committed {
			w.fail(&x.Stream, "invariant 6: the request that committed at ledger index %d commits again at %d", index,
				out[0].Index)
		}
	}
}

// keyOf returns the key of a keyed write's transaction.
func keyOf(x *ledgermodel.Transaction) (id machine.KeyedID) {
	if x.Keyed != nil {
		id = x.Keyed.ID
	}
	return id
}

func difference(a, b machine.Reader) string {
	for table := range machine.Table(machine.TableCount) {
		if table != machine.TableBlocks && !table.InStateFile() || table >= machine.FirstLocalTable {
			continue // the audit reads the carried values
		}
		if where := tableDifference(table, a, b); where != "" {
			return where
		}
	}
	return ""
}

type pair struct{ key, value []byte }

// tableDifference returns where two states differ, or the empty string.
func tableDifference(table machine.Table, a, b machine.Reader) string {
	read := func(r machine.Reader) (all []pair, err error) {
		err = r.Ascend(table, nil, func(k, v []byte) bool {
			all = append(all, pair{bytes.Clone(k), bytes.Clone(v)})
			return true
		})
		return all, err
	}
	x, errX := read(a)
	y, errY := read(b)
	if errX != nil || errY != nil {
		return fmt.Sprint(errX, errY)
	}
	for i := range min(len(x), len(y)) {
		if !bytes.Equal(x[i].key, y[i].key) || !bytes.Equal(x[i].value, y[i].value) {
			return fmt.Sprintf("table %d at key %x", table, x[i].key)
		}
	}
	if len(x) != len(y) {
		return fmt.Sprintf("table %d has %d keys and %d", table, len(x), len(y))
	}
	return ""
}
