-- The positions of followers. Every statement may be run again.
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
