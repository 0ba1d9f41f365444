package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// getStatus describes the server.
func (s *Server) getStatus(
	ctx context.Context, _ *seqledgerv1.GetStatusRequest,
) (*seqledgerv1.GetStatusResponse, error) {
	status := &seqledgerv1.Status{Version: s.options.Version}
	err := s.options.Ledger.View(ctx, func(v machine.View) error {
		status.LedgerId = v.LedgerID().String()
		status.Index = v.Index()
		status.LedgerTime = timeOf(v.Time())
		status.Digest = v.Digest().String()
		status.Streams = v.Streams()
		status.Config = renderConfig(v.Config())
		return nil
	})
	if err != nil {
		return nil, err
	}
	status.Node = s.nodeStatus()
	return &seqledgerv1.GetStatusResponse{Status: status}, nil
}

// nodeStatus describes this node.
func (s *Server) nodeStatus() *seqledgerv1.NodeStatus {
	stats := s.options.Ledger.Stats()
	node := &seqledgerv1.NodeStatus{
		StartedAt: timestamppb.New(stats.Opened), Time: timestamppb.Now(),
		RecoveredEntries: stats.RecoveredEntries, RecoveryDuration: durationpb.New(stats.RecoveryTook),
		CommandsCommitted: stats.Decisions[machine.Committed],
		LogBytes:          uint64(stats.LogPendingBytes), PendingBytes: uint64(stats.PendingBytes),
	}
	for code, n := range stats.Decisions {
		if code != machine.Committed && code != machine.Replayed {
			node.CommandsRefused += n
		}
	}
	// A disk that does not say how full it is must not hide the rest.
	if disk, err := s.options.Ledger.DiskUsage(); err == nil {
		node.StateBytes, node.DiskFreeBytes = disk.State, disk.Free
	}
	if s.isDraining() { // after a failure there is no status at all
		node.NotReady = ledger.ErrDraining.Error()
	}
	return node
}

// listClients pages through the streams.
func (s *Server) listClients(
	ctx context.Context, m *seqledgerv1.ListClientsRequest,
) (*seqledgerv1.ListClientsResponse, error) {
	var only *machine.Scope
	q := newQuery("clients")
	if m.Scope != nil {
		scope, err := requireScope(m.Scope)
		if err != nil {
			return nil, err
		}
		only = &scope
		q = newQuery("clients", scope.Organization, scope.Vault)
	}
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	after, err := q.cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	var streams []machine.NamedStream
	var config machine.Config
	var last []byte
	answer := new(seqledgerv1.ListClientsResponse)
	err = s.options.Ledger.ViewOrdered(ctx, machine.TableStreams, func(v machine.View) error {
		config = v.Config()
		return v.VisitStreams(only, after, func(key []byte, stream machine.NamedStream) bool {
			if len(streams) == size {
				answer.NextPageToken = q.token(last)
				return false
			}
			last, streams = key, append(streams, stream)
			return true
		})
	})
	if err != nil {
		return nil, err
	}
	for i := range streams {
		// Each in a view of its own: finding a receipt means finding its block,
		// and a thousand of them would hold up the writes.
		newest, err := s.newestReceipt(ctx, &streams[i])
		if err != nil {
			return nil, err
		}
		answer.Clients = append(answer.Clients, &seqledgerv1.ClientEntry{
			Scope: renderScope(streams[i].Scope), ClientId: streams[i].ClientID,
			State: renderState(streams[i].StreamState, newest, config),
		})
	}
	return answer, nil
}

// updateConfig changes the replicated configuration.
func (s *Server) updateConfig(
	ctx context.Context, m *seqledgerv1.UpdateConfigRequest,
) (*seqledgerv1.UpdateConfigResponse, error) {
	update, err := configUpdate(m)
	if err != nil {
		return nil, err
	}
	if s.isDraining() {
		return nil, ledger.ErrDraining
	}
	out, err := s.options.Ledger.UpdateConfig(ctx, update, s.caller(ctx).Actor())
	if err != nil {
		return nil, err
	}
	if err := outcomeError(&out); err != nil {
		return nil, err
	}
	s.metrics.success(methodUpdateConfig, out.Code)
	return &seqledgerv1.UpdateConfigResponse{Config: renderConfig(out.Config)}, nil
}

// configUpdate converts a request. It checks the limits by themselves, so that
// a malformed request stays out of the log; what the state machine decides is
// the same, because no limit depends on another field.
func configUpdate(m *seqledgerv1.UpdateConfigRequest) (*machine.ConfigUpdate, error) {
	update := &machine.ConfigUpdate{
		EvictionInterval: ifSet(m.EvictionIntervalSet != nil, m.GetEvictionInterval()),
		EvictionLimit:    ifSet(m.EvictionLimitSet != nil, m.GetEvictionLimit()),
		ReceiptWindow:    ifSet(m.ReceiptWindowSet != nil, m.GetReceiptWindow()),
		MaxStreams:       ifSet(m.MaxStreamsSet != nil, m.GetMaxStreams()),
	}
	config := machine.DefaultConfig()
	if m.ClientTtl != nil {
		ttl := m.ClientTtl.AsDuration() // the nearest that 64 bits can hold
		if m.ClientTtl.CheckValid() != nil || int64(ttl/time.Second) != m.ClientTtl.Seconds {
			return nil, &machine.FieldError{Field: "client_ttl", Problem: "must be 1 s to 292 years"}
		}
		config.ClientTTL = int64(ttl)
		update.ClientTTL = &config.ClientTTL
	}
	for to, from := range map[*uint64]*uint64{
		&config.EvictionInterval: update.EvictionInterval, &config.EvictionLimit: update.EvictionLimit,
		&config.ReceiptWindow: update.ReceiptWindow, &config.MaxStreams: update.MaxStreams,
	} {
		if from != nil {
			*to = *from
		}
	}
	return update, config.Validate()
}

// ifSet returns a pointer to a value that a request has, nil for one that it
// has not.
func ifSet(set bool, value uint64) *uint64 {
	if !set {
		return nil
	}
	return &value
}
