package idempotency

import (
	"context"
	"iter"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
)

// ListRequest says which records to list.
type ListRequest struct {
	// Scope is compared exactly.
	Scope Scope
	// Namespace is that of the records, and empty for those of all.
	Namespace string
	// Principal is that of the records, unless EveryPrincipal is set.
	Principal      string
	EveryPrincipal bool
	// State is that of the records, and 0 for any.
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

// Lister is a [Store] that can tell which records it has.
type Lister interface {
	// List returns the records that there are, in no order that means anything. Records that change meanwhile
	// may be as before or as after. An error is the last item.
	List(ctx context.Context, request *ListRequest) iter.Seq2[*ListedRecord, error]
}

// ListedAs returns a value that a [Backend] stores as it stands in a list at a time of the store's clock. It is nil
// for a record that stands for nothing any more. The error wraps [ErrDamaged].
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
