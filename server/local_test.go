package server_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// recordCall is a call of IdempotencyService.
type recordCall struct {
	name string
	call func(context.Context, seqledgerv1connect.IdempotencyServiceClient) (proto.Message, error)
}

// recordCallOf has the method as an expression, so that one script is for any client.
func recordCallOf[Q, R any, A interface {
	*R
	proto.Message
}](
	name string, method func(seqledgerv1connect.IdempotencyServiceClient, context.Context,
		*connect.Request[Q]) (*connect.Response[R], error), q *Q,
) recordCall {
	return recordCall{name, func(ctx context.Context, c seqledgerv1connect.IdempotencyServiceClient) (
		proto.Message, error,
	) {
		answer, err := method(c, ctx, connect.NewRequest(q))
		if err != nil {
			return nil, err
		}
		return A(answer.Msg), nil
	}}
}

// recordCalls meet each method with what it does, with what it does not find, and with what it refuses.
// The tokens are those of a new ledger, which counts them.
func recordCalls() []recordCall {
	type service = seqledgerv1connect.IdempotencyServiceClient
	first, second, third := reserveOf("a", 1), reserveOf("b", 2), reserveOf("c", 3)
	late, unlike := reserveOf("a", 9), reserveOf("a", 1)
	unlike.Fingerprint = &seqledgerv1.Fingerprint{Algorithm: 1, Digest: slices.Repeat([]byte{7}, 32)}
	nameless, endless := reserveOf("", 1), reserveOf("d", 1)
	endless.Lease = durationpb.New(1_000 * time.Hour)
	of := func(r *seqledgerv1.ReserveRequest, token uint64) *seqledgerv1.Ownership { return ownerOf(r, token) }
	stuck := reserveOf("e", 5)
	stuck.OnLeaseExpired = seqledgerv1.LeaseExpiry_LEASE_EXPIRY_INDETERMINATE
	return []recordCall{
		recordCallOf("nothing is there", service.GetRecord, &seqledgerv1.GetRecordRequest{Record: first.Record}),
		recordCallOf("reserve", service.Reserve, first),
		recordCallOf("reserve again", service.Reserve, first),
		recordCallOf("reserve as another", service.Reserve, late),
		recordCallOf("reserve for another request", service.Reserve, unlike),
		recordCallOf("reserve no key", service.Reserve, nameless),
		recordCallOf("reserve for too long", service.Reserve, endless),
		recordCallOf("heartbeat", service.Heartbeat,
			&seqledgerv1.HeartbeatRequest{Owner: of(first, 1), Lease: durationpb.New(time.Hour)}),
		recordCallOf("heartbeat of a stranger", service.Heartbeat, &seqledgerv1.HeartbeatRequest{Owner: of(late, 1)}),
		recordCallOf("heartbeat of nobody", service.Heartbeat, &seqledgerv1.HeartbeatRequest{}),
		recordCallOf("checkpoint", service.Checkpoint,
			&seqledgerv1.CheckpointRequest{Owner: of(first, 1), Data: []byte("half")}),
		recordCallOf("checkpoint of too much", service.Checkpoint,
			&seqledgerv1.CheckpointRequest{Owner: of(first, 1), Data: make([]byte, 64<<10+1)}),
		recordCallOf("complete", service.Complete,
			&seqledgerv1.CompleteRequest{Owner: of(first, 1), Response: []byte("done")}),
		recordCallOf("complete again", service.Complete,
			&seqledgerv1.CompleteRequest{Owner: of(first, 1), Response: []byte("other")}),
		recordCallOf("complete nothing", service.Complete, &seqledgerv1.CompleteRequest{Owner: of(third, 1)}),
		recordCallOf("replay", service.Reserve, late),
		recordCallOf("reserve a second key", service.Reserve, second),
		recordCallOf("reject", service.Reject,
			&seqledgerv1.RejectRequest{Owner: of(second, 2), Response: []byte("no")}),
		recordCallOf("reject with no lifetime", service.Reject,
			&seqledgerv1.RejectRequest{Owner: of(second, 2), Ttl: durationpb.New(-1)}),
		recordCallOf("reserve a third key", service.Reserve, third),
		recordCallOf("release", service.Release, &seqledgerv1.ReleaseRequest{Owner: of(third, 3)}),
		recordCallOf("release again", service.Release, &seqledgerv1.ReleaseRequest{Owner: of(third, 3)}),
		recordCallOf("reserve what may get stuck", service.Reserve, stuck),
		recordCallOf("its lease ends", service.Heartbeat,
			&seqledgerv1.HeartbeatRequest{Owner: of(stuck, 4), End: true}),
		recordCallOf("its outcome is not known", service.Reserve, stuck),
		recordCallOf("resolve", service.ResolveRecord, &seqledgerv1.ResolveRecordRequest{Record: stuck.Record,
			State: seqledgerv1.RecordState_RECORD_STATE_REJECTED, Response: []byte("was not charged")}),
		recordCallOf("resolve again", service.ResolveRecord, &seqledgerv1.ResolveRecordRequest{Record: stuck.Record,
			State: seqledgerv1.RecordState_RECORD_STATE_COMMITTED}),
		recordCallOf("resolve to no state", service.ResolveRecord,
			&seqledgerv1.ResolveRecordRequest{Record: stuck.Record}),
		recordCallOf("get", service.GetRecord, &seqledgerv1.GetRecordRequest{Record: first.Record}),
		recordCallOf("get no key", service.GetRecord, &seqledgerv1.GetRecordRequest{Record: nameless.Record}),
		recordCallOf("list", service.ListRecords, &seqledgerv1.ListRecordsRequest{Scope: scope()}),
		recordCallOf("list the rejected", service.ListRecords, &seqledgerv1.ListRecordsRequest{Scope: scope(),
			State: seqledgerv1.RecordState_RECORD_STATE_REJECTED}),
		recordCallOf("list an unknown state", service.ListRecords,
			&seqledgerv1.ListRecordsRequest{Scope: scope(), State: 99}),
		recordCallOf("list with a bad token", service.ListRecords,
			&seqledgerv1.ListRecordsRequest{Scope: scope(), PageToken: "no such"}),
		recordCallOf("list in no scope", service.ListRecords, &seqledgerv1.ListRecordsRequest{}),
		recordCallOf("purge", service.PurgeRecord, &seqledgerv1.PurgeRecordRequest{Record: first.Record}),
		recordCallOf("purge again", service.PurgeRecord, &seqledgerv1.PurgeRecordRequest{Record: first.Record}),
		recordCallOf("purge no key", service.PurgeRecord, &seqledgerv1.PurgeRecordRequest{}),
	}
}

// timeless clears what is the clock's in an answer: points in time, and how long to wait.
func timeless(m proto.Message) proto.Message {
	m = proto.Clone(m)
	var clear func(protoreflect.Message)
	clear = func(m protoreflect.Message) {
		m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case field.Message() == nil:
			case field.IsList():
				for i := range v.List().Len() {
					clear(v.List().Get(i).Message())
				}
			case field.Message().FullName() == "google.protobuf.Timestamp",
				field.Message().FullName() == "google.protobuf.Duration":
				m.Clear(field)
			default:
				clear(v.Message())
			}
			return true
		})
	}
	clear(m.ProtoReflect())
	return m
}

// A call within the process gets the answer, the refusal and the count of one over the network, before
// and after the server stops taking work.
func TestCallsInTheProcessAreAnsweredAlike(t *testing.T) {
	t.Parallel()
	near, far := start(t), start(t)
	// What is over the network has the credentials' and the size's refusals besides, which no call here meets.
	inside, outside := near.server.Records(), far.idempotency()
	codes := map[connect.Code]int{}
	same := func(when string) {
		t.Helper()
		for _, c := range recordCalls() {
			got, gotErr := c.call(within(t), inside)
			want, wantErr := c.call(within(t), outside)
			switch {
			case (gotErr == nil) != (wantErr == nil):
				t.Fatalf("%s, %s: %v in the process, %v over the network", when, c.name, gotErr, wantErr)
			case gotErr == nil:
				codes[0]++
				if got, want := timeless(got), timeless(want); !proto.Equal(got, want) {
					t.Errorf("%s, %s: %v in the process, %v over the network", when, c.name, got, want)
				}
			default:
				codes[connect.CodeOf(wantErr)]++
				if connect.CodeOf(gotErr) != connect.CodeOf(wantErr) || !proto.Equal(detail(gotErr), detail(wantErr)) {
					t.Errorf("%s, %s: %v, %v in the process, %v, %v over the network", when, c.name,
						gotErr, detail(gotErr), wantErr, detail(wantErr))
				}
			}
		}
	}
	same("before")
	if codes[0] < 20 || codes[connect.CodeInvalidArgument] < 8 {
		t.Errorf("the calls met these codes: %v", codes)
	}
	if got, want := near.results(t), far.results(t); !maps.Equal(got, want) || len(got) < 10 {
		t.Errorf("counted %v in the process, %v over the network", got, want)
	}
}

// A server that drains takes no more work for keys, and says so where the client knows to go elsewhere; what
// changes nothing goes on.
func TestDrainedServerDecidesNoKeys(t *testing.T) {
	t.Parallel()
	h := start(t)
	c := h.server.Records()
	owned := reserveOf("a", 1)
	reply(t, c.Reserve, owned)
	if err := h.server.Drain(within(t)); err != nil {
		t.Fatal(err)
	}
	before := h.ledger.Stats().Commands
	owner := ownerOf(owned, 1)
	for name, err := range map[string]error{
		"Reserve":    call(t, c.Reserve, reserveOf("b", 1)),
		"Replay":     call(t, c.Reserve, owned),
		"Heartbeat":  call(t, c.Heartbeat, &seqledgerv1.HeartbeatRequest{Owner: owner}),
		"Checkpoint": call(t, c.Checkpoint, &seqledgerv1.CheckpointRequest{Owner: owner}),
		"Complete":   call(t, c.Complete, &seqledgerv1.CompleteRequest{Owner: owner}),
		"Reject":     call(t, c.Reject, &seqledgerv1.RejectRequest{Owner: owner}),
		"Release":    call(t, c.Release, &seqledgerv1.ReleaseRequest{Owner: owner}),
		"Purge":      call(t, c.PurgeRecord, &seqledgerv1.PurgeRecordRequest{Record: owned.Record}),
		"Resolve": call(t, c.ResolveRecord, &seqledgerv1.ResolveRecordRequest{Record: owned.Record,
			State: seqledgerv1.RecordState_RECORD_STATE_COMMITTED}),
	} {
		if connect.CodeOf(err) != connect.CodeUnavailable ||
			detail(err).GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_DRAINING {
			t.Errorf("%s: %v, %v", name, err, detail(err))
		}
	}
	if after := h.ledger.Stats().Commands; after != before {
		t.Errorf("%d commands after %d", after, before)
	}
	got := reply(t, c.GetRecord, &seqledgerv1.GetRecordRequest{Record: owned.Record})
	if got.Record.GetState() != seqledgerv1.RecordState_RECORD_STATE_PENDING {
		t.Errorf("%v", got)
	}
}

// With Auth, a call without a credential is refused whatever it asks, also within the process.
func TestCallsInTheProcessNeedAServerWithoutAuth(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	before := g.ledger.Stats().Commands
	for _, c := range recordCalls() {
		if answer, err := c.call(t.Context(), g.server.Records()); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("%s: %v, %v", c.name, answer, err)
		}
	}
	if after := g.ledger.Stats().Commands; after != before {
		t.Errorf("%d commands after %d", after, before)
	}
}
