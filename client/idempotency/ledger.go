package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/failure"
	"github.com/seqledger/seqledger/client/internal/rpc"
	"github.com/seqledger/seqledger/internal/keyed"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Ledger returns a store on a ledger: a Reserve and a Complete are one log commit each. It retries its calls until the
// ledger answers or their context ends. The caller still has to close the Client.
func Ledger(c *client.Client) Store { return ledgerStore{c} }

type ledgerStore struct{ client *client.Client }

// Now implements Clock with the clock of this machine, because ledger time is not known without a call.
func (s ledgerStore) Now() time.Time { return time.Now() }

// reserveOutcomes are the outcomes of a Reserve.
var reserveOutcomes = []Outcome{Acquired, Replay, InFlight, Mismatch, Unknown, ResultExpired, Stale, LeaseLost}

var wireStates = map[seqledgerv1.RecordState]State{
	seqledgerv1.RecordState_RECORD_STATE_PENDING:       Pending,
	seqledgerv1.RecordState_RECORD_STATE_COMMITTED:     Committed,
	seqledgerv1.RecordState_RECORD_STATE_REJECTED:      Rejected,
	seqledgerv1.RecordState_RECORD_STATE_INDETERMINATE: Indeterminate,
	seqledgerv1.RecordState_RECORD_STATE_WRITTEN:       Written,
	seqledgerv1.RecordState_RECORD_STATE_EXPIRED:       Expired,
}

var wireExpiries = map[LeaseExpiry]seqledgerv1.LeaseExpiry{
	BecomeIndeterminate: seqledgerv1.LeaseExpiry_LEASE_EXPIRY_INDETERMINATE,
	TakeOver:            seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER,
}

func (k *RecordKey) wire() *seqledgerv1.RecordKey {
	return &seqledgerv1.RecordKey{
		Scope:     &seqledgerv1.Scope{Organization: k.Scope.Organization, Vault: k.Scope.Vault},
		Namespace: k.Namespace, Principal: k.Principal, Key: k.Key,
	}
}

func (o *Ownership) wire() *seqledgerv1.Ownership {
	return &seqledgerv1.Ownership{Record: o.Key.wire(), Token: o.Token, AttemptId: o.AttemptID[:]}
}

// wireSpan returns a duration, or nil for 0.
func wireSpan(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// fromWireTime returns a time, or the zero time if t is unset.
func fromWireTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// fromWireRecord returns a record, or nil for nil.
func fromWireRecord(m *seqledgerv1.IdempotencyRecord) *Record {
	if m == nil {
		return nil
	}
	r := &Record{
		State: wireStates[m.GetState()], Token: m.GetToken(), Attempts: m.GetAttempts(),
		LeaseExpires: fromWireTime(m.GetLeaseExpiresAt()), Created: fromWireTime(m.GetCreatedAt()),
		Completed: fromWireTime(m.GetCompletedAt()), Expires: fromWireTime(m.GetExpiresAt()),
		Forgotten: fromWireTime(m.GetForgottenAt()),
		Response:  m.GetResponse(), ResponseSize: m.GetResponseSize(), Checkpoint: m.GetCheckpoint(),
	}
	if m.GetOnLeaseExpired() == seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER {
		r.OnLeaseExpired = TakeOver
	}
	r.Fingerprint.Algorithm = uint8(m.GetFingerprint().GetAlgorithm())
	copy(r.Fingerprint.Digest[:], m.GetFingerprint().GetDigest())
	return r
}

// storeError maps the error of a call to a store error. An error of the context may wrap the last answer. If that
// is a quota error, it is returned.
func storeError(err error) error {
	e, ok := errors.AsType[*failure.Error](err)
	if !ok {
		return err
	}
	switch {
	case e.ConnectCode == connect.CodeResourceExhausted:
		return &QuotaError{RetryAfter: e.RetryAfter, Cause: err}
	case e.Code == seqledgerv1.WriteErrorCode_WRITE_ERROR_CODE_INVALID_ARGUMENT:
		return &InvalidError{Field: e.Field, Problem: e.Message}
	case e.IsWire() && !e.IsTemporary():
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// protocolError is the error for an answer that is not part of the API.
func protocolError(outcome seqledgerv1.RecordOutcome) error {
	return fmt.Errorf("%w: %w", ErrRefused, &failure.Error{ConnectCode: connect.CodeInternal,
		Message: "the ledger answered with outcome " + outcome.String()})
}

// Reserve implements Store.
func (s ledgerStore) Reserve(ctx context.Context, request *ReserveRequest) (*Reservation, error) {
	r, err := request.Resolve()
	if err != nil {
		return nil, err
	}
	message := &seqledgerv1.ReserveRequest{
		Record: r.Key.wire(), AttemptId: r.AttemptID[:],
		Fingerprint: &seqledgerv1.Fingerprint{
			Algorithm: uint32(r.Fingerprint.Algorithm), Digest: r.Fingerprint.Digest[:],
		},
		Lease: durationpb.New(r.Lease), Ttl: durationpb.New(r.TTL), Wait: wireSpan(r.Wait),
		OnLeaseExpired: wireExpiries[r.OnLeaseExpired], ValidUntil: timestamppb.New(r.ValidUntil),
	}
	if message.NeverForget = r.ForgetAfter == Never; !message.NeverForget {
		message.ForgetAfter = wireSpan(r.ForgetAfter)
	}
	if r.ValidUntil.IsZero() {
		message.ValidUntil = timestamppb.New(time.Now().Add(DefaultValidity))
	}
	lost := false
	m, err := s.client.Reserve(rpc.WithLost(ctx, &lost), message)
	if err != nil {
		err = storeError(err)
		if quota, ok := errors.AsType[*QuotaError](err); ok {
			quota.Unsettled = lost
		}
		return nil, err
	}
	outcome, record := keyed.CodeOf(m.GetOutcome()), m.GetRecord()
	if !slices.Contains(reserveOutcomes, outcome) || outcome == Acquired && m.GetToken() == 0 ||
		(outcome == Replay || outcome == Unknown || outcome == ResultExpired) && record == nil {
		return nil, protocolError(m.GetOutcome())
	}
	return &Reservation{
		Outcome: outcome, Token: m.GetToken(), Attempt: m.GetAttempt(), Checkpoint: m.GetCheckpoint(),
		LeaseExpires: fromWireTime(m.GetLeaseExpiresAt()), Record: fromWireRecord(record),
		RetryAfter: m.GetRetryAfter().AsDuration(), Incomparable: m.GetIncomparable(),
	}, nil
}

// answer returns the answer to an owner's call.
func answer(
	outcome seqledgerv1.RecordOutcome, record *seqledgerv1.IdempotencyRecord, expires *timestamppb.Timestamp, err error,
) (*Answer, error) {
	if err != nil {
		return nil, storeError(err)
	}
	switch o := keyed.CodeOf(outcome); o {
	case OK, LeaseLost, AlreadyCompleted:
		return &Answer{Outcome: o, Record: fromWireRecord(record), Expires: fromWireTime(expires)}, nil
	}
	return nil, protocolError(outcome)
}

// Complete implements Store.
func (s ledgerStore) Complete(ctx context.Context, owner *Ownership, result Result) (*Answer, error) {
	if err := owner.Validate(); err != nil {
		return nil, err
	}
	m, err := s.client.Complete(ctx, &seqledgerv1.CompleteRequest{
		Owner: owner.wire(), Response: result.Response, Ttl: wireSpan(result.TTL),
	})
	return answer(m.GetOutcome(), m.GetRecord(), m.GetExpiresAt(), err)
}

// Reject implements Store.
func (s ledgerStore) Reject(ctx context.Context, owner *Ownership, result Result) (*Answer, error) {
	if err := owner.Validate(); err != nil {
		return nil, err
	}
	m, err := s.client.Reject(ctx, &seqledgerv1.RejectRequest{
		Owner: owner.wire(), Response: result.Response, Ttl: wireSpan(result.TTL),
	})
	return answer(m.GetOutcome(), m.GetRecord(), m.GetExpiresAt(), err)
}

// Release implements Store.
func (s ledgerStore) Release(ctx context.Context, owner *Ownership) (*Answer, error) {
	if err := owner.Validate(); err != nil {
		return nil, err
	}
	m, err := s.client.Release(ctx, &seqledgerv1.ReleaseRequest{Owner: owner.wire()})
	return answer(m.GetOutcome(), nil, nil, err)
}

// Heartbeat implements Store.
func (s ledgerStore) Heartbeat(ctx context.Context, owner *Ownership, lease time.Duration) (*Answer, error) {
	if err := owner.Validate(); err != nil {
		return nil, err
	}
	request := &seqledgerv1.HeartbeatRequest{Owner: owner.wire(), End: lease == EndLease}
	if !request.End {
		request.Lease = wireSpan(lease)
	}
	m, err := s.client.Heartbeat(ctx, request)
	return answer(m.GetOutcome(), nil, m.GetLeaseExpiresAt(), err)
}

// Checkpoint implements Store.
func (s ledgerStore) Checkpoint(ctx context.Context, owner *Ownership, data []byte) (*Answer, error) {
	if err := owner.Validate(); err != nil {
		return nil, err
	}
	m, err := s.client.Checkpoint(ctx, &seqledgerv1.CheckpointRequest{Owner: owner.wire(), Data: data})
	return answer(m.GetOutcome(), nil, nil, err)
}

// Get implements Store.
func (s ledgerStore) Get(ctx context.Context, key *RecordKey) (*Record, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	m, err := s.client.GetRecord(ctx, &seqledgerv1.GetRecordRequest{Record: key.wire()})
	switch {
	case errors.Is(err, failure.ErrNotFound):
		return nil, ErrNotFound
	case err != nil:
		return nil, storeError(err)
	}
	return fromWireRecord(m), nil
}
