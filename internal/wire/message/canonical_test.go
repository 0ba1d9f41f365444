package message

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/testkit/prototest"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// golden reads bytes that the ledger's own tests hold fixed.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "ledger", "machine", "testdata", "format",
		name+".hex")))(t)
	raw := must.Get(hex.DecodeString(strings.Join(strings.Fields(string(text)), "")))(t)
	return raw
}

// goldenTransaction is the transaction in the golden files, as an answer has it.
func goldenTransaction(t testing.TB) *seqledgerv1.Transaction {
	t.Helper()
	id := golden(t, "tx_id")
	m := &seqledgerv1.Transaction{
		TxId:  fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]),
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "vault-1"}, ClientId: "client 7",
		StreamCreatedIndex: 299, Session: 300, Sequence: 5, IdempotencyKey: "deadbeef-0000-0000-0000-000000000001",
		RequestHash: hex.EncodeToString(golden(t, "request_hash")), Actor: "user:42",
		CommittedAt: &timestamppb.Timestamp{Seconds: 1_000_000}, Index: 1<<40 + 7, BlockHeight: 1_000,
		Encoding: 1, Changed: []byte{0x55},
	}
	for _, op := range []Operation{
		{Kind: SetEntity, Key: "k", Value: []byte("v"),
			Condition: &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}}},
		{Kind: SetEntity, Key: "k2",
			Condition: &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: 128}},
			ExpiresAt: &timestamppb.Timestamp{Seconds: 1 << 60 / 1_000_000_000, Nanos: 1 << 60 % 1_000_000_000}},
		{Kind: DeleteEntity, Key: "k3",
			Condition: &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}},
		{Kind: DeleteEntity, Key: "k4",
			Condition: &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: []byte("w")}}},
		{Kind: CreateRelationship, Key: "doc", Relation: "owner", Subject: "bob"},
		{Kind: DeleteRelationship, Key: "doc", Relation: "viewer", Subject: "eve"},
		{Kind: Append, Value: []byte("payload")},
	} {
		m.Operations = append(m.Operations, op.Message())
	}
	return m
}

// TestGoldenBytes: a client hashes the bytes that the ledger hashes.
func TestGoldenBytes(t *testing.T) {
	t.Parallel()
	encoded, err := CanonicalLeaf(goldenTransaction(t))
	if err != nil || !bytes.Equal(encoded, golden(t, "leaf")) {
		t.Errorf("the encoding is\n%x (%v), want\n%x", encoded, err, golden(t, "leaf"))
	}
	previous := make([]byte, 32)
	previous[0], previous[31] = 1, 2
	header, err := CanonicalHeader(&seqledgerv1.BlockHeader{
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "vault-1"}, Height: 1_000, PreviousHash: previous,
		TxRoot: golden(t, "transaction_hash"), TxCount: 1, CommittedAt: &timestamppb.Timestamp{Seconds: 1_000_000},
	})
	if hash := sha256.Sum256(header); err != nil || !bytes.Equal(hash[:], golden(t, "block_header_hash")) {
		t.Errorf("the header's hash is %x (%v), want %x", hash, err, golden(t, "block_header_hash"))
	}
}

// TestOneFormOfEachField: a ledger writes each field in one form. Any other form is refused, or two messages that
// differ for a reader would have one leaf.
func TestOneFormOfEachField(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*seqledgerv1.Transaction)
		says   string
	}{
		"an encoding to come":           {func(m *seqledgerv1.Transaction) { m.Encoding = 3 }, "encoding is 3"},
		"the encoding of a keyed write": {func(m *seqledgerv1.Transaction) { m.Encoding = 2 }, "does not fit keyed"},
		"an identity without its encoding": {func(m *seqledgerv1.Transaction) {
			m.Keyed = new(seqledgerv1.KeyedIdentity)
		}, "does not fit keyed"},
		"a short hash of a key": {func(m *seqledgerv1.Transaction) {
			m.Encoding, m.Keyed = 2, new(seqledgerv1.KeyedIdentity)
		}, "key_hash has 0 bytes"},
		"no tx_id": {func(m *seqledgerv1.Transaction) { m.TxId = "" }, `tx_id is "" and no UUID`},
		"tx_id in capitals": {func(m *seqledgerv1.Transaction) { m.TxId = strings.ToUpper(m.TxId) },
			"tx_id is not 16 bytes in lower case hex"},
		"another index": {func(m *seqledgerv1.Transaction) { m.Index++ }, "tx_id is not that of index"},
		"another version": {func(m *seqledgerv1.Transaction) { m.TxId = m.TxId[:14] + "7" + m.TxId[15:] },
			"tx_id is not that of index"},
		"another variant": {func(m *seqledgerv1.Transaction) { m.TxId = m.TxId[:19] + "0" + m.TxId[20:] },
			"tx_id is not that of index"},
		"negative nanoseconds": {func(m *seqledgerv1.Transaction) { m.CommittedAt.Nanos = -1 },
			"committed_at is no time"},
		"a second of nanoseconds": {func(m *seqledgerv1.Transaction) { m.CommittedAt.Nanos = 1_000_000_000 },
			"committed_at is no time"},
		"before 1970": {func(m *seqledgerv1.Transaction) { m.CommittedAt.Seconds = -1 }, "committed_at is no time"},
		"1970":        {func(m *seqledgerv1.Transaction) { m.CommittedAt.Seconds = 0 }, "committed_at is no time"},
		"beyond 64 bits": {func(m *seqledgerv1.Transaction) { m.CommittedAt.Seconds = math.MaxInt64/1_000_000_000 + 1 },
			"committed_at is no time"},
		"a short hash": {func(m *seqledgerv1.Transaction) { m.RequestHash = "00" },
			"request_hash is not 16 bytes"},
		"a hash that is none": {func(m *seqledgerv1.Transaction) { m.RequestHash = "zz" },
			"request_hash is not 16 bytes"},
		"a key that is none": {func(m *seqledgerv1.Transaction) { m.IdempotencyKey = "k" }, `idempotency_key is "k"`},
		"no kind": {func(m *seqledgerv1.Transaction) { m.Operations[1] = new(seqledgerv1.Operation) },
			"operations[1] is of no kind"},
		"no operation": {func(m *seqledgerv1.Transaction) { m.Operations[1] = nil }, "operations[1] is of no kind"},
		"a condition of no kind": {func(m *seqledgerv1.Transaction) {
			m.Operations[0].GetSetEntity().Condition = new(seqledgerv1.Condition)
		}, "operations[0] condition is of no kind"},
		"a condition that is false": {func(m *seqledgerv1.Transaction) {
			m.Operations[2].GetDeleteEntity().Condition.Condition = new(seqledgerv1.Condition_MustExist)
		}, "operations[2] condition is of no kind"},
		"another condition that is false": {func(m *seqledgerv1.Transaction) {
			m.Operations[0].GetSetEntity().Condition.Condition = new(seqledgerv1.Condition_NotExists)
		}, "operations[0] condition is of no kind"},
		"an expiry that is none": {func(m *seqledgerv1.Transaction) {
			m.Operations[1].GetSetEntity().ExpiresAt = new(timestamppb.Timestamp)
		}, "operations[1] expires_at is no time"},
	} {
		m := goldenTransaction(t)
		test.change(m)
		check.ErrorContains(t, check.Err(CanonicalLeaf(m)), test.says, "%s", name)
	}
	if _, err := CanonicalHeader(&seqledgerv1.BlockHeader{CommittedAt: new(timestamppb.Timestamp)}); err == nil ||
		!strings.Contains(err.Error(), "committed_at is no time") {
		t.Error("a header of 1970:", err)
	}
}

// TestOneLeafOfEachOperation: two operations that differ have different bytes, and none is the beginning of another, so
// that a list of them is read in one way alone.
func TestOneLeafOfEachOperation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var encoded [2][]byte
		var ms [2]*seqledgerv1.Operation
		for i := range ms {
			ms[i] = new(seqledgerv1.Operation)
			prototest.Message(t, ms[i])
			op, _ := ReadOperation(ms[i])
			op.Condition, op.ExpiresAt = nil, nil // most that are drawn are not what a ledger writes
			if ms[i] = op.Message(); op.Kind == 0 {
				return
			}
			encoded[i] = must.Get(appendOperation(nil, ms[i]))(t)
		}
		same := proto.Equal(ms[0], ms[1])
		if same != bytes.Equal(encoded[0], encoded[1]) || !same && bytes.HasPrefix(encoded[0], encoded[1]) {
			t.Fatalf("%v is %x, %v is %x", ms[0], encoded[0], ms[1], encoded[1])
		}
	})
}

// FuzzCanonicalLeaf: what has canonical bytes has them for its own fields alone: any transaction with the same
// bytes is the same but for what the bytes do not cover.
func FuzzCanonicalLeaf(f *testing.F) {
	golden := mustMarshal(f, goldenTransaction(f))
	f.Add(golden, golden)
	other := goldenTransaction(f)
	other.Operations = other.Operations[1:]
	f.Add(golden, mustMarshal(f, other))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var ms [2]seqledgerv1.Transaction
		var encoded [2][]byte
		for i, data := range [][]byte{first, second} {
			if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, &ms[i]) != nil {
				return
			}
			var err error
			if encoded[i], err = CanonicalLeaf(&ms[i]); err != nil {
				return
			}
			// Where the transaction stands in its block, and the part of it that this is.
			ms[i].BlockHeight, ms[i].BlockPosition, ms[i].FirstOperation = 0, 0, 0
			if ms[i].Scope == nil {
				ms[i].Scope = new(seqledgerv1.Scope)
			}
		}
		if bytes.Equal(encoded[0], encoded[1]) != proto.Equal(&ms[0], &ms[1]) {
			t.Errorf("%v is %x, %v is %x", &ms[0], encoded[0], &ms[1], encoded[1])
		}
	})
}
