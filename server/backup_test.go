package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/testkit/must"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/restore"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/proto/seqledger/v1/seqledgerv1connect"
	"github.com/seqledger/seqledger/server"
)

func (h *harness) backup(t testing.TB, ctx context.Context) *connect.ServerStreamForClient[seqledgerv1.BackupResponse] {
	t.Helper()
	stream := must.Get(h.admin.Backup(ctx, connect.NewRequest(&seqledgerv1.BackupRequest{})))(t)
	t.Cleanup(func() { _ = stream.Close() })
	return stream
}

// A header, chunks that make a backup, and a trailer that fits them.
func TestBackup(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{BackupRate: -1})
	receipt := h.mustWrite(t, writeOf("c", 1, appendOp("x")))
	stream := h.backup(t, within(t))
	var header *seqledgerv1.BackupHeader
	var trailer *seqledgerv1.BackupTrailer
	var file bytes.Buffer
	for stream.Receive() {
		m := stream.Msg()
		switch {
		case trailer != nil:
			t.Error("something follows the trailer")
		case m.GetHeader() != nil && header == nil:
			header = m.GetHeader()
		case m.GetTrailer() != nil:
			trailer = m.GetTrailer()
		default:
			file.Write(m.GetChunk())
		}
	}
	if err := stream.Err(); err != nil || header == nil || trailer == nil {
		t.Fatalf("%v: header %v, trailer %v", err, header, trailer)
	}
	sum := sha256.Sum256(file.Bytes())
	if trailer.GetTotalSize() != uint64(file.Len()) || !bytes.Equal(trailer.GetSha256(), sum[:]) {
		t.Errorf("%d bytes arrived with %x, the trailer says %v", file.Len(), sum, trailer)
	}
	status := must.Get(h.admin.GetStatus(within(t), connect.NewRequest(&seqledgerv1.GetStatusRequest{})))(t)
	if s := status.Msg.GetStatus(); header.GetLedgerId() != s.GetLedgerId() ||
		header.GetIndex() != receipt.GetIndex() ||
		header.GetDigest() != s.GetDigest() || header.GetSizeEstimate() != trailer.GetTotalSize() ||
		header.GetFormatVersion() != backupfile.Version {
		t.Errorf("the header is %v, the status %v", header, s)
	}
	info, err := restore.Backup(t.Context(), &file,
		restore.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil || info.Backup.Index != receipt.GetIndex() {
		t.Errorf("restore: %+v %v", info, err)
	}
}

// slowBackup returns a backup that is under way, and slow.
func slowBackup(t *testing.T, h *harness) *connect.ServerStreamForClient[seqledgerv1.BackupResponse] {
	t.Helper()
	stream := h.backup(t, within(t))
	if !stream.Receive() || stream.Msg().GetHeader() == nil {
		t.Fatalf("no header: %v", stream.Err())
	}
	return stream
}

func TestBackupOneAtATime(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{BackupRate: 1})
	first := slowBackup(t, h)
	second := h.backup(t, within(t))
	if second.Receive() || connect.CodeOf(second.Err()) != connect.CodeResourceExhausted ||
		!strings.Contains(second.Err().Error(), "another backup") {
		t.Errorf("a second backup: %v", second.Err())
	}
	h.mustWrite(t, writeOf("c", 1, appendOp("x"))) // continues meanwhile
	// A client that disconnects ends its backup, and makes room for another.
	if err := first.Close(); err != nil && connect.CodeOf(err) != connect.CodeCanceled {
		t.Log(err)
	}
}

// A backup may take hours, so that a drain does not wait for it.
func TestDrainEndsBackup(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{BackupRate: 1})
	stream := slowBackup(t, h)
	must.Do(t, h.server.Drain(within(t)))
	for stream.Receive() {
		if stream.Msg().GetTrailer() != nil {
			t.Error("a backup that was broken off has a trailer")
		}
	}
	if connect.CodeOf(stream.Err()) != connect.CodeUnavailable {
		t.Errorf("a backup during a drain ended with %v", stream.Err())
	}
	late := h.backup(t, within(t))
	if late.Receive() || connect.CodeOf(late.Err()) != connect.CodeUnavailable {
		t.Errorf("a backup after a drain: %v", late.Err())
	}
}

// A client that is gone, or cancels, ends its backup.
func TestDisconnectEndsBackup(t *testing.T) {
	t.Parallel()
	h := startWith(t, server.Options{BackupRate: 1})
	lone, disconnect := loneClient()
	stream, err := seqledgerv1connect.NewAdminServiceClient(lone, h.url).Backup(within(t),
		connect.NewRequest(&seqledgerv1.BackupRequest{}))
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	h.awaitStreams(t, "1")
	disconnect()
	h.awaitStreams(t, "0")
	_ = stream.Close() // its connection is gone
	slowBackup(t, h)
}

// The request is decoded as strictly as every other, and GET does not start a backup.
func TestBackupRefusesUnknownField(t *testing.T) {
	t.Parallel()
	h := start(t)
	body := "\x00\x00\x00\x00\x0c{\"rate\": 12}"
	status, _, text := h.post(t, seqledgerv1connect.AdminServiceBackupProcedure, "application/connect+json", body)
	if status != http.StatusOK || !strings.Contains(text, "invalid_argument") || !strings.Contains(text, "rate") {
		t.Errorf("%d %s", status, text)
	}
	request := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet,
		h.url+seqledgerv1connect.AdminServiceBackupProcedure, nil))(t)
	if status, _, text := h.do(t, request); status != http.StatusMethodNotAllowed ||
		!strings.Contains(text, "send POST") {
		t.Errorf("GET is answered with %d %s", status, text)
	}
}
