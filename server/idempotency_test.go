package server_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// idempotency returns a client of the service without a credential.
func (h *harness) idempotency() seqledgerv1connect.IdempotencyServiceClient {
	return seqledgerv1connect.NewIdempotencyServiceClient(h.h2, h.url)
}

// records returns a client of the service with the key of an id.
func (g *guarded) records(id string) seqledgerv1connect.IdempotencyServiceClient {
	return seqledgerv1connect.NewIdempotencyServiceClient(
		&http.Client{Transport: withBearer{g.keys[id], g.h2.Transport}}, g.url)
}

func recordKey(key string) *seqledgerv1.RecordKey {
	return &seqledgerv1.RecordKey{Scope: scope(), Namespace: "POST /charge", Key: key}
}

// reserveOf returns a Reserve of an attempt.
func reserveOf(key string, attempt byte) *seqledgerv1.ReserveRequest {
	return &seqledgerv1.ReserveRequest{
		Record: recordKey(key), AttemptId: bytes.Repeat([]byte{attempt}, 16),
		Fingerprint: &seqledgerv1.Fingerprint{Algorithm: 1, Digest: make([]byte, 32)},
	}
}

func ownerOf(r *seqledgerv1.ReserveRequest, token uint64) *seqledgerv1.Ownership {
	return &seqledgerv1.Ownership{Record: r.Record, Token: token, AttemptId: r.AttemptId}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	must.Await(t, holds, what)
}

// reply makes one call and returns its answer.
func reply[Q, R any](t testing.TB, f func(context.Context, *connect.Request[Q]) (*connect.Response[R], error),
	q *Q) *R {
	t.Helper()
	answer := must.Get(f(t.Context(), connect.NewRequest(q)))(t)
	return answer.Msg
}

// Each malformed request names its field, and changes nothing.
func TestMalformedReservations(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{})
	c := h.idempotency()
	good := reply(t, c.Reserve, reserveOf("good", 1))
	index := h.ledger.Stats().Commands
	for field, spoil := range map[string]func(r *seqledgerv1.ReserveRequest){
		"record":           func(r *seqledgerv1.ReserveRequest) { r.Record = nil },
		"record.scope":     func(r *seqledgerv1.ReserveRequest) { r.Record.Scope = nil },
		"record.key":       func(r *seqledgerv1.ReserveRequest) { r.Record.Key = "" },
		"record.principal": func(r *seqledgerv1.ReserveRequest) { r.Record.Principal = strings.Repeat("p", 2_000) },
		"wait":             func(r *seqledgerv1.ReserveRequest) { r.Wait = durationpb.New(61 * time.Second) },
	} {
		r := reserveOf("k", 1)
		spoil(r)
		err := call(t, c.Reserve, r)
		if got := detail(err); connect.CodeOf(err) != connect.CodeInvalidArgument ||
			got.GetField() != strings.TrimSpace(field) {
			t.Errorf("%s: %v, field %q", field, err, got.GetField())
		}
	}
	owner := ownerOf(reserveOf("good", 1), good.Token)
	for field, err := range map[string]error{
		"owner":        call(t, c.Heartbeat, &seqledgerv1.HeartbeatRequest{}),
		"owner.record": call(t, c.Release, &seqledgerv1.ReleaseRequest{Owner: &seqledgerv1.Ownership{Token: 1}}),
		"owner.token":  call(t, c.Release, &seqledgerv1.ReleaseRequest{Owner: ownerOf(reserveOf("good", 1), 0)}),
		"owner.attempt_id": call(t, c.Release, &seqledgerv1.ReleaseRequest{
			Owner: &seqledgerv1.Ownership{Record: recordKey("good"), Token: 1}}),
		"response": call(t, c.Complete, &seqledgerv1.CompleteRequest{Owner: owner, Response: make([]byte, 1<<20+1)}),
		"data":     call(t, c.Checkpoint, &seqledgerv1.CheckpointRequest{Owner: owner, Data: make([]byte, 64<<10+1)}),
		"ttl":      call(t, c.Complete, &seqledgerv1.CompleteRequest{Owner: owner, Ttl: durationpb.New(-1)}),
		"lease": call(t, c.Heartbeat, &seqledgerv1.HeartbeatRequest{Owner: owner,
			Lease: durationpb.New(25 * time.Hour)}),
		"state": call(t, c.ResolveRecord, &seqledgerv1.ResolveRecordRequest{Record: recordKey("good")}),
		"page_size": call(t, c.ListRecords, &seqledgerv1.ListRecordsRequest{
			Scope: scope(), PageSize: 1_001}),
		"principal": call(t, c.ListRecords, &seqledgerv1.ListRecordsRequest{
			Scope: scope(), EveryPrincipal: true, Principal: "x"}),
	} {
		if got := detail(err); connect.CodeOf(err) != connect.CodeInvalidArgument || got.GetField() != field {
			t.Errorf("%s: %v, field %q", field, err, got.GetField())
		}
	}
	if now := h.ledger.Stats().Commands; now != index {
		t.Errorf("%d commands reached the log", now-index)
	}
	stale := reserveOf("late", 1)
	stale.ValidUntil = timestamppb.New(time.Now().Add(-time.Hour))
	check.Equal(t, reply(t, c.Reserve, stale).Outcome, seqledgerv1.RecordOutcome_RECORD_OUTCOME_STALE)
}

// A credential acts for itself, a delegate for others, and only an admin reads and settles what is another one's. What
// is refused looks the same whether there is a record or not.
func TestPrincipals(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"gateway": `role: delegate, scopes: ["acme/main"]`,
		"second":  `role: writer, scopes: [acme/main], client_ids: ["x"]`,
	})
	mine := reply(t, g.records("writer").Reserve, reserveOf("k", 1))
	// The same key of another principal is another record.
	if other := reply(t, g.records("second").Reserve,
		reserveOf("k", 2)); other.Outcome != seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED {
		t.Error("another principal's key is in the way:", other)
	}
	named := func(key string, attempt byte) *seqledgerv1.ReserveRequest {
		r := reserveOf(key, attempt)
		r.Record.Principal = "client:writer"
		return r
	}
	for id, want := range map[string]connect.Code{
		"writer": 0, "gateway": 0, "foreman": 0, "second": connect.CodePermissionDenied,
		"reader":    connect.CodePermissionDenied,
		"elsewhere": connect.CodePermissionDenied, "": connect.CodeUnauthenticated,
	} {
		there, absent := call(t, g.records(id).Reserve, named("k", 7)),
			call(t, g.records(id).Reserve, named("absent", 1))
		for _, err := range []error{there, absent} {
			if err != nil && connect.CodeOf(err) != want || err == nil && want != 0 {
				t.Errorf("%s reserves for the writer: %v, want %v", id, err, want)
			}
		}
		if want != 0 && there.Error() != absent.Error() {
			t.Errorf("%s can tell: %v and %v", id, there, absent)
		}
	}
	// A delegate, who may not read the record, learns whether another request can be compared with its own.
	for algorithm, incomparable := range map[uint32]bool{1: false, 2: true} {
		other := named("k", 8)
		other.Fingerprint.Algorithm, other.Fingerprint.Digest[0] = algorithm, 9
		if out := reply(t, g.records("gateway").Reserve, other); out.Incomparable != incomparable ||
			out.Record != nil ||
			out.Outcome != seqledgerv1.RecordOutcome_RECORD_OUTCOME_MISMATCH {
			t.Errorf("algorithm %d: %v", algorithm, out)
		}
	}
	err := call(t, g.records("writer").GetRecord, &seqledgerv1.GetRecordRequest{Record: recordKey("secret")})
	if connect.CodeOf(err) != connect.CodeNotFound || strings.Contains(err.Error(), "secret") {
		t.Error("a record that is not there:", err)
	}
	owner := ownerOf(named("k", 1), mine.Token)
	check.Equal(t, connect.CodeOf(call(t, g.records("second").Complete,
		&seqledgerv1.CompleteRequest{Owner: owner})), connect.CodePermissionDenied, "another one completes: %v")
	for id, want := range map[string]connect.Code{
		"writer": 0, "foreman": 0, "gateway": connect.CodePermissionDenied, "second": connect.CodePermissionDenied,
		"reader": connect.CodePermissionDenied,
	} {
		c := g.records(id)
		got := map[string]error{
			"GetRecord": call(t, c.GetRecord, &seqledgerv1.GetRecordRequest{Record: named("k", 1).Record}),
			"ListRecords": call(t, c.ListRecords,
				&seqledgerv1.ListRecordsRequest{Scope: scope(), Principal: "client:writer"}),
			"PurgeRecord": call(t, c.PurgeRecord, &seqledgerv1.PurgeRecordRequest{Record: named("k", 1).Record}),
			"ResolveRecord": call(t, c.ResolveRecord, &seqledgerv1.ResolveRecordRequest{
				Record: named("k", 1).Record, State: seqledgerv1.RecordState_RECORD_STATE_COMMITTED}),
		}
		for name, err := range got {
			if err != nil && connect.CodeOf(err) != want || err == nil && want != 0 {
				t.Errorf("%s, %s: %v, want %v", id, name, err, want)
			}
		}
	}
	check.Equal(t, connect.CodeOf(call(t, g.records("writer").ListRecords,
		&seqledgerv1.ListRecordsRequest{Scope: scope(),
			EveryPrincipal: true})), connect.CodePermissionDenied, "a writer lists everything: %v")
	check.Equal(t, connect.CodeOf(
		call(t, g.records("reader").PurgeRecord,
			&seqledgerv1.PurgeRecordRequest{Record: recordKey("k")})), connect.CodePermissionDenied,
		"a reader purges: %v")
}

// A listing has every record of a scope once, in pages, by principal, namespace or state.
func TestListRecords(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{"second": `role: writer, scopes: [acme/main], client_ids: ["x"]`})
	const each = 7
	for i := range each {
		for _, id := range []string{"writer", "second"} {
			r := reserveOf(fmt.Sprint("k", i), 1)
			r.Record.Namespace = fmt.Sprint("n", i%2)
			owned := reply(t, g.records(id).Reserve, r)
			if i == 0 {
				reply(t, g.records(id).Reject,
					&seqledgerv1.RejectRequest{Owner: ownerOf(r, owned.Token), Response: []byte("no")})
			}
		}
	}
	count := func(c seqledgerv1connect.IdempotencyServiceClient, m *seqledgerv1.ListRecordsRequest) int {
		seen := map[string]bool{}
		for m.PageSize = 2; ; {
			page := reply(t, c.ListRecords, m)
			for _, r := range page.Records {
				seen[r.Principal+" "+r.Namespace+string(r.KeyHash)] = true
				if r.Response != nil || r.State == seqledgerv1.RecordState_RECORD_STATE_REJECTED &&
					r.ResponseSize != 2 {
					t.Error(r)
				}
			}
			if m.PageToken = page.NextPageToken; m.PageToken == "" {
				return len(seen)
			}
		}
	}
	for name, test := range map[string]struct {
		id   string
		m    *seqledgerv1.ListRecordsRequest
		want int
	}{
		"own":       {"writer", &seqledgerv1.ListRecordsRequest{Scope: scope()}, each},
		"all":       {"foreman", &seqledgerv1.ListRecordsRequest{Scope: scope(), EveryPrincipal: true}, 2 * each},
		"another's": {"foreman", &seqledgerv1.ListRecordsRequest{Scope: scope(), Principal: "client:second"}, each},
		"namespace": {"writer", &seqledgerv1.ListRecordsRequest{Scope: scope(), Namespace: "n1"}, each / 2},
		"rejected": {"foreman", &seqledgerv1.ListRecordsRequest{Scope: scope(), EveryPrincipal: true,
			State: seqledgerv1.RecordState_RECORD_STATE_REJECTED}, 2},
		"admin's own": {"foreman", &seqledgerv1.ListRecordsRequest{Scope: scope()}, 0},
	} {
		check.Equal(t, count(g.records(test.id), test.m), test.want, "%s: %d records", name)
	}
}

// A principal may have as many records as its credential says, and a credential as many waiters.
func TestSharesOfKeys(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, map[string]string{
		"few": `role: writer, scopes: [acme/main], client_ids: ["x"], ` +
			`limits: {keys: 2, waiters: 1, stored_bytes: 5000}`,
	})
	c := g.records("few")
	owned := reply(t, c.Reserve, reserveOf("a", 1))
	other := reply(t, c.Reserve, reserveOf("b", 1))
	err := call(t, c.Reserve, reserveOf("c", 1))
	if connect.CodeOf(err) != connect.CodeResourceExhausted ||
		detail(err).GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_KEYS ||
		detail(err).GetRetryAfter() == nil {
		t.Error("a third key:", err)
	}
	wait := reserveOf("a", 2)
	wait.Wait = durationpb.New(time.Minute)
	waited := make(chan *seqledgerv1.ReserveResponse, 1)
	go func() { // received below
		answer, err := c.Reserve(t.Context(), connect.NewRequest(wait))
		if err != nil {
			t.Error(err)
			answer = connect.NewResponse(new(seqledgerv1.ReserveResponse))
		}
		waited <- answer.Msg
	}()
	eventually(t, "the first to wait", func() bool { return g.ledger.Stats().KeyWaiters == 1 })
	second := reserveOf("a", 3)
	second.Wait = durationpb.New(time.Minute)
	refused := mustRefuse(t, call(t, c.Reserve, second), connect.CodeResourceExhausted,
		seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_TOO_MANY_WAITERS)
	if refused.GetRetryAfter().AsDuration() <= 0 {
		t.Error("the refusal does not say when to come again:", refused)
	}
	// What need not wait is answered.
	second.Wait = nil
	check.Equal(t, reply(t, c.Reserve, second).Outcome, seqledgerv1.RecordOutcome_RECORD_OUTCOME_IN_FLIGHT,
		"without a wait: %v")
	free := reserveOf("b", 1)
	free.Wait = durationpb.New(time.Minute)
	check.Equal(t, reply(t, c.Reserve, free).Outcome, seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED,
		"the owner's own repeat: %v")
	owner := ownerOf(reserveOf("a", 1), owned.Token)
	reply(t, c.Complete, &seqledgerv1.CompleteRequest{Owner: owner, Response: make([]byte, 6_000)})
	check.Equal(t, (<-waited).Outcome, seqledgerv1.RecordOutcome_RECORD_OUTCOME_REPLAY)
	// What is begun may be finished, and nothing more begun.
	mine := reply(t, c.Heartbeat, &seqledgerv1.HeartbeatRequest{Owner: ownerOf(reserveOf("b", 1), other.Token)})
	if mine.Outcome != seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK {
		t.Error(mine)
	}
	reply(t, c.PurgeRecord, &seqledgerv1.PurgeRecordRequest{Record: recordKey("a")})
	err = call(t, c.Reserve, reserveOf("a", 4))
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "stored_bytes") {
		t.Error("stored responses do not count:", err)
	}
}

// The keys and the waiters of one principal take nothing from another's, and a keyed write of one is neither a replay
// nor a conflict for another.
func TestPrincipalsDoNotBlock(t *testing.T) {
	t.Parallel()
	const limits = `role: writer, scopes: [acme/main], client_ids: ["x"], limits: {keys: 2, waiters: 1}`
	g := guard(t, server.Options{}, map[string]string{"greedy": limits, "modest": limits})
	greedy, modest := g.records("greedy"), g.records("modest")
	reply(t, greedy.Reserve, reserveOf("a", 1))
	reply(t, greedy.Reserve, reserveOf("b", 1))
	must.Equal(t, connect.CodeOf(call(t, greedy.Reserve, reserveOf("c", 1))), connect.CodeResourceExhausted,
		"a third key: %v")
	waitFor := func(c seqledgerv1connect.IdempotencyServiceClient) (ended chan struct{}) {
		ended = make(chan struct{})
		go func() { // ends with the request's context, or with the reservation
			defer close(ended)
			wait := reserveOf("a", 2)
			wait.Wait = durationpb.New(time.Minute)
			_, _ = c.Reserve(t.Context(), connect.NewRequest(wait))
		}()
		return ended
	}
	waitFor(greedy)
	eventually(t, "the greedy one to wait", func() bool { return g.ledger.Stats().KeyWaiters == 1 })
	owned := reply(t, modest.Reserve, reserveOf("a", 1))
	if owned.Outcome != seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED {
		t.Fatal("another principal's key is in the way:", owned)
	}
	ended := waitFor(modest)
	eventually(t, "the modest one to wait", func() bool { return g.ledger.Stats().KeyWaiters == 2 })
	reply(t, modest.Complete, &seqledgerv1.CompleteRequest{Owner: ownerOf(reserveOf("a", 1), owned.Token)})
	<-ended

	write := func(id, value, principal string) (*connect.Response[seqledgerv1.WriteResponse], error) {
		c := seqledgerv1connect.NewLedgerServiceClient(
			&http.Client{Transport: withBearer{g.keys[id], g.h2.Transport}}, g.url)
		w := keyedWrite("job", value)
		w.Principal = principal
		return c.Write(t.Context(), connect.NewRequest(w))
	}
	first := must.Get(write("modest", "of the modest one", ""))(t)
	second, err := write("writer", "of the writer", "")
	if err != nil || second.Msg.Receipt.Replayed || second.Msg.Receipt.TxId == first.Msg.Receipt.TxId {
		t.Errorf("the same key of another principal: %v, %v", second, err)
	}
	for _, value := range []string{"of the writer", "another"} { // a replay or a conflict, were it allowed
		if _, err := write("modest", value, "client:writer"); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("a writer writes for another: %v", err)
		}
	}
}
