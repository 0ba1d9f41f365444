// Package s3 keeps the records of idempotency keys in a bucket of S3, or of any store with conditional
// writes (If-None-Match and If-Match).
//
//	store, err := s3.Open(ctx, "s3://bucket/prefix?region=eu-central-1", s3.Options{})
//	defer store.Close()
//	handler = idempotency.Middleware(store, options)(handler)
//
// [Open] tries the conditions on an object of its own and refuses a store that ignores one of them: it
// would let two owners run.
//
// # Layout
//
// A record is the object PREFIX/idempotency/{scope}/{key_hash}.json, with key_hash the SHA-256, in hex, of the scope,
// a colon and the SHA-256 of the whole key (scope, namespace, principal and key). Scope is organization or
// organization/vault, with other characters than letters, digits, '-' and '_' in the form %XX; '-' for none. The
// fields of the object, for other programs that read it:
//
//	scope, key_hash    as above
//	status             creating    PENDING: an owner is at work, or was when the object was written; the lease may
//	                               have ended since
//	                   ready       COMMITTED or REJECTED: there is a result, until expires_at
//	                   unknown     INDETERMINATE: whether the work was done is not known
//	                   released    RELEASED: the key is free
//	state              one of these five; status follows from it
//	token, attempts    the fencing token, and how many ownerships there were
//	created_at, lease_expires_at, completed_at, expires_at
//	                   times (RFC 3339); the last two are absent while there are none
//	namespace, principal, client_key_hash
//	                   for lists; the last is the SHA-256, in hex, of the client's key
//	key                the key of the client, only with Options.StoreKeys: a key may be a secret
//	revision           random, so that no two revisions of an object have the same ETag
//	record             the record itself, as internal/keyed encodes it, in base64; the store reads this alone
//
// PREFIX/idempotency-tokens.json has the counter of fencing tokens. It must not be deleted. Objects below
// PREFIX/idempotency-probes/ are what [New] tries the conditions on; it deletes them, and one that is left is
// harmless.
//
// A store needs s3:GetObject and s3:PutObject on all of them, s3:DeleteObject on PREFIX/idempotency-probes/*, and
// s3:ListBucket, without which S3 says of an absent object that access to it is denied.
//
// # How it decides
//
// The store reads the object, decides by the rules of package idempotency, and writes the object if its ETag
// is still the one that was read; a first record is created only if there is none. An expired record that is
// still there has one successor in the same way. Times are those of the Date header, in whole seconds.
// Two copies of a process that draw tokens at once overtake each other; callers of one process share a
// request for them.
//
// # What it costs
//
// An owner takes four requests for its reservation and two for its result. There are no notifications: a
// caller that waits for another owner polls, up to once a second.
//
// # Durability
//
// What the bucket has acknowledged, which S3 keeps in three zones. Expired records are deleted by a
// lifecycle rule of the bucket, see [Lifecycle]; without one they stay, and are harmless.
//
// A key's token never goes back. A request that a network delivers late creates a record only if there is none; the
// record of a later owner is there for 63 days or more, because the store deletes none and the lifecycle rule counts
// from the last change, while S3 refuses a request that was signed more than 15 minutes ago. For this reason records
// must not be deleted by hand: use seqledger key purge, which leaves a released record.
//
// With Options.MaxOpen, an open key has a mark beside its record, PREFIX/idempotency-open/{scope}/{SHA-256 of the
// principal}/{key_hash}.{token}.json. Marks are counted before a key is reserved, so that no more keys are open than
// the option says, whatever crashes and however late a request arrives. A crash may leave a mark too many. A refusal
// looks for such marks, once they are five minutes old, and deletes them; the lifecycle rules delete the rest. A mark
// must not be deleted by hand while its key is open.
package s3
