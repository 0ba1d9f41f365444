package proof_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/client/proof"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// golden reads a golden file of the ledger's own tests.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("..", "..", "ledger", "machine", "testdata", "format", name+".hex")))(t)
	raw := must.Get(hex.DecodeString(strings.Join(strings.Fields(string(text)), "")))(t)
	return raw
}

func remove(key string, condition *seqledgerv1.Condition) *seqledgerv1.Operation {
	return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteEntity{
		DeleteEntity: &seqledgerv1.DeleteEntity{Key: key, Condition: condition},
	}}
}

// goldenTransaction is the transaction of the golden files, as an answer carries it.
func goldenTransaction(t *testing.T) *seqledgerv1.Transaction {
	t.Helper()
	id := golden(t, "tx_id")
	set := func(s *seqledgerv1.SetEntity) *seqledgerv1.Operation {
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: s}}
	}
	return &seqledgerv1.Transaction{
		TxId:  fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]),
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "vault-1"}, ClientId: "client 7",
		StreamCreatedIndex: 299,
		Session:            300, Sequence: 5, IdempotencyKey: "deadbeef-0000-0000-0000-000000000001",
		RequestHash: hex.EncodeToString(golden(t, "request_hash")), Actor: "user:42",
		CommittedAt: &timestamppb.Timestamp{Seconds: 1_000_000}, Index: 1<<40 + 7, BlockHeight: 1_000,
		Encoding: 1, Changed: []byte{0x55},
		Operations: []*seqledgerv1.Operation{
			set(&seqledgerv1.SetEntity{
				Key: "k", Value: []byte("v"),
				Condition: &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}},
			}),
			set(&seqledgerv1.SetEntity{
				Key: "k2", Condition: &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: 128}},
				ExpiresAt: &timestamppb.Timestamp{Seconds: 1 << 60 / 1_000_000_000, Nanos: 1 << 60 % 1_000_000_000},
			}),
			remove("k3", &seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}),
			remove("k4", &seqledgerv1.Condition{
				Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: []byte("w")},
			}),
			{Operation: &seqledgerv1.Operation_CreateRelationship{
				CreateRelationship: &seqledgerv1.CreateRelationship{Resource: "doc", Relation: "owner", Subject: "bob"},
			}},
			{Operation: &seqledgerv1.Operation_DeleteRelationship{
				DeleteRelationship: &seqledgerv1.DeleteRelationship{Resource: "doc", Relation: "viewer",
					Subject: "eve"},
			}},
			op.Append([]byte("payload")),
		},
	}
}

// goldenHeader is the header of the golden files: that of a block with only the golden transaction.
func goldenHeader(t *testing.T) *seqledgerv1.BlockHeader {
	t.Helper()
	previous := make([]byte, 32)
	previous[0], previous[31] = 1, 2
	return &seqledgerv1.BlockHeader{
		Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "vault-1"}, Height: 1_000, PreviousHash: previous,
		TxRoot: golden(t, "transaction_hash"), TxCount: 1, CommittedAt: &timestamppb.Timestamp{Seconds: 1_000_000},
	}
}

// The client hashes the same bytes as the ledger.
func TestProofOfTheGoldenTransaction(t *testing.T) {
	t.Parallel()
	transaction, header := goldenTransaction(t), goldenHeader(t)
	encoded, err := message.CanonicalLeaf(transaction)
	if err != nil || !bytes.Equal(encoded, golden(t, "leaf")) {
		t.Errorf("the encoding is\n%x (%v), want\n%x", encoded, err, golden(t, "leaf"))
	}
	hash, err := proof.BlockHash(header)
	if err != nil || !bytes.Equal(hash, golden(t, "block_header_hash")) {
		t.Errorf("the header's hash is %x (%v), want %x", hash, err, golden(t, "block_header_hash"))
	}
	must.Do(t, proof.VerifyTransaction(transaction, header, &seqledgerv1.MerkleProof{TreeSize: 1}))
}

// node and tree build the Merkle tree of RFC 6962, section 2.1, literally; path is its section 2.1.1.
func node(left, right []byte) []byte {
	hash := sha256.Sum256(append(append([]byte{1}, left...), right...))
	return hash[:]
}

func split(n int) int {
	k := 1
	for 2*k < n {
		k *= 2
	}
	return k
}

func tree(leaves [][]byte) []byte {
	if len(leaves) == 1 {
		return leaves[0]
	}
	k := split(len(leaves))
	return node(tree(leaves[:k]), tree(leaves[k:]))
}

func path(leaves [][]byte, i int) [][]byte {
	if len(leaves) == 1 {
		return nil
	}
	k := split(len(leaves))
	if i < k {
		return append(path(leaves[:k], i), tree(leaves[k:]))
	}
	return append(path(leaves[k:], i-k), tree(leaves[:k]))
}

// blockOf returns a block of n transactions: its header, the transaction at a
// position in it, and its proof.
func blockOf(t *testing.T, n, position int) (*seqledgerv1.Transaction,
	*seqledgerv1.BlockHeader, *seqledgerv1.MerkleProof) {
	t.Helper()
	var leaves [][]byte
	var wanted *seqledgerv1.Transaction
	for i := range n {
		transaction := goldenTransaction(t)
		transaction.BlockPosition, transaction.Sequence = uint32(i), uint64(i)+1
		if i == 0 { // one of the ledger's own
			transaction.ClientId, transaction.IdempotencyKey = "", ""
			transaction.StreamCreatedIndex, transaction.Session, transaction.Sequence = 0, 0, 0
			transaction.Operations = []*seqledgerv1.Operation{{Operation: &seqledgerv1.Operation_ExpireEntity{
				ExpireEntity: &seqledgerv1.ExpireEntity{Key: "old"},
			}}, remove("k", nil)}
			transaction.Changed = []byte{1}
		}
		encoded := must.Get(message.CanonicalLeaf(transaction))(t)
		leaf := sha256.Sum256(append([]byte{0}, encoded...))
		leaves = append(leaves, leaf[:])
		if i == position {
			wanted = transaction
		}
	}
	header := goldenHeader(t)
	header.TxCount, header.TxRoot = uint32(n), tree(leaves)
	return wanted, header, &seqledgerv1.MerkleProof{LeafIndex: uint64(position),
		TreeSize: uint64(n), Path: path(leaves, position)}
}

func TestProofsOfEveryPosition(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 17; n++ {
		for position := range n {
			transaction, header, inclusion := blockOf(t, n, position)
			must.Do(t, proof.VerifyTransaction(transaction, header, inclusion), "%d of %d", position, n)
			if n == 1 {
				continue
			}
			other, _, _ := blockOf(t, n, (position+1)%n)
			other.BlockPosition = uint32(position)
			check.Is(t, proof.VerifyTransaction(other, header, inclusion), proof.ErrInvalid,
				"another transaction as %d of %d", position, n)
		}
	}
}

// change makes one of all possible changes to a message: the one that skip counts down to. It returns a description
// of the change, or "" if there are no more.
type change struct{ skip int }

func (c *change) due() bool {
	c.skip--
	return c.skip < 0
}

func (c *change) of(m protoreflect.Message) string {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		name := string(field.Name())
		switch inOneof := field.ContainingOneof() != nil; {
		case inOneof && !m.Has(field):
		case field.IsList():
			list := m.Mutable(field).List()
			for at := range list.Len() {
				if inner := c.ofElement(list, at, field); inner != "" {
					return fmt.Sprintf("%s[%d].%s", name, at, inner)
				}
			}
			if list.Len() > 0 && c.due() {
				list.Truncate(list.Len() - 1)
				return name + " without its last"
			}
		case field.Message() != nil:
			if m.Has(field) {
				if inner := c.of(m.Mutable(field).Message()); inner != "" {
					return name + "." + inner
				}
			}
			if c.due() {
				if m.Has(field) {
					m.Clear(field)
					return "no " + name
				}
				m.Set(field, m.NewField(field))
				return "an empty " + name
			}
		default:
			if value, how := c.value(m.Get(field)); how != "" {
				m.Set(field, value)
				return name + how
			}
		}
	}
	return ""
}

func (c *change) ofElement(list protoreflect.List, at int, field protoreflect.FieldDescriptor) string {
	if field.Message() != nil {
		return c.of(list.Get(at).Message())
	}
	value, how := c.value(list.Get(at))
	if how != "" {
		list.Set(at, value)
	}
	return how
}

// value returns a changed value and how it was changed, or the value and "".
func (c *change) value(v protoreflect.Value) (protoreflect.Value, string) {
	if text, ok := v.Interface().(string); ok {
		if c.due() {
			return protoreflect.ValueOfString(text + "0"), " longer"
		}
		if text != "" && c.due() {
			other := "0"
			if text[0] == '0' {
				other = "1"
			}
			return protoreflect.ValueOfString(other + text[1:]), " with another first letter"
		}
		if upper := strings.ToUpper(text); upper != text && c.due() {
			return protoreflect.ValueOfString(upper), " in capitals"
		}
		return v, ""
	}
	if raw, ok := v.Interface().([]byte); ok {
		if c.due() {
			return protoreflect.ValueOfBytes(append(bytes.Clone(raw), 0)), " longer"
		}
		if len(raw) > 0 && c.due() {
			return protoreflect.ValueOfBytes(append([]byte{raw[0] ^ 1}, raw[1:]...)), " with a flipped bit"
		}
		return v, ""
	}
	if !c.due() {
		return v, ""
	}
	switch n := v.Interface().(type) {
	case bool:
		return protoreflect.ValueOfBool(!n), " inverted"
	case int32:
		return protoreflect.ValueOfInt32(n + 1), " one more"
	case int64:
		return protoreflect.ValueOfInt64(n + 1), " one more"
	case uint32:
		return protoreflect.ValueOfUint32(n + 1), " one more"
	case uint64:
		return protoreflect.ValueOfUint64(n + 1), " one more"
	}
	panic(fmt.Sprintf("a value of another kind: %T", v.Interface()))
}

// wantEveryChangeNoticed makes every possible change to a message, one at a time, and wants verify to refuse it.
func wantEveryChangeNoticed[M proto.Message](t *testing.T, m M, least int, verify func(M) error, but ...string) {
	t.Helper()
	for n := 0; ; n++ {
		changed := proto.Clone(m).(M)
		what := (&change{n}).of(changed.ProtoReflect())
		if what == "" {
			if n < least {
				t.Errorf("%T: only %d changes were tried", m, n)
			}
			return
		}
		ignored := false
		for _, name := range but {
			ignored = ignored || strings.Contains(what, name)
		}
		if err := verify(changed); ignored != (err == nil) || err != nil && !errors.Is(err, proof.ErrInvalid) {
			t.Errorf("%T, %s: %v", m, what, err)
		}
	}
}

// Any change to the transaction, the header, the proof or the receipt invalidates the proof.
func TestEveryChangeBreaksTheProof(t *testing.T) {
	t.Parallel()
	for _, position := range []int{0, 1, 4} { // the last position has no sibling on its level of the tree
		transaction, header, inclusion := blockOf(t, 5, position)
		receipt := &seqledgerv1.Receipt{
			TxId: transaction.GetTxId(), Sequence: transaction.GetSequence(),
			Session: transaction.GetSession(), Index: transaction.GetIndex(),
			BlockHeight: transaction.GetBlockHeight(), BlockPosition: transaction.GetBlockPosition(),
			CommittedAt: transaction.GetCommittedAt(),
			Actor:       transaction.GetActor(),
			RequestHash: transaction.GetRequestHash(), BlockHeader: header, Proof: inclusion,
		}
		for i := range transaction.GetOperations() { // as changed says
			receipt.Results = append(receipt.Results, &seqledgerv1.OperationResult{})
			if i%2 == 0 {
				receipt.Results[i].Version = transaction.GetIndex()
			}
		}
		must.Do(t, proof.VerifyReceipt(receipt, transaction))
		wantEveryChangeNoticed(t, transaction, 25, func(m *seqledgerv1.Transaction) error {
			return proof.VerifyTransaction(m, header, inclusion)
		})
		// previous_hash is covered by the block's hash, not by a transaction's proof.
		wantEveryChangeNoticed(t, header, 10, func(m *seqledgerv1.BlockHeader) error {
			return proof.VerifyTransaction(transaction, m, inclusion)
		}, "previous_hash with a flipped bit")
		wantEveryChangeNoticed(t, inclusion, 4, func(m *seqledgerv1.MerkleProof) error {
			return proof.VerifyTransaction(transaction, header, m)
		})
		wantEveryChangeNoticed(t, receipt, 25, func(m *seqledgerv1.Receipt) error {
			return proof.VerifyReceipt(m, transaction)
		}, "replayed", "previous_hash with a flipped bit")
	}
}

// Two headers that differ have different hashes, or one of them is invalid.
func TestEveryChangeChangesTheBlockHash(t *testing.T) {
	t.Parallel()
	header := goldenHeader(t)
	hash := must.Get(proof.BlockHash(header))(t)
	wantEveryChangeNoticed(t, header, 10, func(m *seqledgerv1.BlockHeader) error {
		other, err := proof.BlockHash(m)
		if err == nil && !bytes.Equal(hash, other) {
			return proof.ErrInvalid
		}
		return err
	})
}

// A missing part, or values that no ledger has, give an error that says so.
func TestProofsThatAreNone(t *testing.T) {
	t.Parallel()
	transaction, header, inclusion := blockOf(t, 1, 0)
	with := func(change func(m *seqledgerv1.Transaction)) *seqledgerv1.Transaction {
		m := proto.CloneOf(transaction)
		change(m)
		return m
	}
	condition := func(c *seqledgerv1.Condition) *seqledgerv1.Transaction {
		return with(func(m *seqledgerv1.Transaction) { m.Operations = []*seqledgerv1.Operation{remove("k", c)} })
	}
	for name, test := range map[string]struct {
		err  error
		says string
	}{
		"nothing":        {proof.VerifyTransaction(nil, nil, nil), "transaction is missing"},
		"no header":      {proof.VerifyTransaction(transaction, nil, inclusion), "include_proof"},
		"no proof":       {proof.VerifyTransaction(transaction, header, nil), "include_proof"},
		"no receipt":     {proof.VerifyReceipt(nil, transaction), "tx_id"},
		"nothing at all": {proof.VerifyReceipt(nil, nil), "transaction is missing"},
		"no operation": {proof.VerifyTransaction(with(func(m *seqledgerv1.Transaction) {
			m.Operations = []*seqledgerv1.Operation{{}}
		}), header, inclusion), "operations[0] is of no kind"},
		"a nil operation": {proof.VerifyTransaction(with(func(m *seqledgerv1.Transaction) {
			m.Operations = []*seqledgerv1.Operation{{Operation: (*seqledgerv1.Operation_Append)(nil)}}
		}), header, inclusion), "operations[0] is of no kind"},
		"a condition that is none": {proof.VerifyTransaction(condition(new(seqledgerv1.Condition)), header, inclusion),
			"condition"},
		"not_exists that is false": {proof.VerifyTransaction(condition(&seqledgerv1.Condition{
			Condition: &seqledgerv1.Condition_NotExists{},
		}), header, inclusion), "condition"},
		"a short path": {proof.VerifyTransaction(transaction, header,
			&seqledgerv1.MerkleProof{TreeSize: 1, Path: [][]byte{{1}}}), "path[0]"},
		"a time that overflows": {proof.VerifyTransaction(with(func(m *seqledgerv1.Transaction) {
			m.Operations = []*seqledgerv1.Operation{op.Set("k", nil)}
			m.Operations[0].GetSetEntity().ExpiresAt = &timestamppb.Timestamp{Seconds: 1 << 62}
		}), header, inclusion), "expires_at"},
	} {
		if !errors.Is(test.err, proof.ErrInvalid) || !strings.Contains(test.err.Error(), test.says) {
			t.Errorf("%s: %v, want an ErrInvalid with %q", name, test.err, test.says)
		}
	}
}
