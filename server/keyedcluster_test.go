package server_test

import (
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/cluster"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// Calls that wait for an owner, at the leader and through the other nodes, end when the leadership goes, so that their
// clients go on at the next leader and hear of the end there.
func TestWaitsEndWithTheLeadership(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, server.Options{})
	first := reserveOf("k", 1)
	first.Lease = durationpb.New(time.Hour)
	var token uint64
	err := settled(t, func() error {
		r, err := nodes[0].idempotency().Reserve(within(t), connect.NewRequest(first))
		if err == nil {
			token = r.Msg.GetToken()
		}
		return err
	})
	if err != nil || token == 0 {
		t.Fatal(token, err)
	}
	leader := leads(t, nodes)
	type answered struct {
		by  *harness
		err error
	}
	ended := make(chan answered, len(nodes))
	for i, h := range nodes {
		go func() { // ends with its answer; received below
			waits := reserveOf("k", byte(2+i))
			waits.Wait = durationpb.New(time.Minute) // more than the call has
			r, err := h.idempotency().Reserve(within(t), connect.NewRequest(waits))
			if err == nil {
				t.Errorf("node %d answered %v", i, r.Msg.GetOutcome())
			}
			ended <- answered{h, err}
		}()
	}
	must.Await(t, func() bool { return leader.ledger.Stats().KeyWaiters == len(nodes) })
	handOver(t, leader)
	for range nodes {
		a := <-ended
		want := seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER
		if e := detail(a.err); a.by != leader && e.GetCode() != want {
			// Another node waits for the answer of a former leader for half a second at most.
			want = seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN
		}
		mustRefuse(t, a.err, connect.CodeUnavailable, want)
	}
	must.Do(t, settled(t, func() error {
		_, err := nodes[1].idempotency().Complete(within(t), connect.NewRequest(&seqledgerv1.CompleteRequest{
			Owner: ownerOf(first, token), Response: []byte("done"),
		}))
		return err
	}))
	for i, h := range nodes {
		var answer *connect.Response[seqledgerv1.ReserveResponse]
		err := settled(t, func() (err error) {
			answer, err = h.idempotency().Reserve(within(t), connect.NewRequest(reserveOf("k", byte(2+i))))
			return err
		})
		if err != nil || answer.Msg.GetOutcome() != seqledgerv1.RecordOutcome_RECORD_OUTCOME_REPLAY ||
			string(answer.Msg.GetRecord().GetResponse()) != "done" {
			t.Errorf("node %d: %v, %v", i, answer, err)
		}
	}
}

// handOver lets another node lead.
func handOver(t *testing.T, leader *harness) {
	t.Helper()
	must.Await(t, func() bool { // until the leader has heard of another node lately, which takes long on a busy machine
		err := leader.ledger.Cluster().TransferLeadership(within(t), 0)
		if err != nil && !errors.Is(err, cluster.ErrNoSuchNode) && !errors.Is(err, cluster.ErrNoSuccessor) {
			t.Fatal(err)
		}
		return err == nil
	})
}
