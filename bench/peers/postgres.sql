-- The work of one write. Payload and receipt are one row, because that is what
-- costs PostgreSQL least. Nothing is ever deleted, which spares it the vacuum.
CREATE TABLE IF NOT EXISTS streams (
  client text PRIMARY KEY,
  last   bigint NOT NULL
) WITH (fillfactor = 50); -- room for updates in place

CREATE TABLE IF NOT EXISTS writes (
  client      text NOT NULL,
  sequence    bigint NOT NULL,
  key         uuid NOT NULL,
  hash        bytea NOT NULL,
  transaction bigint GENERATED ALWAYS AS IDENTITY,
  committed   timestamptz NOT NULL DEFAULT now(),
  payload     bytea NOT NULL,
  PRIMARY KEY (client, sequence)
);
-- The payloads are random, so that trying to compress them would only cost.
ALTER TABLE writes ALTER COLUMN payload SET STORAGE EXTERNAL;

CREATE TABLE IF NOT EXISTS keyed (
  key    text PRIMARY KEY,
  result bytea -- NULL while the key is reserved
) WITH (fillfactor = 50);
ALTER TABLE keyed ALTER COLUMN result SET STORAGE EXTERNAL;

-- outcome: 1 committed, 2 replayed, 3 another request under this sequence, 4 gap.
CREATE OR REPLACE FUNCTION write_once(c text, s bigint, k uuid, h bytea, p bytea, OUT outcome int, OUT transaction bigint) AS $$
DECLARE
  stored writes%ROWTYPE;
BEGIN
  UPDATE streams SET last = s WHERE client = c AND last = s - 1;
  IF NOT FOUND AND s = 1 THEN
    INSERT INTO streams VALUES (c, 1) ON CONFLICT DO NOTHING;
  END IF;
  IF FOUND THEN
    INSERT INTO writes (client, sequence, key, hash, payload) VALUES (c, s, k, h, p) RETURNING writes.transaction INTO transaction;
    outcome := 1;
    RETURN;
  END IF;
  SELECT * INTO stored FROM writes WHERE client = c AND sequence = s;
  IF NOT FOUND THEN
    outcome := 4;
  ELSIF stored.key = k AND stored.hash = h THEN
    outcome := 2;
    transaction := stored.transaction;
  ELSE
    outcome := 3;
  END IF;
END
$$ LANGUAGE plpgsql;
