package wire

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/wire/message"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Encoder makes commands of write requests: each is converted, validated and encoded in one pass. The zero value is
// ready. It is for one goroutine.
type Encoder struct {
	memory []byte // of the commands
	text   []byte // of one operation
}

// maxKeptMemory is the size of the commands above which Reset releases their memory, so that a giant frame's memory is
// not kept for small ones.
const maxKeptMemory = 64 << 10

// Reset lets the next commands use the memory of the earlier ones.
func (e *Encoder) Reset() {
	if e.memory = e.memory[:0]; cap(e.memory) > maxKeptMemory {
		e.memory = nil
	}
}

// Grow makes room for commands of n bytes, so that their memory is not enlarged step by step.
func (e *Encoder) Grow(n int) { e.memory = slices.Grow(e.memory, n) }

// Encode makes the command of an actor's request. It is valid until Reset, and has strings of the request. The error is
// a *machine.FieldError.
func (e *Encoder) Encode(r *seqledgerv1.WriteRequest, actor string) (c machine.Command, err error) {
	if r.Scope == nil {
		return c, &machine.FieldError{Field: "scope", Problem: "is required"}
	}
	if r.Namespace != "" || r.Principal != "" || r.Ttl != nil {
		return c, &machine.FieldError{Field: "sequence",
			Problem: "must be 0 with namespace, principal or ttl, which a keyed write has"}
	}
	w := machine.Write{
		Scope: Scope(r.Scope), ClientID: r.ClientId, Actor: actor, Session: r.Session, Sequence: r.Sequence,
	}
	if r.IdempotencyKey != "" {
		uuid, err := machine.ParseUUID(r.IdempotencyKey)
		if err != nil {
			return c, &machine.FieldError{Field: "idempotency_key", Problem: err.Error()}
		}
		w.Key = machine.Key{UUID: uuid, Present: true}
	}
	// Every decoder of requests refuses text that is not UTF-8.
	encoder := machine.Encoder{TextIsUTF8: true}
	if err := encoder.Begin(e.memory, &w, len(r.Operations)); err != nil {
		return c, err
	}
	for i, m := range r.Operations {
		op, problem := e.operation(m)
		if problem != nil {
			problem.Field = fmt.Sprintf("operations[%d]%s", i, problem.Field)
			return c, problem
		}
		if err := encoder.Add(&op); err != nil {
			return c, err
		}
	}
	c, e.memory, err = encoder.End()
	return c, err
}

// Scope converts a scope, which may be nil.
func Scope(s *seqledgerv1.Scope) machine.Scope {
	return machine.Scope{Organization: s.GetOrganization(), Vault: s.GetVault()}
}

// operation converts one operation. Its keys are valid until the next one. The error's field is relative to the
// operation.
func (e *Encoder) operation(m *seqledgerv1.Operation) (op machine.Operation, problem *machine.FieldError) {
	o, ok := message.ReadOperation(m)
	switch {
	case !ok || o.Kind == 0:
		return op, &machine.FieldError{Problem: "must set an operation"}
	case o.Kind == message.ExpireEntity:
		return op, &machine.FieldError{Field: ".expire_entity", Problem: "is read back only"}
	}
	e.text = append(append(append(e.text[:0], o.Key...), o.Relation...), o.Subject...)
	relation, subject := len(o.Key), len(o.Key)+len(o.Relation)
	op = machine.Operation{
		Kind: machine.OperationKind(o.Kind), // the numbers are the same
		Key:  e.text[:relation], Relation: e.text[relation:subject], Subject: e.text[subject:], Value: o.Value,
	}
	if o.Condition == nil && o.ExpiresAt == nil {
		return op, nil
	}
	field := ".set_entity.condition"
	if o.Kind == message.DeleteEntity {
		field = ".delete_entity.condition"
	}
	if op.Condition, problem = condition(o.Condition, field); problem == nil && o.ExpiresAt != nil {
		op.ExpiresAt, problem = nanoseconds(o.ExpiresAt, ".set_entity.expires_at") // no other kind expires
	}
	return op, problem
}

// condition converts the condition of an operation in a field; nil means none.
func condition(m *seqledgerv1.Condition, field string) (machine.Condition, *machine.FieldError) {
	if m == nil {
		return machine.Condition{}, nil
	}
	switch c := m.Condition.(type) {
	case *seqledgerv1.Condition_NotExists:
		if c.NotExists {
			return machine.Condition{Kind: machine.ConditionNotExists}, nil
		}
		return machine.Condition{}, &machine.FieldError{Field: field + ".not_exists", Problem: "must be true"}
	case *seqledgerv1.Condition_MustExist:
		if c.MustExist {
			return machine.Condition{Kind: machine.ConditionMustExist}, nil
		}
		return machine.Condition{}, &machine.FieldError{Field: field + ".must_exist", Problem: "must be true"}
	case *seqledgerv1.Condition_Version:
		return machine.Condition{Kind: machine.ConditionVersion, Version: c.Version}, nil
	case *seqledgerv1.Condition_ValueEquals:
		return machine.Condition{Kind: machine.ConditionValueEquals, Value: c.ValueEquals}, nil
	}
	// An empty condition may be one that this server does not know. Treating it as "none" could execute a write that
	// must not run.
	return machine.Condition{}, &machine.FieldError{Field: field, Problem: "must set a condition"}
}

// nanoseconds converts a time to Unix nanoseconds, the ledger's unit.
func nanoseconds(t *timestamppb.Timestamp, field string) (int64, *machine.FieldError) {
	if t.CheckValid() != nil {
		return 0, &machine.FieldError{Field: field, Problem: "is not a valid time"}
	}
	if t.Seconds < 0 || t.Seconds == 0 && t.Nanos == 0 {
		return 0, &machine.FieldError{Field: field, Problem: "must be after 1970-01-01T00:00:00Z"}
	}
	const second = int64(time.Second)
	if t.Seconds > math.MaxInt64/second || t.Seconds == math.MaxInt64/second && int64(t.Nanos) > math.MaxInt64%second {
		return 0, &machine.FieldError{Field: field, Problem: "must be before 2262-04-11T23:47:17Z"}
	}
	return t.Seconds*second + int64(t.Nanos), nil
}

// RequireScope checks the scope of a read.
func RequireScope(m *seqledgerv1.Scope) (machine.Scope, error) {
	if m == nil {
		return machine.Scope{}, &machine.FieldError{Field: "scope", Problem: "is required"}
	}
	scope := Scope(m)
	return scope, scope.Validate("scope")
}

// OpenSession converts a request of an actor. The error is a *machine.FieldError.
func OpenSession(m *seqledgerv1.OpenSessionRequest, actor string) (*machine.OpenSession, error) {
	if len(m.AttemptId) != 16 {
		return nil, &machine.FieldError{
			Field: "attempt_id", Problem: fmt.Sprintf("must have 16 bytes, has %d", len(m.AttemptId)),
		}
	}
	if m.Scope == nil {
		return nil, &machine.FieldError{Field: "scope", Problem: "is required"}
	}
	o := &machine.OpenSession{
		Scope: Scope(m.Scope), ClientID: m.ClientId, Actor: actor, AttemptID: [16]byte(m.AttemptId),
		ExpectedSession: m.ExpectedSession,
	}
	return o, o.Validate()
}

// ConfigUpdate converts a request. It checks the limits by themselves, so that a malformed request stays out of the
// log; what the state machine decides is the same, because no limit depends on another field.
func ConfigUpdate(m *seqledgerv1.UpdateConfigRequest) (*machine.ConfigUpdate, error) {
	update := &machine.ConfigUpdate{
		EvictionInterval: ifSet(m.EvictionIntervalSet != nil, m.GetEvictionInterval()),
		EvictionLimit:    ifSet(m.EvictionLimitSet != nil, m.GetEvictionLimit()),
		ReceiptWindow:    ifSet(m.ReceiptWindowSet != nil, m.GetReceiptWindow()),
		MaxStreams:       ifSet(m.MaxStreamsSet != nil, m.GetMaxStreams()),
		RetainBytes:      ifSet(m.RetainBytesSet != nil, m.GetRetainBytes()),
	}
	config := machine.DefaultConfig()
	var err error
	if update.ClientTTL, err = configDuration(&config.ClientTTL, m.ClientTtl, "client_ttl"); err != nil {
		return nil, err
	}
	if update.RetainBlocks, err = configDuration(&config.RetainBlocks, m.RetainBlocks, "retain_blocks"); err != nil {
		return nil, err
	}
	for to, from := range map[*uint64]*uint64{
		&config.EvictionInterval: update.EvictionInterval, &config.EvictionLimit: update.EvictionLimit,
		&config.ReceiptWindow: update.ReceiptWindow, &config.MaxStreams: update.MaxStreams,
		&config.RetainBytes: update.RetainBytes,
	} {
		if from != nil {
			*to = *from
		}
	}
	return update, config.Validate()
}

// configDuration sets a field to a duration and returns it in nanoseconds, or nil if it is not set.
func configDuration(field *int64, m *durationpb.Duration, name string) (*int64, error) {
	if m == nil {
		return nil, nil
	}
	d := m.AsDuration() // the nearest that 64 bits can hold
	if m.CheckValid() != nil || int64(d/time.Second) != m.Seconds {
		return nil, &machine.FieldError{Field: name, Problem: "must be 1 s to 292 years"}
	}
	*field = int64(d)
	return field, nil
}

// ifSet returns a pointer to a value that is set in the request, otherwise nil.
func ifSet(set bool, value uint64) *uint64 {
	if !set {
		return nil
	}
	return &value
}
