package transport

import (
	"context"
	"testing"

	"connectrpc.com/connect"
	pb "go.etcd.io/raft/v3/raftpb"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/raftlog/core"
)

// A node with the certificate, or the token, of one member must not open the stream of another one.
func TestStreamOfAnotherMember(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	config := a.config(t, a) // for 127.0.0.1
	two := start(t, 2, func(o *Options) {
		o.TLS = config
		o.Access.Member = func(id uint64) (peer string, is, was bool) {
			return map[uint64]string{1: "127.0.0.1:7", 3: "127.0.0.3:7"}[id], true, false
		}
	})
	must.Do(t, two.SetPeers(map[uint64]string{1: "127.0.0.1:7", 3: "127.0.0.3:7"}))
	one := must.Get(New(Options{Ledger: "ledger-1", ID: 1, Receive: func([]*pb.Message) {}, TLS: a.config(t, a),
		Access: membersAreAll(guardToken)}))(t)
	defer func() { _ = one.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := connect.NewClient[frame, frame](one.client, "https://"+two.address+Procedure, options(), clientUncompressed).
		CallBidiStream(ctx)
	one.identity().show(s.RequestHeader()) // truthful: node 1, with node 1's certificate
	one.introduce(s.RequestHeader(), 2)
	s.RequestHeader().Set(headerFrom, "3") // and yet the stream of node 3
	_ = s.Send(new(frame))                 // a refusal can come before it is written
	if _, err := s.Receive(); err != nil {
		check.Equal(t, connect.CodeOf(err), connect.CodePermissionDenied, "%v", err)
		return
	}
	b := must.Get(core.AppendMessage(nil, message(3, 2, 99, pb.MsgVoteResp, 0)))(t)
	must.Do(t, s.Send(&frame{b}))
	m := two.get(t)
	t.Errorf("node 1 speaks for node 3: %v from %d", m.GetType(), m.GetFrom())
}
