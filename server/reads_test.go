package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

func (h *harness) clientState(t testing.TB, m *seqledgerv1.GetClientStateRequest) *seqledgerv1.ClientState {
	t.Helper()
	m.Scope = scope()
	answer := must.Get(h.client.GetClientState(t.Context(), connect.NewRequest(m)))(t)
	return answer.Msg.State
}

func TestClientState(t *testing.T) {
	t.Parallel()
	h := start(t)
	absent := h.clientState(t, &seqledgerv1.GetClientStateRequest{ClientId: "c"})
	if absent.Status != seqledgerv1.ClientStatus_CLIENT_STATUS_UNKNOWN || absent.LastCommittedSequence != 0 ||
		absent.ExpiresAt != nil {
		t.Error("no stream:", absent)
	}
	absent = h.clientState(t, &seqledgerv1.GetClientStateRequest{ClientId: "c", Session: 1})
	if absent.Status != seqledgerv1.ClientStatus_CLIENT_STATUS_EXPIRED {
		t.Error("no stream, and a session that rule 1 would refuse:", absent)
	}
	const key = "00112233-4455-6677-8899-aabbccddeeff"
	var receipts []*seqledgerv1.Receipt
	for i := range uint64(3) {
		m := writeOf("c", i+1, appendOp(fmt.Sprint(i)), setOp("k", fmt.Sprint(i)))
		if i == 2 {
			m.IdempotencyKey = key
		}
		receipts = append(receipts, h.mustWrite(t, m))
	}
	s := h.clientState(t, &seqledgerv1.GetClientStateRequest{ClientId: "c", IncludeReceipts: true})
	if s.Status != seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE || s.LastCommittedSequence != 3 ||
		s.CreatedIndex != receipts[0].Index || s.LastIdempotencyKey != key ||
		s.LastRequestHash != receipts[2].RequestHash ||
		s.ReceiptWindow != 64 || s.Session != 0 {
		t.Error(s)
	}
	if ttl := s.ExpiresAt.AsTime().Sub(s.LastSeen.AsTime()); ttl != 24*time.Hour ||
		!proto.Equal(s.LastSeen, receipts[2].CommittedAt) {
		t.Error("expires_at must be last_seen and the TTL:", s)
	}
	must.Equal(t, len(s.Receipts), 3, "%v: %v", s.Receipts)
	for i, r := range s.Receipts { // newest first
		if !proto.Equal(r, receipts[2-i]) {
			t.Errorf("receipt %d is %v, want %v", i, r, receipts[2-i])
		}
	}
	if s := h.clientState(t, &seqledgerv1.GetClientStateRequest{ClientId: "c"}); len(s.Receipts) != 0 {
		t.Error("receipts that nobody asked for:", s.Receipts)
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.mustWrite(t, writeOf("c", 1, appendOp("x")))
	open := func(attempt byte, expected uint64) (*seqledgerv1.OpenSessionResponse, error) {
		answer, err := h.client.OpenSession(t.Context(), connect.NewRequest(&seqledgerv1.OpenSessionRequest{
			Scope: scope(), ClientId: "c", AttemptId: bytes.Repeat([]byte{attempt}, 16), ExpectedSession: expected,
		}))
		if err != nil {
			return nil, err
		}
		return answer.Msg, nil
	}
	first, err := open(1, 0)
	if err != nil || first.PreviousSession != 0 || first.State.Session == 0 || first.State.LastCommittedSequence != 1 ||
		first.State.LastRequestHash == "" || first.State.Status != seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE {
		t.Fatal(first, err)
	}
	again, err := open(1, 0)
	if err != nil || again.State.Session != first.State.Session || again.PreviousSession != 0 {
		t.Error("a repeated attempt gets the same session and fences nobody:", again, err)
	}
	_, err = h.client.Write(t.Context(), connect.NewRequest(writeOf("c", 2, appendOp("x"))))
	mustRefuse(t, err, connect.CodeFailedPrecondition, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_REQUIRED)
	second := must.Get(open(2, first.State.Session))(t)
	must.Equal(t, second.PreviousSession, first.State.Session)
	_, err = open(3, first.State.Session)
	mustRefuse(t, err, connect.CodeFailedPrecondition, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED)
	fenced := writeOf("c", 2, appendOp("x"))
	fenced.Session = first.State.Session
	_, err = h.client.Write(t.Context(), connect.NewRequest(fenced))
	mustRefuse(t, err, connect.CodeFailedPrecondition, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SESSION_FENCED)
	s := h.clientState(t, &seqledgerv1.GetClientStateRequest{ClientId: "c", Session: first.State.Session})
	if s.Status != seqledgerv1.ClientStatus_CLIENT_STATUS_ACTIVE {
		t.Error("a fenced session is not an expired one:", s)
	}
	s = h.clientState(t, &seqledgerv1.GetClientStateRequest{ClientId: "c", Session: second.State.Session + 1})
	if s.Status != seqledgerv1.ClientStatus_CLIENT_STATUS_EXPIRED {
		t.Error("a session that was never given out:", s)
	}
}

func TestTransactionsAndProofs(t *testing.T) {
	t.Parallel()
	h := start(t)
	m := writeOf("c", 1, setOp("k", "v"), relateOp("r", "l", "s"))
	m.Operations[0].GetSetEntity().ExpiresAt = timestamppb.New(time.Now().Add(time.Hour))
	m.IncludeProof = true
	r := h.mustWrite(t, m)
	if r.Proof == nil || r.BlockHeader == nil || r.Proof.TreeSize != uint64(r.BlockHeader.TxCount) {
		t.Fatal("a proof was asked for:", r)
	}
	answer := must.Get(h.client.GetTransaction(t.Context(), connect.NewRequest(
		&seqledgerv1.GetTransactionRequest{TxId: r.TxId, IncludeProof: true})))(t)
	tx := answer.Msg.Transaction
	if tx.TxId != r.TxId || tx.Sequence != 1 || tx.ClientId != "c" || tx.Actor != "system:anonymous" ||
		tx.Index != r.Index ||
		tx.RequestHash != r.RequestHash || tx.BlockHeight != 1 || len(tx.Operations) != 2 {
		t.Error(tx)
	}
	for i := range m.Operations {
		if !proto.Equal(tx.Operations[i], m.Operations[i]) {
			t.Errorf("operation %d is read back as %v, was %v", i, tx.Operations[i], m.Operations[i])
		}
	}
	if !proto.Equal(answer.Msg.Proof, r.Proof) || !proto.Equal(answer.Msg.BlockHeader, r.BlockHeader) {
		t.Error("the proof must be that of the receipt:", answer.Msg, r)
	}
	replay := h.mustWrite(t, m)
	if !replay.Replayed || !proto.Equal(replay.Proof, r.Proof) {
		t.Error("a replay can be asked for its proof:", replay)
	}
	id := must.Get(machine.ParseTxID(r.TxId))(t)
	ledger, _ := id.Parts()
	for _, other := range []machine.TxID{machine.NewTxID(ledger, 999), machine.NewTxID(ledger+1, r.Index)} {
		_, err := h.client.GetTransaction(t.Context(), connect.NewRequest(
			&seqledgerv1.GetTransactionRequest{TxId: other.String()}))
		if connect.CodeOf(err) != connect.CodeNotFound {
			t.Error("a transaction that is not there:", err)
		}
	}
}

// pages collects a list and checks the sizes of its pages.
func pages[T any](t testing.TB, size int, next func(token string) ([]T, string, error)) []T {
	t.Helper()
	var all []T
	for token := ""; ; {
		page, following, err := next(token)
		must.Do(t, err)
		all = append(all, page...)
		if following == "" {
			if len(page) == 0 && len(all) > 0 {
				t.Error("the last page is empty")
			}
			return all
		}
		if size > 0 && len(page) != size {
			t.Errorf("a page has %d elements, want %d", len(page), size)
		}
		token = following
	}
}

func TestListEntities(t *testing.T) {
	t.Parallel()
	h := start(t)
	for i := range uint64(10) {
		h.mustWrite(t, writeOf("c", i+1, setOp(fmt.Sprintf("a/%02d", i), "v"), setOp(fmt.Sprintf("b/%02d", i), "v")))
	}
	for size := 1; size <= 11; size++ {
		all := pages(t, size, func(token string) ([]*seqledgerv1.Entity, string, error) {
			m, err := h.client.ListEntities(t.Context(), connect.NewRequest(&seqledgerv1.ListEntitiesRequest{
				Scope: scope(), Prefix: "a/", PageSize: uint32(size), PageToken: token,
			}))
			if err != nil {
				return nil, "", err
			}
			return m.Msg.Entities, m.Msg.NextPageToken, nil
		})
		check.Equal(t, len(all), 10, "pages of %d: got %d entities", size)
		for i, e := range all {
			if e.Key != fmt.Sprintf("a/%02d", i) || e.Version == 0 || e.TxId == "" {
				t.Errorf("pages of %d: entity %d is %v", size, i, e)
			}
		}
	}
	first, err := h.client.ListEntities(t.Context(), connect.NewRequest(
		&seqledgerv1.ListEntitiesRequest{Scope: scope(), Prefix: "a/", PageSize: 1}))
	must.Do(t, err)
	_, err = h.client.ListEntities(t.Context(), connect.NewRequest(
		&seqledgerv1.ListEntitiesRequest{Scope: scope(), Prefix: "b/", PageToken: first.Msg.NextPageToken}))
	e := mustRefuse(t, err, connect.CodeInvalidArgument, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT)
	if e.Field != "page_token" {
		t.Error("a token of another query:", e)
	}
}

func TestListRelationships(t *testing.T) {
	t.Parallel()
	h := start(t)
	for i := range uint64(6) {
		h.mustWrite(t, writeOf("c", i+1, relateOp("doc", "viewer", fmt.Sprint("u", i)),
			relateOp("doc", "owner", fmt.Sprint("u", i)),
			relateOp("other", "viewer", fmt.Sprint("u", i))))
	}
	for filter, want := range map[[2]string]int{{"", ""}: 18, {"doc", ""}: 12, {"doc", "viewer"}: 6, {"do", ""}: 0} {
		all := pages(t, 5, func(token string) ([]*seqledgerv1.Relationship, string, error) {
			m, err := h.client.ListRelationships(t.Context(), connect.NewRequest(&seqledgerv1.ListRelationshipsRequest{
				Scope: scope(), Resource: filter[0], Relation: filter[1], PageSize: 5, PageToken: token,
			}))
			if err != nil {
				return nil, "", err
			}
			return m.Msg.Relationships, m.Msg.NextPageToken, nil
		})
		seen := map[string]bool{}
		for _, r := range all {
			seen[r.String()] = true
			if filter[0] != "" && r.Resource != filter[0] || filter[1] != "" && r.Relation != filter[1] {
				t.Errorf("%v: got %v", filter, r)
			}
		}
		if len(all) != want || len(seen) != want {
			t.Errorf("%v: got %d relationships, %d different, want %d", filter, len(all), len(seen), want)
		}
	}
}

// TestListsBehindManyDeleted: what is deleted and still waits for a checkpoint is stepped over in pieces, and nothing
// is left out because of it.
func TestListsBehindManyDeleted(t *testing.T) {
	t.Parallel()
	h := start(t)
	const rounds, each, kept = 5, 500, 1_777
	for round := range rounds {
		var create, remove []*seqledgerv1.Operation
		for i := round * each; i < (round+1)*each; i++ {
			user := fmt.Sprintf("u%05d", i)
			create = append(create, relateOp("doc", "viewer", user), setOp(user, "x"))
			if i != kept {
				remove = append(remove,
					&seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteRelationship{
						DeleteRelationship: &seqledgerv1.DeleteRelationship{
							Resource: "doc", Relation: "viewer", Subject: user,
						},
					}},
					&seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteEntity{
						DeleteEntity: &seqledgerv1.DeleteEntity{Key: user},
					}})
			}
		}
		h.mustWrite(t, writeOf("c", 2*uint64(round)+1, create...))
		h.mustWrite(t, writeOf("c", 2*uint64(round)+2, remove...))
	}
	m, err := h.client.ListRelationships(t.Context(), connect.NewRequest(
		&seqledgerv1.ListRelationshipsRequest{Scope: scope(), Resource: "doc", PageSize: 5}))
	if err != nil || len(m.Msg.Relationships) != 1 || m.Msg.NextPageToken != "" {
		t.Errorf("relationships: %v, %v", m, err)
	}
	var entities []*seqledgerv1.Entity
	for token, more := "", true; more; more = token != "" {
		m := must.Get(h.client.ListEntities(t.Context(), connect.NewRequest(
			&seqledgerv1.ListEntitiesRequest{Scope: scope(), PageToken: token})))(t)
		entities, token = append(entities, m.Msg.Entities...), m.Msg.NextPageToken
	}
	if len(entities) != 1 || entities[0].Key != fmt.Sprintf("u%05d", kept) {
		t.Errorf("entities: %v", entities)
	}
}

func TestBlocksAreAChain(t *testing.T) {
	t.Parallel()
	h := start(t)
	for i := range uint64(7) {
		h.mustWrite(t, writeOf("c", i+1, appendOp("x")))
	}
	blocks := pages(t, 3, func(token string) ([]*seqledgerv1.Block, string, error) {
		m, err := h.client.ListBlocks(t.Context(), connect.NewRequest(
			&seqledgerv1.ListBlocksRequest{Scope: scope(), PageSize: 3, PageToken: token}))
		if err != nil {
			return nil, "", err
		}
		return m.Msg.Blocks, m.Msg.NextPageToken, nil
	})
	if len(blocks) != 7 {
		t.Fatal("got", len(blocks), "blocks")
	}
	previous := make([]byte, 32)
	for i, b := range blocks {
		if b.Header.Height != uint64(i)+1 || !bytes.Equal(b.Header.PreviousHash, previous) || len(b.Transactions) != 0 {
			t.Errorf("block %d is %v", i+1, b)
		}
		previous = b.Hash
		whole, err := h.client.GetBlock(t.Context(), connect.NewRequest(
			&seqledgerv1.GetBlockRequest{Scope: scope(), Height: uint64(i) + 1}))
		if err != nil || len(whole.Msg.Block.Transactions) != 1 || !bytes.Equal(whole.Msg.Block.Hash, b.Hash) {
			t.Error(whole, err)
		}
	}
	_, err := h.client.GetBlock(t.Context(), connect.NewRequest(&seqledgerv1.GetBlockRequest{Scope: scope(),
		Height: 8}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Error("a block that is not there:", err)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	h := start(t)
	for i := range uint64(3) {
		h.mustWrite(t, writeOf("c", i+1, appendOp("x")))
	}
	stream := must.Get(h.client.Watch(within(t), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope(),
		FromHeight: 2})))(t)
	for height := uint64(2); height <= 10; height++ {
		if height > 3 { // the first ones are there, the others come live
			h.mustWrite(t, writeOf("c", height, appendOp("x")))
		}
		if !stream.Receive() || stream.Msg().Block.Header.Height != height ||
			len(stream.Msg().Block.Transactions) != 1 {
			t.Fatalf("want height %d, got %v, %v", height, stream.Msg(), stream.Err())
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- h.stop() }() // ends with the drain; received below
	for stream.Receive() {
		t.Error("unexpected:", stream.Msg())
	}
	mustRefuse(t, stream.Err(), connect.CodeUnavailable, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING)
	must.Do(t, errors.Join(stream.Close(), <-stopped))
}

func TestWatchOfAnEmptyScopeSendsHeaders(t *testing.T) {
	t.Parallel()
	h := start(t)
	ctx, cancel := context.WithCancel(within(t))
	// Watch returns once the headers are there, before there is any block.
	stream := must.Get(h.client.Watch(ctx, connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope()})))(t)
	h.awaitStreams(t, "1")
	cancel()
	_ = stream.Close()
	h.awaitStreams(t, "0")
}

func TestAdmin(t *testing.T) {
	t.Parallel()
	h := start(t)
	const clients = 7
	for i := range clients {
		h.mustWrite(t, writeOf(fmt.Sprint("client-", i), 1, appendOp("x")))
	}
	elsewhere := writeOf("elsewhere", 1, appendOp("x"))
	elsewhere.Scope = &seqledgerv1.Scope{Organization: "other"}
	h.mustWrite(t, elsewhere)
	status := must.Get(h.admin.GetStatus(t.Context(), connect.NewRequest(new(seqledgerv1.GetStatusRequest))))(t)
	s := status.Msg.Status
	if s.Version != "test" || len(s.LedgerId) != 16 || s.Streams != clients+1 || len(s.Digest) != 64 ||
		s.Config.ReceiptWindow != 64 || s.LedgerTime == nil || s.Config.ClientTtl.AsDuration() != 24*time.Hour {
		t.Error(s)
	}
	for want, only := range map[int]*seqledgerv1.Scope{clients + 1: nil, clients: scope()} {
		all := pages(t, 3, func(token string) ([]*seqledgerv1.ClientEntry, string, error) {
			m, err := h.admin.ListClients(t.Context(), connect.NewRequest(
				&seqledgerv1.ListClientsRequest{Scope: only, PageSize: 3, PageToken: token}))
			if err != nil {
				return nil, "", err
			}
			return m.Msg.Clients, m.Msg.NextPageToken, nil
		})
		if len(all) != want {
			t.Errorf("scope %v: got %d clients, want %d", only, len(all), want)
		}
		for _, c := range all {
			if c.State.LastCommittedSequence != 1 || c.State.LastRequestHash == "" || len(c.State.Receipts) != 0 ||
				c.ClientId == "" {
				t.Error(c)
			}
		}
	}
	changed, err := h.admin.UpdateConfig(t.Context(), connect.NewRequest(&seqledgerv1.UpdateConfigRequest{
		ReceiptWindowSet: &seqledgerv1.UpdateConfigRequest_ReceiptWindow{ReceiptWindow: 8},
		ClientTtl:        durationpb.New(time.Hour),
	}))
	if err != nil || changed.Msg.Config.ReceiptWindow != 8 || changed.Msg.Config.ClientTtl.AsDuration() != time.Hour ||
		changed.Msg.Config.EvictionInterval != 1_000 {
		t.Error(changed, err)
	}
}
