package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/cmd/seqledger/operation"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
)

// TestImportChecksExpiries: all lines are checked before the first one is
// written, and the ledger takes such a time in no state.
func TestImportChecksExpiries(t *testing.T) {
	t.Parallel()
	s := serve(t)
	input := writeFile(t, "in",
		`{"append":"first"}`+"\n"+`{"set":{"key":"k","value":"v","expires_at":"9999-12-31T23:59:59Z"}}`+"\n")
	r := s.do(t, "import", "--scope", "acme/main", "--client-id", "loader", input)
	state := s.do(t, "state", "--scope", "acme/main", "--client-id", "loader", "--json").expect(t, exitDone)
	if r.code != exitUsage || state.field(t, "lastCommittedSequence") == "1" {
		t.Errorf("line 1 was committed before line 2 was found wrong: %v", r)
	}
}

// TestHalfASurrogate beside a U+FFFD that is meant becomes another text in
// silence.
func TestHalfASurrogate(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"append":"\ufffd\ud800"}`,
		"{\"append\":\"\uFFFD\\ud800\"}", `{"append":"\\ufffd \ud800"}`} {
		if operations, err := operation.Parse([]byte(text)); err == nil {
			t.Errorf("%s became %q", text, operations[0].GetAppend().GetPayload())
		}
	}
}

// TestBenchRates: a rate that no clock can keep must be refused, and a signal
// must end a bench.
func TestBenchRates(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := start(t, "bench", "--server", s.address, "--streams", "1", "--duration", "10ms", "--rate", "inf")
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.ended:
			t.Error("it measures for ever instead of 10 ms")
		case <-time.After(time.Minute):
			t.Error("it measures for ever instead of 10 ms, and SIGTERM does not end it")
		}
	}
}

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
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	cmd := exec.Command(binary, "write", "--server", s.address, "--scope", "acme/main", "--client-id", "c", "--set",
		"a=1")
	cmd.Stderr = writer
	err = cmd.Run()
	_ = writer.Close()
	if err != nil {
		t.Errorf("the write ended with: %v", err)
	}
	s.do(t, "state", "--scope", "acme/main", "--client-id", "c").expect(t, exitDone, "last sequence      1")
}
