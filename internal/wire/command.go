package wire

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Converter turns write requests into the core's writes. It allocates memory for many writes at
// once, because small allocations would cost more than the conversion itself. Its results alias
// the requests.
type Converter struct {
	actor      string // who writes
	operations []machine.Operation
	keys       []byte
}

// NewConverter allocates what the conversion of an actor's requests needs.
func NewConverter(actor string, requests ...*seqledgerv1.WriteRequest) *Converter {
	operations, keys := 0, 0
	for _, r := range requests {
		operations += min(len(r.Operations), machine.MaxOperations)
		for _, op := range r.Operations {
			keys += keyBytes(op)
		}
	}
	return &Converter{actor: actor, operations: make([]machine.Operation, 0, operations), keys: make([]byte, 0, keys)}
}

func keyBytes(op *seqledgerv1.Operation) int {
	switch o := op.Operation.(type) {
	case *seqledgerv1.Operation_SetEntity:
		return len(o.SetEntity.Key)
	case *seqledgerv1.Operation_DeleteEntity:
		return len(o.DeleteEntity.Key)
	case *seqledgerv1.Operation_CreateRelationship:
		return len(o.CreateRelationship.Resource) + len(o.CreateRelationship.Relation) + len(o.CreateRelationship.Subject)
	case *seqledgerv1.Operation_DeleteRelationship:
		return len(o.DeleteRelationship.Resource) + len(o.DeleteRelationship.Relation) + len(o.DeleteRelationship.Subject)
	}
	return 0
}

// Write converts one request. The error is a *machine.FieldError; without one
// the write is valid.
func (c *Converter) Write(w *machine.Write, r *seqledgerv1.WriteRequest) error {
	if r.Scope == nil {
		return &machine.FieldError{Field: "scope", Problem: "is required"}
	}
	if len(r.Operations) > machine.MaxOperations {
		return &machine.FieldError{
			Field:   "operations",
			Problem: fmt.Sprintf("must be 1 to %d, are %d", machine.MaxOperations, len(r.Operations)),
		}
	}
	*w = machine.Write{
		Scope: Scope(r.Scope), ClientID: r.ClientId, Actor: c.actor, Session: r.Session, Sequence: r.Sequence,
	}
	if r.IdempotencyKey != "" {
		uuid, err := machine.ParseUUID(r.IdempotencyKey)
		if err != nil {
			return &machine.FieldError{Field: "idempotency_key", Problem: err.Error()}
		}
		w.Key = machine.Key{UUID: uuid, Present: true}
	}
	first := len(c.operations)
	for i, op := range r.Operations {
		converted, err := c.operation(op)
		if err != nil {
			err.Field = fmt.Sprintf("operations[%d]%s", i, err.Field)
			return err
		}
		c.operations = append(c.operations, converted)
	}
	w.Operations = c.operations[first:len(c.operations):len(c.operations)]
	return w.Validate()
}

// Scope converts a scope, which may be nil.
func Scope(s *seqledgerv1.Scope) machine.Scope {
	return machine.Scope{Organization: s.GetOrganization(), Vault: s.GetVault()}
}

// operation converts one operation. The error's field is relative to it.
func (c *Converter) operation(op *seqledgerv1.Operation) (machine.Operation, *machine.FieldError) {
	switch o := op.Operation.(type) {
	case *seqledgerv1.Operation_Append:
		return machine.Operation{Kind: machine.OpAppend, Value: o.Append.Payload}, nil
	case *seqledgerv1.Operation_SetEntity:
		return c.setEntity(o.SetEntity)
	case *seqledgerv1.Operation_DeleteEntity:
		condition, err := condition(o.DeleteEntity.Condition, ".delete_entity.condition")
		return machine.Operation{
			Kind: machine.OpDeleteEntity, Key: c.key(o.DeleteEntity.Key), Condition: condition,
		}, err
	case *seqledgerv1.Operation_CreateRelationship:
		r := o.CreateRelationship
		return machine.Operation{
			Kind: machine.OpCreateRelationship,
			Key:  c.key(r.Resource), Relation: c.key(r.Relation), Subject: c.key(r.Subject),
		}, nil
	case *seqledgerv1.Operation_DeleteRelationship:
		r := o.DeleteRelationship
		return machine.Operation{
			Kind: machine.OpDeleteRelationship,
			Key:  c.key(r.Resource), Relation: c.key(r.Relation), Subject: c.key(r.Subject),
		}, nil
	case *seqledgerv1.Operation_ExpireEntity:
		return machine.Operation{}, &machine.FieldError{Field: ".expire_entity", Problem: "is read back only"}
	}
	return machine.Operation{}, &machine.FieldError{Problem: "must set an operation"}
}

func (c *Converter) setEntity(set *seqledgerv1.SetEntity) (machine.Operation, *machine.FieldError) {
	op := machine.Operation{Kind: machine.OpSetEntity, Key: c.key(set.Key), Value: set.Value}
	var err *machine.FieldError
	if op.Condition, err = condition(set.Condition, ".set_entity.condition"); err != nil {
		return op, err
	}
	if set.ExpiresAt != nil {
		op.ExpiresAt, err = nanoseconds(set.ExpiresAt, ".set_entity.expires_at")
	}
	return op, err
}

// key copies a key into the Converter's memory.
func (c *Converter) key(key string) []byte {
	first := len(c.keys)
	c.keys = append(c.keys, key...)
	return c.keys[first:len(c.keys):len(c.keys)]
}

// condition converts a condition; nil means none.
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
	// An empty condition may be one that this server does not know. Treating it as "none" could
	// execute a write that must not run.
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

// ConfigUpdate converts a request. It checks the limits by themselves, so that
// a malformed request stays out of the log; what the state machine decides is
// the same, because no limit depends on another field.
func ConfigUpdate(m *seqledgerv1.UpdateConfigRequest) (*machine.ConfigUpdate, error) {
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

// ifSet returns a pointer to a value that is set in the request, otherwise nil.
func ifSet(set bool, value uint64) *uint64 {
	if !set {
		return nil
	}
	return &value
}
