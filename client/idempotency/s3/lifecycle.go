package s3

import (
	"context"
	"encoding/json"
	"time"

	"github.com/seqledger/seqledger/internal/bucket"
	"github.com/seqledger/seqledger/internal/keyed"
)

// Lifecycle returns the bucket's lifecycle configuration that deletes old objects of a store, in the form of aws
// s3api put-bucket-lifecycle-configuration. That command replaces the bucket's existing rules: add these rules to them.
//
// Rules count from the last change of an object. Records are deleted after the longest time that one waits for an owner
// and then for an operator, or MaxTTL if that is longer than an operator has. Marks of open keys (Options.MaxOpen) are
// deleted after the same time; a store deletes them itself, except after a crash. An owner that extends its lease does
// not rewrite its mark, so a key that heartbeats keep open for longer than that stops counting. Probes, on which [New]
// tries the conditions, are deleted after a day. The token counter has no rule: it must stay.
func Lifecycle(o Options) (string, error) {
	if o.MaxTTL == 0 {
		o.MaxTTL = DefaultMaxTTL
	}
	const day = 24 * time.Hour
	longest := keyed.MaxLease + keyed.UnclaimedTTL + max(o.MaxTTL, keyed.IndeterminateTTL)
	// One extra day for clock skew, and one because S3 rounds up to midnight.
	days := int((longest+day-1)/day) + 2
	type object = map[string]any
	var rules []object
	for _, rule := range []struct {
		id, prefix string
		days       int
	}{
		{"seqledger-idempotency", recordsName, days},
		{"seqledger-idempotency-open", marksName, days},
		{"seqledger-idempotency-probes", bucket.ProbesName, 1},
	} {
		if o.Prefix != "" {
			rule.prefix = o.Prefix + "/" + rule.prefix
		}
		rules = append(rules, object{
			"ID": rule.id, "Status": "Enabled", "Filter": object{"Prefix": rule.prefix},
			"Expiration": object{"Days": rule.days},
		})
	}
	text, err := json.MarshalIndent(object{"Rules": rules}, "", "  ")
	return string(text) + "\n", err
}

// Init tries the conditions of a bucket's store, and returns its lifecycle configuration for the operator to set: see
// [Lifecycle].
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
