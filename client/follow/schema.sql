-- The positions of followers. Every statement may be run again.

-- Two that made the tables at the same time would both find that there are none, and one would fail. Held to
-- the end of the transaction, which a simple query is; so it works through a PgBouncer, too.
SELECT pg_advisory_xact_lock(hashtext('seqledger_follow'));

CREATE TABLE IF NOT EXISTS seqledger_follow (
  follower     text NOT NULL,
  organization text NOT NULL,
  vault        text NOT NULL,
  height       bigint NOT NULL, -- of the last block whose effects are here; 0 for none
  PRIMARY KEY (follower, organization, vault)
);

-- The hashes of blocks whose effects are here: of the last ones, and of every 1,000th before. They tell where
-- the history of a ledger that was restored from a backup differs.
CREATE TABLE IF NOT EXISTS seqledger_follow_blocks (
  follower     text NOT NULL,
  organization text NOT NULL,
  vault        text NOT NULL,
  height       bigint NOT NULL,
  hash         bytea NOT NULL,
  PRIMARY KEY (follower, organization, vault, height)
);
