package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/client/op"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// human returns what people would see of an answer.
func human(t *testing.T, show func(*table)) string {
	t.Helper()
	var out bytes.Buffer
	e := &environment{stdout: &out}
	must.Do(t, e.show(nil, show))
	return out.String()
}

// expectLines fails unless the output has each of the lines, spaces aside.
func expectLines(t *testing.T, output string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !slices.ContainsFunc(strings.Split(output, "\n"), func(got string) bool {
			return strings.Join(strings.Fields(got), " ") == line
		}) {
			t.Errorf("want the line %q in\n%s", line, output)
		}
	}
}

func TestShowReceipt(t *testing.T) {
	t.Parallel()
	at := timestamppb.New(time.Date(2030, 1, 31, 12, 0, 0, 5, time.UTC))
	receipt := &seqledgerv1.Receipt{
		TxId: "tx", Sequence: 7, Session: 3, Index: 9, BlockHeight: 4, BlockPosition: 2,
		CommittedAt: at, Actor: "system:anonymous",
		RequestHash: "ab", Replayed: true, Results: []*seqledgerv1.OperationResult{{}, {Version: 9}},
		BlockHeader: &seqledgerv1.BlockHeader{TxRoot: []byte{0xab}},
		Proof:       &seqledgerv1.MerkleProof{LeafIndex: 2, TreeSize: 5, Path: [][]byte{{1}, {2}}},
	}
	output := human(t, func(table *table) { showReceipt(table, receipt) })
	expectLines(t, output, "sequence 7", "transaction tx", "session 3", "index 9", "block 4, position 2",
		"committed 2030-01-31T12:00:00.000000005Z", "actor system:anonymous", "request hash ab",
		"replayed yes, it had been committed before", "operation 1 version 9",
		"block tx root ab", "proof leaf 2 of 5", "proof path 0 01", "proof path 1 02")
	if strings.Contains(output, "operation 0") {
		t.Errorf("want no version for an operation that changed nothing, got\n%s", output)
	}
	// What is not there is not shown.
	plain := human(t, func(table *table) { showReceipt(table, &seqledgerv1.Receipt{TxId: "tx", Sequence: 7}) })
	for _, absent := range []string{"session", "replayed", "proof", "committed"} {
		if strings.Contains(plain, absent) {
			t.Errorf("want no %s, got\n%s", absent, plain)
		}
	}
}

func TestShowTransaction(t *testing.T) {
	t.Parallel()
	tx := &seqledgerv1.Transaction{
		TxId: "tx", Scope: &seqledgerv1.Scope{Organization: "acme", Vault: "main"}, ClientId: "till-7",
		Sequence: 7, IdempotencyKey: "key", Index: 9,
		Operations: []*seqledgerv1.Operation{
			op.Set("k", []byte("v")),
			{Operation: &seqledgerv1.Operation_DeleteEntity{DeleteEntity: &seqledgerv1.DeleteEntity{Key: "k\x1b"}}},
			{Operation: &seqledgerv1.Operation_ExpireEntity{ExpireEntity: &seqledgerv1.ExpireEntity{Key: "old"}}},
			op.Append([]byte{0}),
			{},
		},
	}
	output := human(t, func(table *table) { showTransaction(table, tx) })
	expectLines(t, output, "transaction tx", "scope acme/main", "client till-7", "sequence 7", "key key", "index 9",
		"set k=v", "delete base64:axs=", "expire old", "append base64:AA==", "unknown")
}

func TestShowClientState(t *testing.T) {
	t.Parallel()
	state := &seqledgerv1.ClientState{
		Status: seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE, LastCommittedSequence: 7, Session: 3, CreatedIndex: 1,
		LastIdempotencyKey: "key", LastRequestHash: "ab", ReceiptWindow: 64,
		Receipts: []*seqledgerv1.Receipt{{Sequence: 7}, {Sequence: 6}},
	}
	expectLines(t, human(t, func(table *table) { showClientState(table, state) }),
		"status active", "last sequence 7", "session 3", "created at index 1", "last key key", "last request hash ab",
		"receipt window 64", "sequence 7", "sequence 6")
	expectLines(t, human(t, func(table *table) {
		showClientState(table, &seqledgerv1.ClientState{Status: seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN})
	}),
		"status unknown", "last sequence 0")
}

// TestUntilSignalEnds expects the goroutine behind a context to be gone when its
// stop has returned: every command line makes one.
func TestUntilSignalEnds(t *testing.T) {
	t.Parallel()
	ctx, stop := untilSignal(t.Context())
	check.Is(t, ctx.Err(), nil, "want a live context")
	stop()
	if ctx.Err() == nil {
		t.Error("want the context ended by its stop")
	}
}

// TestLoopback: other machines must not be able to write.
func TestLoopback(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]bool{
		"127.0.0.1:0": true, "127.1.2.3:80": true, "[::1]:0": true, "localhost:1": true,
		"0.0.0.0:0": false, "[::]:0": false, ":0": false, "10.0.0.1:0": false, "example.com:0": false,
		"[::ffff:10.0.0.1]:0": false, "127.0.0.1": false, "": false, "localhost.example.com:1": false,
	} {
		host, err := checkListen("--listen", listen)
		if got := err == nil && loopbackName(host); got != want {
			t.Errorf("%q: want loopback: %v, got %q, %v", listen, want, host, err)
		}
	}
}
