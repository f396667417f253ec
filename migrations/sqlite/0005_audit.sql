-- The audit log becomes a chain for each tenant: what is written waits in audit_inbox until the sealing sweep moves it to
-- audit_log, which nobody changes. Whoever reads both reads the view audit.

CREATE TABLE audit_inbox (
  id       INTEGER PRIMARY KEY AUTOINCREMENT, -- order of writing; never used again
  at       INTEGER NOT NULL,               -- when
  event    TEXT NOT NULL,                  -- mcp.…
  task_id  TEXT,                           -- which task; NULL if it is about none
  version  INTEGER,                        -- the task's version after the event
  tenant   TEXT NOT NULL,                  -- whose; empty for what concerns the installation as a whole
  owner    TEXT,                           -- which caller; NULL if it is about none
  tool     TEXT,                           -- what was called; NULL if nothing was
  reason   TEXT,                           -- how a task ended, what refused a call, why a switch was changed
  subject  TEXT,                           -- what an operator changed: a credential's id, a switch's scope
  trace_id TEXT,                           -- the trace it belongs to
  times    INTEGER NOT NULL DEFAULT 1      -- how often it happened
) STRICT;
INSERT INTO audit_inbox (id, at, event, task_id, version, tenant, owner, tool, reason, trace_id)
  SELECT id, at, event, task_id, version, tenant, owner, tool, reason, trace_id FROM audit ORDER BY id;
DROP TABLE audit;

CREATE TABLE audit_log (
  tenant    TEXT NOT NULL,                 -- whose chain
  seq       INTEGER NOT NULL,              -- the row's place in it, from 1, without gaps
  sealed_at INTEGER NOT NULL,              -- when it was put there; never before the row before it
  hash      BLOB NOT NULL,                 -- SHA-256 over the hash of the row before it and the rest of this row
  id        INTEGER NOT NULL,              -- from here on as in audit_inbox
  at        INTEGER NOT NULL,
  event     TEXT NOT NULL,
  task_id   TEXT,
  version   INTEGER,
  owner     TEXT,
  tool      TEXT,
  reason    TEXT,
  subject   TEXT,
  trace_id  TEXT,
  times     INTEGER NOT NULL,
  CHECK (seq > 0),
  PRIMARY KEY (tenant, seq, sealed_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_log_prune ON audit_log (sealed_at, tenant, seq);

CREATE TABLE audit_heads (
  tenant      TEXT PRIMARY KEY,            -- whose chain
  seq         INTEGER NOT NULL DEFAULT 0,  -- its last row
  hash        BLOB NOT NULL DEFAULT x'',   -- and that row's hash
  sealed_at   INTEGER NOT NULL DEFAULT 0,  -- and when it was sealed
  anchor_seq  INTEGER NOT NULL DEFAULT 0,  -- the last row that is past its retention and gone
  anchor_hash BLOB NOT NULL DEFAULT x''    -- and that row's hash, from which the rest is proved
) STRICT;

-- The batches that gateways and workers have had recorded, so that none is recorded twice.
CREATE TABLE audit_batches (
  id TEXT PRIMARY KEY,                     -- random
  at INTEGER NOT NULL                      -- when; forgotten after a while
) STRICT;
CREATE INDEX audit_batches_prune ON audit_batches (at);

CREATE TABLE retrievals (
  task_id    TEXT PRIMARY KEY,             -- of a task whose owner has been told what came of it
  expires_at INTEGER                       -- when the task expires; forgotten some time after that
) STRICT;
CREATE INDEX retrievals_prune ON retrievals (expires_at);

CREATE VIEW audit AS
  SELECT id, at, event, task_id, version, tenant, owner, tool, reason, subject, trace_id, times, NULL AS seq FROM audit_inbox
  UNION ALL
  SELECT id, at, event, task_id, version, tenant, owner, tool, reason, subject, trace_id, times, seq FROM audit_log;

-- What operators decided is in the same log.
INSERT INTO audit_inbox (at, event, tenant, subject, reason)
  SELECT at, event, coalesce(tenant, ''), subject, why FROM control_events ORDER BY id;
DROP TABLE control_events;
