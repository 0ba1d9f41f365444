package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/backupfile"
	"github.com/seqledger/seqledger/ledger/cluster"
	"github.com/seqledger/seqledger/ledger/machine"
	"github.com/seqledger/seqledger/ledger/stats"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// getStatus describes the server. Index, digest, the numbers of streams and commands, and the sizes reveal what all
// callers do together, so only admins on every scope get them.
func (s *Server) getStatus(
	ctx context.Context, _ *seqledgerv1.GetStatusRequest,
) (*seqledgerv1.GetStatusResponse, error) {
	all := s.caller(ctx).Administer() == nil
	status := &seqledgerv1.Status{Version: s.options.Version, Caller: s.callerStatus(ctx)}
	alone, err := s.awaitKnown(ctx)
	if err != nil {
		return nil, err
	}
	head := s.options.Ledger.Head()
	status.LedgerId, status.LedgerTime = head.Ledger.String(), wire.Timestamp(head.Time)
	if all {
		status.Index, status.Digest, status.Streams = head.Index, head.Digest.String(), head.Streams
		status.Config = wire.RenderConfig(head.Config)
		status.Retention = wire.RenderRetention(head.Retained)
	}
	if all {
		status.Node = s.nodeStatus()
		status.Node.Reservations = head.Pending
		status.Node.Cluster = s.cluster()
	} else {
		status.Node = &seqledgerv1.NodeStatus{Time: timestamppb.Now()}
	}
	if status.Node.NotReady = s.unready(alone, nil); alone {
		status.Node.NotReady += "; this is what the node knows without the others"
	}
	if stall := s.options.Ledger.Stalled(); all && stall.Job != "" {
		status.Node.NotReady += fmt.Sprintf("; %s has not advanced for %v", stall.Job,
			stall.For.Round(time.Millisecond))
	}
	return &seqledgerv1.GetStatusResponse{Status: status}, nil
}

const (
	// noMajority is why a node without a leader that has a majority takes no writes.
	noMajority = "no majority of the nodes answers, or an election is under way"
	// statusPatience is how long a status and a probe wait for a majority when a leader is known: longer than one needs
	// that is well.
	statusPatience = time.Second
)

// awaitKnown waits until the ledger's Head is as fresh as a read. Where no majority confirms that, it is what this node
// knows without the others, and alone is true. It waits for a disk for at most statusPatience.
func (s *Server) awaitKnown(ctx context.Context) (alone bool, err error) {
	l := s.options.Ledger
	known := l.Cluster().Status()
	if l.Err() == nil && (l.Stalled().Job != "" || len(known.Members) > 1 && known.Leader.ID == 0) {
		return true, nil
	}
	limited, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	err = l.Fresh(limited)
	_, lost := errors.AsType[*cluster.NotLeaderError](err)
	if lost || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return true, nil
	}
	return false, err
}

// callerStatus describes the caller.
func (s *Server) callerStatus(ctx context.Context) *seqledgerv1.CallerStatus {
	c := s.caller(ctx)
	grant := c.Grant()
	status := &seqledgerv1.CallerStatus{
		Actor: c.Actor(), Role: grant.Role.String(), Scopes: grant.Scopes, ClientIds: grant.ClientIDs,
		StoredBytes: uint64(s.admission.StoredBytes(s.party(ctx))), StoredBytesLimit: uint64(c.Limits().StoredBytes),
	}
	if expires := c.Expires(); !expires.IsZero() {
		status.ExpiresAt = timestamppb.New(expires)
	}
	return status
}

// nodeStatus describes this node.
func (s *Server) nodeStatus() *seqledgerv1.NodeStatus {
	counted := s.options.Ledger.Stats()
	node := &seqledgerv1.NodeStatus{
		StartedAt: timestamppb.New(counted.Opened), Time: timestamppb.Now(),
		RecoveredEntries: counted.RecoveredEntries, RecoveryDuration: durationpb.New(counted.RecoveryTook),
		CommandsCommitted: counted.Decisions[machine.Committed],
		LogBytes:          uint64(counted.LogPendingBytes), PendingBytes: uint64(counted.PendingBytes),
		BlockBytes: uint64(counted.BlockBytes), Archive: archiveStatus(counted.Archive),
		Scrub: scrubStatus(&counted),
	}
	node.WaitingReserves = uint32(counted.KeyWaiters)
	node.ReservationsIndeterminate = counted.Keyed.Indeterminate
	if oldest := counted.Keyed.Oldest; !oldest.IsZero() {
		node.OldestReservation = timestamppb.New(oldest)
	}
	for code, n := range counted.Decisions {
		switch code {
		case machine.Committed, machine.Replayed,
			machine.Keyed(keyed.OK), machine.Keyed(keyed.Acquired), machine.Keyed(keyed.Replay):
		default:
			node.CommandsRefused += n
		}
	}
	// An error about the free disk space must not hide the rest.
	if disk, err := s.options.Ledger.DiskUsage(); err == nil {
		node.StateBytes, node.DiskFreeBytes = disk.State, disk.Free
	}
	return node
}

// scrubStatus describes the background's comparison with checksums; nil if it is off.
func scrubStatus(s *stats.Stats) *seqledgerv1.ScrubStatus {
	if s.ScrubRate == 0 {
		return nil
	}
	status := &seqledgerv1.ScrubStatus{
		// What is compared can shrink while a round is under way.
		Position: min(s.ScrubPosition, s.ScrubBytes), Size: s.ScrubBytes, Rounds: s.ScrubRounds, Rate: s.ScrubRate,
	}
	if !s.LastScrub.IsZero() {
		status.LastRound = timestamppb.New(s.LastScrub)
	}
	return status
}

// archiveStatus describes the archive; nil for none.
func archiveStatus(a *stats.Archive) *seqledgerv1.ArchiveStatus {
	if a == nil {
		return nil
	}
	status := &seqledgerv1.ArchiveStatus{
		Target: a.Target, Files: a.Files, Bytes: a.Bytes, LastIndex: a.Last,
		WaitingFiles: a.WaitingFiles, WaitingBytes: a.WaitingBytes, Problem: a.Problem, StateIndex: a.StateIndex,
	}
	if a.StateIndex != 0 {
		status.StateTime = timestamppb.New(a.StateTime)
	}
	if !a.FailingSince.IsZero() {
		status.FailingSince = timestamppb.New(a.FailingSince)
	}
	if !a.LogSafe.IsZero() {
		status.LogIndex, status.LogTime = a.LogIndex, timestamppb.New(a.LogTime)
		status.LogSafe = timestamppb.New(a.LogSafe)
	}
	return status
}

// archivePoint brings the archive up to what was acknowledged.
func (s *Server) archivePoint(
	ctx context.Context, _ *seqledgerv1.ArchivePointRequest,
) (*seqledgerv1.ArchivePointResponse, error) {
	index, at, err := s.options.Ledger.ArchivePoint(ctx)
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.ArchivePointResponse{Index: index, Time: timestamppb.New(at)}, nil
}

// listClients pages through the streams.
func (s *Server) listClients(
	ctx context.Context, m *seqledgerv1.ListClientsRequest,
) (*seqledgerv1.ListClientsResponse, error) {
	var only *machine.Scope
	q := wire.NewQuery("clients")
	if m.Scope != nil {
		scope, err := wire.RequireScope(m.Scope)
		if err != nil {
			return nil, err
		}
		only = &scope
		q = wire.NewQuery("clients", scope.Organization, scope.Vault)
	}
	size, err := wire.PageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	after, err := q.Cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	page, err := s.findStreams(ctx, only, after, size)
	if err != nil {
		return nil, err
	}
	answer := new(seqledgerv1.ListClientsResponse)
	if page.more {
		answer.NextPageToken = q.Token(page.last)
	}
	if len(page.streams) == 0 {
		return answer, nil
	}
	err = s.options.Ledger.Pieces(ctx, func(b machine.Blocks) (bool, error) {
		stream := &page.streams[len(answer.Clients)]
		var newest *machine.Receipt
		if stream.Newest != 0 {
			r, err := b.ReceiptAt(stream.Newest)
			if err != nil && !isGone(err) {
				return false, err
			}
			if err == nil { // else it is gone since the view
				newest = &r
			}
		}
		answer.Clients = append(answer.Clients, &seqledgerv1.ClientEntry{
			Scope: wire.RenderScope(stream.Scope), ClientId: stream.ClientID,
			State: wire.RenderState(stream.StreamState, newest, page.config),
		})
		return len(answer.Clients) < len(page.streams), nil
	})
	return answer, err
}

// streamPage is a page of streams in the order of their keys.
type streamPage struct {
	config  machine.Config
	streams []machine.NamedStream
	last    []byte // the key of the last one
	more    bool
}

// streamsInView is how many streams one view reads, because their records have up to 8 KiB.
const streamsInView = 100

// findStreams finds the streams of a page.
func (s *Server) findStreams(
	ctx context.Context, only *machine.Scope, after []byte, size int,
) (page streamPage, err error) {
	page.last = after
	for full := true; full; {
		full = false
		read := 0
		err := s.options.Ledger.View(ctx, func(v machine.View) error {
			page.config = v.Config()
			resume, err := v.VisitStreams(only, page.last, func(key []byte, stream machine.NamedStream) bool {
				if len(page.streams) == size {
					page.more = true
					return false
				}
				if read == streamsInView {
					full = true
					return false
				}
				page.last, page.streams = key, append(page.streams, stream)
				read++
				return true
			})
			if resume != nil { // deleted ones were stepped over
				page.last, full = resume, true
			}
			return err
		}, machine.TableStreams)
		if err != nil {
			return page, err
		}
	}
	return page, nil
}

// updateConfig changes the replicated configuration.
func (s *Server) updateConfig(
	ctx context.Context, m *seqledgerv1.UpdateConfigRequest,
) (*seqledgerv1.UpdateConfigResponse, error) {
	update, err := wire.ConfigUpdate(m)
	if err != nil {
		return nil, err
	}
	if s.isDraining() {
		return nil, ledger.ErrDraining
	}
	// The quota does not apply, because a smaller configuration may make room.
	out, err := s.options.Ledger.UpdateConfig(ctx, update, s.caller(ctx).Actor())
	if err != nil {
		return nil, err
	}
	if err := outcomeError(&out, 0); err != nil {
		return nil, err
	}
	s.metrics.success(methodUpdateConfig, out.Code)
	return &seqledgerv1.UpdateConfigResponse{Config: wire.RenderConfig(out.Config)}, nil
}

type backupStream = connect.ServerStream[seqledgerv1.BackupResponse]

// backup sends a backup until it is complete, the client disconnects, or the server drains, because a backup may take
// hours, and can be repeated.
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
	info, err := s.options.Ledger.Backup(ctx, out,
		ledger.BackupOptions{RateBytes: s.options.BackupRate, Begin: out.begin})
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

func (b *backupSender) begin(info backupfile.Info) error {
	header := &seqledgerv1.BackupHeader{
		LedgerId: info.LedgerID.String(), Index: info.Index, Digest: info.Digest.String(),
		SizeEstimate: uint64(info.Bytes), FormatVersion: backupfile.Version,
	}
	return b.send(&seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Header{Header: header}})
}

// Write implements io.Writer. The ledger writes one chunk of its format per call.
func (b *backupSender) Write(chunk []byte) (int, error) {
	if err := b.send(&seqledgerv1.BackupResponse{Part: &seqledgerv1.BackupResponse_Chunk{Chunk: chunk}}); err != nil {
		return 0, err
	}
	return len(chunk), nil
}

// send fails if the client takes no data for too long. Because while a backup is open, the state file cannot reuse its
// old pages, a client that stopped reading would make it grow without bound.
func (b *backupSender) send(part *seqledgerv1.BackupResponse) error {
	return b.controls.Send(func() error { return b.stream.Send(part) })
}
