package server

import (
	"context"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

type backupStream = connect.ServerStream[seqledgerv1.BackupResponse]

// backup sends a backup until it is complete, the client disconnects, or the server drains: a
// backup may take hours, and can be repeated.
func (s *Server) backup(
	ctx context.Context, r *connect.Request[wire.Request[seqledgerv1.BackupRequest, *seqledgerv1.BackupRequest]],
	stream *backupStream,
) error {
	controls := admission.StreamControlsOf(ctx)
	controls.Whole()
	controls.Release()
	if _, err := r.Msg.Get(); err != nil {
		return err
	}
	if s.isDraining() {
		return ledger.ErrDraining
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(s.draining, func() { cancel(ledger.ErrDraining) })
	defer stop()
	defer s.untilCallerEnds(ctx, cancel)()
	out := &backupSender{stream: stream, controls: controls}
	info, err := s.options.Ledger.Backup(ctx, out, ledger.BackupOptions{RateBytes: s.options.BackupRate, Begin: out.begin})
	if err != nil {
		return err
	}
	return out.send(&seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Trailer{
		Trailer: &seqledgerv1.BackupTrailer{TotalSize: uint64(info.Bytes), Sha256: info.SHA256[:]},
	}})
}

// backupSender sends what is written to it.
type backupSender struct {
	stream   *backupStream
	controls *admission.StreamControls
}

func (b *backupSender) begin(info ledger.BackupInfo) error {
	return b.send(&seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Header{Header: &seqledgerv1.BackupHeader{
		LedgerId: info.LedgerID.String(), Index: info.Index, Digest: info.Digest.String(),
		SizeEstimate: uint64(info.Bytes), FormatVersion: ledger.BackupFormat,
	}}})
}

// Write implements io.Writer. The ledger writes a chunk of its format at a time.
func (b *backupSender) Write(chunk []byte) (int, error) {
	if err := b.send(&seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Chunk{Chunk: chunk}}); err != nil {
		return 0, err
	}
	return len(chunk), nil
}

// send fails if the client takes no data for too long. While a backup is open, the state file
// cannot reuse its old pages, so a client that stopped reading would make it grow without
// bound.
func (b *backupSender) send(part *seqledgerv1.BackupResponse) error {
	return b.controls.Send(func() error { return b.stream.Send(part) })
}
