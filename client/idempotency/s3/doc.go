// Package s3 keeps the records of idempotency keys in a bucket of S3, or of any store with conditional writes
// (If-None-Match and If-Match).
//
//	store, err := s3.Open(ctx, "s3://bucket/prefix?region=eu-central-1", s3.Options{})
//	defer store.Close()
//	handler = idempotency.Middleware(store, options)(handler)
//
// [Open] tries the conditions on a test object. It refuses a store that ignores one of them, because such a
// store would let two owners run.
//
// # Layout
//
// A record is the object PREFIX/idempotency/{scope}/{key_hash}.json. key_hash is the SHA-256, in hex, of the scope, a
// colon and the SHA-256 of the whole key (scope, namespace, principal and key). Scope is organization or
// organization/vault, where all characters but letters, digits, '-' and '_' have the form %XX; '-' means none. The
// fields of the object, for other programs that read it:
//
//	scope, key_hash    as above
//	status             creating    PENDING: an owner is at work, or was when the object was written; the lease may
//	                               have ended since
//	                   ready       COMMITTED or REJECTED: there is a result, until expires_at
//	                   unknown     INDETERMINATE: it is unknown whether the work was done
//	                   expired     EXPIRED: only the request is known
//	                   released    RELEASED: the key is free
//	state              one of these six; status follows from it
//	token, attempts    the fencing token, and the number of ownerships so far
//	created_at, lease_expires_at, completed_at, expires_at
//	                   times (RFC 3339); the last two are absent until they are set
//	namespace, principal, client_key_hash
//	                   for lists; the last is the SHA-256, in hex, of the client's key
//	key                the key of the client, only with Options.StoreKeys: a key may be a secret
//	revision           random, so that no two revisions of an object have the same ETag
//	record             the record itself, as internal/keyed encodes it, in base64; the store reads only this
//
// PREFIX/idempotency-tokens.json holds the counter of fencing tokens. It must not be deleted. [New] tries the
// conditions on objects below PREFIX/idempotency-probes/ and deletes them afterwards; a leftover one is harmless.
//
// A store needs s3:GetObject and s3:PutObject on all of these objects, s3:DeleteObject on PREFIX/idempotency-probes/*,
// and s3:ListBucket, without which S3 reports an absent object as access denied.
//
// # How it decides
//
// The store reads the object, applies the rules of package idempotency, and writes the object if its ETag has not
// changed since the read; a first record is created only if there is none. An expired record that still exists is
// replaced by one successor in the same way. Times are those of the Date header, in whole seconds. Two processes that
// draw tokens at the same time race; callers in one process share one request for them.
//
// # What it costs
//
// An owner takes four requests for its reservation and two for its result. There are no notifications: a caller that
// waits for another owner polls, up to once a second.
//
// # Durability
//
// Records are as durable as the bucket's acknowledged writes, which S3 keeps in three zones. A lifecycle rule of the
// bucket deletes expired records, see [Lifecycle]; without one they stay, and are harmless.
//
// The token of a key never decreases. A request that the network delivers late creates a record only if there is none.
// The record of a later owner exists for at least 93 days, because the store deletes none and the lifecycle rule counts
// from the last change, while S3 refuses a request that was signed more than 15 minutes ago. For this reason records
// must not be deleted by hand: use seqledger key purge, which leaves a released record.
//
// With Options.MaxOpen, an open key also has a mark, PREFIX/idempotency-open/{scope}/{SHA-256 of the
// principal}/{key_hash}.{token}.json. Marks are counted before a key is reserved, so that no more keys are open than
// the option allows, whatever crashes and however late a request arrives. A crash may leave an extra mark. A refusal
// looks for such marks once they are five minutes old, and deletes them; the lifecycle rules delete the rest. A mark
// must not be deleted by hand while its key is open.
package s3
