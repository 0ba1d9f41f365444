package server_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server"
)

// TestWriteStreamIsAuthorisedWriteByWrite: a refused write does not affect its neighbours, changes nothing, and the
// stream continues.
func TestWriteStreamIsAuthorisedWriteByWrite(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	l, _ := g.as("writer")
	other := writeOf("till-7", 1, appendOp("x"))
	other.Scope = &seqledgerv1.Scope{Organization: "acme"}
	stream := l.WriteStream(t.Context())
	for round := range uint64(2) {
		frame := []*seqledgerv1.WriteRequest{
			writeOf("till-7", round+1, appendOp("x")), writeOf("loader", 1, appendOp("x")), other,
			writeOf("till-8", round+1, appendOp("x")),
		}
		must.Do(t, stream.Send(&seqledgerv1.WriteStreamRequest{Writes: frame}))
		answer := must.Get(stream.Receive())(t)
		for i, field := range []string{"", "client_id", "scope", ""} {
			e := answer.Results[i].GetError()
			if field == "" && answer.Results[i].GetReceipt() == nil {
				t.Errorf("write %d: %v", i, e)
			}
			if field != "" && (e.GetCode() != seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_PERMISSION_DENIED ||
				e.GetField() != field) {
				t.Errorf("write %d: got %v, want PERMISSION_DENIED about %s", i, answer.Results[i], field)
			}
		}
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
	root, admin := g.as("root")
	clients := must.Get(admin.ListClients(t.Context(), connect.NewRequest(&seqledgerv1.ListClientsRequest{})))(t)
	check.Equal(t, len(clients.Msg.Clients), 2, "a refused write made a stream: %v")
	_ = root
	// A reader may not even open one.
	reader, _ := g.as("inspector")
	stream = reader.WriteStream(t.Context())
	_ = stream.Send(&seqledgerv1.WriteStreamRequest{
		Writes: []*seqledgerv1.WriteRequest{writeOf("till-7", 3, appendOp("x"))}})
	answer, err := stream.Receive()
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Error("a reader wrote:", answer, err)
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
}

// streams are a WriteStream and a Watch of one caller.
type streams struct {
	write *connect.BidiStreamForClient[seqledgerv1.WriteStreamRequest, seqledgerv1.WriteStreamResponse]
	watch *connect.ServerStreamForClient[seqledgerv1.WatchResponse]
}

// openStreams returns once both have answered; the error is the first one.
func (g *guarded) openStreams(t *testing.T, id string) (s streams, err error) {
	t.Helper()
	l, _ := g.as(id)
	s.write = l.WriteStream(t.Context())
	t.Cleanup(func() {
		_ = s.write.CloseRequest()
		_ = s.write.CloseResponse()
	})
	if err := s.write.Send(&seqledgerv1.WriteStreamRequest{
		Writes: []*seqledgerv1.WriteRequest{writeOf("till-7", 1, appendOp("x"))}}); err != nil {
		return s, err
	}
	if _, err := s.write.Receive(); err != nil {
		return s, err
	}
	if s.watch, err = l.Watch(t.Context(),
		connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope(), FromHeight: 1})); err != nil {
		return s, err
	}
	t.Cleanup(func() { _ = s.watch.Close() })
	if !s.watch.Receive() {
		return s, s.watch.Err()
	}
	return s, nil
}

// mustEnd checks how both end.
func (s streams) mustEnd(t *testing.T, want connect.Code) {
	t.Helper()
	if _, err := s.write.Receive(); connect.CodeOf(err) != want {
		t.Errorf("WriteStream: got %v, want %v", err, want)
	}
	if s.watch.Receive() || connect.CodeOf(s.watch.Err()) != want {
		t.Errorf("Watch: got %v, want %v", s.watch.Err(), want)
	}
}

// TestStreamsEndWithTheirCredential: what was accepted is answered, then the stream says why it ends.
func TestStreamsEndWithTheirCredential(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(g *guarded)
		want   connect.Code
	}{
		"gone": {func(g *guarded) { delete(g.entries, "writer") }, connect.CodeUnauthenticated},
		"changed": {func(g *guarded) { g.entries["writer"] = strings.Replace(g.entries["writer"], "till-", "t-", 1) },
			connect.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := guard(t, server.Options{}, nil)
			open := must.Get(g.openStreams(t, "writer"))(t)
			test.change(g)
			g.reload(t)
			open.mustEnd(t, test.want)
		})
	}
}

// TestStreamsEndWhenTheirCredentialExpires. The machine may be too slow to open them in time; then the key lives
// longer.
func TestStreamsEndWhenTheirCredentialExpires(t *testing.T) {
	t.Parallel()
	for life := time.Second; ; life *= 4 {
		expires := ", expires: " + time.Now().Add(life).UTC().Format(time.RFC3339Nano)
		g := guard(t, server.Options{}, map[string]string{"brief": callers["writer"] + expires})
		open, err := g.openStreams(t, "brief")
		if err != nil && connect.CodeOf(err) == connect.CodeUnauthenticated && life < time.Minute {
			continue
		}
		must.Do(t, err)
		open.mustEnd(t, connect.CodeUnauthenticated)
		return
	}
}

// TestWatchNeedsItsScope, in every protocol.
func TestWatchNeedsItsScope(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{}, nil)
	for protocol, o := range wire {
		for id, want := range map[string]connect.Code{"": connect.CodeUnauthenticated,
			"elsewhere": connect.CodePermissionDenied} {
			l, _ := g.as(id, o...)
			watch, err := l.Watch(t.Context(), connect.NewRequest(&seqledgerv1.WatchRequest{Scope: scope()}))
			if err == nil {
				if watch.Receive() {
					t.Error(protocol, id, "saw a block")
				}
				err = watch.Err()
				_ = watch.Close()
			}
			if connect.CodeOf(err) != want {
				t.Errorf("%s, %q: got %v, want %v", protocol, id, err, want)
			}
		}
	}
}

// TestBackupEndsWithItsCredential: a revoked key must not go on reading the whole ledger.
func TestBackupEndsWithItsCredential(t *testing.T) {
	t.Parallel()
	g := guard(t, server.Options{BackupRate: 64 << 10}, nil) // so slow that it lasts
	l, a := g.as("root")
	must.Get(l.Write(within(t), connect.NewRequest(writeOf("c", 1, appendOp(incompressible(1<<20))))))(t)
	stream := must.Get(a.Backup(within(t), connect.NewRequest(&seqledgerv1.BackupRequest{})))(t)
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	delete(g.entries, "root")
	g.reload(t)
	for stream.Receive() {
		if stream.Msg().GetTrailer() != nil {
			t.Error("the backup is whole")
		}
	}
	if connect.CodeOf(stream.Err()) != connect.CodeUnauthenticated {
		t.Error(stream.Err())
	}
}
