package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// escaping is a server whose ledger id is for a terminal.
type escaping struct {
	seqledgerv1connect.UnimplementedAdminServiceHandler
}

func (escaping) Backup(_ context.Context, _ *connect.Request[seqledgerv1.BackupRequest],
	stream *connect.ServerStream[seqledgerv1.BackupResponse]) error {
	header := &seqledgerv1.BackupHeader{LedgerId: "\x1b]0;owned\x07\x1b[2J"}
	if err := stream.Send(&seqledgerv1.BackupResponse{
		Part: &seqledgerv1.BackupResponse_Header{Header: header}}); err != nil {
		return err
	}
	empty := [32]byte{0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
		0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55}
	return stream.Send(&seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Trailer{
		Trailer: &seqledgerv1.BackupTrailer{Sha256: empty[:]},
	}})
}

// TestBackupShowsNoEscapes of a server on standard error.
func TestBackupShowsNoEscapes(t *testing.T) {
	t.Parallel()
	r := seqledger(t, "backup", "-", "--server", serveHandler(t, escaping{})).expect(t, exitDone, "ledger")
	if strings.Contains(r.stderr, "\x1b") {
		t.Errorf("the terminal would execute %q", r.stderr)
	}
}

// TestNobodyReadsTheNotices: notice says that this must not keep a command
// from its work.
func TestNobodyReadsTheNotices(t *testing.T) {
	t.Parallel()
	s := serve(t)
	reader, writer, err := os.Pipe()
	must.Do(t, err)
	_ = reader.Close()
	cmd := exec.Command(binary, "write", "--server", s.address, "--scope", "acme/main", "--client-id", "c", "--set",
		"a=1")
	cmd.Stderr = writer
	err = cmd.Run()
	_ = writer.Close()
	check.Is(t, err, nil, "the write ended with")
	s.do(t, "state", "--scope", "acme/main", "--client-id", "c").expect(t, exitDone, "last sequence      1")
}
