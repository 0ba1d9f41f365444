package s3

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seqledger/seqledger/client/idempotency"
	"github.com/seqledger/seqledger/internal/bucket"
)

// ErrNoConditions is returned for a store that ignores the conditions of writes: two owners could run at once.
var ErrNoConditions = bucket.ErrNoConditions

// DefaultMaxTTL is the longest TTL that a store accepts, unless Options.MaxTTL says otherwise.
const DefaultMaxTTL = 60 * 24 * time.Hour

// Options configure a store. The zero value is usable.
type Options struct {
	// Bucket is required for New; for Open the URL names it.
	Bucket string
	// Prefix is the beginning of all object names, without a trailing slash. It may be empty.
	Prefix string
	// MaxTTL is the longest TTL of a request; a longer one is refused, because the lifecycle rule
	// would delete its record too early. 0 means DefaultMaxTTL. See [Lifecycle].
	MaxTTL time.Duration
	// MaxOpen is how many keys of one principal, in one scope, may be pending or have an unknown outcome; 0 means no
	// limit. A reservation beyond it is refused with an [idempotency.QuotaError]. It costs two requests per reservation
	// and one per result. Only keys reserved with this option count: set it in all processes. Near the limit,
	// concurrent reservations may all be refused. The role then also needs s3:DeleteObject on
	// PREFIX/idempotency-open/*.
	MaxOpen int
	// StoreKeys stores the client's key in clear text in the objects.
	StoreKeys bool
}

// Store keeps records in a bucket. It is safe for concurrent use.
type Store struct {
	idempotency.Resolver

	backend *backend
}

// Open connects to a bucket. The URL is of the form s3://BUCKET/PREFIX. Its parameters are region; endpoint, the URL of
// a store other than Amazon's; path_style=true, for a store without a host name per bucket; and max_ttl, max_open and
// store_keys, which set the options. Credentials come from where the AWS SDK looks for them: the environment, ~/.aws,
// or the role of the machine.
func Open(ctx context.Context, address string, o Options) (*Store, error) {
	objects, o, err := connect(ctx, address, o)
	if err != nil {
		return nil, err
	}
	return New(ctx, objects.Client, o)
}

// connect returns the bucket of a URL.
func connect(ctx context.Context, address string, o Options) (*bucket.Objects, Options, error) {
	objects, query, err := bucket.Connect(ctx, address, "max_ttl", "store_keys", "max_open")
	if err != nil {
		return nil, o, err
	}
	o.Bucket, o.Prefix = objects.Bucket, objects.Prefix
	if text := query.Get("max_ttl"); text != "" {
		if o.MaxTTL, err = time.ParseDuration(text); err != nil {
			return nil, o, fmt.Errorf("max_ttl: %w", err)
		}
	}
	if text := query.Get("max_open"); text != "" {
		if o.MaxOpen, err = strconv.Atoi(text); err != nil {
			return nil, o, fmt.Errorf("max_open: %w", err)
		}
	}
	o.StoreKeys = o.StoreKeys || query.Get("store_keys") == "true"
	return objects, o, nil
}

// New returns a store in a bucket, accessed through a client.
func New(ctx context.Context, client *s3.Client, o Options) (*Store, error) {
	if o.MaxTTL == 0 {
		o.MaxTTL = DefaultMaxTTL
	}
	if o.Bucket == "" || o.MaxTTL < idempotency.MinTTL || o.MaxTTL > idempotency.MaxTTL {
		return nil, fmt.Errorf("a bucket is required, and a MaxTTL of %v to %v", idempotency.MinTTL, idempotency.MaxTTL)
	}
	if o.MaxOpen < 0 {
		return nil, errors.New("Options.MaxOpen must not be negative")
	}
	b := &backend{
		objects: &bucket.Objects{Client: client, Bucket: o.Bucket, Prefix: o.Prefix},
		maxTTL:  o.MaxTTL, storeKeys: o.StoreKeys,
	}
	b.tokens = newTokens(b.objects)
	b.quota = &quota{b, o.MaxOpen, markSettles}
	if err := b.objects.CheckConditions(ctx); err != nil {
		return nil, err
	}
	return &Store{idempotency.NewStore(b), b}, nil
}

// Close does nothing, because nothing runs in the background. It exists for symmetry with other stores.
func (*Store) Close() error { return nil }
