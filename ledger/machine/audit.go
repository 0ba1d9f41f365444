package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

// Problem is something in the state that is not as it must be.
type Problem struct {
	Where string // what was looked at
	What  string // the defect
}

// AuditSummary counts what an audit has looked at.
type AuditSummary struct {
	Blocks, Transactions, Entities, Relationships, Streams, Receipts, Keys uint64

	// Dropped is the ledger index up to which the blocks were not there, because retention has dropped
	// them: what they did cannot be recomputed. 0 if all were there.
	Dropped uint64
	Carried uint64 // values that were in these blocks
}

// Audit checks a whole state against itself and returns what it has counted.
// It reads every block, recomputes hashes, chains and Merkle roots, decides
// every committed operation again, and compares what the tables should hold
// with what they do. It needs memory for a digest of every entity, relationship
// and stream. Problems go to report, progress (may be nil) is told of every
// block; the error is the storage's.
//
// It cannot recompute the running digest, because that covers refused commands, too,
// nor sessions, because they are in no block. Where the first blocks have been dropped, it takes what they did from
// the state, and checks everything that was done since.
func (m *Machine) Audit(r Reader, report func(Problem), progress func(AuditSummary)) (AuditSummary, error) {
	return m.audit(r, false, report, progress)
}

// AuditWhole is Audit for a state with all its blocks, including those that retention has dropped. It takes nothing
// from the state on trust.
func (m *Machine) AuditWhole(r Reader, report func(Problem), progress func(AuditSummary)) (AuditSummary, error) {
	return m.audit(r, true, report, progress)
}

func (m *Machine) audit(
	r Reader, whole bool, report func(Problem), progress func(AuditSummary),
) (AuditSummary, error) {
	a := &auditor{
		whole: whole,
		r:     r, head: &m.head, report: report, progress: progress,
		chains: map[string]chain{}, streams: map[uint64]streamLife{},
		entities: map[string]entityDigest{}, relationships: map[string]uint64{}, keyedWrites: map[string]uint64{},
		removed: map[string]struct{}{}, unrelated: map[string]struct{}{},
	}
	for _, step := range []func() error{
		a.marks, a.blocks, a.retained, a.chainHeads, a.entityTable, a.relationshipTable, a.streamTable, a.keyedTables,
		a.expiryTable, a.carriedTable,
	} {
		if err := step(); err != nil {
			return a.sum, err
		}
	}
	return a.sum, nil
}

// auditor recomputes the state from the blocks alone, so that a table that is
// wrong in itself cannot vouch for itself.
type auditor struct {
	r        Reader
	head     *head
	report   func(Problem)
	progress func(AuditSummary)
	sum      AuditSummary

	leaves        uint64                  // of the ledger's tree so far; 0: not known
	chains        map[string]chain        // by scope key
	streams       map[uint64]streamLife   // by creation index
	entities      map[string]entityDigest // by key in TableEntities
	relationships map[string]uint64       // by key in TableRelationships: version

	keyedWrites map[string]uint64 // by key in TableKeyed: the index of the last one

	whole bool // no block has been dropped

	// What the present blocks have removed. Nothing is known of a key that they have neither set nor removed, if
	// earlier blocks have been dropped.
	removed, unrelated map[string]struct{}
	history            []interval

	// What the expiry index must have.
	streamEntries, entityEntries, keyedEntries uint64
}

type chain struct {
	chainHead

	time int64
	last uint64 // key of the record
}

type streamLife struct {
	key  string // in TableStreams
	last uint64
}

type entityDigest struct {
	version   uint64
	expiresAt int64
	value     [16]byte
	entityPlace
}

// matches reports whether a record says what the blocks do. A value that is in
// its block need not be compared, because the record leads to the very
// operation that set it.
func (want *entityDigest) matches(got *entity) bool {
	if got.version != want.version || got.expiresAt != want.expiresAt || got.inBlock != want.inBlock {
		return false
	}
	if got.inBlock {
		return got.at == want.at
	}
	return digestValue(got.value) == want.value
}

func digestValue(v []byte) [16]byte {
	h := sha256.Sum256(v)
	return [16]byte(h[:16])
}

func (a *auditor) problem(where, format string, args ...any) {
	a.report(Problem{Where: where, What: fmt.Sprintf(format, args...)})
}

// scan visits a whole table. It reports a defect that visit returns and continues, because one finding must not hide
// the next.
func (a *auditor) scan(table Table, name string, visit func(k, v []byte) error) error {
	return a.r.Ascend(table, nil, func(k, v []byte) bool {
		if err := visit(k, v); err != nil {
			a.problem(fmt.Sprintf("%s %q", name, k), "%v", err)
		}
		return true
	})
}

// blocks walks through the history in the order of the ledger index.
func (a *auditor) blocks() error {
	previous, begun := uint64(0), false
	err := a.scan(TableBlocks, "record of blocks", func(k, record []byte) error {
		if len(k) != 8 {
			return fmt.Errorf("the key has %d bytes instead of 8", len(k))
		}
		last := binary.BigEndian.Uint64(k)
		if last > a.head.index {
			return fmt.Errorf("it lies beyond ledger index %d", a.head.index)
		}
		opened, err := openRecord(k, record)
		if err != nil {
			return err
		}
		if !begun {
			begun = true
			a.begin(opened.first - 1)
		}
		a.leaves = a.nextLeaf(previous, opened.first)
		var txs []pendingAudit
		err = opened.visitBlocks(func(p place, b *blockRecord) bool {
			txs = append(txs, a.block(p, b)...)
			return true
		})
		a.transactions(previous, last, txs)
		a.rows(&opened, txs)
		previous = last
		if a.progress != nil {
			a.progress(a.sum)
		}
		return err
	})
	if !begun && a.head.retention.horizon > 0 {
		a.begin(a.head.retention.horizon - 1)
	}
	if leaves := a.nextLeaf(previous, a.head.index); leaves != 0 && leaves != a.head.leaves {
		a.problem("head of the state", "it counts %d leaves in the ledger's tree, not %d", a.head.leaves, leaves)
	}
	return err
}

// nextLeaf returns the leaf index of the next block after one at a ledger index, 0 if it is not known.
func (a *auditor) nextLeaf(after, upTo uint64) uint64 {
	for _, e := range a.head.epochs {
		if max(after, a.sum.Dropped) < e.start && e.start <= upTo {
			return 1
		}
	}
	return a.leaves
}

// pendingAudit is a transaction of one record, which are judged in the order
// of their index.
type pendingAudit struct {
	t     Transaction
	where string
}

// block checks one block and its place in the chain.
func (a *auditor) block(p place, b *blockRecord) (txs []pendingAudit) {
	a.sum.Blocks++
	scopeKey := appendScopeKey(nil, b.header.Scope)
	where := fmt.Sprintf("block %d of %s", b.header.Height, b.header.Scope)
	c := a.chains[string(scopeKey)]
	places := b.places()
	if c.height == 0 {
		c = a.resume(&b.header, places)
	}
	c.learn(places, a.sum.Dropped)
	switch {
	case b.header.Height != c.height+1:
		a.problem(where, "the block before it in the chain is %d", c.height)
	case b.header.PreviousHash != c.hash:
		a.problem(where, "its previous_hash is %s, the block before has %s", b.header.PreviousHash, c.hash)
	case b.header.CommittedAt < c.time && !a.setBack(c.last, p.record) || b.header.CommittedAt > a.latestTime():
		a.problem(where, "it was committed before its predecessor, or after the ledger's time")
	case !slices.Equal(places, c.links()):
		a.problem(where, "it says that the blocks below it are at %v, they are at %v", places, c.links())
	}
	if b.header.Height == c.height+1 { // else its places would be those of other heights
		c.add(b.header.Hash(), p)
		c.time, c.last = b.header.CommittedAt, p.record
		a.chains[string(scopeKey)] = c
	}
	if a.leaves != 0 && b.leaf != a.leaves {
		a.problem(where, "it is leaf %d of the ledger's tree, not %d", b.leaf, a.leaves)
	}
	a.leaves = b.leaf + 1
	leaves, err := b.leaves()
	if err != nil {
		a.problem(where, "%v", err)
		return nil
	}
	if root := merkleRoot(leaves); root != b.header.TxRoot {
		a.problem(where, "its tx_root is %s, its transactions have %s", b.header.TxRoot, root)
	}
	err = b.visit(func(position uint32, stored storedTransaction) bool {
		t, err := stored.decode(b.header.Height)
		at := fmt.Sprintf("transaction %d of %s", position, where)
		if err != nil {
			a.problem(at, "%v", err)
			return true
		}
		if t.Scope != b.header.Scope || t.CommittedAt != b.header.CommittedAt {
			a.problem(at, "its scope or time is not the block's")
		}
		txs = append(txs, pendingAudit{t, at})
		return true
	})
	if err != nil {
		a.problem(where, "%v", err)
	}
	return txs
}

// latestTime is the latest that ledger time has ever been.
func (a *auditor) latestTime() int64 { return max(a.head.time, a.head.timeSetBackFrom()) }

// setBack reports whether an epoch between two ledger indexes set ledger time back.
func (a *auditor) setBack(from, to uint64) bool {
	for _, e := range a.head.epochs {
		if e.timeBefore != 0 && from < e.start && e.start <= to {
			return true
		}
	}
	return false
}

// rows checks that every transaction is found by its index, and nothing else is.
func (a *auditor) rows(r *record, txs []pendingAudit) {
	for i := range txs {
		t := &txs[i].t
		l, found, err := r.find(t.Index)
		if err != nil {
			a.problem(txs[i].where, "looked up by its index: %v", err)
		} else if !found || l.position != t.Position || l.header.Height != t.BlockHeight || l.header.Scope != t.Scope {
			a.problem(txs[i].where, "the rows of its record do not lead to it")
		}
	}
	if rows := r.count(); rows != uint64(len(txs)) {
		a.problem(fmt.Sprintf("record of %d transactions", len(txs)), "its rows lead to %d", rows)
	}
}

// transactions judges those of one record, whose indexes lie in (after, last].
func (a *auditor) transactions(after, last uint64, txs []pendingAudit) {
	sortByIndex(txs)
	for i := range txs {
		t, where := &txs[i].t, txs[i].where
		a.sum.Transactions++
		if t.Index <= after || t.Index > last {
			a.problem(where, "ledger index %d is not in %d to %d", t.Index, after+1, last)
		}
		after = t.Index
		if want := a.head.ledgerIDAt(t.Index); t.LedgerID != want {
			a.problem(where, "it bears ledger id %s, index %d belongs to %s", t.LedgerID, t.Index, want)
		}
		hash, encoded := HashOperations(nil, t.Operations)
		a.count(t.Index, len(encoded)-uvarintLength(len(t.Operations)))
		if hash != t.RequestHash {
			a.problem(where, "its request_hash is %s, its operations have %s", t.RequestHash, hash)
		}
		a.sequence(t, where)
		d := decoder{rest: encoded}
		_, offsets := decodeOperationsAt(&d, nil, nil)
		for j := range t.Operations {
			var place entityPlace
			if len(t.Operations[j].Value) > maxValueInRecord {
				place = entityPlace{true, uint64(offsets[j])}
			}
			a.operation(t, j, place, where)
		}
	}
}

// sequence checks that a stream's writes are 1, 2, 3, … (invariants 1 and 3).
func (a *auditor) sequence(t *Transaction, where string) {
	if t.CreatedIndex > t.Index || t.Session > t.Index {
		a.problem(where, "its stream or session is younger than itself")
	}
	for i := range t.Operations {
		if expires := t.Operations[i].Kind == OpExpireEntity; expires != (t.Sequence == 0 && t.Keyed == nil) {
			a.problem(where, "operation %d belongs to another kind of transaction", i)
		}
	}
	if t.Keyed != nil {
		a.keyedWrites[string(t.Keyed.TableKey())] = t.Index
		if t.Sequence != 0 || t.Session != 0 || t.CreatedIndex != 0 || t.Key.Present {
			a.problem(where, "it has a key of its own, and a stream")
		}
		return
	}
	if t.Sequence == 0 { // the ledger's own
		if t.Actor != actorGC || t.CreatedIndex != 0 || t.Key.Present {
			a.problem(where, "it has no sequence")
		}
		return
	}
	key := string(appendScopeKey(nil, t.Scope)) + t.ClientID
	life, known := a.streams[t.CreatedIndex]
	if known && life.key != key {
		a.problem(where, "creation index %d belongs to another stream", t.CreatedIndex)
	}
	if t.Sequence != life.last+1 && (known || t.CreatedIndex > a.sum.Dropped) {
		a.problem(where, "client %q sequence %d follows %d", t.ClientID, t.Sequence, life.last)
	}
	a.streams[t.CreatedIndex] = streamLife{key, t.Sequence}
}

// expired reports whether an entity was past its time when a transaction was
// committed.
func (a *auditor) expired(e entityDigest, t *Transaction) bool {
	then := head{time: t.CommittedAt}
	for _, epoch := range a.head.epochs {
		if epoch.start <= t.Index {
			then.epochs = append(then.epochs, epoch)
		}
	}
	return then.expired(e.expiresAt, e.version)
}

// operation decides one operation again, on the recomputed state.
func (a *auditor) operation(t *Transaction, i int, place entityPlace, where string) {
	op := &t.Operations[i]
	scopeKey := appendScopeKey(nil, t.Scope)
	key := string(append(scopeKey, op.Key...))
	e, there := a.entities[key]
	known := there || a.knowsAbsent(a.removed, key)
	present := there && !a.expired(e, t)
	if code := op.Condition.audit(e, present); code != 0 && known {
		a.problem(where, "condition of operation %d did not hold: %s", i, code)
	}
	changed := true
	switch op.Kind {
	case OpSetEntity:
		a.entities[key] = entityDigest{t.Index, op.ExpiresAt, digestValue(op.Value), place}
	case OpDeleteEntity:
		if changed = present; !known {
			changed = t.Versions[i] != 0
		}
		if changed {
			a.remove(key)
		}
	case OpExpireEntity:
		if known && (present || !there) {
			a.problem(where, "operation %d expired an entity that is absent or whose time has not come", i)
		}
		a.remove(key)
	case OpCreateRelationship, OpDeleteRelationship:
		key = string(appendRelationshipParts(scopeKey, op.Key, op.Relation, op.Subject))
		changed = a.relate(key, op.Kind == OpCreateRelationship, t.Index, t.Versions[i] != 0)
	case OpAppend:
	}
	if changed != (t.Versions[i] != 0) {
		a.problem(where, "the result of operation %d says version %d", i, t.Versions[i])
	}
}

// audit is check on a recomputed entity, of which only a digest is known.
func (c *Condition) audit(e entityDigest, present bool) Code {
	probe := entity{present: present, version: e.version}
	if c.Kind == ConditionValueEquals && present {
		if digestValue(c.Value) != e.value {
			return ValueMismatch
		}
		return 0
	}
	if c.Kind == ConditionNone {
		return 0
	}
	return c.check(&probe)
}
