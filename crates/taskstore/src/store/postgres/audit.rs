//! The audit log on PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::audit::{Record, Sealed};
use longhaul_core::{Event, TenantId, Timestamp};
use longhaul_rpc::{AuditChain, AuditRange, Batch};

use super::PostgresStore;
use crate::store::audit::{self, AuditStore, BATCH_KEPT, RETRIEVAL_KEPT, Stretch, Unsealed, batch_key, entry_columns};
use crate::store::row::{self, TaskRow as _, there};
use crate::store::{Answer, micros};

/// How long before a month begins there is room for it.
const ROOM_AHEAD: Duration = Duration::from_secs(7 * 24 * 3600);

#[async_trait]
impl AuditStore for PostgresStore {
    async fn record_apart(&self, batch: &Batch) -> Answer<u64> {
        let refused = || {
            batch.records.iter().filter_map(|record| match record {
                Record::Refused(refused) => Some(refused),
                Record::Retrieved(_) => None,
            })
        };
        let retrieved = batch.records.iter().filter_map(|record| match record {
            Record::Retrieved(task) => Some(task.to_string()),
            Record::Refused(_) => None,
        });
        let query = sqlx::query(RECORD)
            .bind(batch_key(batch))
            .bind(Event::CallRefused.name())
            .bind(refused().map(|refused| refused.principal.tenant.as_str()).collect::<Vec<_>>())
            .bind(refused().map(|refused| refused.principal.owner()).collect::<Vec<_>>())
            .bind(refused().map(|refused| &*refused.called).collect::<Vec<_>>())
            .bind(refused().map(|refused| refused.by.name()).collect::<Vec<_>>())
            .bind(refused().map(|refused| refused.trace_id.as_deref()).collect::<Vec<_>>())
            .bind(refused().map(|refused| i32::try_from(refused.times).unwrap_or(i32::MAX)).collect::<Vec<_>>())
            .bind(refused().map(|refused| micros(refused.ago)).collect::<Vec<_>>())
            .bind(retrieved.collect::<Vec<_>>())
            .bind(Event::Retrieved.name());
        let row = self.pulse.one("record_audit", query).await?;
        Ok(there(row.long(0)?, "a count")? as u64)
    }

    async fn make_room(&self) -> Answer<()> {
        let query = sqlx::query(
            "WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now)
             SELECT longhaul_audit_months(now, now + $1) FROM clock",
        );
        self.pulse.all("audit_months", query.bind(micros(ROOM_AHEAD))).await.map(drop)
    }

    async fn unsealed(&self, after: i64, limit: usize) -> Answer<Unsealed> {
        let rows = self.pulse.all("unsealed", sqlx::query(UNSEALED).bind(after).bind(limit as i64)).await?;
        let now = rows.first().map_or(Ok(Timestamp::from_micros(0)), |row| row::moment(row, 15))?;
        Ok(Unsealed { now, rows: rows.iter().map(audit::unsealed).collect::<Answer<_>>()? })
    }

    async fn seal(&self, stretches: &[Stretch]) -> Answer<u64> {
        let rows = || stretches.iter().flat_map(|stretch| &stretch.rows);
        let of = stretches.iter().zip(1..).flat_map(|(stretch, nth)| stretch.rows.iter().map(move |_| nth));
        let query = sqlx::query(SEAL)
            .bind(rows().map(|row| row.entry.id).collect::<Vec<_>>())
            .bind(rows().map(|row| row.seq as i64).collect::<Vec<_>>())
            .bind(rows().map(|row| row.sealed_at.as_micros()).collect::<Vec<_>>())
            .bind(rows().map(|row| row.hash.as_bytes()).collect::<Vec<_>>())
            .bind(of.collect::<Vec<i32>>())
            .bind(stretches.iter().map(|stretch| stretch.tenant.as_str()).collect::<Vec<_>>())
            .bind(stretches.iter().map(|stretch| stretch.behind as i64).collect::<Vec<_>>())
            .bind(stretches.iter().map(|stretch| stretch.end().link.seq as i64).collect::<Vec<_>>())
            .bind(stretches.iter().map(|stretch| stretch.end().link.hash.as_bytes().to_vec()).collect::<Vec<_>>())
            .bind(stretches.iter().map(|stretch| stretch.end().sealed_at.as_micros()).collect::<Vec<_>>());
        let row = self.pulse.one("seal", query).await?;
        Ok(there(row.long(0)?, "a count")? as u64)
    }

    async fn chains(&self, from: Option<&TenantId>, limit: usize) -> Answer<Vec<AuditChain>> {
        let query = sqlx::query(CHAINS).bind(from.map(|tenant| tenant.as_str().to_owned())).bind(limit as i64);
        self.calls.all("audit_chains", query).await?.iter().map(audit::chain).collect()
    }

    async fn audit_rows(&self, range: &AuditRange, limit: usize) -> Answer<Vec<Sealed>> {
        let query = sqlx::query(ROWS)
            .bind(range.tenant.as_str().to_owned())
            .bind(i64::try_from(range.after).unwrap_or(i64::MAX))
            .bind(range.since.map_or(i64::MIN, Timestamp::as_micros))
            .bind(limit as i64);
        self.calls.all("audit_rows", query).await?.iter().map(audit::sealed).collect()
    }

    async fn prune_audit(&self, retention: Option<Duration>, rows_max: u32) -> Answer<bool> {
        let query = sqlx::query(PRUNE).bind(micros(BATCH_KEPT)).bind(micros(RETRIEVAL_KEPT)).bind(i64::from(rows_max));
        let row = self.pulse.one("prune_audit", query).await?;
        let full = there(row.long(0)?, "a count")? >= i64::from(rows_max);
        let Some(kept) = retention else { return Ok(full) };
        let query = sqlx::query("SELECT longhaul_audit_drop(longhaul_now() - $1)::int").bind(micros(kept));
        let dropped = self.pulse.one("drop_audit", query).await?.int(0)? == Some(1);
        Ok(full || dropped)
    }
}

// record_audit
//
// A task's row is read when it is recorded; one that is gone by then has expired long after it was retrieved.
const RECORD: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
new AS (
  INSERT INTO audit_batches (id, at) SELECT $1, now FROM clock ON CONFLICT DO NOTHING RETURNING 1
),
refused AS (
  INSERT INTO audit_inbox (at, event, tenant, owner, tool, reason, trace_id, times)
  SELECT now - r.ago, $2, r.tenant, r.owner, r.tool, r.reason, r.trace_id, r.times
  FROM new, clock, unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::int[], $9::bigint[])
    AS r(tenant, owner, tool, reason, trace_id, times, ago)
  RETURNING 1
),
-- In one order, or two batches might wait for each other.
first AS (
  INSERT INTO retrievals (task_id, expires_at)
  SELECT t.id, t.expires_at FROM new, unnest($10::text[]) AS r(id) JOIN tasks t ON t.id = r.id
  WHERE t.ending IS NOT NULL ORDER BY t.id
  ON CONFLICT DO NOTHING
  RETURNING task_id
),
retrieved AS (
  INSERT INTO audit_inbox (at, event, task_id, version, tenant, owner, tool, reason, trace_id)
  SELECT clock.now, $11, t.id, t.version, t.tenant, t.owner, t.tool, t.ending, split_part(t.traceparent, '-', 2)
  FROM clock, first JOIN tasks t ON t.id = first.task_id
  RETURNING 1
)
SELECT (SELECT count(*) FROM refused) + (SELECT count(*) FROM retrieved)";

// unsealed
//
// A tenant's first row makes its head, which whoever seals then locks.
const UNSEALED: &str = concat!(
    "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
i AS MATERIALIZED (SELECT * FROM audit_inbox WHERE id > $1 ORDER BY id LIMIT $2),
made AS (
  INSERT INTO audit_heads (tenant)
  SELECT DISTINCT i.tenant FROM i WHERE NOT EXISTS (SELECT FROM audit_heads h WHERE h.tenant = i.tenant) ORDER BY i.tenant
  ON CONFLICT DO NOTHING
)
SELECT ",
    entry_columns!("i"),
    ", h.seq, h.hash, h.sealed_at, clock.now
FROM i CROSS JOIN clock LEFT JOIN audit_heads h ON h.tenant = i.tenant ORDER BY i.id"
);

// seal
//
// The chains whose last row is still the one that these go behind; another sweep's are left out.
const SEAL: &str = "
WITH n AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::int[]) AS n(id, seq, sealed_at, hash, stretch)
),
head AS MATERIALIZED (
  SELECT h.tenant, s.nth, s.seq, s.hash, s.sealed_at
  FROM unnest($6::text[], $7::bigint[], $8::bigint[], $9::bytea[], $10::bigint[]) WITH ORDINALITY
    AS s(tenant, behind, seq, hash, sealed_at, nth)
  JOIN audit_heads h ON h.tenant = s.tenant
  WHERE h.seq = s.behind ORDER BY h.tenant FOR UPDATE OF h
),
moved AS (
  DELETE FROM audit_inbox i USING n, head WHERE n.stretch = head.nth AND i.id = n.id
  RETURNING i.*, n.seq, n.sealed_at, n.hash
),
logged AS (
  INSERT INTO audit_log (tenant, seq, sealed_at, hash, id, at, event, task_id, version, owner, tool, reason, subject, trace_id, times)
  SELECT tenant, seq, sealed_at, hash, id, at, event, task_id, version, owner, tool, reason, subject, trace_id, times FROM moved
  RETURNING 1
),
raised AS (
  UPDATE audit_heads h SET seq = head.seq, hash = head.hash, sealed_at = head.sealed_at FROM head WHERE h.tenant = head.tenant
)
SELECT count(*) FROM logged";

// audit_chains
//
// Rows without a head are somebody else's work, and to be seen. From tenant to tenant by the key, not through all rows.
const CHAINS: &str = "
WITH RECURSIVE logged AS (
  SELECT CASE WHEN $1::text IS NULL THEN (SELECT min(tenant) FROM audit_log)
    ELSE (SELECT min(tenant) FROM audit_log WHERE tenant >= $1) END AS tenant
  UNION ALL
  SELECT (SELECT min(l.tenant) FROM audit_log l WHERE l.tenant > logged.tenant) FROM logged WHERE logged.tenant IS NOT NULL
)
SELECT t.tenant, h.anchor_seq, h.anchor_hash, h.seq, h.hash
FROM (
  SELECT tenant FROM logged WHERE tenant IS NOT NULL
  UNION SELECT tenant FROM audit_heads WHERE $1::text IS NULL OR tenant >= $1
) t
LEFT JOIN audit_heads h ON h.tenant = t.tenant ORDER BY t.tenant LIMIT $2";

// audit_rows
const ROWS: &str = concat!(
    "SELECT ",
    entry_columns!("l"),
    ", l.seq, l.hash, l.sealed_at FROM audit_log l
WHERE l.tenant = $1 AND l.seq > $2 AND l.sealed_at >= $3 ORDER BY l.seq, l.sealed_at LIMIT $4"
);

// prune_audit
const PRUNE: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
batches AS (
  DELETE FROM audit_batches WHERE id IN (SELECT id FROM audit_batches, clock WHERE at <= now - $1 LIMIT $3) RETURNING 1
),
forgotten AS (
  DELETE FROM retrievals WHERE task_id IN (SELECT task_id FROM retrievals, clock WHERE expires_at <= now - $2 LIMIT $3) RETURNING 1
)
SELECT greatest((SELECT count(*) FROM batches), (SELECT count(*) FROM forgotten))";
