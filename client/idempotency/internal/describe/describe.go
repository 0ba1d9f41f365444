// Package describe adds a readable description of the key to a record, next to the hash that names it. An
// idempotency.Backend carries it in the names of its values.
package describe

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

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

// hashLength is the length of a record's hash in hex.
const hashLength = 2 * sha256.Size

// Namer is an idempotency.Namer whose names are the hash of a record in hex, followed by its description in JSON.
type Namer struct{}

// Name implements idempotency.Namer.
func (Namer) Name(key *idempotency.RecordKey, hash string) string {
	sum := sha256.Sum256([]byte(key.Key))
	b, err := json.Marshal(Description{
		Text(key.Scope.Organization), Text(key.Scope.Vault), key.Namespace, Text(key.Principal), sum[:],
	})
	if err != nil {
		panic(err) // strings and bytes always encode
	}
	return strings.TrimPrefix(hash, "records/") + string(b)
}

// Text replaces invalid UTF-8.
func Text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Split returns the hash, in hex, and the JSON description in a name made by [Namer].
func Split(name string) (hash, description string, err error) {
	hash, description = name[:min(hashLength, len(name))], name[min(hashLength, len(name)):]
	if b, err := hex.DecodeString(hash); err != nil || len(b) != sha256.Size {
		return "", "", fmt.Errorf("%q is not the name of a record", name)
	}
	return hash, description, nil
}

// Of returns the hash, in hex, and the description in a name made by [Namer].
func Of(name string) (hash string, d *Description, err error) {
	hash, text, err := Split(name)
	if err == nil {
		d, err = Parse(text)
	}
	return hash, d, err
}

// Parse decodes a description.
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

// Listed returns a stored record with this description as a list shows it, or nil if the request excludes its state.
func (d *Description) Listed(r *idempotency.ListRequest, record *idempotency.Record) *idempotency.ListedRecord {
	if record == nil || r.State != 0 && record.State != r.State {
		return nil
	}
	listed := &idempotency.ListedRecord{Namespace: d.Namespace, Principal: d.Principal, Record: record}
	copy(listed.KeyHash[:], d.KeyHash)
	return listed
}
