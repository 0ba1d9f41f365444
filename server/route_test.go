package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/cluster"
	peers "github.com/seqledger/seqledger/ledger/raftlog/transport"
	"github.com/seqledger/seqledger/ledger/seed"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

// joinToken is the join token of all clusters here.
const joinToken = "a secret of the nodes"

// startSecureNode starts a node, which joins the node at the peer address join if it is not empty. Without a TLS
// configuration the nodes communicate in cleartext.
func startSecureNode(t *testing.T, join string, o server.Options, config *tls.Config) (h *harness, peer string) {
	t.Helper()
	return startClockedNode(t, join, o, config, time.Now)
}

// startClockedNode is startSecureNode with a clock.
func startClockedNode(
	t *testing.T, join string, o server.Options, config *tls.Config, clock func() time.Time,
) (h *harness, peer string) {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	dir, peer := filepath.Join(t.TempDir(), "node"), listener.Addr().String()
	logger := slog.New(slog.DiscardHandler)
	if join != "" {
		must.Do(t, seed.Join(within(t), seed.Options{
			Dir: dir, Nodes: []string{join}, RoundTripper: peers.NewRoundTripper(config), Peer: peer, Logger: logger,
			Encrypted: config != nil, Token: joinToken,
		}))
	}
	l := must.Get(ledger.Open(within(t), ledger.Options{
		Dir: dir, LogBytes: 8 << 20, CacheBytes: -1, ScrubBytes: -1, Logger: logger, Clock: clock,
		Cluster: &cluster.Options{
			Listener: listener, Client: "client-of-" + peer, TLS: config, Token: joinToken,
			Tick: 60 * time.Millisecond, // with less, a busy machine would elect leaders for no reason
		},
	}))(t)
	t.Cleanup(func() { _ = l.Close() }) // some tests close it
	o.Ledger = l
	h = startWith(t, o)
	mux := http.NewServeMux()
	mux.Handle("POST "+cluster.JoinPath, l.Cluster().JoinHandler())
	mux.Handle("GET "+seed.Path, seed.Handler(l, -1))
	mux.Handle("/", h.server.PeerHandler())
	l.Cluster().ServePeers(mux)
	return h, peer
}

// startNodes starts a cluster of three voters.
func startNodes(t *testing.T, o server.Options) []*harness {
	t.Helper()
	return startSecureNodes(t, o, nil)
}

// startSecureNodes is startNodes with TLS between nodes.
func startSecureNodes(t *testing.T, o server.Options, config *tls.Config) []*harness {
	t.Helper()
	first, peer := startSecureNode(t, "", o, config)
	second, _ := startSecureNode(t, peer, o, config)
	third, _ := startSecureNode(t, peer, o, config)
	nodes := []*harness{first, second, third}
	for _, n := range nodes {
		must.Await(t, func() bool {
			voters := 0
			for _, m := range n.ledger.Cluster().Status().Members {
				if m.Voter {
					voters++
				}
			}
			leader, _ := n.ledger.Cluster().Leader()
			return voters == len(nodes) && leader.Peer != ""
		})
	}
	return nodes
}

// Every node accepts every call in every protocol as if it were the leader, whichever node leads. When the leader
// stops, the remaining two continue.
func TestAnyNodeTakesAnyCall(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t, server.Options{})
	for i, h := range nodes {
		writeEveryWay(t, h, fmt.Sprint("before", i))
		refuseOtherHosts(t, h)
	}
	leader := leads(t, nodes)
	if !testing.Short() {
		before, _ := leader.ledger.Cluster().Leader()
		handOver(t, leader)
		for i, h := range nodes {
			must.Await(t, func() bool {
				now, _ := h.ledger.Cluster().Leader()
				return now.ID != before.ID && now.Peer != ""
			})
			writeEveryWay(t, h, fmt.Sprint("after", i))
		}
		leader = leads(t, nodes)
	}
	leader.h1.CloseIdleConnections()
	leader.h2.CloseIdleConnections()
	must.Do(t, errors.Join(leader.stop(), leader.ledger.Close()))
	next := uint64(0)
	for _, h := range nodes {
		for range 10 {
			if h != leader {
				next++
				h.persist(t, writeOf("c", next, appendOp("x")))
			}
		}
	}
}

// leads returns the leader.
func leads(t *testing.T, nodes []*harness) (leader *harness) {
	t.Helper()
	must.Await(t, func() bool {
		for _, h := range nodes {
			if l, _ := h.ledger.Cluster().Leader(); l.Self {
				leader = h
			}
		}
		return leader != nil
	})
	return leader
}

// persist repeats a write until it has an outcome, as every client does.
func (h *harness) persist(t *testing.T, m *seqledgerv1.WriteRequest) {
	t.Helper()
	ctx := within(t)
	for {
		r, err := h.client.Write(ctx, connect.NewRequest(m))
		if err == nil && r.Msg.GetReceipt().GetSequence() == m.GetSequence() {
			return
		}
		switch detail(err).GetCode() {
		case seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER,
			seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN:
		default:
			t.Fatal(m.GetSequence(), r, err)
		}
	}
}

func writeEveryWay(t *testing.T, h *harness, prefix string) {
	t.Helper()
	ctx := within(t)
	for name, c := range map[string]seqledgerv1connect.LedgerServiceClient{
		"connect, HTTP/1.1": seqledgerv1connect.NewLedgerServiceClient(h.h1, h.url),
		"connect, HTTP/2":   seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url),
		"gRPC":              seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, connect.WithGRPC()),
		"gRPC-Web":          seqledgerv1connect.NewLedgerServiceClient(h.h1, h.url, connect.WithGRPCWeb()),
		"JSON":              seqledgerv1connect.NewLedgerServiceClient(h.h1, h.url, connect.WithProtoJSON()),
	} {
		client := prefix + name
		err := settled(t, func() error {
			r, err := c.Write(ctx, connect.NewRequest(writeOf(client, 1, appendOp("x"))))
			if err == nil && r.Msg.GetReceipt().GetSequence() != 1 {
				t.Errorf("%s %s: %v", prefix, name, r)
			}
			return err
		})
		must.Do(t, err, "%s %s", prefix, name)
		err = settled(t, func() error {
			_, err := c.Write(ctx, connect.NewRequest(writeOf(client, 3, appendOp("x"))))
			return err
		})
		mustRefuse(t, err, connect.CodeFailedPrecondition, seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_SEQUENCE_GAP)
		var state *connect.Response[seqledgerv1.GetClientStateResponse]
		err = settled(t, func() (err error) {
			state, err = c.GetClientState(ctx, connect.NewRequest(&seqledgerv1.GetClientStateRequest{
				Scope: scope(), ClientId: client,
			}))
			return err
		})
		if err != nil || state.Msg.GetState().GetLastCommittedSequence() != 1 {
			t.Fatalf("%s %s: a read after the write: %v, %v", prefix, name, state, err)
		}
	}
	for name, c := range map[string]seqledgerv1connect.LedgerServiceClient{
		"stream": h.client, "gRPC stream": seqledgerv1connect.NewLedgerServiceClient(h.h2, h.url, connect.WithGRPC()),
	} {
		if err := settled(t, func() error { return streamThree(ctx, c, prefix+name) }); err != nil {
			t.Fatal(prefix, name, err)
		}
	}
	upgraded := mustOpenUpgraded(t, h)
	for i := range uint64(3) {
		r := ask(t, upgraded, writeOf(prefix+"upgraded", i+1, appendOp("x")))
		if r[0].GetReceipt().GetSequence() != i+1 {
			t.Fatal(prefix, "upgraded", r)
		}
	}
	_ = upgraded.Close()
}

// streamThree makes three writes on a stream, one by one, so that both sides send at once.
func streamThree(ctx context.Context, c seqledgerv1connect.LedgerServiceClient, id string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := c.WriteStream(ctx)
	for i := range uint64(3) {
		_ = stream.Send(frameOf(writeOf(id, i+1, appendOp("x")))) // the response says why it fails
		answer, err := stream.Receive()
		if err != nil {
			return err
		}
		switch result := answer.GetResults()[0]; {
		case result.GetError().GetCode() == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_NOT_LEADER,
			result.GetError().GetCode() == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_OUTCOME_UNKNOWN:
			return connect.NewError(connect.CodeUnavailable, errors.New(result.GetError().GetMessage()))
		case result.GetReceipt().GetSequence() != i+1:
			return fmt.Errorf("write %d got %v", i+1, result)
		}
	}
	if err := stream.CloseRequest(); err != nil {
		return err
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("the stream ended with %w", err)
	}
	return stream.CloseResponse()
}

// refuseOtherHosts checks that without credentials on loopback only requests to a loopback host are accepted. The
// leader knows the host that a caller of another node used.
func refuseOtherHosts(t *testing.T, h *harness) {
	t.Helper()
	q := must.Get(http.NewRequestWithContext(within(t), http.MethodPost,
		h.url+seqledgerv1connect.LedgerServiceWriteProcedure, strings.NewReader(`{}`)))(t)
	q.Header.Set("Content-Type", "application/json")
	q.Host = "rebound.example.com"
	if status, _, text := h.do(t, q); status != http.StatusMisdirectedRequest && status != http.StatusForbidden {
		t.Errorf("got %d %s, want the host refused", status, text)
	}
}

// Whether a lease has ended depends on ledger time, which is the leader's clock. The other nodes, whose clocks may
// differ by ten seconds, ask the leader.
func TestEveryNodeReadsRecordsByTheLeadersClock(t *testing.T) {
	t.Parallel()
	behind := func() time.Time { return time.Now().Add(-9 * time.Second) }
	leader, peer := startClockedNode(t, "", server.Options{}, nil, behind)
	follower, _ := startSecureNode(t, peer, server.Options{}, nil)
	must.Await(t, func() bool {
		l, _ := follower.ledger.Cluster().Leader()
		return l.ID == 1 && leader.ledger.Cluster().Status().Members[1].Voter
	})
	q := reserveOf("k", 1)
	q.Lease = durationpb.New(5 * time.Second)
	q.ValidUntil = timestamppb.New(behind().Add(time.Minute))
	owner := reply(t, leader.idempotency().Reserve, q)
	if owner.Outcome != seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED {
		t.Fatal(owner)
	}
	const pending = seqledgerv1.RecordState_RECORD_STATE_PENDING
	for name, h := range map[string]*harness{"leader": leader, "follower": follower} {
		for protocol, o := range wire {
			c := seqledgerv1connect.NewIdempotencyServiceClient(h.h2, h.url, o...)
			one := reply(t, c.GetRecord, &seqledgerv1.GetRecordRequest{Record: q.Record}).Record
			all := reply(t, c.ListRecords, &seqledgerv1.ListRecordsRequest{Scope: scope()}).Records
			if one.State != pending || len(all) != 1 || all[0].State != pending {
				t.Errorf("the %s by %s: %v, %v", name, protocol, one.State, all)
			}
		}
	}
	get := seqledgerv1connect.NewIdempotencyServiceClient(follower.h1, follower.url, connect.WithHTTPGet())
	check.Equal(t, reply(t, get.GetRecord, &seqledgerv1.GetRecordRequest{Record: q.Record}).Record.State, pending,
		"the follower by GET: %v")
}
