// Package proof verifies a ledger's answers without trusting the ledger. It shows by a Merkle proof that a
// transaction or a receipt is in a block, and computes that block's hash. It makes no calls; package client gets the
// answers, with include_proof.
package proof

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	merkle "github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// ErrInvalid reports that an answer and its proof contradict each other. The server's data are damaged, the answer
// was changed on the way, or the proof belongs to another transaction.
var ErrInvalid = errors.New("the proof does not hold")

// VerifyTransaction checks that a transaction, with all its fields, is in the block of the
// header. It hashes its leaf (ledger/FORMAT.md) and follows the proof to the
// header's tx_root, as in RFC 6962. GetTransaction with include_proof returns transaction,
// header and proof. Any error is an [ErrInvalid] that names the field that does not match.
//
// A header from the same answer only shows that the answer is consistent. To show that the transaction is in the
// history that others see, compare [BlockHash] of the header with a hash from another source or an earlier time: the
// hash of this block, or of a later block that leads back to this one through the previous_hash of each block between.
func VerifyTransaction(
	transaction *seqledgerv1.Transaction, header *seqledgerv1.BlockHeader, inclusion *seqledgerv1.MerkleProof,
) error {
	switch {
	case transaction == nil:
		return fmt.Errorf("%w: the transaction is missing", ErrInvalid)
	case header == nil || inclusion == nil:
		return fmt.Errorf("%w: the proof is missing; ask for it with include_proof", ErrInvalid)
	case transaction.GetFirstOperation() != 0:
		return fmt.Errorf("%w: the proof covers a whole transaction, and this is a part: join the parts first",
			ErrInvalid)
	}
	if err := matchesHeader(transaction, header, inclusion); err != nil {
		return err
	}
	if _, err := BlockHash(header); err != nil {
		return err
	}
	for i, hash := range inclusion.GetPath() {
		if len(hash) != sha256.Size {
			return fmt.Errorf("%w: proof.path[%d] has %d bytes, not %d", ErrInvalid, i, len(hash), sha256.Size)
		}
	}
	leaf, err := message.CanonicalLeaf(transaction)
	if err != nil {
		return fmt.Errorf("%w: transaction: %w", ErrInvalid, err)
	}
	hasher := rfc6962.DefaultHasher
	root, err := merkle.RootFromInclusionProof(hasher, inclusion.GetLeafIndex(),
		inclusion.GetTreeSize(), hasher.HashLeaf(leaf),
		inclusion.GetPath())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if !bytes.Equal(root, header.GetTxRoot()) {
		return fmt.Errorf("%w: transaction and path lead to the root %x, but block_header.tx_root is %x", ErrInvalid,
			root,
			header.GetTxRoot())
	}
	return nil
}

// matchesHeader compares a transaction's block fields, which are not part of its encoding, with
// the header and the proof.
func matchesHeader(t *seqledgerv1.Transaction, header *seqledgerv1.BlockHeader,
	inclusion *seqledgerv1.MerkleProof) error {
	for _, field := range []struct {
		name string
		same bool
	}{
		{"block_header.scope", proto.Equal(header.GetScope(), t.GetScope())},
		{"block_header.height", header.GetHeight() == t.GetBlockHeight()},
		{"block_header.committed_at", proto.Equal(header.GetCommittedAt(), t.GetCommittedAt())},
		{"proof.leaf_index", inclusion.GetLeafIndex() == uint64(t.GetBlockPosition())},
	} {
		if !field.same {
			return fmt.Errorf("%w: %s does not match the transaction", ErrInvalid, field.name)
		}
	}
	if inclusion.GetTreeSize() != uint64(header.GetTxCount()) {
		return fmt.Errorf("%w: proof.tree_size is %d, but block_header.tx_count is %d", ErrInvalid,
			inclusion.GetTreeSize(), header.GetTxCount())
	}
	return nil
}

// VerifyReceipt checks the proof of a receipt that was asked for with include_proof, as [VerifyTransaction] does, and
// that the receipt agrees with the transaction. A receipt alone does not have all the hashed fields: get the
// transaction by the receipt's tx_id. The caller must compare the transaction's operations, client_id and
// idempotency_key with those it sent. No proof covers replayed.
func VerifyReceipt(receipt *seqledgerv1.Receipt, transaction *seqledgerv1.Transaction) error {
	for _, field := range []struct {
		name string
		same bool
	}{
		{"tx_id", receipt.GetTxId() == transaction.GetTxId()},
		{"sequence", receipt.GetSequence() == transaction.GetSequence()},
		{"session", receipt.GetSession() == transaction.GetSession()},
		{"index", receipt.GetIndex() == transaction.GetIndex()},
		{"block_height", receipt.GetBlockHeight() == transaction.GetBlockHeight()},
		{"block_position", receipt.GetBlockPosition() == transaction.GetBlockPosition()},
		{"committed_at", proto.Equal(receipt.GetCommittedAt(), transaction.GetCommittedAt())},
		{"actor", receipt.GetActor() == transaction.GetActor()},
		{"request_hash", receipt.GetRequestHash() == transaction.GetRequestHash()},
	} {
		if !field.same {
			return fmt.Errorf("%w: the receipt's %s does not match the transaction", ErrInvalid, field.name)
		}
	}
	if len(receipt.GetResults()) != len(transaction.GetOperations()) {
		return fmt.Errorf("%w: the receipt has %d results for %d operations", ErrInvalid, len(receipt.GetResults()),
			len(transaction.GetOperations()))
	}
	for i, result := range receipt.GetResults() {
		want, changed := transaction.GetIndex(), transaction.GetChanged()
		if len(changed) > 0 && (i/8 >= len(changed) || changed[i/8]>>(i%8)&1 == 0) {
			want = 0
		}
		if result.GetVersion() != want {
			return fmt.Errorf("%w: the receipt's results[%d] does not match the transaction", ErrInvalid, i)
		}
	}
	return VerifyTransaction(transaction, receipt.GetBlockHeader(), receipt.GetProof())
}

// PayloadHash computes the hash of a write's operations that a receipt of it shows, which verifies offline.
func PayloadHash(operations []*seqledgerv1.Operation) ([]byte, error) {
	encoded, err := message.CanonicalOperations(operations)
	hash := sha256.Sum256(encoded)
	return hash[:], err
}

// BlockHash computes the hash of a block from its header: 32 bytes of SHA-256. It equals Block.hash, and previous_hash
// of the next header. The error is an [ErrInvalid] for an invalid header.
func BlockHash(header *seqledgerv1.BlockHeader) ([]byte, error) {
	if len(header.GetPreviousHash()) != sha256.Size || len(header.GetTxRoot()) != sha256.Size {
		return nil, fmt.Errorf("%w: block_header: previous_hash and tx_root have %d and %d bytes, not %d", ErrInvalid,
			len(header.GetPreviousHash()), len(header.GetTxRoot()), sha256.Size)
	}
	encoded, err := message.CanonicalHeader(header)
	if err != nil {
		return nil, fmt.Errorf("%w: block_header: %w", ErrInvalid, err)
	}
	hash := sha256.Sum256(encoded)
	return hash[:], nil
}
