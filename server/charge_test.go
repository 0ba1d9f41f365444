package server_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// spender makes the calls of one credential.
type spender struct {
	t       *testing.T
	ctx     context.Context //nolint:containedctx // that of the test
	writes  seqledgerv1connect.LedgerServiceClient
	records seqledgerv1connect.IdempotencyServiceClient
}

func (s *spender) write(client string, sequence uint64, ops ...*seqledgerv1.Operation) {
	s.t.Helper()
	s.writeIn("main", client, sequence, ops...)
}

func (s *spender) writeIn(vault, client string, sequence uint64, ops ...*seqledgerv1.Operation) {
	s.t.Helper()
	m := writeOf(client, sequence, ops...)
	m.Scope.Vault = vault
	must.Get(s.writes.Write(s.ctx, connect.NewRequest(m)))(s.t)
}

func (s *spender) open(client string, attempt int) {
	s.t.Helper()
	id := binary.BigEndian.AppendUint64(make([]byte, 8), uint64(attempt))
	must.Get(s.writes.OpenSession(s.ctx, connect.NewRequest(&seqledgerv1.OpenSessionRequest{
		Scope: scope(), ClientId: client, AttemptId: id,
	})))(s.t)
}

func (s *spender) reserve(key string) *seqledgerv1.Ownership {
	s.t.Helper()
	r := reserveOf(key, 1)
	return ownerOf(r, reply(s.t, s.records.Reserve, r).Token)
}

func (s *spender) complete(i, response int) {
	s.t.Helper()
	reply(s.t, s.records.Complete, &seqledgerv1.CompleteRequest{
		Owner: s.reserve(short(i)), Response: []byte(incompressible(response)),
	})
}

func expiring(o *seqledgerv1.Operation) *seqledgerv1.Operation {
	o.GetSetEntity().ExpiresAt = timestamppb.New(time.Now().Add(time.Hour))
	return o
}

// thousand returns a thousand operations, the ith time others than before.
func thousand(i int, op func(j int) *seqledgerv1.Operation) (ops []*seqledgerv1.Operation) {
	for j := range 1_000 {
		ops = append(ops, op(1_000*i+j))
	}
	return ops
}

// short is a name for a number. Names do not come in their order, because that would fill pages of the state file in a
// way that a client does not.
func short(i int) string { return fmt.Sprint("k", i*7919%100_000) }

// long is a text that ends with a number and has as many bytes as a client id may have.
func long(i int) string { return fmt.Sprintf("%s%08d", strings.Repeat("k", 241), i*7919%100_000_000) }

// spending is calls of one kind.
type spending struct {
	n  int
	do func(s *spender, i int)
}

var spendings = map[string]spending{
	"tiny appends, alone": {300, func(s *spender, i int) { s.write("c", uint64(i)+1, appendOp("x")) }},
	"tiny appends, together": {20, func(s *spender, i int) {
		var batch []*seqledgerv1.WriteRequest
		for j := range 100 {
			batch = append(batch, writeOf("c", uint64(100*i+j+1), appendOp("x")))
		}
		if _, err := s.writes.WriteBatch(s.ctx, batchOf(batch...)); err != nil {
			s.t.Error(err)
		}
	}},
	"large appends": {20, func(s *spender, i int) {
		s.write("c", uint64(i)+1, appendOp(incompressible(40<<10)))
	}},
	"compared values": {20, func(s *spender, i int) {
		op := setOp("k", strings.Repeat("v", 40<<10))
		if i > 0 {
			op.GetSetEntity().Condition = &seqledgerv1.Condition{
				Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: op.GetSetEntity().Value},
			}
		}
		s.write("c", uint64(i)+1, op)
	}},
	"one-shot clients":    {300, func(s *spender, i int) { s.write(short(i), 1, appendOp("x")) }},
	"one-shot, long":      {300, func(s *spender, i int) { s.write(long(i), 1, appendOp("x")) }},
	"one-shot vaults":     {300, func(s *spender, i int) { s.writeIn(long(i)[121:], "c", 1, appendOp("x")) }},
	"sessions":            {500, func(s *spender, i int) { s.open(short(i), i+1) }},
	"sessions, long":      {300, func(s *spender, i int) { s.open(long(i), i+1) }},
	"entities":            {300, func(s *spender, i int) { s.write("c", uint64(i)+1, setOp(short(i), "v")) }},
	"entities, long":      {300, func(s *spender, i int) { s.write("c", uint64(i)+1, setOp(long(i), "v")) }},
	"entities, set again": {300, func(s *spender, i int) { s.write("c", uint64(i)+1, setOp("k", "v")) }},
	"expiring, long":      {300, func(s *spender, i int) { s.write("c", uint64(i)+1, expiring(setOp(long(i), "v"))) }},
	"expiring, many": {4, func(s *spender, i int) {
		s.write("c", uint64(i)+1, thousand(i, func(j int) *seqledgerv1.Operation {
			return expiring(setOp(short(j), "v"))
		})...)
	}},
	"relationships": {4, func(s *spender, i int) {
		s.write("c", uint64(i)+1, thousand(i, func(j int) *seqledgerv1.Operation {
			return relateOp(short(j), "reads", "me")
		})...)
	}},
	"reserved":         {300, func(s *spender, i int) { s.reserve(short(i)) }},
	"completed, small": {300, func(s *spender, i int) { s.complete(i, 100) }},
	"completed, 600":   {300, func(s *spender, i int) { s.complete(i, 600) }},
	"completed, large": {100, func(s *spender, i int) { s.complete(i, 10_000) }},
	"keyed writes": {300, func(s *spender, i int) {
		w := keyedWrite(short(i), "v")
		w.Operations = []*seqledgerv1.Operation{appendOp("x")}
		if _, err := s.writes.Write(s.ctx, connect.NewRequest(w)); err != nil {
			s.t.Error(err)
		}
	}},
}

// Every kind of command is charged about what the disk keeps of it, so that none fills the disk at a fraction of its
// price.
func TestChargesAreWhatTheDiskKeeps(t *testing.T) {
	t.Parallel()
	empty := keptAfter(t, spending{}, nil)
	for name, test := range spendings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var charged uint64
			kept := keptAfter(t, test, &charged) - empty
			const least, most = 0.75, 1.6
			part := float64(charged) / float64(kept)
			t.Logf("each of %d: %d bytes charged, %d kept", test.n, charged/uint64(test.n), int(kept)/test.n)
			if part < least || part > most {
				t.Errorf("%.2f of what the disk keeps is charged, want %.2f to %.2f", part, least, most)
			}
		})
	}
}

// keptAfter returns how many bytes a ledger has on the disk after some calls, and says what their credential is
// charged.
func keptAfter(t *testing.T, test spending, charged *uint64) int64 {
	t.Helper()
	dir := t.TempDir()
	l := must.Get(ledger.Open(t.Context(), ledger.Options{
		Dir: dir, Logger: slog.New(slog.DiscardHandler), LogBytes: 8 << 20,
	}))(t)
	g := guard(t, server.Options{Ledger: l}, map[string]string{
		"spender": `role: writer, scopes: ["acme/*"], client_ids: ["*"]`,
	})
	writes, admin := g.as("spender")
	s := &spender{t, t.Context(), writes, g.records("spender")}
	for i := range test.n {
		test.do(s, i)
	}
	if charged != nil {
		answer := must.Get(admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
		*charged = answer.Msg.Status.Caller.StoredBytes
	}
	must.Do(t, errors.Join(g.stop(), l.Close()))
	return diskOf(t, dir)
}

// A credential that may store nothing more opens no sessions and reserves no keys either. What it repeats is still
// answered.
func TestNothingIsStoredForNothing(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"small": `role: writer, scopes: [acme/main], client_ids: ["*"], limits: {stored_bytes: 20000}`,
	})
	l, admin := g.as("small")
	records := g.records("small")
	stored := func() uint64 {
		answer := must.Get(admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
		return answer.Msg.Status.Caller.StoredBytes
	}
	open := func(client string, attempt byte) error {
		_, err := l.OpenSession(within(t), connect.NewRequest(&seqledgerv1.OpenSessionRequest{
			Scope: scope(), ClientId: client, AttemptId: bytes.Repeat([]byte{attempt}, 16),
		}))
		return err
	}
	must.Do(t, errors.Join(open("c", 1), open("c", 2)))
	reply(t, records.Reserve, reserveOf("mine", 1))
	before := stored()
	if err := open("c", 2); err != nil || stored() != before {
		t.Errorf("a repeated OpenSession: %v, is charged %d bytes", err, stored()-before)
	}
	reply(t, records.Reserve, reserveOf("mine", 1))
	if n := stored(); n != before {
		t.Errorf("a repeated Reserve is charged %d bytes", n-before)
	}
	for i := 0; ; i++ {
		if i > 20 {
			t.Fatal(i, "sessions with long names are opened for 20,000 bytes")
		}
		if err := open(long(i), 1); err != nil {
			mustRefuse(t, err, connect.CodeResourceExhausted, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
			break
		}
	}
	mustRefuse(t, call(t, records.Reserve, reserveOf("other", 1)), connect.CodeResourceExhausted,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_QUEUE_FULL)
}

// diskOf returns the bytes of a closed ledger's state and blocks. bbolt makes its file larger in steps of 16 MiB, so
// only what it uses of it counts.
func diskOf(t *testing.T, dir string) (n int64) {
	t.Helper()
	db := must.Get(bbolt.Open(filepath.Join(dir, "state.db"), 0o600, &bbolt.Options{ReadOnly: true}))(t)
	defer db.Close()
	must.Do(t, db.View(func(tx *bbolt.Tx) error {
		n = tx.Size()
		return nil
	}))
	names := must.Get(filepath.Glob(filepath.Join(dir, "blocks", "*")))(t)
	for _, name := range names {
		info := must.Get(os.Stat(name))(t)
		n += info.Size()
	}
	return n
}
