package s3

import (
	"context"
	"encoding/json"
	"time"

	"github.com/seqledger/seqledger/internal/keyed"
)

// Lifecycle returns the bucket's lifecycle configuration that deletes expired records, in the form of
// aws s3api put-bucket-lifecycle-configuration. The rule counts from the last change of an object, and no record
// is needed for longer than its TTL, or than it waits for an owner and then for a person. Add the rule to those
// that the bucket has, because the command replaces them.
func Lifecycle(o Options) (string, error) {
	if o.MaxTTL == 0 {
		o.MaxTTL = DefaultMaxTTL
	}
	const day = 24 * time.Hour
	longest := max(o.MaxTTL, keyed.MaxLease+keyed.UnclaimedTTL+keyed.IndeterminateTTL)
	prefix := "idempotency/"
	if o.Prefix != "" {
		prefix = o.Prefix + "/" + prefix
	}
	type object = map[string]any
	text, err := json.MarshalIndent(object{"Rules": []object{{
		"ID": "seqledger-idempotency", "Status": "Enabled", "Filter": object{"Prefix": prefix},
		// A day more for the clocks, and one because S3 rounds up to midnight.
		"Expiration": object{"Days": int((longest+day-1)/day) + 2},
	}}}, "", "  ")
	return string(text) + "\n", err
}

// Init tries the conditions of a bucket's store, and returns its lifecycle configuration for the operator to
// set: see [Lifecycle].
func Init(ctx context.Context, address string) (lifecycle string, err error) {
	objects, o, err := connect(ctx, address, Options{})
	if err != nil {
		return "", err
	}
	if _, err := New(ctx, objects.Client, o); err != nil {
		return "", err
	}
	return Lifecycle(o)
}
