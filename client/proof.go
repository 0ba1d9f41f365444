package client

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"google.golang.org/protobuf/proto"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// ErrProof says that an answer and the proof that came with it contradict each
// other. Either the server's data are damaged, or something on the way has changed the
// answer, or the proof is of another transaction.
var ErrProof = errors.New("client: the proof does not hold")

// VerifyTransaction checks that a transaction, every field of it, is in the
// block that header names: its canonical encoding (ledger/FORMAT.md) is hashed
// and led along the proof to header's tx_root, as in RFC 6962. Transaction,
// header and proof are what GetTransaction answers with include_proof. Any
// error is an [ErrProof] that names what does not fit.
//
// What that is worth depends on the header. Together with the answer it comes
// from the same server, and then shows that the answer fits itself. To show that
// the transaction is in the history that others see, compare [BlockHash] of the
// header with a hash that was noted before or elsewhere, of this block or, over
// the previous_hash of each block between, of a later one.
func VerifyTransaction(
	transaction *seqledgerv1.Transaction, header *seqledgerv1.BlockHeader, inclusion *seqledgerv1.MerkleProof,
) error {
	switch {
	case transaction == nil:
		return fmt.Errorf("%w: there is no transaction", ErrProof)
	case header == nil || inclusion == nil:
		return fmt.Errorf("%w: there is none; ask for it with include_proof", ErrProof)
	case transaction.GetFirstOperation() != 0:
		return fmt.Errorf("%w: it is that of a whole transaction, and this is a part: put its parts together first", ErrProof)
	}
	if err := matchesHeader(transaction, header, inclusion); err != nil {
		return err
	}
	if _, err := BlockHash(header); err != nil {
		return err
	}
	for i, hash := range inclusion.GetPath() {
		if len(hash) != sha256.Size {
			return fmt.Errorf("%w: proof.path[%d] has %d bytes, not %d", ErrProof, i, len(hash), sha256.Size)
		}
	}
	leaf, err := canonicalTransaction(transaction)
	if err != nil {
		return fmt.Errorf("%w: transaction: %w", ErrProof, err)
	}
	hasher := rfc6962.DefaultHasher
	root, err := proof.RootFromInclusionProof(hasher, inclusion.GetLeafIndex(), inclusion.GetTreeSize(), hasher.HashLeaf(leaf),
		inclusion.GetPath())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProof, err)
	}
	if !bytes.Equal(root, header.GetTxRoot()) {
		return fmt.Errorf("%w: transaction and path lead to the root %x, and block_header.tx_root is %x", ErrProof, root, header.GetTxRoot())
	}
	return nil
}

// matchesHeader compares what a transaction says of its block, which is no part
// of its encoding, with the header and the proof.
func matchesHeader(t *seqledgerv1.Transaction, header *seqledgerv1.BlockHeader, inclusion *seqledgerv1.MerkleProof) error {
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
			return fmt.Errorf("%w: %s is not the transaction's", ErrProof, field.name)
		}
	}
	if inclusion.GetTreeSize() != uint64(header.GetTxCount()) {
		return fmt.Errorf("%w: proof.tree_size is %d, and block_header.tx_count %d", ErrProof, inclusion.GetTreeSize(), header.GetTxCount())
	}
	return nil
}

// VerifyReceipt checks the proof of a receipt that was asked for with
// include_proof, as [VerifyTransaction] does, and that the receipt says the same
// as the transaction. A receipt alone does not have everything that is hashed:
// get the transaction by the receipt's tx_id. That its operations, client_id and
// idempotency_key are those that were sent is for the caller to compare. What the
// operations found to change (results) and replayed are in no proof.
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
			return fmt.Errorf("%w: the receipt's %s is not the transaction's", ErrProof, field.name)
		}
	}
	return VerifyTransaction(transaction, receipt.GetBlockHeader(), receipt.GetProof())
}

// BlockHash returns the hash of a block, SHA-256 in 32 bytes, as it follows from
// its header: what Block.hash says, and previous_hash of the next header. The
// error is an [ErrProof] for a header that no block has.
func BlockHash(header *seqledgerv1.BlockHeader) ([]byte, error) {
	if len(header.GetPreviousHash()) != sha256.Size || len(header.GetTxRoot()) != sha256.Size {
		return nil, fmt.Errorf("%w: block_header: previous_hash and tx_root have %d and %d bytes, not %d", ErrProof,
			len(header.GetPreviousHash()), len(header.GetTxRoot()), sha256.Size)
	}
	committed, err := canonicalTime(header.GetCommittedAt())
	if err != nil {
		return nil, fmt.Errorf("%w: block_header: committed_at %w", ErrProof, err)
	}
	// Leaves and nodes of a Merkle tree are hashed behind a 0 and a 1; the other
	// prefix keeps a header from passing for one of them.
	const headerPrefix, headerVersion = 2, 1
	encoded := []byte{headerPrefix, headerVersion}
	encoded = appendBytes(encoded, header.GetScope().GetOrganization())
	encoded = appendBytes(encoded, header.GetScope().GetVault())
	encoded = binary.AppendUvarint(encoded, header.GetHeight())
	encoded = append(encoded, header.GetPreviousHash()...)
	encoded = append(encoded, header.GetTxRoot()...)
	encoded = binary.AppendUvarint(encoded, uint64(header.GetTxCount()))
	encoded = binary.BigEndian.AppendUint64(encoded, committed)
	hash := sha256.Sum256(encoded)
	return hash[:], nil
}
