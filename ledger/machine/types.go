package machine

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/seqledger/seqledger/internal/keyed"
)

// Scope is where a write happens: an organization, or one vault of it.
type Scope struct {
	Organization string // 1–128 bytes of [a-zA-Z0-9:/_.-]
	Vault        string // the same, or empty: the organization itself
}

// String returns "organization" or "organization vault".
func (s Scope) String() string {
	if s.Vault == "" {
		return s.Organization
	}
	return s.Organization + " " + s.Vault
}

// Hash is a SHA-256 digest.
type Hash [32]byte

// String returns the hash in hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// RequestHash is xxh3-128 over the canonical encoding of a write's operations,
// and of nothing else. It detects mistakes and must not be taken for a defence
// against an attacker.
type RequestHash [16]byte

// String returns the hash in hex.
func (h RequestHash) String() string { return hex.EncodeToString(h[:]) }

// Key is a UUID in binary. A request without a key has Present false, so that
// the nil UUID is a key like any other.
type Key struct {
	UUID    [16]byte
	Present bool
}

// LedgerID is the random id under which a ledger hands out transaction ids.
type LedgerID uint64

// String returns the id as 16 hex digits.
func (id LedgerID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// OperationKind says what an operation does. The numbers must never change,
// because logs and blocks have them.
type OperationKind uint8

// The kinds of operations.
const (
	OpSetEntity          OperationKind = 1
	OpDeleteEntity       OperationKind = 2
	OpCreateRelationship OperationKind = 3
	OpDeleteRelationship OperationKind = 4
	OpAppend             OperationKind = 5
	OpExpireEntity       OperationKind = 6 // only the machine itself makes these
)

// ConditionKind says what a condition asks for. The numbers must never change,
// because logs and blocks have them.
type ConditionKind uint8

// The kinds of conditions.
const (
	ConditionNone        ConditionKind = 0
	ConditionNotExists   ConditionKind = 1
	ConditionMustExist   ConditionKind = 2
	ConditionVersion     ConditionKind = 3
	ConditionValueEquals ConditionKind = 4
)

// Condition must hold for the state that an operation finds, with the earlier
// operations of the same write in place.
type Condition struct {
	Kind    ConditionKind
	Version uint64 // with ConditionVersion
	Value   []byte // with ConditionValueEquals
}

// Operation is one step of a write.
type Operation struct {
	Kind      OperationKind
	Key       []byte    // of an entity; the resource of a relationship
	Relation  []byte    // of a relationship
	Subject   []byte    // of a relationship
	Value     []byte    // of a set; the payload of an append
	Condition Condition // of a set or delete
	ExpiresAt int64     // of a set: Unix nanoseconds of ledger time, 0 for never
}

// Write asks for one write to be committed.
type Write struct {
	Scope      Scope
	ClientID   string // 1–256 bytes of printable ASCII
	Actor      string // derived by the server from the caller
	Session    uint64 // 0 for none
	Sequence   uint64 // from 1
	Key        Key
	Operations []Operation // 1–1,000
}

// OpenSession asks for a new session of a stream.
type OpenSession struct {
	Scope           Scope
	ClientID        string
	Actor           string
	AttemptID       [16]byte
	ExpectedSession uint64 // 0: whatever there is
}

// Config is the replicated configuration.
type Config struct {
	EvictionInterval uint64 // commands between two rounds, 1–10^6
	ClientTTL        int64  // nanoseconds of ledger time, at least 1 s
	EvictionLimit    uint64 // entries of the expiry index in a round, 1–10^5
	ReceiptWindow    uint64 // receipts kept for a stream, 1–1,024
	MaxStreams       uint64 // streams of one organization, at least 1
	// RetainBlocks and RetainBytes say how much history is kept: each bounds it, 0 does not. See
	// [View.Horizon].
	RetainBlocks int64  // nanoseconds of ledger time, at least 1 s
	RetainBytes  uint64 // bytes of encoded operations, at least 1 MiB
}

// DefaultConfig returns the configuration of a ledger created without flags.
func DefaultConfig() Config {
	return Config{
		EvictionInterval: 1_000,
		ClientTTL:        24 * 3600 * 1e9,
		EvictionLimit:    2_000,
		ReceiptWindow:    64,
		MaxStreams:       10_000_000,
	}
}

// ConfigUpdate changes the fields that are not nil.
type ConfigUpdate struct {
	EvictionInterval *uint64
	ClientTTL        *int64 // nanoseconds
	EvictionLimit    *uint64
	ReceiptWindow    *uint64
	MaxStreams       *uint64
	RetainBlocks     *int64 // nanoseconds
	RetainBytes      *uint64
}

// FieldError says which field of a request is wrong. Field is a path in the
// request's proto names.
type FieldError struct {
	Field   string
	Problem string
}

// Error returns "field: problem".
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// ErrCorrupt is wrapped by every error that says that stored bytes are not
// what was written. The node must stop.
var ErrCorrupt = errors.New("damaged data")

// Code is the outcome of a command. The numbers must never change, because the
// running digest covers them.
type Code uint8

// The outcomes of commands.
const (
	Committed            Code = 1
	Replayed             Code = 2 // committed before: the original receipt
	SequenceGap          Code = 3
	AlreadyCommitted     Code = 4
	IdempotencyKeyReused Code = 5
	SequenceReused       Code = 6
	SequenceExhausted    Code = 7
	SessionExpired       Code = 8
	SessionFenced        Code = 9
	SessionRequired      Code = 10
	KeyExists            Code = 11
	KeyNotFound          Code = 12
	VersionMismatch      Code = 13
	ValueMismatch        Code = 14
	TooManyStreams       Code = 15
	InvalidArgument      Code = 16 // of a configuration that is out of range
	TooManyKeys          Code = 17 // of a principal
)

// keyedCodes is where the outcomes of commands on keyed records begin: those of package keyed follow it.
const keyedCodes Code = 31

// MaxCode is the highest code.
const MaxCode = keyedCodes + Code(keyed.LastCode)

// Keyed returns the code of an outcome of a command on a keyed record.
func Keyed(c keyed.Code) Code { return keyedCodes + Code(c) }

// Keyed returns the outcome of a command on a keyed record; 0 for any other code.
func (c Code) Keyed() keyed.Code {
	if c <= keyedCodes || c > MaxCode {
		return 0
	}
	return keyed.Code(c - keyedCodes)
}

// String returns the code in upper snake case, as the API names it.
func (c Code) String() string {
	names := [...]string{
		"", "COMMITTED", "REPLAYED", "SEQUENCE_GAP", "ALREADY_COMMITTED", "IDEMPOTENCY_KEY_REUSED",
		"SEQUENCE_REUSED", "SEQUENCE_EXHAUSTED", "SESSION_EXPIRED", "SESSION_FENCED", "SESSION_REQUIRED",
		"KEY_EXISTS", "KEY_NOT_FOUND", "VERSION_MISMATCH", "VALUE_MISMATCH", "TOO_MANY_STREAMS", "INVALID_ARGUMENT",
		"TOO_MANY_KEYS",
	}
	if int(c) < len(names) && c != 0 {
		return names[c]
	}
	if k := c.Keyed(); k != 0 {
		return "KEYED_" + k.String()
	}
	return fmt.Sprintf("CODE_%d", uint8(c))
}

// Receipt is the full result of a committed write.
type Receipt struct {
	LedgerID    LedgerID
	Sequence    uint64
	Session     uint64
	Index       uint64
	BlockHeight uint64
	Position    uint32 // in the block, from 0
	CommittedAt int64  // Unix nanoseconds of ledger time
	Actor       string
	RequestHash RequestHash
	Key         Key
	Replayed    bool
	Versions    []uint64 // one for each operation, 0 where nothing changed
}

// Outcome is what became of a command.
type Outcome struct {
	Code         Code
	Index        uint64  // the ledger index that the command took
	Receipt      Receipt // with Committed and Replayed
	CreatedIndex uint64  // of the stream, 0 when there is none
	Last         uint64  // the stream's last committed sequence
	Session      uint64  // the stream's session
	// CommittedSequence is where the key or the request stands already, with
	// the codes about reuse.
	CommittedSequence uint64
	OperationIndex    int         // which operation failed, with a failed condition
	EntityKey         []byte      // whose condition failed
	CurrentVersion    uint64      // of that entity, 0 when absent
	PreviousSession   uint64      // that the OpenSession which made the session fenced
	Stream            StreamState // after an OpenSession
	Field             *FieldError // with InvalidArgument
	Config            Config      // after an UpdateConfig
	Keyed             *KeyedOutcome
}

// StreamState is where a stream stands.
type StreamState struct {
	CreatedIndex uint64
	Session      uint64
	Last         uint64
	LastSeen     int64 // Unix nanoseconds of ledger time
}
