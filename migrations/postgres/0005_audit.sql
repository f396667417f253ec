-- The audit log becomes a chain for each tenant: what is written waits in audit_inbox until the sealing sweep moves it to
-- audit_log, which nobody changes. Whoever reads both reads the view audit.

-- The roles are stopped meanwhile.
-- squawk-ignore-file renaming-table, renaming-object, ban-drop-not-null, require-concurrent-index-deletion, ban-drop-table

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

-- What was written before is sealed as anything new, by the sweep.
ALTER TABLE audit RENAME TO audit_inbox;
ALTER INDEX audit_pkey RENAME TO audit_inbox_pkey;
DROP INDEX audit_at;
ALTER TABLE audit_inbox
  ALTER COLUMN task_id DROP NOT NULL,             -- NULL if it is about no task
  ALTER COLUMN version DROP NOT NULL,             -- NULL if it is about no task
  ALTER COLUMN owner DROP NOT NULL,               -- NULL if it is about no caller
  ALTER COLUMN tool DROP NOT NULL,                -- NULL if nothing was called
  ADD COLUMN subject text COLLATE "C",            -- what an operator changed
  ADD COLUMN times   integer NOT NULL DEFAULT 1,  -- how often it happened
  -- Each row stays for about a second.
  SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

CREATE TABLE audit_log (
  tenant    text COLLATE "C" NOT NULL,    -- whose chain; empty for what concerns the installation as a whole
  seq       bigint NOT NULL,              -- the row's place in it, from 1, without gaps
  sealed_at bigint NOT NULL,              -- when it was put there; never before the row before it
  hash      bytea NOT NULL,               -- SHA-256 over the hash of the row before it and the rest of this row
  id        bigint NOT NULL,              -- order of writing, not of commit
  at        bigint NOT NULL,              -- when it happened
  event     text NOT NULL,                -- mcp.…
  task_id   text COLLATE "C",             -- which task; NULL if it is about none
  version   bigint,                       -- the task's version after the event
  owner     text COLLATE "C",             -- which caller; NULL if it is about none
  tool      text COLLATE "C",             -- what was called; NULL if nothing was
  reason    text,                         -- how a task ended, what refused a call, why a switch was changed
  subject   text COLLATE "C",             -- what an operator changed: a credential's id, a switch's scope
  trace_id  text,                         -- the trace it belongs to
  times     integer NOT NULL,             -- how often it happened
  CONSTRAINT seq_from_one CHECK (seq > 0),
  PRIMARY KEY (tenant, seq, sealed_at)
) PARTITION BY RANGE (sealed_at);

CREATE TABLE audit_heads (
  tenant      text COLLATE "C" PRIMARY KEY,  -- whose chain
  seq         bigint NOT NULL DEFAULT 0,     -- its last row
  hash        bytea NOT NULL DEFAULT '',     -- and that row's hash
  sealed_at   bigint NOT NULL DEFAULT 0,     -- and when it was sealed
  anchor_seq  bigint NOT NULL DEFAULT 0,     -- the last row that is past its retention and gone
  anchor_hash bytea NOT NULL DEFAULT ''      -- and that row's hash, from which the rest is proved
);

-- The batches that gateways and workers have had recorded, so that none is recorded twice.
CREATE TABLE audit_batches (
  id text COLLATE "C" PRIMARY KEY,        -- random
  at bigint NOT NULL                      -- when; forgotten after a while
);
CREATE INDEX audit_batches_prune ON audit_batches (at);

CREATE TABLE retrievals (
  task_id    text COLLATE "C" PRIMARY KEY,-- of a task whose owner has been told what came of it
  expires_at bigint                       -- when the task expires; forgotten some time after that
);
CREATE INDEX retrievals_prune ON retrievals (expires_at);

CREATE VIEW audit AS
  SELECT id, at, event, task_id, version, tenant, owner, tool, reason, subject, trace_id, times, NULL::bigint AS seq FROM audit_inbox
  UNION ALL
  SELECT id, at, event, task_id, version, tenant, owner, tool, reason, subject, trace_id, times, seq FROM audit_log;

-- The months are the partitions: audit_log_2026_12 has what was sealed in December 2026, by UTC. Rows of one chain are
-- sealed in their order, so each month has a whole stretch of every chain, and the rest is proved from its end.

-- Makes the months of these moments, if they are not there. Only the sealing sweep and readers of the log wait for that.
CREATE FUNCTION longhaul_audit_months(VARIADIC moments bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  moment bigint;
  first timestamp;
  month text;
BEGIN
  FOREACH moment IN ARRAY moments LOOP
    first := date_trunc('month', to_timestamp(moment / 1000000.0) AT TIME ZONE 'UTC');
    month := 'audit_log_' || to_char(first, 'YYYY_MM');
    IF to_regclass(month) IS NULL THEN
      LOCK TABLE audit_log IN ACCESS EXCLUSIVE MODE;
      -- Somebody else may have made it meanwhile.
      IF to_regclass(month) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF audit_log FOR VALUES FROM (%s) TO (%s)', month,
          (extract(epoch FROM first) * 1000000)::bigint, (extract(epoch FROM first + interval '1 month') * 1000000)::bigint);
      END IF;
    END IF;
  END LOOP;
END $$;

-- Drops the oldest month if all of it was sealed before this moment, and keeps what the rest is proved from. Whether it did.
CREATE FUNCTION longhaul_audit_drop(before bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  month name;
BEGIN
  IF longhaul_audit_oldest(before) IS NULL THEN
    RETURN false;
  END IF;
  LOCK TABLE audit_log IN ACCESS EXCLUSIVE MODE;
  month := longhaul_audit_oldest(before);
  IF month IS NULL THEN
    RETURN false;
  END IF;
  EXECUTE format('UPDATE audit_heads h SET anchor_seq = l.seq, anchor_hash = l.hash
    FROM audit_heads o CROSS JOIN LATERAL (SELECT seq, hash FROM %I WHERE tenant = o.tenant ORDER BY seq DESC LIMIT 1) l
    WHERE h.tenant = o.tenant', month);
  EXECUTE format('DROP TABLE %I', month);
  RETURN true;
END $$;

-- The oldest month, if it ended before this moment.
CREATE FUNCTION longhaul_audit_oldest(before bigint) RETURNS name LANGUAGE sql STABLE AS $$
  SELECT relname FROM (
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'audit_log'::regclass ORDER BY c.relname LIMIT 1
  ) oldest
  WHERE relname < 'audit_log_' || to_char(to_timestamp(before / 1000000.0) AT TIME ZONE 'UTC', 'YYYY_MM')
$$;

-- What operators decided is in the same log.
INSERT INTO audit_inbox (at, event, tenant, subject, reason)
  SELECT at, event, coalesce(tenant, ''), subject, why FROM control_events ORDER BY id;
DROP TABLE control_events;
