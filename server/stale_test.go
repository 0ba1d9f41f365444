package server_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// A node that is left alone answers stale reads, says up to which index, and no others.
func TestStaleReads(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, server.Options{})
	leader := leads(t, nodes)
	leader.persist(t, writeOf("c", 1, setOp("k", "before")))
	var left *harness
	for _, h := range nodes {
		if h != leader {
			left = h
		}
	}
	get := func(ctx context.Context, stale string) (*connect.Response[seqledgerv1.GetEntityResponse], error) {
		q := connect.NewRequest(&seqledgerv1.GetEntityRequest{Scope: scope(), Key: "k"})
		if stale != "" {
			q.Header().Set("Seqledger-Read", stale)
		}
		return left.client.GetEntity(ctx, q)
	}
	must.Get(get(within(t), ""))(t) // so that it has what was written
	for _, h := range nodes {
		if h != left && h != leader { // the leader last, so that it does not hand over
			must.Do(t, errors.Join(h.stop(), h.ledger.Close()))
		}
	}
	_ = errors.Join(leader.stop(), leader.ledger.Close()) // it cannot hand over without a majority

	answer := must.Get(get(within(t), "stale"))(t)
	must.Equal(t, string(answer.Msg.Entity.Value), "before")
	index, err := strconv.ParseUint(answer.Header().Get("Seqledger-Index"), 10, 64)
	if err != nil || index < answer.Msg.Entity.Version || index > left.status(t).Index {
		t.Errorf("an entity of version %d is read at index %d, %v", answer.Msg.Entity.Version, index, err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if answer, err := get(soon, ""); err == nil {
		t.Errorf("what is not stale is answered with %v", answer)
	}
	if _, err := get(within(t), "fresh"); connect.CodeOf(err) != connect.CodeInvalidArgument ||
		!strings.Contains(err.Error(), "Seqledger-Read") {
		t.Errorf("another value is refused with %v", err)
	}
	q := connect.NewRequest(&seqledgerv1.GetClientStateRequest{Scope: scope(), ClientId: "c"})
	q.Header().Set("Seqledger-Read", "stale")
	if _, err := left.client.GetClientState(within(t), q); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("the state of a client is answered from what may be old: %v", err)
	}
}

// The Go client asks for stale reads, and learns the index.
func TestClientReadsStale(t *testing.T) {
	t.Parallel()
	h := start(t)
	h.persist(t, writeOf("c", 1, setOp("k", "v")))
	c := must.Get(client.New(client.Options{Server: h.url}))(t)
	t.Cleanup(func() { _ = c.Close() }) // it has nothing to lose
	var read client.StaleRead
	e, err := c.GetEntity(client.WithStaleRead(within(t), &read), &seqledgerv1.GetEntityRequest{
		Scope: scope(), Key: "k",
	})
	if err != nil || read.Index < e.GetVersion() || read.Index == 0 {
		t.Errorf("%v at index %d, %v", e, read.Index, err)
	}
	for item, err := range c.ListEntities(client.WithStaleRead(within(t), &read), &seqledgerv1.ListEntitiesRequest{
		Scope: scope(),
	}) {
		if err != nil || item.GetKey() != "k" {
			t.Errorf("%v, %v", item, err)
		}
	}
}
