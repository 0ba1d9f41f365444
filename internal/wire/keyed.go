package wire

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/internal/keyed"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// The times of keyed records that a request leaves open. The state machine sees only what is resolved here.
const (
	defaultLease       = 60 * time.Second
	minLease           = time.Second
	defaultTTL         = 24 * time.Hour
	defaultRejectedTTL = 60 * time.Second
	minTTL             = time.Second
	maxWait            = 60 * time.Second
)

// KeyTimes are the times of keyed records that requests leave open. Those that are zero are the API's own.
type KeyTimes struct {
	Lease       time.Duration // of a Reserve and a Heartbeat; 60 s
	TTL         time.Duration // of a result, and of a keyed write; 24 h
	RejectedTTL time.Duration // of a refusal; 60 s
}

// maxIdempotencyKey is the length of the longest key in bytes.
const maxIdempotencyKey = 256

// RecordID identifies the record that a request of the given caller names, at the given path in the request. The error
// is a *machine.FieldError.
func RecordID(path string, k *seqledgerv1.RecordKey, caller string) (id machine.KeyedID, err error) {
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
		Scope: Scope(k.Scope), Namespace: k.Namespace, Principal: Principal(k.Principal, caller),
		Key: sha256.Sum256([]byte(k.Key)),
	}
	return id, FieldAt(path, id.Validate())
}

// Principal returns the party that a request names, which is its caller if it names none.
func Principal(named, caller string) string {
	if named == "" {
		return caller
	}
	return named
}

// FieldAt puts the path of a message before the field of an error.
func FieldAt(path string, err error) error {
	if field, ok := err.(*machine.FieldError); ok { //nolint:errorlint // Validate does not wrap it.
		return &machine.FieldError{Field: path + "." + field.Field, Problem: field.Problem}
	}
	return err
}

// validateIdempotencyKey checks the key of a record: visible ASCII alone, so that a key is the same in a header, in a
// log and on a command line.
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
		return id, &machine.FieldError{Field: field,
			Problem: fmt.Sprintf("must have %d bytes, has %d", len(id), len(b))}
	}
	// Two callers that both leave it out would be one owner.
	if id = keyed.AttemptID(b); id == (keyed.AttemptID{}) {
		return id, &machine.FieldError{Field: field, Problem: "must be random, and is all zeros"}
	}
	return id, nil
}

// policies are what may happen to a record whose lease ends.
var policies = map[seqledgerv1.LeaseExpiry]keyed.Policy{
	seqledgerv1.LeaseExpiry_LEASE_EXPIRY_UNSPECIFIED:   keyed.BecomeIndeterminate,
	seqledgerv1.LeaseExpiry_LEASE_EXPIRY_INDETERMINATE: keyed.BecomeIndeterminate,
	seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER:      keyed.TakeOver,
}

// ReserveCommand resolves the times of a Reserve by the given caller, whose principals may have maxKeys records. The
// error is a *machine.FieldError.
func ReserveCommand(
	m *seqledgerv1.ReserveRequest, caller string, maxKeys int, open KeyTimes,
) (c *machine.KeyedCommand, wait time.Duration, err error) {
	c = &machine.KeyedCommand{Actor: caller, MaxKeys: uint64(maxKeys), Command: keyed.Command{Kind: keyed.Reserve}}
	if c.ID, err = RecordID("record", m.Record, caller); err != nil {
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
	// 0 for unset. The ledger checks it against its own time, because the server's clock must not decide anything.
	if m.ValidUntil != nil {
		if err := m.ValidUntil.CheckValid(); err != nil {
			return nil, 0, &machine.FieldError{Field: "valid_until", Problem: "is not a valid time"}
		}
		c.ValidUntil = max(1, sinceEpoch(m.ValidUntil.AsTime()))
	}
	lease := cmp.Or(open.Lease, defaultLease)
	if c.Lease, err = duration("lease", m.Lease, lease, minLease, keyed.MaxLease); err != nil {
		return nil, 0, err
	}
	if c.TTL, err = duration("ttl", m.Ttl, cmp.Or(open.TTL, defaultTTL), minTTL, keyed.MaxTTL); err != nil {
		return nil, 0, err
	}
	if c.ForgetAfter, err = forgetAfter(m, c.TTL); err != nil {
		return nil, 0, err
	}
	nanos, err := duration("wait", m.Wait, 0, 0, maxWait)
	return c, time.Duration(nanos), err
}

// forgetAfter returns how long the key of a Reserve stays taken after its record of the given TTL is finished; 0 for no
// longer than the record.
func forgetAfter(m *seqledgerv1.ReserveRequest, ttl int64) (int64, error) {
	switch {
	case !m.NeverForget:
		return duration("forget_after", m.ForgetAfter, 0, time.Duration(ttl), keyed.MaxForgetAfter)
	case m.ForgetAfter != nil:
		return 0, &machine.FieldError{Field: "forget_after", Problem: "must be unset with never_forget"}
	}
	return int64(keyed.Never), nil
}

// sinceEpoch returns the nanoseconds from 1970 to a time: 0 for one before, and the largest number for one that does
// not fit. UnixNano alone would wrap around, so that a far future were in the past.
func sinceEpoch(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, 0)):
		return 0
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
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
			Field: "fingerprint.digest", Problem: fmt.Sprintf("must have %d bytes, has %d", len(f.Digest),
				len(m.Digest)),
		}
	}
	return keyed.Fingerprint{Algorithm: uint8(m.Algorithm), Digest: [32]byte(m.Digest)}, nil
}

// OwnerCommand completes a command of the owner of a record. The error is a *machine.FieldError.
func OwnerCommand(owner *seqledgerv1.Ownership, caller string, command keyed.Command) (c *machine.KeyedCommand,
	err error) {
	if owner == nil {
		return nil, &machine.FieldError{Field: "owner", Problem: "is required"}
	}
	c = &machine.KeyedCommand{Actor: caller, Command: command}
	if c.ID, err = RecordID("owner.record", owner.GetRecord(), caller); err != nil {
		return nil, err
	}
	if c.AttemptID, err = attemptID("owner.attempt_id", owner.GetAttemptId()); err != nil {
		return nil, err
	}
	if c.Token = owner.GetToken(); c.Token == 0 {
		return nil, &machine.FieldError{Field: "owner.token", Problem: "is required"}
	}
	return c, nil
}

// IsKeyed reports whether a write belongs to a key and to no stream.
func IsKeyed(m *seqledgerv1.WriteRequest) bool { return m.Sequence == 0 && m.IdempotencyKey != "" }

// KeyedWrite makes the command of a keyed write by the given caller, whose principals may have maxKeys records. The
// error is a *machine.FieldError.
func KeyedWrite(
	m *seqledgerv1.WriteRequest, caller string, maxKeys int, open KeyTimes,
) (w *machine.KeyedWrite, err error) {
	if m.Session != 0 {
		return nil, &machine.FieldError{Field: "session", Problem: "must be 0 in a keyed write"}
	}
	if m.Scope == nil {
		return nil, &machine.FieldError{Field: "scope", Problem: "is required"}
	}
	if err := validateIdempotencyKey("idempotency_key", m.IdempotencyKey); err != nil {
		return nil, err
	}
	w = &machine.KeyedWrite{
		ID: machine.KeyedID{
			Scope: Scope(m.Scope), Namespace: m.Namespace, Principal: Principal(m.Principal, caller),
			Key: sha256.Sum256([]byte(m.IdempotencyKey)),
		},
		ClientID: m.ClientId, Actor: caller, MaxKeys: uint64(maxKeys),
		Operations: make([]machine.Operation, len(m.Operations)),
	}
	if w.TTL, err = duration("ttl", m.Ttl, cmp.Or(open.TTL, defaultTTL), minTTL, keyed.MaxTTL); err != nil {
		return nil, err
	}
	for i, o := range m.Operations {
		var problem *machine.FieldError
		if w.Operations[i], problem = new(Encoder).operation(o); problem != nil {
			problem.Field = fmt.Sprintf("operations[%d]%s", i, problem.Field)
			return nil, problem
		}
	}
	return w, w.Validate()
}

// Lease returns the lease that a Heartbeat asks for, in nanoseconds; 0 ends it. The error is a *machine.FieldError.
func Lease(m *seqledgerv1.HeartbeatRequest, open KeyTimes) (int64, error) {
	if !m.End {
		return duration("lease", m.Lease, cmp.Or(open.Lease, defaultLease), minLease, keyed.MaxLease)
	}
	if m.Lease != nil {
		return 0, &machine.FieldError{Field: "lease", Problem: "must be unset with end"}
	}
	return 0, nil
}

// CompletedTTL returns how long a result is to be known, in nanoseconds; 0 keeps the TTL of the Reserve. The error is a
// *machine.FieldError.
func CompletedTTL(d *durationpb.Duration) (int64, error) {
	return duration("ttl", d, 0, minTTL, keyed.MaxTTL)
}

// RejectedTTL is CompletedTTL for a refusal, which is known for a minute unless the call says otherwise.
func RejectedTTL(d *durationpb.Duration, open KeyTimes) (int64, error) {
	return duration("ttl", d, cmp.Or(open.RejectedTTL, defaultRejectedTTL), minTTL, keyed.MaxTTL)
}

// RecordOutcome returns the outcome of a command on a keyed record. The API has the numbers of package keyed.
func RecordOutcome(code machine.Code) seqledgerv1.RecordOutcome {
	return seqledgerv1.RecordOutcome(code.Keyed())
}

var recordStates = map[keyed.State]seqledgerv1.RecordState{
	keyed.Pending:       seqledgerv1.RecordState_RECORD_STATE_PENDING,
	keyed.Committed:     seqledgerv1.RecordState_RECORD_STATE_COMMITTED,
	keyed.Rejected:      seqledgerv1.RecordState_RECORD_STATE_REJECTED,
	keyed.Indeterminate: seqledgerv1.RecordState_RECORD_STATE_INDETERMINATE,
	keyed.Written:       seqledgerv1.RecordState_RECORD_STATE_WRITTEN,
	keyed.Expired:       seqledgerv1.RecordState_RECORD_STATE_EXPIRED,
}

// RenderRecord renders a record, with what its owners have stored if whole is set.
func RenderRecord(k *machine.KeyedRecord, whole bool) *seqledgerv1.IdempotencyRecord {
	r := &seqledgerv1.IdempotencyRecord{
		Scope:     RenderScope(k.ID.Scope),
		Namespace: k.ID.Namespace, Principal: k.ID.Principal, KeyHash: k.ID.Key[:], State: recordStates[k.State],
		Token: k.Token, Attempts: k.Attempts, CreatedAt: Timestamp(k.Created), ResponseSize: k.ResponseSize,
	}
	if k.State != keyed.Written { // which was never reserved
		r.Fingerprint = &seqledgerv1.Fingerprint{Algorithm: uint32(k.Fingerprint.Algorithm),
			Digest: k.Fingerprint.Digest[:]}
		r.LeaseExpiresAt = Timestamp(k.LeaseEnd)
		r.OnLeaseExpired = seqledgerv1.LeaseExpiry_LEASE_EXPIRY_INDETERMINATE
		if k.Policy == keyed.TakeOver {
			r.OnLeaseExpired = seqledgerv1.LeaseExpiry_LEASE_EXPIRY_TAKEOVER
		}
	}
	if k.Completed != 0 {
		r.CompletedAt = Timestamp(k.Completed)
	}
	if k.Expires != 0 {
		r.ExpiresAt = Timestamp(k.Expires)
		if free := k.FreeAt(); free != math.MaxInt64 {
			r.ForgottenAt = Timestamp(free)
		}
	}
	// A list must not read the responses of a thousand records into one message.
	if whole {
		r.Response, r.Checkpoint = k.Response, k.Checkpoint
	}
	return r
}
