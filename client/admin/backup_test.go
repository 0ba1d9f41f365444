package admin_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// backupServer sends the parts and the error of a test.
type backupServer struct {
	seqledgerv1connect.UnimplementedAdminServiceHandler
	parts []*seqledgerv1.BackupResponse
	err   error
}

// Backup implements the handler.
func (s *backupServer) Backup(
	_ context.Context, _ *connect.Request[seqledgerv1.BackupRequest],
	stream *connect.ServerStream[seqledgerv1.BackupResponse],
) error {
	for _, part := range s.parts {
		if err := stream.Send(part); err != nil {
			return err
		}
	}
	return s.err
}

func header() *seqledgerv1.BackupResponse {
	return &seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Header{Header: &seqledgerv1.BackupHeader{
		LedgerId: "00ff", Index: 7, Digest: "abcd", SizeEstimate: 6,
	}}}
}

func chunk(text string) *seqledgerv1.BackupResponse {
	return &seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Chunk{Chunk: []byte(text)}}
}

// trailer is that of a backup with this content.
func trailer(content string) *seqledgerv1.BackupResponse {
	sum := sha256.Sum256([]byte(content))
	return &seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Trailer{
		Trailer: &seqledgerv1.BackupTrailer{TotalSize: uint64(len(content)), Sha256: sum[:]},
	}}
}

func TestBackup(t *testing.T) {
	t.Parallel()
	short := trailer("abcdef")
	short.GetTrailer().TotalSize = 5
	for name, c := range map[string]struct {
		parts []*seqledgerv1.BackupResponse
		err   error
		want  error // ErrProtocol, or nil for none
		code  connect.Code
	}{
		"whole": {parts: []*seqledgerv1.BackupResponse{header(), chunk("abc"), chunk("def"), trailer("abcdef")}},
		"changed": {parts: []*seqledgerv1.BackupResponse{header(), chunk("abc"), chunk("dXf"), trailer("abcdef")},
			want: failure.ErrProtocol},
		"another size": {parts: []*seqledgerv1.BackupResponse{header(), chunk("abcdef"), short},
			want: failure.ErrProtocol},
		"a chunk is gone": {parts: []*seqledgerv1.BackupResponse{header(), chunk("abc"), trailer("abcdef")},
			want: failure.ErrProtocol},
		"no trailer": {parts: []*seqledgerv1.BackupResponse{header(), chunk("abc"), chunk("def")},
			want: failure.ErrProtocol},
		"no header": {parts: []*seqledgerv1.BackupResponse{chunk("abcdef"), trailer("abcdef")},
			want: failure.ErrProtocol},
		"two headers": {parts: []*seqledgerv1.BackupResponse{header(), header(), trailer("")},
			want: failure.ErrProtocol},
		"an empty message": {parts: []*seqledgerv1.BackupResponse{header(), {}, trailer("")},
			want: failure.ErrProtocol},
		"nothing": {want: failure.ErrProtocol},
		"broken off": {parts: []*seqledgerv1.BackupResponse{header(), chunk("abc")},
			err: connect.NewError(connect.CodeUnavailable, nil), code: connect.CodeUnavailable},
		"refused": {err: connect.NewError(connect.CodeResourceExhausted, errors.New("another backup")),
			code: connect.CodeResourceExhausted},
	} {
		conn := serveBackup(t, &backupServer{parts: c.parts, err: c.err})
		var out bytes.Buffer
		info, err := admin.Backup(t.Context(), conn, &out, nil)
		failed, _ := errors.AsType[*failure.Error](err)
		switch {
		case c.want == nil && c.code == 0:
			if err != nil || out.String() != "abcdef" || info.Index != 7 || info.Bytes != 6 || len(info.SHA256) != 32 {
				t.Errorf("%s: %+v %v %q", name, info, err, out.String())
			}
		case c.want != nil && !errors.Is(err, c.want):
			t.Errorf("%s: %v, want %v", name, err, c.want)
		case c.code != 0 && (failed == nil || failed.ConnectCode != c.code):
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
}

func serveBackup(t *testing.T, s *backupServer) *client.Client {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(seqledgerv1connect.NewAdminServiceHandler(s))
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	conn := must.Get(client.New(client.Options{Server: server.URL}))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// The caller's own errors end the call and are returned unchanged.
func TestBackupEndsWithItsWriter(t *testing.T) {
	t.Parallel()
	mine := errors.New("disk full")
	s := &backupServer{parts: []*seqledgerv1.BackupResponse{header(), chunk("abc"), trailer("abc")}}
	conn := serveBackup(t, s)
	check.Is(t, check.Err(admin.Backup(t.Context(), conn, failing{mine}, nil)), mine, "a writer that fails")
	var out bytes.Buffer
	refuse := func(admin.BackupInfo) error { return mine }
	if _, err := admin.Backup(t.Context(), conn, &out, refuse); !errors.Is(err, mine) || out.Len() > 0 {
		t.Errorf("begin that refuses: %v, %d bytes written", err, out.Len())
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
