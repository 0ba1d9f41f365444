package demo

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client/payments"
	"github.com/seqledger/seqledger/cmd/seqledger/faultproxy"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// fakeServer notes what arrives and answers every write with a receipt.
type fakeServer struct {
	seqledgerv1connect.UnimplementedLedgerServiceHandler

	mu      sync.Mutex
	arrived []string // "client id/sequence", in order
}

// take notes a write and answers it.
func (f *fakeServer) take(write *seqledgerv1.WriteRequest) *seqledgerv1.Receipt {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := fmt.Sprintf("%s/%d", write.GetClientId(), write.GetSequence())
	receipt := &seqledgerv1.Receipt{Sequence: write.GetSequence(), TxId: name}
	for _, earlier := range f.arrived {
		receipt.Replayed = receipt.Replayed || earlier == name
	}
	f.arrived = append(f.arrived, name)
	return receipt
}

func (f *fakeServer) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.arrived...)
}

func (f *fakeServer) Write(_ context.Context,
	r *connect.Request[seqledgerv1.WriteRequest]) (*connect.Response[seqledgerv1.WriteResponse], error) {
	return connect.NewResponse(&seqledgerv1.WriteResponse{Receipt: f.take(r.Msg)}), nil
}

// listen serves a handler until the test ends and returns its address.
func listen(t *testing.T, handler http.Handler) string {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := &http.Server{Handler: handler, Protocols: faultproxy.Protocols(true, true)}
	ended := make(chan struct{})
	// Ended by the cleanup, which waits for it.
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return listener.Addr().String()
}

// write is a payment as the proxy sees it.
func write(clientID string, sequence uint64) *seqledgerv1.WriteRequest {
	p := payments.Payment{Tag: fmt.Sprintf("%s/%d", clientID, sequence), Cents: int64(sequence)}
	return &seqledgerv1.WriteRequest{
		Scope: scope(), ClientId: clientID, Sequence: sequence, Operations: []*seqledgerv1.Operation{p.Operation()},
	}
}
