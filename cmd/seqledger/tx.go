package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/proof"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// txCommand reads one transaction.
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
