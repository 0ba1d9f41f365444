// Package describe has the description of a key that a store keeps beside its record, for people and for lists.
package describe

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
)

// Description is what a record tells people about its key. No store bases a decision on it.
type Description struct {
	Organization string `json:"organization"`
	Vault        string `json:"vault"`
	Namespace    string `json:"namespace"`
	Principal    string `json:"principal"`
	// KeyHash is the SHA-256 of the client's key.
	KeyHash []byte `json:"key_hash"`
}

// Of returns the description of a key.
func Of(key *idempotency.RecordKey) *Description {
	sum := sha256.Sum256([]byte(key.Key))
	return &Description{
		Text(key.Scope.Organization), Text(key.Scope.Vault), key.Namespace, Text(key.Principal), sum[:],
	}
}

// Text replaces invalid UTF-8.
func Text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Parse decodes the JSON of a description.
func Parse(description string) (*Description, error) {
	d := new(Description)
	if err := json.Unmarshal([]byte(description), d); err != nil {
		return nil, err
	}
	if len(d.KeyHash) != sha256.Size {
		return nil, fmt.Errorf("the hash of a key has %d bytes", len(d.KeyHash))
	}
	return d, nil
}

// Matches reports whether a list request selects the record of a description, regardless of its state.
func (d *Description) Matches(r *idempotency.ListRequest) bool {
	return d.Organization == Text(r.Scope.Organization) && d.Vault == Text(r.Scope.Vault) &&
		(r.Namespace == "" || d.Namespace == r.Namespace) &&
		(r.EveryPrincipal || d.Principal == Text(r.Principal))
}

// Listed returns the record in a stored value with this description as a list shows it at the given time of the store's
// clock. It returns nil if the record stands for nothing, or the request excludes its state.
func (d *Description) Listed(
	r *idempotency.ListRequest, value []byte, now time.Time,
) (*idempotency.ListedRecord, error) {
	record, err := idempotency.ListedAs(value, now)
	if err != nil {
		return nil, fmt.Errorf("the record of the key with the SHA-256 %x: %w", d.KeyHash, err)
	}
	if record == nil || r.State != 0 && record.State != r.State {
		return nil, nil
	}
	listed := &idempotency.ListedRecord{Namespace: d.Namespace, Principal: d.Principal, Record: record}
	copy(listed.KeyHash[:], d.KeyHash)
	return listed, nil
}
