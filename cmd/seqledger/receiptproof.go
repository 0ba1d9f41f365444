package main

import (
	"context"
	"encoding/hex"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/proof"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

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
