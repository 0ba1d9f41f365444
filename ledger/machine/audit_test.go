package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// auditedState builds a state in which every table has something.
func auditedState(t *testing.T) (*Machine, *Memory) {
	t.Helper()
	tx := NewMemory()
	m := must.Get(Open(tx))(t)
	config := DefaultConfig()
	config.ReceiptWindow, config.EvictionInterval = 4, 10
	now := int64(1e18)
	apply := func(commands ...[]byte) {
		t.Helper()
		now += 1e9
		must.Get(m.Apply(tx, AppendEntry(nil, now, commands...)))(t)
	}
	apply(AppendCreate(nil, 7, 77, config))
	write := func(scope Scope, client string, sequence uint64, ops ...Operation) []byte {
		return AppendWrite(nil, &Write{
			Scope: scope, ClientID: client, Actor: "a", Sequence: sequence,
			Key: Key{UUID: [16]byte{byte(sequence)}, Present: sequence%2 == 0}, Operations: ops,
		})
	}
	vault, organization := Scope{"acme", "main"}, Scope{"acme", ""}
	for s := uint64(1); s <= 9; s++ {
		apply(
			write(vault, "one", s,
				Operation{Kind: OpSetEntity, Key: fmt.Appendf(nil, "e%d", s%3), Value: fmt.Appendf(nil, "v%d", s)},
				Operation{Kind: OpSetEntity, Key: fmt.Appendf(nil, "long%d", s%3),
					Value: fmt.Appendf(nil, "%s%d", longValue, s)},
				Operation{Kind: OpCreateRelationship, Key: []byte("doc"), Relation: []byte("viewer"),
					Subject: fmt.Appendf(nil, "u%d", s%4)}),
			write(organization, "two", s,
				Operation{Kind: OpAppend, Value: []byte("x")},
				Operation{Kind: OpSetEntity, Key: fmt.Appendf(nil, "soon%d", s), Value: nil, ExpiresAt: now +
					int64(s)*3e9},
				Operation{Kind: OpDeleteEntity, Key: []byte("nothing")}),
			write(vault, "refused", 5, Operation{Kind: OpAppend}))
	}
	reservation := func(key byte) *KeyedCommand {
		return reserveKey(KeyedID{Scope: vault, Principal: "p", Key: [32]byte{key}}, key, now)
	}
	apply(AppendKeyed(nil, reservation(1)), AppendKeyed(nil, reservation(2)), AppendKeyed(nil, reservation(3)))
	apply(
		AppendKeyed(nil, ownKey(keyed.Complete, reservation(1), m.head.index-2,
			bytes.Repeat([]byte("r"), maxInlineAttachment+1))),
		AppendKeyed(nil, ownKey(keyed.Checkpoint, reservation(2), m.head.index-1,
			bytes.Repeat([]byte("c"), maxInlineAttachment+1))),
		AppendKeyed(nil, ownKey(keyed.Reject, reservation(3), m.head.index, []byte("short"))),
		AppendKeyedWrite(nil, &KeyedWrite{
			ID: KeyedID{Scope: vault, Namespace: "jobs", Principal: "p", Key: [32]byte{9}}, Actor: "a",
			TTL: int64(1e12), MaxKeys: 100,
			Operations: []Operation{{Kind: OpSetEntity, Key: []byte("job"), Value: []byte(longValue)}},
		}))
	apply(write(vault, "one", 10,
		Operation{Kind: OpDeleteEntity, Key: []byte("e1"), Condition: Condition{Kind: ConditionMustExist}},
		Operation{Kind: OpDeleteRelationship, Key: []byte("doc"), Relation: []byte("viewer"), Subject: []byte("u1")}),
		AppendOpenSession(nil, &OpenSession{Scope: vault, ClientID: "three", Actor: "a", AttemptID: [16]byte{1}}))
	return m, tx
}

func audit(t *testing.T, m *Machine, tx Reader) []Problem {
	t.Helper()
	var problems []Problem
	must.Get(m.Audit(tx, func(p Problem) { problems = append(problems, p) }, nil))(t)
	return problems
}

func TestAuditOfSoundState(t *testing.T) {
	t.Parallel()
	m, tx := auditedState(t)
	blocks := 0
	sum, err := m.Audit(tx, func(p Problem) { t.Errorf("%s: %s", p.Where, p.What) }, func(AuditSummary) { blocks++ })
	if err != nil || blocks == 0 {
		t.Fatal(err, blocks)
	}
	if sum.Blocks == 0 || sum.Transactions < 20 || sum.Entities == 0 || sum.Relationships == 0 || sum.Streams != 3 ||
		sum.Receipts == 0 {
		t.Errorf("summary %+v: the state has too little in it", sum)
	}
	for table := range FirstLocalTable { // for the others see TestAuditOfCarriedValues
		if (table == TableBlocks || table.InStateFile()) && len(tx.tables[table].keys) == 0 {
			t.Errorf("table %d is empty: the audit of it is not tested", table)
		}
	}
}

// TestAuditFindsEveryDamage removes every record, and changes every byte of
// every record, one at a time. The audit must notice each of them, except where
// the change is in what no block knows.
func TestAuditFindsEveryDamage(t *testing.T) {
	t.Parallel()
	m, tx := auditedState(t)
	sound := m.head
	step := 1
	if testing.Short() {
		step = 5 // some bytes of each record
	}
	for table := range FirstLocalTable {
		if table == TableMeta {
			continue // the head is what the audit begins from
		}
		for _, key := range bytesOf(tx.tables[table].keys) {
			value := bytes.Clone(tx.tables[table].values[string(key)])
			_ = tx.Delete(table, key)
			if len(audit(t, m, tx)) == 0 {
				t.Errorf("table %d key %q: removed, and nobody noticed", table, key)
			}
			for i := 0; i < len(value); i += step {
				if table == TableStreams && unknowable(value, i) {
					continue
				}
				if table == TableKeyed || table == TableAttachments && value[0] == 'c' {
					break // reservations and checkpoints are in no block: only the checksum of the storage guards them
				}
				changed := bytes.Clone(value)
				changed[i] ^= 1
				_ = tx.Put(table, key, changed)
				if len(audit(t, m, tx)) == 0 {
					t.Errorf("table %d key %q: byte %d of %d changed, and nobody noticed", table, key, i, len(value))
				}
			}
			_ = tx.Put(table, key, value)
		}
	}
	m.head = sound
	m.head.streams++
	if len(audit(t, m, tx)) == 0 {
		t.Error("the head counts a stream too many, and nobody noticed")
	}
}

// unknowable tells whether byte i of a stream record is in its session, its
// last_seen, its attempts, or the creation index of a stream without writes: no
// block has them, so that only the checksum of the storage guards them.
func unknowable(record []byte, i int) bool {
	var s stream
	if err := s.decode(record); err != nil {
		return false
	}
	length := func(s stream) int { return len(s.append(nil)) }
	bare := s
	bare.attempts, bare.window = nil, window{}
	head := length(bare) - 2 // up to the previous session, which is 0, and the number of attempts
	lastSeen := head - 16
	session := 1 + len(binary.AppendUvarint(nil, s.created))
	inSession := i >= session && i < session+len(binary.AppendUvarint(nil, s.session))
	inLastSeen := i >= lastSeen && i < lastSeen+8
	inAttempts := i >= head && i <= head+1+16*len(s.attempts)
	inCreated := s.last == 0 && i >= 1 && i < session
	return inSession || inLastSeen || inAttempts || inCreated
}

func bytesOf(keys []string) [][]byte {
	out := make([][]byte, len(keys))
	for i, k := range keys {
		out[i] = []byte(k)
	}
	return out
}

// Additions are noticed, too.
func TestAuditFindsWhatDoesNotBelong(t *testing.T) {
	t.Parallel()
	m, tx := auditedState(t)
	for table := TableStreams; table < FirstLocalTable; table++ {
		keys := tx.tables[table].keys
		if table != TableBlocks && !table.InStateFile() {
			continue
		}
		like := keys[len(keys)-1]
		added := []byte(like + "x")
		if table == TableBlocks || table == TableAttachments {
			added = []byte(like)
			added[len(added)-1]++
		}
		_ = tx.Put(table, added, tx.tables[table].values[like])
		if len(audit(t, m, tx)) == 0 {
			t.Errorf("table %d: a record was added, and nobody noticed", table)
		}
		_ = tx.Delete(table, added)
	}
	check.Equal(t, len(audit(t, m, tx)), 0, "after mending: %v")
}
