-- An outbox of seqledger. Every statement may be run again.

-- Two that made the tables at the same time would both find that there are none, and one would fail. Held to
-- the end of the transaction, which a simple query is.
SELECT pg_advisory_xact_lock(hashtext('seqledger outbox'));

CREATE TABLE IF NOT EXISTS {table} (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  -- These two are the application's. The operations are a list, in the JSON of the API.
  stream     text NOT NULL CHECK (stream ~ '^[!-~]{1,100}$'),
  operations jsonb NOT NULL
    CHECK (jsonb_typeof(operations) = 'array' AND octet_length(operations::text) <= 16777216),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- The rest is the relay's. new: has no number; sent: has a number, and may have been sent; committed; refused;
  -- skipped: refused, and left out.
  state      text NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'sent', 'committed', 'refused', 'skipped')),
  sequence        bigint, -- the number of the write in its stream
  idempotency_key text,
  request         bytea,  -- the operations as they are sent, until the row is settled
  settled_at      timestamptz,
  tx_id           text,   -- with the next two: where the ledger has it. Null when it no longer kept the receipt
  block_height    bigint,
  committed_at    timestamptz,
  refusal_code    text,
  refusal         text
);

CREATE INDEX IF NOT EXISTS {open} ON {table} (stream, id) WHERE state IN ('new', 'sent');
CREATE INDEX IF NOT EXISTS {refused} ON {table} (stream, id) WHERE state IN ('refused', 'skipped');
CREATE INDEX IF NOT EXISTS {settled} ON {table} (settled_at) WHERE state = 'committed';

CREATE TABLE IF NOT EXISTS {streams} (
  stream        text PRIMARY KEY,
  organization  text NOT NULL, -- with the next two: where the stream's rows go
  vault         text NOT NULL,
  client_id     text NOT NULL,
  ledger_id     text NOT NULL DEFAULT '',
  session       bigint NOT NULL DEFAULT 0, -- the last one that is known to be open; 0 for none
  attempt       bytea,                     -- names the OpenSession that is under way
  next_sequence bigint DEFAULT 1,          -- null once resumed: the number behind the ledger's last
  owner         text,                      -- the relay that works on the stream
  owned_until   timestamptz,
  stopped       text,                      -- why the stream is stopped; null if it runs
  last_error    text                       -- why a write is being repeated
);

CREATE INDEX IF NOT EXISTS {resumed} ON {streams} (stream) WHERE next_sequence IS NULL;
