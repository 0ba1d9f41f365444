package machine

import (
	"fmt"
	"unicode/utf8"

	"github.com/seqledger/seqledger/internal/keyed"
)

// The limits of requests. A request beyond one is refused before it reaches the
// log, because a command in the log must be decided, whatever it costs.
const (
	MaxScopePart   = 128     // bytes of an organization or a vault
	MaxClientID    = 256     // bytes
	MaxKeyBytes    = 1_024   // bytes of an entity key or a part of a relationship
	MaxValueBytes  = 1 << 20 // bytes of a value or a payload
	MaxOperations  = 1_000   // of one write
	MaxNamespace   = 128     // bytes of a namespace of keyed records
	MaxWriteBytes  = 4 << 20 // of the keys, values and payloads of one write together
	maxActorBytes  = 512
	minTTL         = 1_000_000_000
	maxInterval    = 1_000_000
	maxEvictLimit  = 100_000
	maxWindow      = 1_024
	minRetainBytes = 1 << 20   // of history
	maxLedgerIndex = 1<<58 - 1 // the most that fits into a transaction id
)

// Validate checks the scope's limits; field is the path of the scope in the
// request.
func (s Scope) Validate(field string) error {
	if err := validateScopePart(s.Organization, field, ".organization"); err != nil {
		return err
	}
	if s.Vault == "" {
		return nil
	}
	return validateScopePart(s.Vault, field, ".vault")
}

// validateScopePart is given the path in two pieces because joining them for
// every write would cost more than the check.
func validateScopePart(part, field, name string) error {
	if len(part) == 0 || len(part) > MaxScopePart {
		return &FieldError{field + name, fmt.Sprintf("must have 1 to %d bytes, has %d", MaxScopePart, len(part))}
	}
	for i := range len(part) {
		c := part[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '-' && c <= ':' || c == '_'
		if !ok { // '-' to ':' is "-./0123456789:"
			return &FieldError{field + name, fmt.Sprintf("byte %d is %q, outside [a-zA-Z0-9:/_.-]", i, c)}
		}
	}
	return nil
}

// ValidateClientID checks the limits of a client id.
func ValidateClientID(id string) error {
	if len(id) == 0 || len(id) > MaxClientID {
		return &FieldError{"client_id", fmt.Sprintf("must have 1 to %d bytes, has %d", MaxClientID, len(id))}
	}
	for i := range len(id) {
		if id[i] < 0x20 || id[i] > 0x7e {
			return &FieldError{"client_id", fmt.Sprintf("byte %d is not printable ASCII", i)}
		}
	}
	return nil
}

// ValidateKey checks the limits of an entity key or a part of a relationship.
func ValidateKey[T ~string | ~[]byte](key T, field string) error {
	if err := keyError(key, field, false); err != nil {
		return err
	}
	return nil // never err: a nil *FieldError is an error that is not nil
}

// keyError is the error of an invalid key. With isUTF8 it does not look at the
// text again, because its decoder has.
func keyError[T ~string | ~[]byte](key T, field string, isUTF8 bool) *FieldError {
	if len(key) == 0 || len(key) > MaxKeyBytes {
		return &FieldError{field, fmt.Sprintf("must have 1 to %d bytes, has %d", MaxKeyBytes, len(key))}
	}
	if !isUTF8 && !utf8.ValidString(string(key)) {
		return &FieldError{field, "is not UTF-8"}
	}
	return nil
}

// Validate checks every limit that does not need the state. The error is a
// *FieldError.
func (w *Write) Validate() error {
	if err := w.validateHead(); err != nil {
		return err
	}
	return validateOperations(w.Operations)
}

// validateHead checks all but the operations.
func (w *Write) validateHead() error {
	if err := validateStreamName(w.Scope, w.ClientID, w.Actor); err != nil {
		return err
	}
	if w.Sequence == 0 {
		return &FieldError{"sequence", "must be at least 1"}
	}
	return nil
}

// Validate checks every limit that does not need the state. The error is a
// *FieldError.
func (w *KeyedWrite) Validate() error {
	if err := w.ID.Validate(); err != nil {
		return err
	}
	if w.ClientID != "" {
		if err := ValidateClientID(w.ClientID); err != nil {
			return err
		}
	}
	if len(w.Actor) == 0 || len(w.Actor) > maxActorBytes {
		return &FieldError{"actor", fmt.Sprintf("must have 1 to %d bytes, has %d", maxActorBytes, len(w.Actor))}
	}
	if w.TTL < 1 || w.TTL > int64(keyed.MaxTTL) {
		return &FieldError{"ttl", fmt.Sprintf("must be more than 0 and at most %v", keyed.MaxTTL)}
	}
	return validateOperations(w.Operations)
}

func validateOperations(operations []Operation) error {
	if err := validateOperationCount(len(operations)); err != nil {
		return err
	}
	total := 0
	for i := range operations {
		if err := operations[i].validate(false); err != nil {
			err.Field = fmt.Sprintf("operations[%d]%s", i, err.Field)
			return err
		}
		total += operations[i].bytes()
	}
	return validateOperationBytes(total)
}

func validateOperationCount(n int) error {
	if n == 0 || n > MaxOperations {
		return &FieldError{"operations", fmt.Sprintf("must be 1 to %d, are %d", MaxOperations, n)}
	}
	return nil
}

func validateOperationBytes(total int) error {
	if total > MaxWriteBytes {
		return &FieldError{"operations", fmt.Sprintf("must have at most %d bytes together, have %d",
			MaxWriteBytes, total)}
	}
	return nil
}

// bytes returns how many bytes count for MaxWriteBytes.
func (op *Operation) bytes() int {
	return len(op.Key) + len(op.Relation) + len(op.Subject) + len(op.Value) + len(op.Condition.Value)
}

// Validate checks every limit that does not need the state. The error is a
// *FieldError.
func (o *OpenSession) Validate() error {
	return validateStreamName(o.Scope, o.ClientID, o.Actor)
}

func validateStreamName(scope Scope, clientID, actor string) error {
	if err := scope.Validate("scope"); err != nil {
		return err
	}
	if err := ValidateClientID(clientID); err != nil {
		return err
	}
	if len(actor) == 0 || len(actor) > maxActorBytes {
		return &FieldError{"actor", fmt.Sprintf("must have 1 to %d bytes, has %d", maxActorBytes, len(actor))}
	}
	return nil
}

// validate returns an error whose field is relative to the operation. It does not
// check again what isUTF8 says of the text.
func (op *Operation) validate(isUTF8 bool) *FieldError {
	switch op.Kind {
	case OpSetEntity:
		if len(op.Value) > MaxValueBytes {
			return tooLong(".set_entity.value", len(op.Value))
		}
		if op.ExpiresAt < 0 {
			return &FieldError{".set_entity.expires_at", "must be after 1970"}
		}
		return firstError(keyError(op.Key, ".set_entity.key", isUTF8), op.Condition.validate(".set_entity.condition"))
	case OpDeleteEntity:
		return firstError(keyError(op.Key, ".delete_entity.key", isUTF8),
			op.Condition.validate(".delete_entity.condition"))
	case OpCreateRelationship:
		return op.validateRelationship(".create_relationship", isUTF8)
	case OpDeleteRelationship:
		return op.validateRelationship(".delete_relationship", isUTF8)
	case OpAppend:
		if len(op.Value) > MaxValueBytes {
			return tooLong(".append.payload", len(op.Value))
		}
		return nil
	case OpExpireEntity:
		return &FieldError{".expire_entity", "is read back only"}
	default:
		return &FieldError{"", "no operation is set"}
	}
}

func (op *Operation) validateRelationship(field string, isUTF8 bool) *FieldError {
	return firstError(keyError(op.Key, field+".resource", isUTF8), keyError(op.Relation, field+".relation", isUTF8),
		keyError(op.Subject, field+".subject", isUTF8))
}

func (c *Condition) validate(field string) *FieldError {
	switch c.Kind {
	case ConditionNone, ConditionNotExists, ConditionMustExist, ConditionVersion:
		return nil
	case ConditionValueEquals:
		if len(c.Value) > MaxValueBytes {
			return tooLong(field+".value_equals", len(c.Value))
		}
		return nil
	default:
		return &FieldError{field, "is not a condition"}
	}
}

func tooLong(field string, n int) *FieldError {
	return &FieldError{field, fmt.Sprintf("must have at most %d bytes, has %d", MaxValueBytes, n)}
}

func firstError(errs ...*FieldError) *FieldError {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Validate checks the configuration's limits. The error is a *FieldError.
func (c Config) Validate() error {
	switch {
	case c.EvictionInterval < 1 || c.EvictionInterval > maxInterval:
		return &FieldError{"eviction_interval", fmt.Sprintf("must be 1 to %d", maxInterval)}
	case c.ClientTTL < minTTL:
		return &FieldError{"client_ttl", "must be at least 1 s"}
	case c.EvictionLimit < 1 || c.EvictionLimit > maxEvictLimit:
		return &FieldError{"eviction_limit", fmt.Sprintf("must be 1 to %d", maxEvictLimit)}
	case c.ReceiptWindow < 1 || c.ReceiptWindow > maxWindow:
		return &FieldError{"receipt_window", fmt.Sprintf("must be 1 to %d", maxWindow)}
	case c.MaxStreams < 1:
		return &FieldError{"max_streams", "must be at least 1"}
	case c.RetainBlocks != 0 && c.RetainBlocks < minTTL:
		return &FieldError{"retain_blocks", "must be at least 1 s, or 0 for no bound"}
	case c.RetainBytes != 0 && c.RetainBytes < minRetainBytes:
		return &FieldError{"retain_bytes", fmt.Sprintf("must be at least %d, or 0 for no bound", minRetainBytes)}
	}
	return nil
}

// Validate checks every limit that does not need the state. The error is a
// *FieldError.
func (c *KeyedCommand) Validate() error {
	if err := c.ID.Validate(); err != nil {
		return err
	}
	reserve, heartbeat := c.Kind == keyed.Reserve, c.Kind == keyed.Heartbeat
	switch {
	case len(c.Actor) == 0 || len(c.Actor) > maxActorBytes:
		return &FieldError{"actor", fmt.Sprintf("must have 1 to %d bytes, has %d", maxActorBytes, len(c.Actor))}
	case reserve && c.Lease < 1, (reserve || heartbeat) && (c.Lease < 0 || c.Lease > int64(keyed.MaxLease)):
		return &FieldError{"lease", fmt.Sprintf("must be more than 0 and at most %v", keyed.MaxLease)}
	case reserve && c.TTL < 1, c.TTL < 0, c.TTL > int64(keyed.MaxTTL):
		return &FieldError{"ttl", fmt.Sprintf("must be more than 0 and at most %v", keyed.MaxTTL)}
	case c.ForgetAfter != 0 && c.ForgetAfter < c.TTL:
		return &FieldError{"forget_after", "must be at least ttl"}
	case c.ValidUntil < 0:
		return &FieldError{"valid_until", "must not be before 1970"}
	case len(c.Response) > keyed.MaxResponse:
		return &FieldError{"response", fmt.Sprintf("must have at most %d bytes, has %d", keyed.MaxResponse,
			len(c.Response))}
	case len(c.Data) > keyed.MaxCheckpoint:
		return &FieldError{"data", fmt.Sprintf("must have at most %d bytes, has %d", keyed.MaxCheckpoint, len(c.Data))}
	}
	return nil
}

// Validate checks the limits of an identity. The error is a *FieldError.
func (id *KeyedID) Validate() error {
	if err := id.Scope.Validate("scope"); err != nil {
		return err
	}
	if len(id.Namespace) > MaxNamespace {
		return &FieldError{"namespace", fmt.Sprintf("must have at most %d bytes, has %d", MaxNamespace,
			len(id.Namespace))}
	}
	if len(id.Principal) == 0 || len(id.Principal) > maxActorBytes {
		return &FieldError{"principal", fmt.Sprintf("must have 1 to %d bytes, has %d", maxActorBytes,
			len(id.Principal))}
	}
	for i := range len(id.Namespace) {
		if c := id.Namespace[i]; c < 0x20 || c > 0x7e {
			return &FieldError{"namespace", fmt.Sprintf("byte %d is not printable ASCII", i)}
		}
	}
	if !utf8.ValidString(id.Principal) {
		return &FieldError{"principal", "is not UTF-8"}
	}
	return nil
}
