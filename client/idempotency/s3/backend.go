package s3

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/client/idempotency/s3/internal/bucket"
	"github.com/seqledger/seqledger/internal/keyed"
)

// object is the content of a record's object. Only Record counts for the store.
type object struct {
	Scope          string     `json:"scope"`
	KeyHash        string     `json:"key_hash"`
	Key            string     `json:"key,omitempty"`
	Status         string     `json:"status"`
	State          string     `json:"state"`
	Token          uint64     `json:"token"`
	Attempts       uint64     `json:"attempts"`
	CreatedAt      *time.Time `json:"created_at,omitempty"`
	LeaseExpiresAt *time.Time `json:"lease_expires_at,omitempty"`
	CompletedAt    *time.Time `json:"completed_at,omitempty"`
	ExpiresAt      *time.Time `json:"expires_at,omitempty"`
	Revision       string     `json:"revision"`
	Record         []byte     `json:"record"`
}

// instant returns a time of a record, nil for none.
func instant(nanoseconds int64) *time.Time {
	if nanoseconds == 0 {
		return nil
	}
	return new(time.Unix(0, nanoseconds).UTC())
}

// backend is an idempotency.Backend.
type backend struct {
	objects   *bucket.Objects
	tokens    *tokens
	maxTTL    time.Duration
	storeKeys bool
}

// keySeparator stands in a record's name before the client's key, where that is stored. It is in no other part of
// a name.
const keySeparator = " "

// Name implements idempotency.Namer.
func (b *backend) Name(key *idempotency.RecordKey, hash string) string {
	scope := bucket.Escape(key.Scope.Organization)
	if key.Scope.Vault != "" {
		scope += "/" + bucket.Escape(key.Scope.Vault)
	}
	sum := sha256.Sum256([]byte(scope + ":" + strings.TrimPrefix(hash, "records/")))
	name := "idempotency/" + scope + "/" + hex.EncodeToString(sum[:]) + ".json"
	if b.storeKeys {
		name += keySeparator + key.Key
	}
	return name
}

// Load implements idempotency.Backend.
func (b *backend) Load(ctx context.Context, name string) ([]byte, string, time.Time, error) {
	name, _, _ = strings.Cut(name, keySeparator)
	body, etag, now, err := b.objects.Get(ctx, name)
	if err != nil || etag == "" {
		return nil, "", now, err
	}
	var o object
	if err := json.Unmarshal(body, &o); err != nil || len(o.Record) == 0 {
		return nil, "", time.Time{}, fmt.Errorf("%w: the object %s", idempotency.ErrDamaged, name)
	}
	return o.Record, etag, now, nil
}

// CompareAndSwap implements idempotency.Backend. The lifecycle rule of the bucket keeps an object for longer
// than keepUntil, because no TTL is longer than maxTTL.
func (b *backend) CompareAndSwap(ctx context.Context, name, etag string, value []byte, _ time.Time) (bool, error) {
	record, err := keyed.Decode(value)
	if err != nil {
		return false, err
	}
	if time.Duration(record.TTL) > b.maxTTL {
		return false, &idempotency.InvalidError{
			Field:   "TTL",
			Problem: fmt.Sprintf("must be at most %v in this store, is %v", b.maxTTL, time.Duration(record.TTL)),
		}
	}
	name, key, _ := strings.Cut(name, keySeparator)
	o := object{
		Scope:   strings.TrimPrefix(path.Dir(name), "idempotency/"),
		KeyHash: strings.TrimSuffix(path.Base(name), ".json"),
		Key:     key, Status: "creating", State: record.State.String(), Token: record.Token, Attempts: record.Attempts,
		CreatedAt: instant(record.Created), LeaseExpiresAt: instant(record.LeaseEnd),
		CompletedAt: instant(record.Completed), ExpiresAt: instant(record.Expires),
		Revision: rand.Text(), Record: value,
	}
	if record.State == keyed.Committed || record.State == keyed.Rejected {
		o.Status = "ready"
	}
	body, err := json.Marshal(&o)
	if err != nil {
		return false, err
	}
	written, _, err := b.objects.Put(ctx, name, etag, body)
	return written, err
}

// NextToken implements idempotency.TokenSource.
func (b *backend) NextToken(ctx context.Context) (uint64, error) { return b.tokens.next(ctx) }
