package message

import (
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// Kind is the kind of an operation. The numbers are those of ledger/FORMAT.md and are never reused.
type Kind uint8

// The kinds of operations.
const (
	SetEntity          Kind = 1
	DeleteEntity       Kind = 2
	CreateRelationship Kind = 3
	DeleteRelationship Kind = 4
	Append             Kind = 5
	ExpireEntity       Kind = 6
)

// Operation has the contents of an operation of any kind. A field that the kind does not have is empty. ReadOperation
// and Message are the only two places that tell the messages of the kinds apart; all else of the project uses a Kind.
type Operation struct {
	Kind      Kind
	Key       string // of an entity; the resource of a relationship
	Relation  string
	Subject   string
	Value     []byte // of a set; the payload of an append
	Condition *seqledgerv1.Condition
	ExpiresAt *timestamppb.Timestamp
}

// ReadOperation returns the contents of an operation. The Kind is 0 for none, and for one that is newer than this
// program. It returns false for a hollow operation: the kind, its message or its condition is a nil pointer. No decoder
// makes those; an application may.
func ReadOperation(m *seqledgerv1.Operation) (op Operation, ok bool) {
	switch o := m.GetOperation().(type) {
	case *seqledgerv1.Operation_SetEntity:
		if o == nil || o.SetEntity == nil {
			return op, false
		}
		s := o.SetEntity
		op = Operation{Kind: SetEntity, Key: s.Key, Value: s.Value, Condition: s.Condition, ExpiresAt: s.ExpiresAt}
	case *seqledgerv1.Operation_DeleteEntity:
		if o == nil || o.DeleteEntity == nil {
			return op, false
		}
		op = Operation{Kind: DeleteEntity, Key: o.DeleteEntity.Key, Condition: o.DeleteEntity.Condition}
	case *seqledgerv1.Operation_CreateRelationship:
		if o == nil || o.CreateRelationship == nil {
			return op, false
		}
		r := o.CreateRelationship
		return Operation{Kind: CreateRelationship, Key: r.Resource, Relation: r.Relation, Subject: r.Subject}, true
	case *seqledgerv1.Operation_DeleteRelationship:
		if o == nil || o.DeleteRelationship == nil {
			return op, false
		}
		r := o.DeleteRelationship
		return Operation{Kind: DeleteRelationship, Key: r.Resource, Relation: r.Relation, Subject: r.Subject}, true
	case *seqledgerv1.Operation_Append:
		if o == nil || o.Append == nil {
			return op, false
		}
		return Operation{Kind: Append, Value: o.Append.Payload}, true
	case *seqledgerv1.Operation_ExpireEntity:
		if o == nil || o.ExpireEntity == nil {
			return op, false
		}
		return Operation{Kind: ExpireEntity, Key: o.ExpireEntity.Key}, true
	}
	return op, !hollowCondition(op.Condition)
}

// hollowCondition reports whether a condition is a nil pointer to one of the kinds.
func hollowCondition(condition *seqledgerv1.Condition) bool {
	switch c := condition.GetCondition().(type) {
	case *seqledgerv1.Condition_NotExists:
		return c == nil
	case *seqledgerv1.Condition_MustExist:
		return c == nil
	case *seqledgerv1.Condition_Version:
		return c == nil
	case *seqledgerv1.Condition_ValueEquals:
		return c == nil
	}
	return false
}

// IsUTF8 reports whether all text of the operation is UTF-8.
func (op *Operation) IsUTF8() bool {
	return utf8.ValidString(op.Key) && utf8.ValidString(op.Relation) && utf8.ValidString(op.Subject)
}

// Message returns the operation as a message of the API; an unknown Kind has none of its kinds.
func (op *Operation) Message() *seqledgerv1.Operation {
	switch op.Kind {
	case SetEntity:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_SetEntity{SetEntity: &seqledgerv1.SetEntity{
			Key: op.Key, Value: op.Value, Condition: op.Condition, ExpiresAt: op.ExpiresAt,
		}}}
	case DeleteEntity:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteEntity{
			DeleteEntity: &seqledgerv1.DeleteEntity{Key: op.Key, Condition: op.Condition},
		}}
	case CreateRelationship:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_CreateRelationship{
			CreateRelationship: &seqledgerv1.CreateRelationship{
				Resource: op.Key, Relation: op.Relation, Subject: op.Subject},
		}}
	case DeleteRelationship:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_DeleteRelationship{
			DeleteRelationship: &seqledgerv1.DeleteRelationship{
				Resource: op.Key, Relation: op.Relation, Subject: op.Subject},
		}}
	case Append:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_Append{
			Append: &seqledgerv1.Append{Payload: op.Value},
		}}
	case ExpireEntity:
		return &seqledgerv1.Operation{Operation: &seqledgerv1.Operation_ExpireEntity{
			ExpireEntity: &seqledgerv1.ExpireEntity{Key: op.Key},
		}}
	}
	return new(seqledgerv1.Operation)
}
