-- Tasks, what is counted and recorded of them, and the state that every task-store agrees on.
-- Moments are microseconds since the Unix epoch; as text: datetime(created_at / 1000000, 'unixepoch').
-- Payloads and free text of strangers are blobs: what was stored comes back byte for byte, NUL included.

CREATE TABLE longhaul_clock (
  one       INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1), -- there is one row
  offset_us INTEGER NOT NULL DEFAULT 0                     -- added to the machine's clock; only tests change it
) STRICT;
INSERT INTO longhaul_clock DEFAULT VALUES;

CREATE TABLE tasks (
  id                 TEXT PRIMARY KEY,                     -- 26 characters, random, made before the insert
  tenant             TEXT NOT NULL,                        -- the organisation of its owner
  owner              TEXT NOT NULL,                        -- the caller in that organisation
  tool               TEXT NOT NULL,                        -- the tool to call
  arguments          BLOB NOT NULL,                        -- the JSON object of arguments, as it came
  phase              TEXT NOT NULL DEFAULT 'queued' CHECK (phase IN ('queued', 'running', 'ended')),
  ending             TEXT,                                 -- result, tool_error, error, cancelled, worker_lost, drained, expired
  version            INTEGER NOT NULL DEFAULT 1,           -- plus one with every visible change
  attempt            INTEGER NOT NULL DEFAULT 0,           -- plus one with every claim; part of the fence
  worker_name        TEXT,                                 -- who holds it, or held it when it ended
  worker_incarnation TEXT,                                 -- which process of that name
  lease_token        TEXT,                                 -- the claim it was handed out in; part of the fence
  lease_slot         INTEGER,                              -- its place in that claim
  lease_until        INTEGER,                              -- when the lease runs out; heartbeats move it and nothing else
  claimed_at         INTEGER,                              -- when it was last handed out
  status_message     BLOB,                                 -- a sentence for people, UTF-8
  progress           REAL,                                 -- how far the work is
  progress_total     REAL,                                 -- what progress rises to
  progress_message   BLOB,                                 -- a sentence for people, UTF-8
  progress_token     BLOB,                                 -- JSON of the creating call's progress token
  session            TEXT,                                 -- tag of the session that created it
  traceparent        TEXT,                                 -- the trace it belongs to
  result             BLOB,                                 -- the result's JSON, or the data of the JSON-RPC error, as it came
  error_code         INTEGER,                              -- code of the JSON-RPC error
  error_message      BLOB,                                 -- message of the JSON-RPC error, UTF-8
  created_at         INTEGER NOT NULL,                     -- when it was committed first
  updated_at         INTEGER NOT NULL,                     -- when it last changed visibly; never goes back
  ttl_ms             INTEGER,                              -- how long it is kept from its creation; NULL is for ever
  expires_at         INTEGER,                              -- created_at plus ttl_ms
  CHECK ((phase = 'ended') = (ending IS NOT NULL)),
  CHECK (phase <> 'running' OR (worker_name IS NOT NULL AND worker_incarnation IS NOT NULL AND lease_token IS NOT NULL
    AND lease_slot IS NOT NULL AND lease_until IS NOT NULL))
) STRICT;

-- list: newest first
CREATE INDEX tasks_list ON tasks (tenant, owner, created_at DESC, id DESC);
-- claim: the oldest of each tenant
CREATE INDEX tasks_queued ON tasks (tenant, created_at, id) WHERE phase = 'queued';
-- heartbeat, attach and the interrupt sweep; unique, so that two copies of one claim cannot both take tasks
CREATE UNIQUE INDEX tasks_running ON tasks (worker_name, lease_token, lease_slot) WHERE phase = 'running';
-- the expire sweep, and the gauge of open tasks
CREATE INDEX tasks_open ON tasks (expires_at) WHERE phase <> 'ended';
-- the purge sweep
CREATE INDEX tasks_purge ON tasks (expires_at) WHERE phase = 'ended';

-- The last defence: an ended task never changes, whoever writes.
CREATE TRIGGER guard BEFORE UPDATE ON tasks FOR EACH ROW WHEN OLD.phase = 'ended'
BEGIN
  SELECT RAISE(ABORT, 'the task has ended and never changes');
END;

CREATE TABLE counters (
  tenant TEXT NOT NULL,                    -- the organisation
  owner  TEXT NOT NULL,                    -- the caller; empty for the organisation as a whole
  open   INTEGER NOT NULL DEFAULT 0,       -- its tasks that have not ended
  stored INTEGER NOT NULL DEFAULT 0,       -- its tasks that have not been purged
  PRIMARY KEY (tenant, owner)
) STRICT, WITHOUT ROWID;

-- claim: which tenants may have work
CREATE INDEX counters_tenant ON counters (tenant) WHERE owner = '';

CREATE TABLE tombstones (
  id      TEXT PRIMARY KEY,                -- of a purged task
  tenant  TEXT NOT NULL,                   -- whose it was
  owner   TEXT NOT NULL,                   -- whose it was
  gone_at INTEGER NOT NULL                 -- when it expired
) STRICT;
CREATE INDEX tombstones_prune ON tombstones (gone_at);

CREATE TABLE audit (
  id       INTEGER PRIMARY KEY,            -- order of writing
  at       INTEGER NOT NULL,               -- when
  event    TEXT NOT NULL,                  -- mcp.task.created, .completed, .failed, .cancelled
  task_id  TEXT NOT NULL,                  -- which task
  version  INTEGER NOT NULL,               -- the task's version after the event
  tenant   TEXT NOT NULL,                  -- whose task
  owner    TEXT NOT NULL,                  -- whose task
  tool     TEXT NOT NULL,                  -- what was called
  reason   TEXT,                           -- how it ended, as in tasks.ending
  trace_id TEXT                            -- the trace it belongs to
) STRICT;
CREATE INDEX audit_at ON audit (at);

CREATE TABLE workers (
  name        TEXT PRIMARY KEY,            -- stable across restarts, if the operator named it
  incarnation TEXT NOT NULL,               -- random for each process start
  url         TEXT,                        -- where gateways reach it; NULL if it takes tasks only
  tools       BLOB NOT NULL,               -- JSON array of [name, task support, definition as a string]
  last_seen   INTEGER NOT NULL             -- its last attach or heartbeat
) STRICT;

CREATE TABLE ended_sessions (
  session    TEXT PRIMARY KEY,             -- its tag
  expires_at INTEGER NOT NULL              -- when it would have expired; forgotten then
) STRICT;

CREATE TABLE sweeps (
  one         INTEGER PRIMARY KEY DEFAULT 1 CHECK (one = 1), -- there is one row
  last_tick   INTEGER,                     -- when any task-store last looked for overdue leases
  grace_until INTEGER NOT NULL DEFAULT 0   -- no lease counts as run out before this, after a time when nobody looked
) STRICT;
INSERT INTO sweeps DEFAULT VALUES;
