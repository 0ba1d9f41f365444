package server

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// converter turns write requests into the core's writes. It allocates memory for many writes at
// once, because small allocations would cost more than the conversion itself. Its results alias
// the requests.
type converter struct {
	actor      string // who writes
	operations []machine.Operation
	keys       []byte
}

// newConverter allocates what the conversion of an actor's requests needs.
func newConverter(actor string, requests ...*seqledgerv1.WriteRequest) *converter {
	operations, keys := 0, 0
	for _, r := range requests {
		operations += min(len(r.Operations), machine.MaxOperations)
		for _, op := range r.Operations {
			keys += keyBytes(op)
		}
	}
	return &converter{actor: actor, operations: make([]machine.Operation, 0, operations), keys: make([]byte, 0, keys)}
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

// write converts one request. The error is a *machine.FieldError; without one
// the write is valid.
func (c *converter) write(w *machine.Write, r *seqledgerv1.WriteRequest) error {
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
		Scope: scopeOf(r.Scope), ClientID: r.ClientId, Actor: c.actor, Session: r.Session, Sequence: r.Sequence,
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

func scopeOf(s *seqledgerv1.Scope) machine.Scope {
	return machine.Scope{Organization: s.GetOrganization(), Vault: s.GetVault()}
}

// operation converts one operation. The error's field is relative to it.
func (c *converter) operation(op *seqledgerv1.Operation) (machine.Operation, *machine.FieldError) {
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

func (c *converter) setEntity(set *seqledgerv1.SetEntity) (machine.Operation, *machine.FieldError) {
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

// key copies a key into the converter's memory.
func (c *converter) key(key string) []byte {
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
