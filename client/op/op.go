// Package op makes the operations of a write.
//
//	w.Write(ctx, op.Append(invoice), op.Set("invoice/7", total, op.IfAbsent()))
//
// The operations of one write are applied in order, all of them or none.
package op

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/seqledger/seqledger/internal/wire/message"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Append returns the operation that appends a payload of at most 1 MiB.
func Append(payload []byte) *seqledgerv1.Operation {
	return (&message.Operation{Kind: message.Append, Value: payload}).Message()
}

// Set returns the operation that creates or replaces an entity: a key of 1 to 1,024 bytes of
// UTF-8 with a value of at most 1 MiB. The options are at most one [Condition], and
// [ExpiresAt]. Set panics if it gets two conditions, because an operation can carry only one.
func Set(key string, value []byte, options ...SetOption) *seqledgerv1.Operation {
	op := message.Operation{Kind: message.SetEntity, Key: key, Value: value}
	for _, o := range options {
		o.applyTo(&op)
	}
	return op.Message()
}

// Delete returns the operation that removes an entity, which may be absent. It takes at most
// one condition, and panics if it gets two.
func Delete(key string, conditions ...Condition) *seqledgerv1.Operation {
	op := message.Operation{Kind: message.DeleteEntity, Key: key}
	for _, c := range conditions {
		c.applyTo(&op)
	}
	return op.Message()
}

// Relate returns the operation that creates a relationship, which may exist already. Each part
// has 1 to 1,024 bytes of UTF-8.
func Relate(resource, relation, subject string) *seqledgerv1.Operation {
	return (&message.Operation{
		Kind: message.CreateRelationship, Key: resource, Relation: relation, Subject: subject,
	}).Message()
}

// Unrelate returns the operation that deletes a relationship, which may be absent.
func Unrelate(resource, relation, subject string) *seqledgerv1.Operation {
	return (&message.Operation{
		Kind: message.DeleteRelationship, Key: resource, Relation: relation, Subject: subject,
	}).Message()
}

// SetOption is a [Condition] or [ExpiresAt].
type SetOption interface {
	applyTo(op *message.Operation)
}

// Condition must hold for the entity of an operation, after the earlier operations of the same
// write. If it does not hold, the whole write is refused with [failure.ErrConditionFailed].
type Condition struct{ condition *seqledgerv1.Condition }

func (c Condition) applyTo(op *message.Operation) {
	if c.condition == nil {
		panic("op: an empty Condition; make one with IfAbsent, IfPresent, IfVersion or IfValue")
	}
	if op.Condition != nil {
		panic("op: two conditions for one entity; the ledger takes one")
	}
	op.Condition = c.condition
}

// IfAbsent is the condition that the entity does not exist.
func IfAbsent() Condition {
	return Condition{&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_NotExists{NotExists: true}}}
}

// IfPresent is the condition that the entity exists.
func IfPresent() Condition {
	return Condition{&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_MustExist{MustExist: true}}}
}

// IfVersion is the condition that the entity has this version: the ledger index of its last
// set, as in Entity.version and a receipt's results.
func IfVersion(version uint64) Condition {
	return Condition{&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_Version{Version: version}}}
}

// IfValue is the condition that the entity has this value, byte for byte.
func IfValue(value []byte) Condition {
	return Condition{&seqledgerv1.Condition{Condition: &seqledgerv1.Condition_ValueEquals{ValueEquals: value}}}
}

// ExpiresAt is the option of [Set] that makes the entity absent from this ledger time
// on. A set without it clears an earlier one.
func ExpiresAt(t time.Time) SetOption { return expiry{t} }

type expiry struct{ at time.Time }

func (e expiry) applyTo(op *message.Operation) { op.ExpiresAt = timestamppb.New(e.at) }

// Decode reads the operations in the Request of an entry of a journal.
func Decode(request []byte) ([]*seqledgerv1.Operation, error) {
	operations, err := message.DecodeOperations(request)
	if err != nil {
		return nil, fmt.Errorf("op: the operations of a journalled write: %w", err)
	}
	return operations, nil
}
