package server_test

import (
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// A draining server takes no more commands on keys. Its error tells the client to go elsewhere. Reads continue.
func TestDrainedServerDecidesNoKeys(t *testing.T) {
	t.Parallel()
	h := start(t)
	c := h.idempotency()
	owned := reserveOf("a", 1)
	reply(t, c.Reserve, owned)
	must.Do(t, h.server.Drain(within(t)))
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
