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
	"github.com/seqledger/seqledger/client/idempotency/internal/describe"
	"github.com/seqledger/seqledger/internal/bucket"
	"github.com/seqledger/seqledger/internal/keyed"
)

// object is the content of a record's object. The store reads only Record.
type object struct {
	Scope          string     `json:"scope"`
	KeyHash        string     `json:"key_hash"`
	Key            string     `json:"key,omitempty"`
	Namespace      string     `json:"namespace"`
	Principal      string     `json:"principal"`
	ClientKeyHash  string     `json:"client_key_hash"`
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

// instant returns a time of a record, or nil if there is none.
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
	quota     *quota
	maxTTL    time.Duration
	storeKeys bool
}

// objectName returns the name of a record's object.
func objectName(key idempotency.Key) string {
	scope := scopeName(key.Record.Scope)
	sum := sha256.Sum256([]byte(scope + ":" + key.Name))
	return recordsName + scope + "/" + hex.EncodeToString(sum[:]) + ".json"
}

// recordsName is the name prefix of records.
const recordsName = "idempotency/"

// scopeName returns the form of a scope in names.
func scopeName(scope idempotency.Scope) string {
	if scope.Vault == "" {
		return bucket.Escape(scope.Organization)
	}
	return bucket.Escape(scope.Organization) + "/" + bucket.Escape(scope.Vault)
}

// Load implements idempotency.Backend.
func (b *backend) Load(ctx context.Context, key idempotency.Key) ([]byte, string, time.Time, error) {
	o, etag, now, err := b.read(ctx, objectName(key))
	if err != nil || o == nil {
		return nil, "", now, err
	}
	return o.Record, etag, now, nil
}

// read reads an object; the result is nil if there is none. now is the store's time.
func (b *backend) read(ctx context.Context, name string) (o *object, etag string, now time.Time, err error) {
	body, etag, now, err := b.objects.Get(ctx, name)
	if err != nil || etag == "" {
		return nil, "", now, err
	}
	if err := json.Unmarshal(body, &o); err != nil || o == nil || len(o.Record) == 0 {
		return nil, "", time.Time{}, fmt.Errorf("%w: the object %s", idempotency.ErrDamaged, name)
	}
	return o, etag, now, nil
}

// CompareAndSwap implements idempotency.Backend. The bucket's lifecycle rule keeps an object until after keepUntil,
// because no TTL and no ForgetAfter exceeds maxTTL.
func (b *backend) CompareAndSwap(
	ctx context.Context, key idempotency.Key, etag string, value []byte, _, _ time.Time,
) (bool, error) {
	record, err := keyed.Decode(value)
	if err != nil {
		return false, err
	}
	problem := fmt.Sprintf("must be at most %v in this store, whose bucket deletes what is older", b.maxTTL)
	switch {
	case time.Duration(record.TTL) > b.maxTTL:
		return false, &idempotency.InvalidError{Field: "TTL", Problem: problem}
	case time.Duration(record.ForgetAfter) > b.maxTTL:
		return false, &idempotency.InvalidError{Field: "ForgetAfter", Problem: problem}
	}
	name, d := objectName(key), describe.Of(key.Record)
	o := newObject(name, record)
	o.Namespace, o.Principal, o.ClientKeyHash = d.Namespace, d.Principal, hex.EncodeToString(d.KeyHash)
	if b.storeKeys {
		o.Key = key.Record.Key
	}
	mark, err := b.quota.admit(ctx, name, d, record)
	if err != nil {
		return false, err
	}
	written, err := b.write(ctx, name, etag, o)
	switch {
	case err != nil:
	case written:
		b.quota.settled(ctx, name, d, record)
	case mark != "":
		b.quota.withdraw(ctx, name, etag, mark, record.Token)
	}
	return written, err
}

// newObject returns the object of a record, without the fields that describe its key.
func newObject(name string, record *keyed.Record) *object {
	return &object{
		Scope:   strings.TrimPrefix(path.Dir(name), recordsName),
		KeyHash: strings.TrimSuffix(path.Base(name), ".json"),
		Status:  status(record.State), State: record.State.String(), Token: record.Token, Attempts: record.Attempts,
		CreatedAt: instant(record.Created), LeaseExpiresAt: instant(record.LeaseEnd),
		CompletedAt: instant(record.Completed), ExpiresAt: instant(record.Expires), Record: record.Append(nil),
	}
}

// status returns the status of a key for other programs, which may ignore the states of records.
func status(s keyed.State) string {
	switch s {
	case keyed.Pending:
		return "creating"
	case keyed.Committed, keyed.Rejected:
		return "ready"
	case keyed.Indeterminate:
		return "unknown"
	case keyed.Expired:
		return "expired"
	}
	return "released"
}

// write writes an object as a new revision if its ETag is still the given one.
func (b *backend) write(ctx context.Context, name, etag string, o *object) (written bool, err error) {
	o.Revision = rand.Text()
	body, err := json.Marshal(o)
	if err != nil {
		return false, err
	}
	written, _, err = b.objects.Put(ctx, name, etag, body)
	return written, err
}

// NextToken implements idempotency.TokenSource.
func (b *backend) NextToken(ctx context.Context) (uint64, error) { return b.tokens.next(ctx) }
