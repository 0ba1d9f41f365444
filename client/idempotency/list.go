package idempotency

import (
	"context"
	"iter"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
)

// ListRequest selects the records to list.
type ListRequest struct {
	// Scope must match exactly.
	Scope Scope
	// Namespace selects the records of a namespace; empty selects all namespaces.
	Namespace string
	// Principal selects the records of a principal, unless EveryPrincipal is set.
	Principal      string
	EveryPrincipal bool
	// State selects the records in a state; 0 selects any state.
	State State
}

// ListedRecord is a record in a list.
type ListedRecord struct {
	Namespace, Principal string
	// KeyHash is the SHA-256 of the client's key, which is not stored.
	KeyHash [32]byte
	// Record has neither the response nor the checkpoint.
	Record *Record
}

// Lister is a [Store] that can list its records.
type Lister interface {
	// List returns the existing records in no particular order. A record that changes during the call may appear in its
	// old or new state. An error is the last item.
	List(ctx context.Context, request *ListRequest) iter.Seq2[*ListedRecord, error]
}

// ListedAs returns the record in a value that a [Backend] stores, as List shows it at the given time of the store's
// clock. It returns nil if the record no longer determines the state of its key. The error wraps [ErrDamaged].
func ListedAs(value []byte, now time.Time) (*Record, error) {
	record, err := decodeStored(value)
	if err != nil {
		return nil, err
	}
	if record = record.At(keyed.Moment{Now: now.UnixNano()}); record == nil {
		return nil, nil
	}
	listed := publicRecord(record)
	listed.Response, listed.Checkpoint = nil, nil
	return listed, nil
}
