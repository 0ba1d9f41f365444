package server

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/internal/wire"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
	"github.com/seqledger/seqledger/server/admission"
)

// keyTimes are the times that requests about keys leave open.
func (s *Server) keyTimes() wire.KeyTimes {
	return wire.KeyTimes{
		Lease: s.options.KeyLease, TTL: s.options.KeyTTL, RejectedTTL: s.options.KeyRejectedTTL,
	}
}

// reserve takes a key, or tells what has become of it.
func (s *Server) reserve(ctx context.Context, m *seqledgerv1.ReserveRequest) (*seqledgerv1.ReserveResponse, error) {
	c, wait, err := wire.ReserveCommand(m, s.caller(ctx).Actor(), s.party(ctx).Limits.Keys, s.keyTimes())
	if err != nil {
		return nil, err
	}
	mayWait := true
	if wait > 0 {
		var leave func()
		if leave, mayWait = s.admission.Waiter(s.party(ctx)); mayWait {
			defer leave()
		} else {
			wait = 0
		}
	}
	out, err := s.decideKeyed(ctx, c, wait)
	if err == nil && !mayWait && out.Code.Keyed() == keyed.InFlight {
		err = ledger.ErrTooManyWaiters
	}
	if err != nil {
		return nil, err
	}
	// The wait may have been long, and the answer may hold a response that the caller may no longer read.
	if err := s.caller(ctx).Check(); err != nil {
		return nil, err
	}
	if err := outcomeError(&out, 0); err != nil {
		return nil, err
	}
	answer := &seqledgerv1.ReserveResponse{Outcome: wire.RecordOutcome(out.Code)}
	switch record := out.Keyed.Record; out.Code.Keyed() {
	case keyed.Acquired:
		answer.Token, answer.Attempt, answer.Checkpoint = record.Token, record.Attempts, record.Checkpoint
		answer.LeaseExpiresAt = wire.Timestamp(record.LeaseEnd)
	case keyed.Replay, keyed.Unknown, keyed.ResultExpired:
		answer.Record = wire.RenderRecord(record, true)
	case keyed.Mismatch:
		answer.Incomparable = record.Incomparable(c.Fingerprint)
	case keyed.InFlight:
		answer.RetryAfter = durationpb.New(time.Duration(out.Keyed.RetryAfter))
	}
	return answer, nil
}

// decideKeyed decides a command within its caller's limits.
func (s *Server) decideKeyed(
	ctx context.Context, c *machine.KeyedCommand, wait time.Duration,
) (machine.Outcome, error) {
	if s.isDraining() {
		return machine.Outcome{}, ledger.ErrDraining
	}
	work := admission.Work{
		Writes: 1, Bytes: len(c.Response) + len(c.Data),
		Finish: c.Kind != keyed.Reserve && c.Kind != keyed.Checkpoint,
	}
	stored := func(out *machine.Outcome) int { return chargeOfKeyed(c, out) }
	return s.options.Ledger.Keyed(ctx, c, wait,
		func(ctx context.Context, propose func(context.Context) (machine.Outcome, error)) (machine.Outcome, error) {
			return s.decide(ctx, work, stored, propose)
		})
}

// writeKeyed commits a write that belongs to a key.
func (s *Server) writeKeyed(ctx context.Context, m *seqledgerv1.WriteRequest) (machine.Outcome, error) {
	w, err := wire.KeyedWrite(m, s.caller(ctx).Actor(), s.party(ctx).Limits.Keys, s.keyTimes())
	if err != nil {
		return machine.Outcome{}, err
	}
	if s.isDraining() {
		return machine.Outcome{}, ledger.ErrDraining
	}
	charge := chargeOfKeyedWrite(m, &w.ID, w.Actor)
	work := admission.Work{Writes: 1, Bytes: charge.engine}
	return s.options.Ledger.WriteKeyed(ctx, w,
		func(ctx context.Context, propose func(context.Context) (machine.Outcome, error)) (machine.Outcome, error) {
			return s.decide(ctx, work, charge.of, propose)
		})
}

// asOwner decides a command of the owner of a record.
func (s *Server) asOwner(
	ctx context.Context, owner *seqledgerv1.Ownership, command keyed.Command,
) (out machine.Outcome, err error) {
	c, err := wire.OwnerCommand(owner, s.caller(ctx).Actor(), command)
	if err != nil {
		return out, err
	}
	return s.decideKeyed(ctx, c, 0)
}

// finish decides a Complete or a Reject.
func (s *Server) finish(
	ctx context.Context, owner *seqledgerv1.Ownership, c keyed.Command,
) (outcome seqledgerv1.RecordOutcome, record *seqledgerv1.IdempotencyRecord, expires *timestamppb.Timestamp,
	err error) {
	out, err := s.asOwner(ctx, owner, c)
	if err != nil {
		return 0, nil, nil, err
	}
	outcome = wire.RecordOutcome(out.Code)
	switch found := out.Keyed.Record; {
	case found == nil:
	case out.Code.Keyed() == keyed.OK:
		expires = wire.Timestamp(found.Expires)
	case out.Code.Keyed() == keyed.AlreadyCompleted,
		out.Code.Keyed() == keyed.LeaseLost && found.State != keyed.Pending:
		record = wire.RenderRecord(found, true)
	}
	return outcome, record, expires, nil
}

func (s *Server) complete(ctx context.Context, m *seqledgerv1.CompleteRequest) (*seqledgerv1.CompleteResponse, error) {
	ttl, err := wire.CompletedTTL(m.Ttl)
	if err != nil {
		return nil, err
	}
	outcome, record, expires, err := s.finish(ctx, m.Owner,
		keyed.Command{Kind: keyed.Complete, Response: m.Response, TTL: ttl})
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.CompleteResponse{Outcome: outcome, Record: record, ExpiresAt: expires}, nil
}

func (s *Server) reject(ctx context.Context, m *seqledgerv1.RejectRequest) (*seqledgerv1.RejectResponse, error) {
	ttl, err := wire.RejectedTTL(m.Ttl, s.keyTimes())
	if err != nil {
		return nil, err
	}
	outcome, record, expires, err := s.finish(ctx, m.Owner,
		keyed.Command{Kind: keyed.Reject, Response: m.Response, TTL: ttl})
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.RejectResponse{Outcome: outcome, Record: record, ExpiresAt: expires}, nil
}

func (s *Server) release(ctx context.Context, m *seqledgerv1.ReleaseRequest) (*seqledgerv1.ReleaseResponse, error) {
	out, err := s.asOwner(ctx, m.Owner, keyed.Command{Kind: keyed.Release})
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.ReleaseResponse{Outcome: wire.RecordOutcome(out.Code)}, nil
}

func (s *Server) heartbeat(ctx context.Context, m *seqledgerv1.HeartbeatRequest) (*seqledgerv1.HeartbeatResponse,
	error) {
	lease, err := wire.Lease(m, s.keyTimes())
	if err != nil {
		return nil, err
	}
	out, err := s.asOwner(ctx, m.Owner, keyed.Command{Kind: keyed.Heartbeat, Lease: lease})
	if err != nil {
		return nil, err
	}
	answer := &seqledgerv1.HeartbeatResponse{Outcome: wire.RecordOutcome(out.Code)}
	if record := out.Keyed.Record; record != nil && out.Code.Keyed() == keyed.OK {
		answer.LeaseExpiresAt = wire.Timestamp(record.LeaseEnd)
	}
	return answer, nil
}

func (s *Server) checkpoint(
	ctx context.Context, m *seqledgerv1.CheckpointRequest,
) (*seqledgerv1.CheckpointResponse, error) {
	out, err := s.asOwner(ctx, m.Owner, keyed.Command{Kind: keyed.Checkpoint, Data: m.Data})
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.CheckpointResponse{Outcome: wire.RecordOutcome(out.Code)}, nil
}

func (s *Server) getRecord(ctx context.Context, m *seqledgerv1.GetRecordRequest) (*seqledgerv1.GetRecordResponse,
	error) {
	id, err := wire.RecordID("record", m.Record, s.caller(ctx).Actor())
	if err != nil {
		return nil, err
	}
	var record *machine.KeyedRecord
	err = s.options.Ledger.ViewNow(ctx, func(v machine.View, now int64) (err error) {
		if record, err = v.Keyed(&id, now); err == nil {
			_, err = v.ReadAttachments(record)
		}
		return err
	})
	if err != nil {
		return nil, notFound(err, "a record of this key in %s", id.Scope)
	}
	return &seqledgerv1.GetRecordResponse{Record: wire.RenderRecord(record, true)}, nil
}

// listRecords pages through the records of one principal, or of all.
func (s *Server) listRecords(
	ctx context.Context, m *seqledgerv1.ListRecordsRequest,
) (*seqledgerv1.ListRecordsResponse, error) {
	scope, err := wire.RequireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	principal := ""
	switch {
	case !m.EveryPrincipal:
		principal = wire.Principal(m.Principal, s.caller(ctx).Actor())
	case m.Principal != "":
		return nil, &machine.FieldError{Field: "principal", Problem: "must be empty with every_principal"}
	}
	if _, known := seqledgerv1.RecordState_name[int32(m.State)]; !known {
		return nil, &machine.FieldError{Field: "state", Problem: fmt.Sprintf("is %d, which is not known here", m.State)}
	}
	size, err := wire.PageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	q := wire.NewQuery("records", scope.Organization, scope.Vault, principal, m.Namespace, m.State.String())
	after, err := q.Cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	var namespace *string
	if m.Namespace != "" {
		namespace = &m.Namespace
	}
	answer := new(seqledgerv1.ListRecordsResponse)
	err = s.options.Ledger.ViewNow(ctx, func(v machine.View, now int64) error {
		var last []byte
		resume, err := v.VisitKeyed(scope, principal, namespace, after, now,
			func(key []byte, k *machine.KeyedRecord) bool {
				rendered := wire.RenderRecord(k, false)
				if m.State != 0 && rendered.State != m.State {
					return true
				}
				if len(answer.Records) == size {
					answer.NextPageToken = q.Token(last)
					return false
				}
				answer.Records, last = append(answer.Records, rendered), bytes.Clone(key)
				return true
			})
		if resume != nil { // many records that do not match
			answer.NextPageToken = q.Token(resume)
		}
		return err
	}, machine.TableKeyed)
	return answer, err
}

// settle decides a Purge or a Resolve.
func (s *Server) settle(ctx context.Context, record *seqledgerv1.RecordKey, command keyed.Command) (machine.Outcome,
	error) {
	id, err := wire.RecordID("record", record, s.caller(ctx).Actor())
	if err != nil {
		return machine.Outcome{}, err
	}
	return s.decideKeyed(ctx, &machine.KeyedCommand{ID: id, Actor: s.caller(ctx).Actor(), Command: command}, 0)
}

func (s *Server) purgeRecord(
	ctx context.Context, m *seqledgerv1.PurgeRecordRequest,
) (*seqledgerv1.PurgeRecordResponse, error) {
	out, err := s.settle(ctx, m.Record, keyed.Command{Kind: keyed.Purge})
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.PurgeRecordResponse{Outcome: wire.RecordOutcome(out.Code)}, nil
}

func (s *Server) resolveRecord(
	ctx context.Context, m *seqledgerv1.ResolveRecordRequest,
) (*seqledgerv1.ResolveRecordResponse, error) {
	c := keyed.Command{Kind: keyed.Resolve, Response: m.Response}
	switch m.State {
	case seqledgerv1.RecordState_RECORD_STATE_COMMITTED:
		c.State = keyed.Committed
	case seqledgerv1.RecordState_RECORD_STATE_REJECTED:
		c.State = keyed.Rejected
	default:
		return nil, &machine.FieldError{Field: "state",
			Problem: "must be RECORD_STATE_COMMITTED or RECORD_STATE_REJECTED"}
	}
	var err error
	if c.TTL, err = wire.CompletedTTL(m.Ttl); err != nil {
		return nil, err
	}
	out, err := s.settle(ctx, m.Record, c)
	if err != nil {
		return nil, err
	}
	answer := &seqledgerv1.ResolveRecordResponse{Outcome: wire.RecordOutcome(out.Code)}
	if code := out.Code.Keyed(); code == keyed.AlreadyCompleted || code == keyed.ResultExpired {
		answer.Record = wire.RenderRecord(out.Keyed.Record, true)
	}
	return answer, nil
}
