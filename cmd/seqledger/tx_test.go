package main

import (
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

var provenScope = &seqledgerv1.Scope{Organization: "acme", Vault: "main"}

// TestTxChecksItsProof without being asked, and against a hash from elsewhere when
// it is given one.
func TestTxChecksItsProof(t *testing.T) {
	t.Parallel()
	s := serve(t)
	written := s.do(t, "write", "--scope", "acme/main", "--client-id", "c", "--set", "a=1", "--json").expect(t,
		exitDone)
	id := written.field(t, "txId").(string)
	block := must.Get(s.client(t).GetBlock(t.Context(), &seqledgerv1.GetBlockRequest{Scope: provenScope, Height: 1}))(t)
	hash := hex.EncodeToString(block.GetHash())
	s.do(t, "tx", id, "--proof").expect(t, exitDone, "leaf 0 of 1", "checked", hash)
	s.do(t, "tx", strings.ToUpper(id), "--block-hash", strings.ToUpper(hash)).expect(t,
		exitDone, "leaf 0 of 1", "checked", hash)
	if r := s.do(t, "tx", id, "--block-hash", hash, "--json").expect(t, exitDone); r.field(t, "proof") == nil {
		t.Errorf("want the proof in the answer, got %v", r)
	}
	if r := s.do(t, "tx", id).expect(t, exitDone); strings.Contains(r.stdout, "checked") {
		t.Errorf("nothing was checked, and the answer is %v", r)
	}
	other := strings.Repeat("0", 63) + "1"
	for _, args := range [][]string{{"tx", id, "--block-hash", other}, {"tx", id, "--block-hash", other, "--json"}} {
		check.Equal(t, s.do(t, args...).expect(t, exitFailed, hash, other, "another block").stdout, "",
			"want nothing shown: got %v")
	}
	s.do(t, "tx", id, "--block-hash", hash[2:]).expect(t, exitUsage, "in hex or")
	s.do(t, "tx", id, "--block-hash", "").expect(t, exitUsage, "in hex or") // as of a script's variable that is not set
	s.do(t, "tx", id, "--block-hash", hash[1:]+"x").expect(t, exitUsage, "in hex or")
}

// falseServer passes the answers of a real one on and changes them.
type falseServer struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler
	real   *client.Client
	change func(*seqledgerv1.GetTransactionResponse)
	// changeReceipt is for Write; nil leaves it as it is.
	changeReceipt func(*seqledgerv1.Receipt)
	refuse        bool // every GetTransaction
}

// serve returns its address.
func (f *falseServer) serve(t *testing.T) string {
	t.Helper()
	return serveHandler(t, f)
}

// serveHandler serves a ledger, or what says that it is one, and returns the address.
func serveHandler(t *testing.T, f any) string {
	t.Helper()
	mux := http.NewServeMux()
	switch f := f.(type) {
	case seqledgerv1connect.LedgerServiceHandler:
		mux.Handle(seqledgerv1connect.NewLedgerServiceHandler(f))
	case seqledgerv1connect.AdminServiceHandler:
		mux.Handle(seqledgerv1connect.NewAdminServiceHandler(f))
	default:
		t.Fatalf("%T is not a service", f)
	}
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func (f *falseServer) Write(
	ctx context.Context, r *connect.Request[seqledgerv1.WriteRequest],
) (*connect.Response[seqledgerv1.WriteResponse], error) {
	receipt, err := f.real.Write(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	if f.changeReceipt != nil {
		f.changeReceipt(receipt)
	}
	return connect.NewResponse(&seqledgerv1.WriteResponse{Receipt: receipt}), nil
}

func (f *falseServer) GetTransaction(
	ctx context.Context, r *connect.Request[seqledgerv1.GetTransactionRequest],
) (*connect.Response[seqledgerv1.GetTransactionResponse], error) {
	if f.refuse {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is none"))
	}
	answer, err := f.real.GetTransaction(ctx, r.Msg)
	if err != nil {
		return nil, err
	}
	if f.change != nil {
		f.change(answer)
	}
	return connect.NewResponse(answer), nil
}

// TestTxRefusesAFalseAnswer and shows nothing of it.
func TestTxRefusesAFalseAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t)
	written := s.do(t, "write", "--scope", "acme/main", "--client-id", "c", "--set", "a=1", "--json").expect(t,
		exitDone)
	s.do(t, "write", "--scope", "acme/main", "--client-id", "c", "--set", "a=2").expect(t, exitDone)
	id := written.field(t, "txId").(string)
	real := s.client(t)
	for name, test := range map[string]struct {
		change func(*seqledgerv1.GetTransactionResponse)
		says   string
	}{
		"another value": {func(a *seqledgerv1.GetTransactionResponse) {
			a.GetTransaction().GetOperations()[0].GetSetEntity().Value = []byte("1000000")
		}, "proof does not hold"},
		"another root": {func(a *seqledgerv1.GetTransactionResponse) { a.GetBlockHeader().TxRoot[0] ^= 1 },
			"proof does not hold"},
		"no proof": {func(a *seqledgerv1.GetTransactionResponse) { a.BlockHeader, a.Proof = nil, nil },
			"include_proof"},
		"another transaction": {func(a *seqledgerv1.GetTransactionResponse) {
			block, err := real.GetBlock(t.Context(), &seqledgerv1.GetBlockRequest{Scope: provenScope, Height: 2})
			if err != nil {
				t.Error(err)
				return
			}
			a.Transaction, a.BlockHeader = block.GetTransactions()[0], block.GetHeader()
		}, "another transaction"},
	} {
		address := (&falseServer{real: real, change: test.change}).serve(t)
		for _, format := range []string{"--json=true", "--json=false"} {
			r := seqledger(t, "tx", id, "--proof", format, "--server", address).expect(t, exitFailed,
				test.says, "do not rely on this answer")
			if r.stdout != "" {
				t.Errorf("%s: want nothing shown, got %v", name, r)
			}
		}
	}
}

// TestWriteRefusesAFalseReceipt when it asked for a proof: what the server says of
// the write is not what was sent, or does not hold.
func TestWriteRefusesAFalseReceipt(t *testing.T) {
	t.Parallel()
	s := serve(t)
	real := s.client(t)
	type answer = seqledgerv1.GetTransactionResponse
	write := func(address, id string, more ...string) result {
		t.Helper()
		args := []string{"write", "--server", address, "--scope", "acme/main",
			"--client-id", id, "--set", "a=1", "--include-proof"}
		return seqledger(t, append(append(args, "--sequence", "1", "--key", "8F14E45F-CEEA-467A-8000-00000000000A"),
			more...)...)
	}
	asked := write(s.address, "c").expect(t, exitDone, "checked")
	block, err := real.GetBlock(t.Context(), &seqledgerv1.GetBlockRequest{Scope: provenScope, Height: 1})
	if err != nil || !strings.Contains(asked.stdout, hex.EncodeToString(block.GetHash())) {
		t.Errorf("want the hash of the block (%v), got %v", err, asked)
	}
	for says, server := range map[string]*falseServer{
		"scope":           {change: func(a *answer) { a.GetTransaction().Scope.Vault = "other" }},
		"client_id":       {change: func(a *answer) { a.GetTransaction().ClientId = "d" }},
		"session":         {change: func(a *answer) { a.GetTransaction().Session = 1 }},
		"sequence of":     {change: func(a *answer) { a.GetTransaction().Sequence = 2 }},
		"idempotency_key": {change: func(a *answer) { a.GetTransaction().IdempotencyKey = "" }},
		"operations": {change: func(a *answer) {
			a.GetTransaction().GetOperations()[0].GetSetEntity().Value = []byte("2")
		}},
		"operations of":     {change: func(a *answer) { a.GetTransaction().Operations = nil }},
		"actor":             {changeReceipt: func(r *seqledgerv1.Receipt) { r.Actor = "user:mallory" }},
		"proof":             {changeReceipt: func(r *seqledgerv1.Receipt) { r.BlockHeader.TxRoot[0] ^= 1 }},
		"include_proof":     {changeReceipt: func(r *seqledgerv1.Receipt) { r.BlockHeader, r.Proof = nil, nil }},
		"cannot be checked": {refuse: true},
	} {
		server.real = real
		r := write(server.serve(t), strings.ReplaceAll(says, " ", "-")).expect(t, exitFailed, says,
			"sequence 1 is committed")
		if r.stdout != "" {
			t.Errorf("%s: want nothing shown, got %v", says, r)
		}
	}
	honest := (&falseServer{real: real}).serve(t)
	write(honest, "c").expect(t, exitDone, "replayed", "checked")
	// Only in a repeat may number or key be others than those that were sent, and
	// never both.
	change := func(a *answer) { a.GetTransaction().Sequence, a.GetTransaction().IdempotencyKey = 2, "" }
	write((&falseServer{real: real, change: change}).serve(t), "c").expect(t, exitFailed, "sequence of")
}

const repeatedKey = "8f14e45f-ceea-467a-8000-00000000000a"

// TestProofOfAReplay: an honest server answers a repeat with the original
// receipt, also when the repeat leaves the key away, gives one for the first time,
// has another number under the same key, or is made under a newer session (rules 4
// and 6). None of these is a lie.
func TestProofOfAReplay(t *testing.T) {
	t.Parallel()
	s := serve(t)
	write := func(client string, args ...string) result {
		t.Helper()
		return s.do(t, append([]string{"write", "--scope", "acme/main", "--client-id", client, "--set", client + "=1"},
			args...)...)
	}
	for name, test := range map[string]struct{ first, again []string }{
		"key-left-away":    {[]string{"--sequence", "1", "--key", repeatedKey}, []string{"--sequence", "1"}},
		"key-added":        {[]string{"--sequence", "1"}, []string{"--sequence", "1", "--key", repeatedKey}},
		"number-left-away": {[]string{"--key", repeatedKey}, []string{"--key", repeatedKey}},
	} {
		t.Run(name, func(t *testing.T) {
			write(name, test.first...).expect(t, exitDone)
			write(name, test.again...).expect(t, exitDone, "replayed")
			write(name, append(test.again, "--include-proof")...).expect(t, exitDone, "replayed", "checked")
		})
	}
	t.Run("newer-session", func(t *testing.T) {
		write("s", "--sequence", "1", "--key", repeatedKey).expect(t, exitDone)
		opened := s.do(t, "session", "open", "--scope", "acme/main", "--client-id", "s", "--json").expect(t, exitDone)
		session := opened.field(t, "state").(map[string]any)["session"].(string)
		again := []string{"--sequence", "1", "--key", repeatedKey, "--session", session}
		write("s", again...).expect(t, exitDone, "replayed")
		write("s", append(again, "--include-proof")...).expect(t, exitDone, "replayed", "checked")
	})
}
