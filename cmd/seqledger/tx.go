package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/proof"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type txCommand struct {
	staleFlags  `embed:""`
	clientFlags `embed:""`
	ID          string  `arg:"" help:"Id of the transaction, from a receipt or a block."`
	Proof       bool    `help:"Add the block header and a Merkle proof, and check them." env:"-"`
	BlockHash   *string `help:"The same, and fail unless this is the hash of the block." env:"-" placeholder:"HASH"`
}

func (*txCommand) Help() string {
	return `With --proof the transaction is hashed here and led along the proof to the header of its block: every field
that is shown is in the block that has the hash shown last. That hash comes from the same server, so it only
says that its answer is not damaged or changed on the way. With --block-hash you say which hash the block must
have: one that you noted when the block was new, or that somebody else was given (seqledger list blocks,
block, watch), in hex or in the base64 of --json. Then the transaction is in the history that was seen there.

    seqledger tx 8f14e45f-ceea-867a-8000-000000000007
    seqledger tx 8f14e45f-ceea-867a-8000-000000000007 --proof
    seqledger tx 8f14e45f-ceea-867a-8000-000000000007 --json \
        --block-hash 3a7bd3e2360a3d29eea436fcfb7e44c735d117c42d1c1835420b6b9942dd4f1b`
}

func (c *txCommand) Run(e *environment) error {
	var wanted []byte
	if c.BlockHash != nil { // an empty value, as from an unset shell variable, must not skip the check
		if wanted = hashOf(*c.BlockHash); wanted == nil {
			return usage("--block-hash must be a hash of %d bytes, in hex or, as --json prints it, in base64",
				sha256.Size)
		}
	}
	prove := c.Proof || len(wanted) > 0
	return c.call(e, func(ctx context.Context, conn *client.Client) error {
		request := &seqledgerv1.GetTransactionRequest{TxId: c.ID, IncludeProof: prove}
		answer, err := conn.GetTransaction(c.context(ctx), request)
		if err != nil {
			return absent(err, "check the id and the server; seqledger state --receipts shows a client's ids",
				"there is no transaction %s, or none that this credential may read", c.ID)
		}
		var hash []byte
		if prove {
			if hash, err = c.check(answer, wanted); err != nil {
				return err // show nothing of the answer, because none of it may be true
			}
		}
		c.tell(e)
		return e.show(answer, func(t *table) {
			showTransaction(t, answer.GetTransaction())
			showProof(t, answer.GetBlockHeader(), answer.GetProof())
			if prove {
				t.field("checked", "the transaction is in the block with the hash "+hex.EncodeToString(hash))
			}
		})
	})
}

// hashOf reads a hash as seqledger prints it, in hex or with --json in base64. It returns nil if the text is neither.
func hashOf(text string) []byte {
	for _, decode := range []func(string) ([]byte, error){hex.DecodeString, base64.StdEncoding.DecodeString} {
		if hash, err := decode(text); err == nil && len(hash) == sha256.Size {
			return hash
		}
	}
	return nil
}

// check verifies the proof in an answer and returns the hash of the block.
func (c *txCommand) check(answer *seqledgerv1.GetTransactionResponse, wanted []byte) (hash []byte, err error) {
	if id := answer.GetTransaction().GetTxId(); !strings.EqualFold(id, c.ID) {
		return nil, fail(exitFailed, untrusted, "the server answered with another transaction, %s", id)
	}
	if err := proof.VerifyTransaction(answer.GetTransaction(), answer.GetBlockHeader(),
		answer.GetProof()); err != nil {
		return nil, fail(exitFailed, untrusted, "%w", err)
	}
	if hash, err = proof.BlockHash(answer.GetBlockHeader()); err != nil {
		return nil, fail(exitFailed, untrusted, "%w", err)
	}
	if len(wanted) > 0 && !bytes.Equal(hash, wanted) {
		return nil, fail(exitFailed, "the server's block is not the one that --block-hash names: "+
			"another ledger, or one that was restored, or a hash of another block",
			"the transaction is in block %d, which has the hash %x and not %x",
			answer.GetBlockHeader().GetHeight(), hash, wanted)
	}
	return hash, nil
}

// untrusted is the hint for an answer that contradicts its own proof.
const untrusted = "do not rely on this answer: ask again over TLS; if it persists, the server's data are " +
	"damaged or its answers are forged; seqledger verify checks its data directory"

// sameAnswer is the hint for a receipt that arrived and could not be checked.
const sameAnswer = "run it again with the sequence and the key above: the answer is the same receipt"

// checkReceipt follows the receipt's proof from the write to the header of its block and
// returns the block's hash as text. Because a receipt does not have all the hashed fields,
// checkReceipt gets the transaction and compares it with what was sent. Every error says that
// the server did answer the write.
func checkReceipt(
	ctx context.Context, conn *client.Client, request *seqledgerv1.WriteRequest, receipt *seqledgerv1.Receipt,
) (hash string, err error) {
	const answered = "the server says that sequence %d is committed, "
	sequence := request.GetSequence()
	answer, err := conn.GetTransaction(ctx, &seqledgerv1.GetTransactionRequest{TxId: receipt.GetTxId()})
	if err != nil {
		return "", fail(exitFailed, sameAnswer,
			answered+"but its proof cannot be checked without the transaction: %w", sequence, err)
	}
	transaction := answer.GetTransaction()
	// A repeat gets the receipt of the first write, which may have been sent without the key,
	// under an older session, or, with the same key, under another number.
	repeat := receipt.GetReplayed()
	sameKey := strings.EqualFold(request.GetIdempotencyKey(), transaction.GetIdempotencyKey())
	sameSequence := sequence == transaction.GetSequence()
	known := sameKey && request.GetIdempotencyKey() != ""
	for _, field := range []struct {
		name string
		same bool
	}{
		{"scope", proto.Equal(request.GetScope(), transaction.GetScope())},
		{"client_id", request.GetClientId() == transaction.GetClientId()},
		{"session", repeat || request.GetSession() == transaction.GetSession()},
		{"sequence", sameSequence || repeat && known},
		{"idempotency_key", sameKey || repeat && sameSequence},
		{"operations", sameOperations(request.GetOperations(), transaction.GetOperations())},
	} {
		if !field.same {
			return "", fail(exitFailed, untrusted, answered+"but the %s of transaction %s is not what was sent",
				sequence, field.name, receipt.GetTxId())
		}
	}
	if err := proof.VerifyReceipt(receipt, transaction); err != nil {
		return "", fail(exitFailed, untrusted, answered+"but its proof does not hold: %w", sequence, err)
	}
	block, err := proof.BlockHash(receipt.GetBlockHeader())
	if err != nil {
		return "", fail(exitFailed, untrusted, answered+"but: %w", sequence, err)
	}
	return hex.EncodeToString(block), nil
}

func sameOperations(sent, stored []*seqledgerv1.Operation) bool {
	if len(sent) != len(stored) {
		return false
	}
	for i := range sent {
		if !proto.Equal(sent[i], stored[i]) {
			return false
		}
	}
	return true
}
