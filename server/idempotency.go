package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The times of keyed records that a request leaves open. The state machine sees only what is
// resolved here.
const (
	defaultLease       = 60 * time.Second
	minLease           = time.Second
	defaultTTL         = 24 * time.Hour
	defaultRejectedTTL = 60 * time.Second
	minTTL             = time.Second
	maxWait            = 60 * time.Second
)

// maxIdempotencyKey is the length of the longest key in bytes.
const maxIdempotencyKey = 256

// recordID identifies the record that a request names, at the given path in the request.
func (s *Server) recordID(ctx context.Context, path string, k *seqledgerv1.RecordKey) (id machine.KeyedID, err error) {
	if k == nil {
		return id, &machine.FieldError{Field: path, Problem: "is required"}
	}
	if k.Scope == nil {
		return id, &machine.FieldError{Field: path + ".scope", Problem: "is required"}
	}
	if err := validateIdempotencyKey(path+".key", k.Key); err != nil {
		return id, err
	}
	id = machine.KeyedID{
		Scope: scopeOf(k.Scope), Namespace: k.Namespace, Principal: s.principal(ctx, k.Principal), Key: sha256.Sum256([]byte(k.Key)),
	}
	return id, at(path, id.Validate())
}

// at puts the path of a message before the field of an error.
func at(path string, err error) error {
	if field, ok := err.(*machine.FieldError); ok { //nolint:errorlint // Validate does not wrap it.
		return &machine.FieldError{Field: path + "." + field.Field, Problem: field.Problem}
	}
	return err
}

// validateIdempotencyKey checks the key of a record.
func validateIdempotencyKey(field, key string) error {
	if key == "" {
		return &machine.FieldError{Field: field, Problem: "is required"}
	}
	if len(key) > maxIdempotencyKey {
		return &machine.FieldError{
			Field: field, Problem: fmt.Sprintf("must have at most %d characters, has %d", maxIdempotencyKey, len(key)),
		}
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return &machine.FieldError{Field: field, Problem: fmt.Sprintf("byte %d is not visible ASCII", i)}
		}
	}
	return nil
}

// principal returns the party that a request names, which is its caller if it names none.
func (s *Server) principal(ctx context.Context, named string) string {
	if named == "" {
		return s.caller(ctx).Actor()
	}
	return named
}

// duration returns a time span of a request, or the given one if the request has none.
func duration(field string, d *durationpb.Duration, unset, least, most time.Duration) (int64, error) {
	if d == nil {
		return int64(unset), nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, &machine.FieldError{Field: field, Problem: "is not a valid duration"}
	}
	if span := d.AsDuration(); span < least || span > most {
		return 0, &machine.FieldError{Field: field, Problem: fmt.Sprintf("must be %v to %v, is %v", least, most, span)}
	}
	return int64(d.AsDuration()), nil
}

// attemptID returns the attempt of a request.
func attemptID(field string, b []byte) (id keyed.AttemptID, err error) {
	if len(b) != len(id) {
		return id, &machine.FieldError{Field: field, Problem: fmt.Sprintf("must have %d bytes, has %d", len(id), len(b))}
	}
	return keyed.AttemptID(b), nil
}

// policies are what may happen to a record whose lease ends.
var policies = map[seqledgerv1.LeaseExpiry]keyed.Policy{
	seqledgerv1.LeaseExpiry_LEASE_EXPIRY_UNSPECIFIED:   keyed.BecomeIndeterminate,
	seqledgerv1.LeaseExpiry_LEASE_EXPIRY_INDETERMINATE: keyed.BecomeIndeterminate,
	seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER:      keyed.TakeOver,
}

// reserve takes a key, or tells what has become of it.
func (s *Server) reserve(ctx context.Context, m *seqledgerv1.ReserveRequest) (*seqledgerv1.ReserveResponse, error) {
	c, wait, err := s.reserveCommand(ctx, m)
	if err != nil {
		return nil, err
	}
	if s.isDraining() {
		return nil, ledger.ErrDraining
	}
	if wait > 0 {
		if leave, ok := s.admission.Waiter(s.party(ctx)); ok {
			defer leave()
		} else {
			wait = 0
		}
	}
	out, err := s.decideKeyed(ctx, c, wait)
	if err != nil {
		return nil, err
	}
	// The wait may have been long, and the answer may hold somebody's response.
	if err := s.caller(ctx).Check(); err != nil {
		return nil, err
	}
	if err := outcomeError(&out, 0); err != nil {
		return nil, err
	}
	answer := &seqledgerv1.ReserveResponse{Outcome: recordOutcome(out.Code)}
	switch record := out.Keyed.Record; out.Code {
	case machine.KeyedAcquired:
		answer.Token, answer.Attempt, answer.Checkpoint = record.Token, record.Attempts, record.Checkpoint
		answer.LeaseExpiresAt = timeOf(record.LeaseEnd)
	case machine.KeyedReplay, machine.KeyedUnknown:
		answer.Record = renderRecord(record, true)
	case machine.KeyedInFlight:
		answer.RetryAfter = durationpb.New(time.Duration(out.Keyed.RetryAfter))
	}
	return answer, nil
}

// reserveCommand resolves the times of a Reserve.
func (s *Server) reserveCommand(
	ctx context.Context, m *seqledgerv1.ReserveRequest,
) (c *machine.KeyedCommand, wait time.Duration, err error) {
	c = &machine.KeyedCommand{
		Actor: s.caller(ctx).Actor(), MaxKeys: uint64(s.party(ctx).Limits.Keys), Command: keyed.Command{Kind: keyed.Reserve},
	}
	if c.ID, err = s.recordID(ctx, "record", m.Record); err != nil {
		return nil, 0, err
	}
	if c.AttemptID, err = attemptID("attempt_id", m.AttemptId); err != nil {
		return nil, 0, err
	}
	if c.Fingerprint, err = fingerprintOf(m.Fingerprint); err != nil {
		return nil, 0, err
	}
	policy, known := policies[m.OnLeaseExpired]
	if !known {
		return nil, 0, &machine.FieldError{
			Field: "on_lease_expired", Problem: fmt.Sprintf("is %d, which is not known here", m.OnLeaseExpired),
		}
	}
	c.Policy = policy
	c.ValidUntil = int64(1<<63 - 1) // the ledger takes what is earlier
	if m.ValidUntil != nil {
		if err := m.ValidUntil.CheckValid(); err != nil {
			return nil, 0, &machine.FieldError{Field: "valid_until", Problem: "is not a valid time"}
		}
		c.ValidUntil = max(0, m.ValidUntil.AsTime().UnixNano())
	}
	if c.Lease, err = duration("lease", m.Lease, defaultLease, minLease, keyed.MaxLease); err != nil {
		return nil, 0, err
	}
	if c.TTL, err = duration("ttl", m.Ttl, defaultTTL, minTTL, keyed.MaxTTL); err != nil {
		return nil, 0, err
	}
	nanos, err := duration("wait", m.Wait, 0, 0, maxWait)
	return c, time.Duration(nanos), err
}

func fingerprintOf(m *seqledgerv1.Fingerprint) (f keyed.Fingerprint, err error) {
	switch {
	case m == nil:
		return f, &machine.FieldError{Field: "fingerprint", Problem: "is required"}
	case m.Algorithm > 255:
		return f, &machine.FieldError{
			Field: "fingerprint.algorithm", Problem: fmt.Sprintf("must be at most 255, is %d", m.Algorithm),
		}
	case len(m.Digest) != len(f.Digest):
		return f, &machine.FieldError{
			Field: "fingerprint.digest", Problem: fmt.Sprintf("must have %d bytes, has %d", len(f.Digest), len(m.Digest)),
		}
	}
	return keyed.Fingerprint{Algorithm: uint8(m.Algorithm), Digest: [32]byte(m.Digest)}, nil
}

// decideKeyed decides a command within its caller's limits.
func (s *Server) decideKeyed(ctx context.Context, c *machine.KeyedCommand, wait time.Duration) (machine.Outcome, error) {
	admit := s.admission.Finish
	if c.Kind == keyed.Reserve || c.Kind == keyed.Checkpoint {
		admit = s.admission.Write
	}
	bytes := len(c.Response) + len(c.Data)
	return s.options.Ledger.Keyed(ctx, c, wait,
		func(ctx context.Context, propose func(context.Context) (machine.Outcome, error)) (machine.Outcome, error) {
			leave, err := admit(ctx, s.party(ctx), bytes)
			if err != nil {
				return machine.Outcome{}, err
			}
			return s.admitted(ctx, bytes, leave, propose)
		})
}

// asOwner decides a command of the owner of a record.
func (s *Server) asOwner(
	ctx context.Context, owner *seqledgerv1.Ownership, command keyed.Command,
) (out machine.Outcome, err error) {
	c := &machine.KeyedCommand{Actor: s.caller(ctx).Actor(), Command: command}
	if c.ID, err = s.recordID(ctx, "owner.record", owner.Record); err != nil {
		return out, err
	}
	if c.AttemptID, err = attemptID("owner.attempt_id", owner.AttemptId); err != nil {
		return out, err
	}
	if c.Token = owner.Token; c.Token == 0 {
		return out, &machine.FieldError{Field: "owner.token", Problem: "is required"}
	}
	if s.isDraining() {
		return out, ledger.ErrDraining
	}
	return s.decideKeyed(ctx, c, 0)
}

// finish decides a Complete or a Reject.
func (s *Server) finish(
	ctx context.Context, kind keyed.Kind, owner *seqledgerv1.Ownership, response []byte, ttl *durationpb.Duration, unset time.Duration,
) (outcome seqledgerv1.RecordOutcome, record *seqledgerv1.IdempotencyRecord, expires *timestamppb.Timestamp, err error) {
	c := keyed.Command{Kind: kind, Response: response}
	if c.TTL, err = duration("ttl", ttl, unset, minTTL, keyed.MaxTTL); err != nil {
		return 0, nil, nil, err
	}
	out, err := s.asOwner(ctx, owner, c)
	if err != nil {
		return 0, nil, nil, err
	}
	outcome = recordOutcome(out.Code)
	switch found := out.Keyed.Record; {
	case found == nil:
	case out.Code == machine.KeyedOK:
		expires = timeOf(found.Expires)
	case out.Code == machine.KeyedAlreadyCompleted, out.Code == machine.KeyedLeaseLost && found.State != keyed.Pending:
		record = renderRecord(found, true)
	}
	return outcome, record, expires, nil
}

func (s *Server) complete(ctx context.Context, m *seqledgerv1.CompleteRequest) (*seqledgerv1.CompleteResponse, error) {
	outcome, record, expires, err := s.finish(ctx, keyed.Complete, m.Owner, m.Response, m.Ttl, 0)
	if err != nil {
		return nil, err
	}
	return &seqledgerv1.CompleteResponse{Outcome: outcome, Record: record, ExpiresAt: expires}, nil
}

func (s *Server) reject(ctx context.Context, m *seqledgerv1.RejectRequest) (*seqledgerv1.RejectResponse, error) {
	outcome, record, expires, err := s.finish(ctx, keyed.Reject, m.Owner, m.Response, m.Ttl, defaultRejectedTTL)
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
	return &seqledgerv1.ReleaseResponse{Outcome: recordOutcome(out.Code)}, nil
}

func (s *Server) heartbeat(ctx context.Context, m *seqledgerv1.HeartbeatRequest) (*seqledgerv1.HeartbeatResponse, error) {
	lease, err := duration("lease", m.Lease, defaultLease, minLease, keyed.MaxLease)
	if err != nil {
		return nil, err
	}
	out, err := s.asOwner(ctx, m.Owner, keyed.Command{Kind: keyed.Heartbeat, Lease: lease})
	if err != nil {
		return nil, err
	}
	answer := &seqledgerv1.HeartbeatResponse{Outcome: recordOutcome(out.Code)}
	if out.Code == machine.KeyedOK {
		answer.LeaseExpiresAt = timeOf(out.Keyed.Record.LeaseEnd)
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
	return &seqledgerv1.CheckpointResponse{Outcome: recordOutcome(out.Code)}, nil
}

func (s *Server) getRecord(ctx context.Context, m *seqledgerv1.GetRecordRequest) (*seqledgerv1.GetRecordResponse, error) {
	id, err := s.recordID(ctx, "record", m.Record)
	if err != nil {
		return nil, err
	}
	record, err := s.options.Ledger.KeyedRecord(ctx, &id)
	if err != nil {
		return nil, notFound(err, "a record of this key in %s", id.Scope)
	}
	return &seqledgerv1.GetRecordResponse{Record: renderRecord(record, true)}, nil
}

// listRecords pages through the records of one principal, or of all.
func (s *Server) listRecords(
	ctx context.Context, m *seqledgerv1.ListRecordsRequest,
) (*seqledgerv1.ListRecordsResponse, error) {
	scope, err := requireScope(m.Scope)
	if err != nil {
		return nil, err
	}
	principal := ""
	switch {
	case !m.EveryPrincipal:
		principal = s.principal(ctx, m.Principal)
	case m.Principal != "":
		return nil, &machine.FieldError{Field: "principal", Problem: "must be empty with every_principal"}
	}
	if _, known := seqledgerv1.RecordState_name[int32(m.State)]; !known {
		return nil, &machine.FieldError{Field: "state", Problem: fmt.Sprintf("is %d, which is not known here", m.State)}
	}
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	q := newQuery("records", scope.Organization, scope.Vault, principal, m.Namespace, m.State.String())
	after, err := q.cursor(m.PageToken)
	if err != nil {
		return nil, err
	}
	var namespace *string
	if m.Namespace != "" {
		namespace = &m.Namespace
	}
	answer := new(seqledgerv1.ListRecordsResponse)
	err = s.options.Ledger.View(ctx, func(v machine.View) error {
		var last []byte
		resume, err := v.VisitKeyed(scope, principal, namespace, after, v.Time(), func(key []byte, k *machine.KeyedRecord) bool {
			rendered := renderRecord(k, false)
			if m.State != 0 && rendered.State != m.State {
				return true
			}
			if len(answer.Records) == size {
				answer.NextPageToken = q.token(last)
				return false
			}
			answer.Records, last = append(answer.Records, rendered), bytes.Clone(key)
			return true
		})
		if resume != nil { // many records that do not match
			answer.NextPageToken = q.token(resume)
		}
		return err
	}, machine.TableKeyed)
	return answer, err
}

// settle decides a Purge or a Resolve.
func (s *Server) settle(ctx context.Context, record *seqledgerv1.RecordKey, command keyed.Command) (machine.Outcome, error) {
	id, err := s.recordID(ctx, "record", record)
	if err != nil {
		return machine.Outcome{}, err
	}
	if s.isDraining() {
		return machine.Outcome{}, ledger.ErrDraining
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
	return &seqledgerv1.PurgeRecordResponse{Outcome: recordOutcome(out.Code)}, nil
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
		return nil, &machine.FieldError{Field: "state", Problem: "must be RECORD_STATE_COMMITTED or RECORD_STATE_REJECTED"}
	}
	var err error
	if c.TTL, err = duration("ttl", m.Ttl, 0, minTTL, keyed.MaxTTL); err != nil {
		return nil, err
	}
	out, err := s.settle(ctx, m.Record, c)
	if err != nil {
		return nil, err
	}
	answer := &seqledgerv1.ResolveRecordResponse{Outcome: recordOutcome(out.Code)}
	if out.Code == machine.KeyedAlreadyCompleted {
		answer.Record = renderRecord(out.Keyed.Record, true)
	}
	return answer, nil
}

// recordOutcomes are the outcomes of commands on keyed records.
var recordOutcomes = map[machine.Code]seqledgerv1.RecordOutcome{
	machine.KeyedOK:               seqledgerv1.RecordOutcome_RECORD_OUTCOME_OK,
	machine.KeyedAcquired:         seqledgerv1.RecordOutcome_RECORD_OUTCOME_ACQUIRED,
	machine.KeyedReplay:           seqledgerv1.RecordOutcome_RECORD_OUTCOME_REPLAY,
	machine.KeyedInFlight:         seqledgerv1.RecordOutcome_RECORD_OUTCOME_IN_FLIGHT,
	machine.KeyedMismatch:         seqledgerv1.RecordOutcome_RECORD_OUTCOME_MISMATCH,
	machine.KeyedUnknown:          seqledgerv1.RecordOutcome_RECORD_OUTCOME_INDETERMINATE,
	machine.KeyedStale:            seqledgerv1.RecordOutcome_RECORD_OUTCOME_STALE,
	machine.KeyedLeaseLost:        seqledgerv1.RecordOutcome_RECORD_OUTCOME_LEASE_LOST,
	machine.KeyedAlreadyCompleted: seqledgerv1.RecordOutcome_RECORD_OUTCOME_ALREADY_COMPLETED,
	machine.KeyedNotFound:         seqledgerv1.RecordOutcome_RECORD_OUTCOME_NOT_FOUND,
	machine.KeyedNotFinal:         seqledgerv1.RecordOutcome_RECORD_OUTCOME_NOT_FINAL,
}

func recordOutcome(code machine.Code) seqledgerv1.RecordOutcome { return recordOutcomes[code] }

var recordStates = map[keyed.State]seqledgerv1.RecordState{
	keyed.Pending:       seqledgerv1.RecordState_RECORD_STATE_PENDING,
	keyed.Committed:     seqledgerv1.RecordState_RECORD_STATE_COMMITTED,
	keyed.Rejected:      seqledgerv1.RecordState_RECORD_STATE_REJECTED,
	keyed.Indeterminate: seqledgerv1.RecordState_RECORD_STATE_INDETERMINATE,
	keyed.Written:       seqledgerv1.RecordState_RECORD_STATE_WRITTEN,
}

// renderRecord renders a record, with what its owners have stored if whole is set.
func renderRecord(k *machine.KeyedRecord, whole bool) *seqledgerv1.IdempotencyRecord {
	r := &seqledgerv1.IdempotencyRecord{
		Scope:     &seqledgerv1.Scope{Organization: k.ID.Scope.Organization, Vault: k.ID.Scope.Vault},
		Namespace: k.ID.Namespace, Principal: k.ID.Principal, KeyHash: k.ID.Key[:], State: recordStates[k.State],
		Token: k.Token, Attempts: k.Attempts, CreatedAt: timeOf(k.Created), ResponseSize: k.ResponseSize,
	}
	if k.State != keyed.Written { // which nobody has reserved
		r.Fingerprint = &seqledgerv1.Fingerprint{Algorithm: uint32(k.Fingerprint.Algorithm), Digest: k.Fingerprint.Digest[:]}
		r.LeaseExpiresAt = timeOf(k.LeaseEnd)
		r.OnLeaseExpired = seqledgerv1.LeaseExpiry_LEASE_EXPIRY_INDETERMINATE
		if k.Policy == keyed.TakeOver {
			r.OnLeaseExpired = seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER
		}
	}
	if k.Completed != 0 {
		r.CompletedAt = timeOf(k.Completed)
	}
	if k.Expires != 0 {
		r.ExpiresAt = timeOf(k.Expires)
	}
	if whole {
		r.Response, r.Checkpoint = k.Response, k.Checkpoint
	}
	return r
}
