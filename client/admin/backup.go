package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"connectrpc.com/connect"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// BackupInfo describes a backup.
type BackupInfo struct {
	LedgerID string // as in Status
	Index    uint64 // ledger index of the last command in it
	Digest   string // running digest at that index, in hex
	Bytes    uint64 // of the whole backup; an estimate until the backup has ended
	SHA256   []byte // of the whole backup; nil until it has ended
}

// Backup writes a backup of the whole ledger to w. The backup contains everything that was acknowledged before the
// call; the ledger keeps taking writes meanwhile. w holds the complete backup only if the error is nil. Backup is not
// retried, because after an error w holds the beginning of a backup, which cannot be used.
//
// begin is called with the backup's description before the first byte is written; an error from begin ends the call.
// begin may be nil. A server refuses a backup while it makes another one, with the Connect code resource_exhausted.
func Backup(
	ctx context.Context, conn *client.Client, w io.Writer, begin func(BackupInfo) error,
) (info BackupInfo, err error) {
	c := conn.Core()
	defer func() {
		if err != nil {
			err = fmt.Errorf("backup: %w", err)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.Context(), cancel)()
	request := connect.NewRequest(&seqledgerv1.BackupRequest{})
	if _, err := c.Options.Authorize(ctx, request.Header()); err != nil {
		return info, err
	}
	stream, err := c.Endpoint().Backup(ctx, request)
	if err != nil {
		return info, failure.FromConnect(err, 0)
	}
	// Cancel first, because that ends the stream at once; see watch.once.
	defer func() { cancel(); _ = stream.Close() }()
	if !stream.Receive() {
		return info, streamEnd(stream.Err())
	}
	header := stream.Msg().GetHeader()
	if header == nil {
		return info, rpc.ProtocolError("the backup does not begin with its header")
	}
	info = BackupInfo{
		LedgerID: header.GetLedgerId(), Index: header.GetIndex(), Digest: header.GetDigest(),
		Bytes: header.GetSizeEstimate(),
	}
	if begin != nil {
		if err := begin(info); err != nil {
			return info, err
		}
	}
	hash, size := sha256.New(), uint64(0)
	to := io.MultiWriter(w, hash)
	for stream.Receive() {
		switch part := stream.Msg().GetPart().(type) {
		case *seqledgerv1.BackupResponse_Chunk:
			if _, err := to.Write(part.Chunk); err != nil {
				return info, err
			}
			size += uint64(len(part.Chunk))
		case *seqledgerv1.BackupResponse_Trailer:
			info.Bytes, info.SHA256 = size, hash.Sum(nil)
			return info, checkTrailer(part.Trailer, &info)
		default:
			return info, rpc.ProtocolError("the backup has a part that this client cannot read; update the client")
		}
	}
	return info, streamEnd(stream.Err())
}

// streamEnd is the error of a stream that ended before its trailer.
func streamEnd(err error) error {
	if err != nil {
		return failure.FromConnect(err, 0)
	}
	return rpc.ProtocolError("the backup ended before its trailer")
}

// checkTrailer compares the received bytes with what the server says it has sent.
func checkTrailer(t *seqledgerv1.BackupTrailer, info *BackupInfo) error {
	if t.GetTotalSize() != info.Bytes || !bytes.Equal(t.GetSha256(), info.SHA256) {
		return rpc.ProtocolError("received %d bytes with SHA-256 %x, the server sent %d with %x",
			info.Bytes, info.SHA256, t.GetTotalSize(), t.GetSha256())
	}
	return nil
}
