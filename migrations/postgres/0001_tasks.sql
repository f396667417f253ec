-- Tasks, what is counted and recorded of them, and the state that every task-store agrees on.
-- Moments are microseconds since the Unix epoch, read from longhaul_now(); as text: to_timestamp(created_at / 1e6).
-- Payloads and free text of strangers are bytea: what was stored comes back byte for byte, NUL included.

SET LOCAL lock_timeout = '5s';
SET LOCAL statement_timeout = '60s';

CREATE TABLE longhaul_clock (
  one       boolean PRIMARY KEY DEFAULT true CHECK (one), -- there is one row
  offset_us bigint NOT NULL DEFAULT 0                     -- added to the server's clock; only tests change it
);
INSERT INTO longhaul_clock DEFAULT VALUES;

-- clock_timestamp(), not now(): a statement that waited for a lock must not write an old time.
-- plpgsql keeps its plan for the session; an SQL function would be planned in every statement.
CREATE FUNCTION longhaul_now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + (SELECT offset_us FROM longhaul_clock);
END $$;

CREATE TABLE tasks (
  id                 text COLLATE "C" PRIMARY KEY,         -- 26 characters, random, made before the insert
  tenant             text COLLATE "C" NOT NULL,            -- the organisation of its owner
  owner              text COLLATE "C" NOT NULL,            -- the caller in that organisation
  tool               text COLLATE "C" NOT NULL,            -- the tool to call
  arguments          bytea NOT NULL,                       -- the JSON object of arguments, as it came
  phase              text COLLATE "C" NOT NULL DEFAULT 'queued', -- queued, running, ended
  ending             text COLLATE "C",                     -- result, tool_error, error, cancelled, worker_lost, drained, expired
  version            bigint NOT NULL DEFAULT 1,            -- plus one with every visible change
  attempt            integer NOT NULL DEFAULT 0,           -- plus one with every claim; part of the fence
  worker_name        text COLLATE "C",                     -- who holds it, or held it when it ended
  worker_incarnation text COLLATE "C",                     -- which process of that name
  lease_token        text COLLATE "C",                     -- the claim it was handed out in; part of the fence
  lease_slot         integer,                              -- its place in that claim
  lease_until        bigint,                               -- when the lease runs out; heartbeats move it and nothing else
  claimed_at         bigint,                               -- when it was last handed out
  status_message     bytea,                                -- a sentence for people, UTF-8
  progress           double precision,                     -- how far the work is
  progress_total     double precision,                     -- what progress rises to
  progress_message   bytea,                                -- a sentence for people, UTF-8
  progress_token     bytea,                                -- JSON of the creating call's progress token
  session            text COLLATE "C",                     -- tag of the session that created it
  traceparent        text COLLATE "C",                     -- the trace it belongs to
  result             bytea,                                -- the result's JSON, or the data of the JSON-RPC error, as it came
  error_code         integer,                              -- code of the JSON-RPC error
  error_message      bytea,                                -- message of the JSON-RPC error, UTF-8
  created_at         bigint NOT NULL,                      -- when it was committed first
  updated_at         bigint NOT NULL,                      -- when it last changed visibly; never goes back
  ttl_ms             bigint,                               -- how long it is kept from its creation; NULL is for ever
  expires_at         bigint,                               -- created_at plus ttl_ms
  CONSTRAINT phase_known CHECK (phase IN ('queued', 'running', 'ended')),
  CONSTRAINT ending_iff_ended CHECK ((phase = 'ended') = (ending IS NOT NULL)),
  CONSTRAINT lease_if_running CHECK (phase <> 'running' OR (worker_name IS NOT NULL AND worker_incarnation IS NOT NULL
    AND lease_token IS NOT NULL AND lease_slot IS NOT NULL AND lease_until IS NOT NULL))
) WITH (fillfactor = 80); -- room for heartbeats and reports, which touch no index

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
CREATE FUNCTION longhaul_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'task % has ended and never changes', OLD.id USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER guard BEFORE UPDATE ON tasks FOR EACH ROW WHEN (OLD.phase = 'ended') EXECUTE FUNCTION longhaul_guard();

CREATE TABLE counters (
  tenant text COLLATE "C" NOT NULL,       -- the organisation
  owner  text COLLATE "C" NOT NULL,       -- the caller; empty for the organisation as a whole
  open   bigint NOT NULL DEFAULT 0,       -- its tasks that have not ended, as far as endings are counted
  stored bigint NOT NULL DEFAULT 0,       -- its tasks that have not been purged, as far as purges are counted
  PRIMARY KEY (tenant, owner)
) WITH (fillfactor = 50); -- locked and changed by every create

-- What ended or was purged since the counter was last changed. A row of its own, so that an ending waits for no create; the
-- next create of the same owner, or the prune sweep, moves it into the counter.
CREATE TABLE endings (
  tenant text COLLATE "C" NOT NULL,       -- as in counters
  owner  text COLLATE "C" NOT NULL,       -- as in counters
  open   bigint NOT NULL,                 -- to be added to counters.open; not positive
  stored bigint NOT NULL                  -- to be added to counters.stored; not positive
);
CREATE INDEX endings_owner ON endings (tenant, owner);

-- claim: which tenants may have work
CREATE INDEX counters_tenant ON counters (tenant) WHERE owner = '';

CREATE TABLE tombstones (
  id      text COLLATE "C" PRIMARY KEY,   -- of a purged task
  tenant  text COLLATE "C" NOT NULL,      -- whose it was
  owner   text COLLATE "C" NOT NULL,      -- whose it was
  gone_at bigint NOT NULL                 -- when it expired
);
CREATE INDEX tombstones_prune ON tombstones (gone_at);

CREATE TABLE audit (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- order of writing, not of commit
  at       bigint NOT NULL,               -- when
  event    text NOT NULL,                 -- mcp.task.created, .completed, .failed, .cancelled
  task_id  text COLLATE "C" NOT NULL,     -- which task
  version  bigint NOT NULL,               -- the task's version after the event
  tenant   text COLLATE "C" NOT NULL,     -- whose task
  owner    text COLLATE "C" NOT NULL,     -- whose task
  tool     text COLLATE "C" NOT NULL,     -- what was called
  reason   text,                          -- how it ended, as in tasks.ending
  trace_id text                           -- the trace it belongs to
);
CREATE INDEX audit_at ON audit USING brin (at);

CREATE TABLE workers (
  name        text COLLATE "C" PRIMARY KEY, -- stable across restarts, if the operator named it
  incarnation text COLLATE "C" NOT NULL,    -- random for each process start
  url         text,                         -- where gateways reach it; NULL if it takes tasks only
  tools       bytea NOT NULL,               -- JSON array of [name, task support, definition as a string]
  last_seen   bigint NOT NULL               -- its last attach or heartbeat
);

CREATE TABLE ended_sessions (
  session    text COLLATE "C" PRIMARY KEY, -- its tag
  expires_at bigint NOT NULL               -- when it would have expired; forgotten then
);

CREATE TABLE sweeps (
  one         boolean PRIMARY KEY DEFAULT true CHECK (one), -- there is one row
  last_tick   bigint,                      -- when any task-store last looked for overdue leases
  grace_until bigint NOT NULL DEFAULT 0    -- no lease counts as run out before this, after a time when nobody looked
);
INSERT INTO sweeps DEFAULT VALUES;
