//! The statements. A name first; then why, inside.

use crate::store::row::task_columns;

// create
//
// The counters of the callers and tenants are locked in order, so that two batches cannot wait for each other and the caps
// are exact; nothing else locks them. Within a batch, rows are admitted in their order.
pub(super) const CREATE: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
n AS MATERIALIZED (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bigint[], $7::bytea[], $8::text[],
    $9::text[], $13::int2[], $14::text[], $15::text[], $16::text[], $18::text[], $19::int[], $20::text[], $21::text[], $22::bytea[])
    WITH ORDINALITY AS n(id, tenant, owner, tool, arguments, ttl_ms, progress_token, session, traceparent, client,
      worker_name, worker_incarnation, lease_token, on_interrupt, max_attempts, tracestate, baggage, reserved, at)
),
counter AS MATERIALIZED (
  SELECT c.tenant, c.owner, c.open FROM counters c
  JOIN (SELECT tenant, owner FROM n UNION SELECT tenant, '' FROM n) w ON c.tenant = w.tenant AND c.owner = w.owner
  ORDER BY c.tenant, c.owner FOR UPDATE OF c
),
-- Whoever has locked the counter moves what has ended into it; a row that another create has moved already is gone.
folded AS (
  DELETE FROM endings e USING counter c WHERE e.tenant = c.tenant AND e.owner = c.owner
  RETURNING e.tenant, e.owner, e.open, e.stored
),
fold AS MATERIALIZED (
  SELECT tenant, owner, sum(open)::bigint AS open, sum(stored)::bigint AS stored FROM folded GROUP BY tenant, owner
),
counted AS (
  SELECT n.*, o.open + coalesce(fo.open, 0) AS owner_open, t.open + coalesce(ft.open, 0) AS tenant_open, k.id IS NOT NULL AS known
  FROM n
  LEFT JOIN counter o ON o.tenant = n.tenant AND o.owner = n.owner
  LEFT JOIN counter t ON t.tenant = n.tenant AND t.owner = ''
  LEFT JOIN fold fo ON fo.tenant = n.tenant AND fo.owner = n.owner
  LEFT JOIN fold ft ON ft.tenant = n.tenant AND ft.owner = ''
  LEFT JOIN tasks k ON k.id = n.id
),
of_owner AS (
  SELECT c.*, $10 = 0 OR owner_open + count(*) FILTER (WHERE NOT known) OVER (PARTITION BY tenant, owner ORDER BY at) <= $10 AS owner_ok
  FROM counted c
),
of_tenant AS MATERIALIZED (
  SELECT o.*, $11 = 0 OR tenant_open + count(*) FILTER (WHERE NOT known AND owner_ok) OVER (PARTITION BY tenant ORDER BY at) <= $11 AS tenant_ok
  FROM of_owner o
),
added AS (
  INSERT INTO tasks (id, tenant, owner, tool, arguments, ttl_ms, expires_at, progress_token, session, traceparent, created_at, updated_at,
    client, on_interrupt, max_attempts, reserved, phase, attempt, worker_name, worker_incarnation, lease_token, lease_slot, lease_until,
    claimed_at, tracestate, baggage)
  SELECT id, tenant, owner, tool, arguments, ttl_ms, now + ttl_ms * 1000, progress_token, session, traceparent, now, now, client,
    on_interrupt, max_attempts, reserved,
    -- One that runs already is as if it had been claimed, in a place that no claim gives.
    CASE WHEN lease_token IS NULL THEN 'queued' ELSE 'running' END, (lease_token IS NOT NULL)::int, worker_name, worker_incarnation,
    lease_token, CASE WHEN lease_token IS NOT NULL THEN 0 END, CASE WHEN lease_token IS NOT NULL THEN now + $17 END,
    CASE WHEN lease_token IS NOT NULL THEN now END, tracestate, baggage
  FROM of_tenant, clock WHERE NOT known AND owner_ok AND tenant_ok AND owner_open IS NOT NULL AND tenant_open IS NOT NULL
  ON CONFLICT (id) DO NOTHING
  RETURNING id, tenant, owner, tool, created_at, traceparent
),
audited AS (
  INSERT INTO audit_inbox (at, event, task_id, version, tenant, owner, tool, trace_id)
  SELECT created_at, $12, id, 1, tenant, owner, tool, split_part(traceparent, '-', 2) FROM added
),
-- Materialized, because a flattened UNION ALL comes up empty when a counter is read again after another batch changed it.
more AS MATERIALIZED (
  SELECT tenant, owner, sum(open)::bigint AS open, sum(stored)::bigint AS stored FROM (
    SELECT tenant, owner, count(*) AS open, count(*) AS stored FROM added GROUP BY tenant, owner
    UNION ALL SELECT tenant, '', count(*), count(*) FROM added GROUP BY tenant
    UNION ALL SELECT tenant, owner, open, stored FROM fold
  ) m GROUP BY tenant, owner
),
raised AS (
  UPDATE counters c SET open = c.open + m.open, stored = c.stored + m.stored
  FROM more m WHERE c.tenant = m.tenant AND c.owner = m.owner
)
SELECT CASE WHEN added.id IS NOT NULL THEN 'created' WHEN t.known THEN 'known'
            WHEN t.owner_open IS NULL OR t.tenant_open IS NULL THEN 'uncounted'
            WHEN NOT owner_ok THEN 'caller' WHEN NOT tenant_ok THEN 'tenant' ELSE 'known' END,
  added.created_at
FROM of_tenant t
LEFT JOIN added ON added.id = t.id AND added.tenant = t.tenant AND added.owner = t.owner AND added.tool = t.tool
ORDER BY t.at";

// count_new
pub(super) const COUNT_NEW: &str = "
INSERT INTO counters (tenant, owner)
SELECT tenant, owner FROM unnest($1::text[], $2::text[]) AS n(tenant, owner) ON CONFLICT DO NOTHING";

// load
//
// The tombstone is always looked for, so that a task that is not there and one that is not yours take the same way.
pub(super) const LOAD: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now) SELECT ",
    task_columns!("t"),
    ", CASE WHEN yours THEN t.result END, CASE WHEN yours THEN t.error_code END, CASE WHEN yours THEN t.error_message END,
  yours::int, clock.now, g.tenant, g.owner, g.gone_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::bool[]) WITH ORDINALITY AS w(id, tenant, owner, whole, at)
CROSS JOIN clock
LEFT JOIN tasks t ON t.id = w.id
LEFT JOIN tombstones g ON g.id = w.id
CROSS JOIN LATERAL (SELECT coalesce(t.tenant = w.tenant AND t.owner = w.owner AND t.phase = 'ended', false)
  AND (w.whole OR coalesce(octet_length(t.result), 0) <= $5) AS yours) y
ORDER BY w.at"
);

// commit
//
// A report, questions, answers, or an ending. Only a task of this version can be ended, so an ending sees all its answers.
pub(super) const COMMIT: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
c AS MATERIALIZED (
  SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bytea[], $6::float8[], $7::float8[], $8::bytea[],
    $9::bytea[], $10::int[], $11::bytea[], $12::int[], $13::text[], $14::bool[], $15::text[], $16::bytea[], $17::bigint[],
    $21::bigint[], $22::bigint[])
    WITH ORDINALITY AS c(id, version, phase, ending, status_message, progress, progress_total, progress_message,
      result, error_code, error_message, attempt, token, overdue, event, inputs, input_until, spent_units, spent_micro_usd, at)
),
done AS (
  UPDATE tasks t SET phase = c.phase, ending = c.ending, version = c.version, status_message = c.status_message,
    progress = c.progress, progress_total = c.progress_total, progress_message = c.progress_message,
    result = c.result, error_code = c.error_code, error_message = c.error_message,
    inputs = coalesce(c.inputs, t.inputs), input_until = c.input_until,
    spent_units = c.spent_units, spent_micro_usd = c.spent_micro_usd, updated_at = greatest(t.updated_at, clock.now)
  FROM c, clock
  -- No word of the phase: an ended task has another version, and Postgres would take the small index of open tasks for
  -- each row of the batch, if it was counted when there were none.
  WHERE t.id = c.id AND t.version = c.version - 1
    AND (c.token IS NULL OR (t.lease_token = c.token AND t.attempt = c.attempt))
    AND (NOT c.overdue OR t.lease_until <= clock.now)
  RETURNING c.at, t.id, t.tenant, t.owner, t.tool, t.version, t.ending, t.updated_at, t.claimed_at, t.traceparent, c.event,
    -- Its questions, and the answers to them, are over.
    t.inputs IS NOT NULL AND t.phase <> 'running' AS asked, t.ending IS NOT NULL AND t.on_interrupt = 'resume' AS wrote
),
answered AS (
  INSERT INTO answers (task_id, nth, sealed)
  SELECT a.task_id, a.nth, a.sealed FROM unnest($18::text[], $19::int[], $20::bytea[]) AS a(task_id, nth, sealed)
  JOIN done ON done.id = a.task_id
),
-- Task by task, by their key, and only of tasks that asked: a join might be planned as a walk through all answers.
forgotten AS (
  DELETE FROM answers WHERE ctid = ANY (ARRAY(
    SELECT a.ctid FROM done, LATERAL (SELECT ctid FROM answers WHERE task_id = done.id OFFSET 0) a WHERE done.asked
  ))
),
closed AS (
  DELETE FROM journal WHERE ctid = ANY (ARRAY(
    SELECT j.ctid FROM done, LATERAL (SELECT ctid FROM journal WHERE task_id = done.id OFFSET 0) j WHERE done.wrote
  ))
),
audited AS (
  INSERT INTO audit_inbox (at, event, task_id, version, tenant, owner, tool, reason, trace_id)
  SELECT updated_at, event, id, version, tenant, owner, tool, ending, split_part(traceparent, '-', 2)
  FROM done WHERE event IS NOT NULL
),
settled AS (
  INSERT INTO budget_settlements (budget, tenant, holder, starts_at, units, micro_usd)
  SELECT s.budget, s.tenant, s.holder, s.starts_at, s.units, s.micro_usd
  FROM unnest($23::text[], $24::text[], $25::text[], $26::text[], $27::bigint[], $28::bigint[], $29::bigint[])
    AS s(task_id, budget, tenant, holder, starts_at, units, micro_usd)
  JOIN done ON done.id = s.task_id
),
lowered AS (
  INSERT INTO endings (tenant, owner, open, stored)
  SELECT tenant, owner, -count(*), 0 FROM done WHERE ending IS NOT NULL GROUP BY tenant, owner
  UNION ALL SELECT tenant, '', -count(*), 0 FROM done WHERE ending IS NOT NULL GROUP BY tenant
)
SELECT at, updated_at, claimed_at FROM done";

// claim
//
// What this token holds already, or else the oldest tasks, one tenant after the other. Candidates are found without a
// lock and locked one by one until there are enough; one that another task-store is taking is passed over.
pub(super) const CLAIM: &str = concat!(
    "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
held AS MATERIALIZED (
  SELECT id FROM tasks WHERE phase = 'running' AND worker_name = $1 AND worker_incarnation = $2 AND lease_token = $3
),
busy AS (
  SELECT tenant FROM counters WHERE owner = '' AND open > 0 ORDER BY random() LIMIT $7
),
candidate AS MATERIALIZED (
  SELECT q.id, row_number() OVER (PARTITION BY busy.tenant ORDER BY q.created_at, q.id) AS turn, q.created_at
  FROM busy, clock, LATERAL (
    SELECT id, created_at FROM tasks
    WHERE tenant = busy.tenant AND phase = 'queued' AND tool = ANY($4) AND (expires_at IS NULL OR expires_at > clock.now)
    ORDER BY created_at, id LIMIT $5 + $6
  ) q
  WHERE NOT EXISTS (SELECT FROM held)
    -- a process that was replaced by a newer one of its name gets nothing
    AND NOT EXISTS (SELECT FROM workers WHERE name = $1 AND incarnation <> $2)
  ORDER BY turn, q.created_at, q.id LIMIT $5 + $6
),
locked AS MATERIALIZED (
  SELECT t.id, octet_length(t.arguments) AS bytes, c.turn, c.created_at
  -- By its key, never by the index of queued tasks, which may have been counted when there were none.
  FROM candidate c JOIN tasks t ON t.id = c.id WHERE coalesce(t.phase, '') = 'queued'
  ORDER BY c.turn, c.created_at, c.id LIMIT $5 FOR UPDATE OF t SKIP LOCKED
),
taken AS MATERIALIZED (
  SELECT id, slot FROM (
    SELECT id, row_number() OVER w AS slot, sum(bytes) OVER w AS total FROM locked WINDOW w AS (ORDER BY turn, created_at, id)
  ) s WHERE slot = 1 OR total <= $8
),
handed AS (
  UPDATE tasks t SET phase = 'running', attempt = t.attempt + 1, version = t.version + 1,
    worker_name = $1, worker_incarnation = $2, lease_token = $3, lease_slot = taken.slot, lease_until = clock.now + $9,
    claimed_at = clock.now, updated_at = greatest(t.updated_at, clock.now)
  FROM taken, clock WHERE t.id = taken.id
  RETURNING t.*
),
answer AS (
  SELECT * FROM handed UNION ALL SELECT t.* FROM held JOIN tasks t ON t.id = held.id WHERE t.phase = 'running'
)
SELECT ",
    task_columns!("a"),
    ", a.arguments, a.traceparent, a.tracestate, a.baggage FROM answer a ORDER BY a.lease_slot"
);

// queued
pub(super) const QUEUED: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
SELECT (EXISTS (
  SELECT FROM tasks, clock WHERE phase = 'queued' AND tool = ANY($1) AND (expires_at IS NULL OR expires_at > clock.now)
))::int";

// heartbeat
pub(super) const HEARTBEAT: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
seen AS (
  UPDATE workers w SET last_seen = clock.now FROM clock WHERE w.name = $1 AND w.incarnation = $2
)
UPDATE tasks t SET lease_until = clock.now + $5
FROM unnest($3::text[], $4::int[]) AS b(id, attempt), clock
WHERE t.id = b.id AND t.attempt = b.attempt AND coalesce(t.phase, '') = 'running' AND t.worker_name = $1 AND t.worker_incarnation = $2
RETURNING t.id, CASE WHEN t.inputs IS NOT NULL THEN (SELECT 1 FROM answers a WHERE a.task_id = t.id LIMIT 1) END";

// collect
//
// The task is locked before its answers, as in an ending.
pub(super) const COLLECT: &str = "
WITH held AS MATERIALIZED (
  SELECT id FROM tasks WHERE id = $1 AND attempt = $2 AND lease_token = $3 AND coalesce(phase, '') = 'running' FOR NO KEY UPDATE
),
arrived AS (
  DELETE FROM answers a USING held WHERE a.task_id = $1 AND a.nth = ANY ($4::int[])
)
SELECT a.nth, a.sealed FROM held LEFT JOIN answers a ON a.task_id = $1 AND a.nth <> ALL ($4::int[]) ORDER BY a.nth";

// record
//
// The task is locked before its journal, as in an ending. An entry that is there already was written by the same worker.
pub(super) const RECORD: &str = "
WITH held AS MATERIALIZED (
  SELECT id FROM tasks WHERE id = $1 AND attempt = $2 AND lease_token = $3 AND coalesce(phase, '') = 'running' FOR NO KEY UPDATE
),
present AS MATERIALIZED (
  SELECT count(*) AS entries, coalesce(sum(octet_length(sealed)), 0) AS bytes FROM journal WHERE task_id = $1
),
added AS (
  INSERT INTO journal (task_id, nth, sealed) SELECT $1, $4, $5 FROM held, present
  WHERE entries = $4 - 1 AND bytes + octet_length($5) <= $6
  ON CONFLICT DO NOTHING
  RETURNING 1
)
SELECT (EXISTS (SELECT FROM held))::int, entries, (EXISTS (SELECT FROM added))::int FROM present";

// journal
pub(super) const JOURNAL: &str = "
WITH held AS MATERIALIZED (
  SELECT id FROM tasks WHERE id = $1 AND attempt = $2 AND lease_token = $3 AND coalesce(phase, '') = 'running'
)
SELECT j.nth, j.sealed FROM held LEFT JOIN (
  SELECT nth, sealed, sum(octet_length(sealed)) OVER (ORDER BY nth) - octet_length(sealed) AS before
  FROM journal WHERE task_id = $1 AND nth > $4
) j ON j.before < $5 ORDER BY j.nth";

// carry
//
// A row that is held: its stream renews it, or gives way to its heir. One that is free: taken, unless a newer heir is
// waited for. One that another stream holds: a stream that was opened since becomes its heir, unless a newer one is.
// In what follows, excluded.until less $3 is now.
pub(super) const CARRY: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
INSERT INTO carriers AS c (task_id, stream, until, since)
SELECT $1, $2, now + $3, CASE WHEN $4::bigint IS NULL THEN 0 ELSE now END FROM clock
ON CONFLICT (task_id) DO UPDATE SET
  stream = CASE WHEN c.until <= excluded.until - $3 THEN excluded.stream ELSE c.stream END,
  until = CASE
    WHEN c.until <= excluded.until - $3 THEN excluded.until
    WHEN c.stream <> excluded.stream THEN c.until
    WHEN c.heir <> excluded.stream AND c.heir_until > excluded.until - $3 THEN excluded.until - $3
    ELSE greatest(c.until, excluded.until)
  END,
  since = CASE WHEN c.until <= excluded.until - $3 THEN excluded.since ELSE c.since END,
  heir = CASE
    WHEN c.until <= excluded.until - $3 THEN NULL WHEN c.stream <> excluded.stream THEN excluded.stream ELSE c.heir
  END,
  heir_opened = CASE WHEN c.until > excluded.until - $3 AND c.stream <> excluded.stream
    THEN excluded.until - $3 - $4 ELSE c.heir_opened END,
  heir_until = CASE WHEN c.until > excluded.until - $3 AND c.stream <> excluded.stream
    THEN excluded.until ELSE c.heir_until END
WHERE CASE WHEN c.stream = excluded.stream AND c.until > excluded.until - $3 THEN true
  ELSE (c.until <= excluded.until - $3 OR coalesce(excluded.until - $3 - $4, -1) > c.since)
    AND NOT coalesce(c.heir <> excluded.stream AND c.heir_until > excluded.until - $3
      AND c.heir_opened > coalesce(excluded.until - $3 - $4, -1), false)
  END
RETURNING (c.stream = $2 AND c.until > (SELECT now FROM clock))::int::bigint";

// let_go
pub(super) const LET_GO: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
gone AS (
  DELETE FROM carriers c USING clock
  WHERE c.task_id = $1 AND c.stream = $2 AND NOT coalesce(c.heir <> $2 AND c.heir_until > clock.now, false)
)
UPDATE carriers c SET until = CASE WHEN c.stream = $2 THEN least(c.until, clock.now) ELSE c.until END,
  heir = nullif(c.heir, $2)
FROM clock WHERE c.task_id = $1 AND (c.stream = $2 AND c.heir <> $2 AND c.heir_until > clock.now OR c.heir = $2)";

// list
pub(super) const LIST: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now) SELECT ",
    task_columns!("t"),
    " FROM tasks t, clock
WHERE t.tenant = $1 AND t.owner = $2 AND (t.created_at, t.id) < ($3, $4)
  AND (t.expires_at IS NULL OR t.expires_at > clock.now)
ORDER BY t.created_at DESC, t.id DESC LIMIT $5"
);

// changed
pub(super) const CHANGED: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
SELECT s.id, t.version
FROM unnest($1::text[], $2::bigint[]) AS s(id, version)
CROSS JOIN clock
LEFT JOIN tasks t ON t.id = s.id AND (t.expires_at IS NULL OR t.expires_at > clock.now)
WHERE t.version IS DISTINCT FROM s.version";

// count
//
// Counters and what is to be added to them, less what has expired and waits for its purge.
pub(super) const COUNT: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
SELECT (coalesce(sum(stored), 0)
    - (SELECT count(*) FROM tasks, clock WHERE phase = 'ended' AND expires_at <= now)
    - (SELECT count(*) FROM tasks, clock WHERE phase <> 'ended' AND expires_at <= now))::bigint,
  (coalesce(sum(open), 0) - (SELECT count(*) FROM tasks, clock WHERE phase <> 'ended' AND expires_at <= now))::bigint
FROM (SELECT open, stored FROM counters WHERE owner = '' UNION ALL SELECT open, stored FROM endings WHERE owner = '') c";

// phases
pub(super) const PHASES: &str = "
SELECT count(*) FILTER (WHERE phase = 'queued'), count(*) FILTER (WHERE phase = 'running'),
  longhaul_now() - min(created_at) FILTER (WHERE phase = 'queued'),
  longhaul_now() - min(claimed_at) FILTER (WHERE phase = 'running')
FROM tasks WHERE phase <> 'ended'";

// attach
pub(super) const ATTACH: &str = "
INSERT INTO workers (name, incarnation, url, tools, offers, last_seen) VALUES ($1, $2, $3, $4, $5, longhaul_now())
ON CONFLICT (name) DO UPDATE SET incarnation = excluded.incarnation, url = excluded.url, tools = excluded.tools,
  offers = excluded.offers, last_seen = excluded.last_seen";

// detach
pub(super) const DETACH: &str =
    "UPDATE workers SET incarnation = '', url = NULL, last_seen = longhaul_now() WHERE name = $1 AND incarnation = $2";

// orphans
pub(super) const ORPHANS: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    " FROM tasks t WHERE t.phase = 'running' AND t.worker_name = $1 AND t.worker_incarnation <> $2 LIMIT $3"
);

// workers
//
// After an outage of the database, or of all task-stores, they get the same grace as their leases; until the first sweep
// after it, the time when somebody last looked counts.
pub(super) const WORKERS: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
SELECT name, incarnation, url, tools, offers FROM workers, sweeps, clock
WHERE last_seen > least(clock.now, last_tick + $1 / 10) - $1 OR clock.now < grace_until ORDER BY name";

// tick
pub(super) const TICK: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
UPDATE sweeps s SET last_tick = clock.now,
  grace_until = CASE WHEN clock.now - s.last_tick > $1 THEN clock.now + $2 ELSE s.grace_until END
FROM clock
RETURNING (clock.now >= s.grace_until)::int";

// overdue
pub(super) const OVERDUE: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now) SELECT ",
    task_columns!("t"),
    ", clock.now FROM tasks t, clock WHERE t.phase = 'running' AND t.lease_until <= clock.now LIMIT $1"
);

// expired
pub(super) const EXPIRED: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now) SELECT ",
    task_columns!("t"),
    ", clock.now FROM tasks t, clock WHERE t.phase <> 'ended' AND t.expires_at <= clock.now ORDER BY t.expires_at LIMIT $1"
);

// unanswered
pub(super) const UNANSWERED: &str = concat!(
    "WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now) SELECT ",
    task_columns!("t"),
    ", clock.now FROM tasks t, clock WHERE t.input_until <= (SELECT now FROM clock) ORDER BY t.input_until LIMIT $1"
);

// purge
pub(super) const PURGE: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
old AS MATERIALIZED (
  SELECT t.id FROM tasks t, clock WHERE t.phase = 'ended' AND t.expires_at <= clock.now
  ORDER BY t.expires_at LIMIT $1 FOR UPDATE OF t SKIP LOCKED
),
gone AS (
  DELETE FROM tasks t USING old WHERE t.id = old.id RETURNING t.id, t.tenant, t.owner, t.expires_at
),
forgotten AS (
  DELETE FROM answers WHERE ctid = ANY (ARRAY(
    SELECT a.ctid FROM gone, LATERAL (SELECT ctid FROM answers WHERE task_id = gone.id OFFSET 0) a
  ))
),
buried AS (
  INSERT INTO tombstones (id, tenant, owner, gone_at) SELECT id, tenant, owner, expires_at FROM gone ON CONFLICT DO NOTHING
),
lowered AS (
  INSERT INTO endings (tenant, owner, open, stored)
  SELECT tenant, owner, 0, -count(*) FROM gone GROUP BY tenant, owner
  UNION ALL SELECT tenant, '', 0, -count(*) FROM gone GROUP BY tenant
)
SELECT count(*) FROM gone";

// fold
//
// What a create does for its own counters, for those of owners that create nothing.
pub(super) const FOLD: &str = "
WITH counter AS MATERIALIZED (
  SELECT c.tenant, c.owner FROM counters c
  JOIN (SELECT DISTINCT tenant, owner FROM endings LIMIT $1) e ON c.tenant = e.tenant AND c.owner = e.owner
  ORDER BY c.tenant, c.owner FOR UPDATE OF c
),
folded AS (
  DELETE FROM endings e USING counter c WHERE e.tenant = c.tenant AND e.owner = c.owner
  RETURNING e.tenant, e.owner, e.open, e.stored
),
fold AS MATERIALIZED (
  SELECT tenant, owner, sum(open)::bigint AS open, sum(stored)::bigint AS stored FROM folded GROUP BY tenant, owner
),
lowered AS (
  UPDATE counters c SET open = c.open + f.open, stored = c.stored + f.stored
  FROM fold f WHERE c.tenant = f.tenant AND c.owner = f.owner
)
SELECT count(*) FROM fold";

// prune
//
// Each kind at most $3 rows. Counters that are locked are in use: they are passed over.
pub(super) const PRUNE: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
stones AS (
  DELETE FROM tombstones WHERE id IN (SELECT id FROM tombstones, clock WHERE gone_at <= now - $1 LIMIT $3) RETURNING 1
),
carried AS (
  DELETE FROM carriers WHERE task_id IN (SELECT task_id FROM carriers, clock WHERE until <= now LIMIT $3) RETURNING 1
),
notes AS (
  DELETE FROM session_notes WHERE session IN (SELECT session FROM session_notes, clock WHERE expires_at <= now LIMIT $3) RETURNING 1
),
subscribed AS (
  DELETE FROM subscriptions WHERE (session, slot) IN (
    SELECT session, slot FROM subscriptions, clock WHERE expires_at <= now LIMIT $3
  ) RETURNING 1
),
idle AS (
  DELETE FROM workers w USING clock WHERE w.last_seen <= clock.now - $2 RETURNING 1
),
zero AS MATERIALIZED (
  SELECT tenant, owner FROM counters WHERE open = 0 AND stored = 0 LIMIT $3 FOR UPDATE SKIP LOCKED
),
unused AS (
  DELETE FROM counters c USING zero z WHERE c.tenant = z.tenant AND c.owner = z.owner RETURNING 1
)
SELECT greatest((SELECT count(*) FROM stones), (SELECT count(*) FROM carried), (SELECT count(*) FROM notes),
  (SELECT count(*) FROM subscribed), (SELECT count(*) FROM idle), (SELECT count(*) FROM unused))";

// note_session
pub(super) const NOTE_SESSION: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
INSERT INTO session_notes AS s (session, ended, log_level, expires_at, tenant, owner, changed_at)
SELECT $1, $2, $3, $4, $5, $6, now FROM clock
WHERE EXISTS (SELECT FROM session_notes WHERE session = $1)
  OR (SELECT count(*) FROM (SELECT FROM session_notes WHERE tenant = $5 AND owner = $6 LIMIT $7) mine) < $7
ON CONFLICT (session) DO UPDATE SET ended = s.ended OR excluded.ended, log_level = coalesce(excluded.log_level, s.log_level),
  expires_at = greatest(s.expires_at, excluded.expires_at), changed_at = greatest(s.changed_at, excluded.changed_at)
RETURNING 1";

// sessions
pub(super) const SESSIONS: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
SELECT session, ended::int, log_level, changed_at FROM session_notes, clock
WHERE (changed_at, session) > ($1, $2) AND expires_at > clock.now ORDER BY changed_at, session LIMIT $3";

// subscribe
//
// Two at once may find the same slot free: one of them fails, and is said again.
pub(super) const SUBSCRIBE: &str = "
WITH mine AS MATERIALIZED (SELECT slot, uri FROM subscriptions WHERE session = $1),
free AS (
  SELECT slot FROM generate_series(0, $3 - 1) AS s(slot)
  WHERE NOT EXISTS (SELECT FROM mine WHERE mine.slot = s.slot) ORDER BY slot LIMIT 1
),
added AS (
  INSERT INTO subscriptions (session, slot, uri, expires_at)
  SELECT $1, slot, $2, $4 FROM free WHERE NOT EXISTS (SELECT FROM mine WHERE uri = $2)
  RETURNING 1
)
SELECT (EXISTS (SELECT FROM mine WHERE uri = $2) OR EXISTS (SELECT FROM added))::int";

// subscriptions
pub(super) const SUBSCRIPTIONS: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
SELECT DISTINCT uri FROM subscriptions, clock WHERE session = $1 AND expires_at > clock.now ORDER BY uri";
