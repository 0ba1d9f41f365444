-- The tables of seqledger's idempotency keys. Every statement may be run again.

-- Two that made the tables at the same time would both find that there are none, and one would fail. Held to
-- the end of the transaction, which a simple query is; so it works through a PgBouncer, too.
SELECT pg_advisory_xact_lock(hashtext('seqledger idempotency_records'));

-- Numbers ownerships (fencing tokens) and the versions of records. Cached numbers would be handed
-- out in another order than they are drawn.
CREATE SEQUENCE IF NOT EXISTS idempotency_tokens CACHE 1 NO CYCLE;

CREATE TABLE IF NOT EXISTS idempotency_records (
  key          bytea PRIMARY KEY,    -- SHA-256 of scope, namespace, principal and the key's own SHA-256
  organization text NOT NULL,        -- this and the next four are for people, and not read by the store
  vault        text NOT NULL,
  namespace    text NOT NULL,
  principal    text NOT NULL,
  key_hash     bytea NOT NULL,       -- SHA-256 of the client's key, which is stored nowhere
  version      bigint NOT NULL,      -- changes with every change of the record
  record       bytea NOT NULL,       -- the record, as internal/keyed encodes it
  keep_until   timestamptz NOT NULL, -- it may be deleted afterwards, and never before
  waited_until timestamptz,          -- until then a caller waits for a notification of a change
  -- 1 released, 2 pending, 3 committed, 4 rejected, 5 outcome unknown, 7 expired; for people. A pending record
  -- whose lease has ended turns into an unknown outcome when a call reads it.
  state        smallint NOT NULL GENERATED ALWAYS AS (get_byte(record, 1)) STORED
) WITH (fillfactor = 70);

-- Responses are often compressed already.
ALTER TABLE idempotency_records ALTER COLUMN record SET STORAGE EXTERNAL;

CREATE INDEX IF NOT EXISTS idempotency_records_keep_until ON idempotency_records (keep_until);

-- For lists of what is open, and for the quota. Principals have few of them.
CREATE INDEX IF NOT EXISTS idempotency_records_open ON idempotency_records (organization, vault, principal)
  WHERE state IN (2, 5);
