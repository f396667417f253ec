//! The audit log on SQLite.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::audit::{Record, Refused, Sealed};
use longhaul_core::{Event, TenantId, Timestamp};
use longhaul_rpc::{AuditChain, AuditRange, Batch};

use super::{SqliteStore, all};
use crate::store::audit::{
    self, AuditStore, BATCH_KEPT, End, RETRIEVAL_KEPT, Stretch, Unsealed, batch_key, entry_columns,
};
use crate::store::row::{TaskRow as _, there};
use crate::store::{Answer, micros};

#[async_trait]
impl AuditStore for SqliteStore {
    async fn record_apart(&self, batch: &Batch) -> Answer<u64> {
        let mut work = self.begin().await?;
        let now = work.now;
        let new = sqlx::query("INSERT INTO audit_batches (id, at) VALUES (?1, ?2) ON CONFLICT DO NOTHING");
        if work.run(new.bind(batch_key(batch)).bind(now)).await? == 0 {
            return work.commit(0).await;
        }
        let mut written = 0;
        for record in &batch.records {
            match record {
                Record::Refused(refused) => {
                    let Refused { principal, called, by, trace_id, times, ago } = refused;
                    let insert = sqlx::query(
                        "INSERT INTO audit_inbox (at, event, tenant, owner, tool, reason, trace_id, times)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    )
                    .bind(now - micros(*ago))
                    .bind(Event::CallRefused.name())
                    .bind(principal.tenant.as_str())
                    .bind(principal.owner())
                    .bind(called)
                    .bind(by.name())
                    .bind(trace_id.as_deref())
                    .bind(i64::from(*times));
                    written += work.run(insert).await?;
                }
                Record::Retrieved(task) => {
                    let first = sqlx::query(
                        "INSERT INTO retrievals (task_id, expires_at) SELECT id, expires_at FROM tasks
                         WHERE id = ?1 AND phase = 'ended' ON CONFLICT DO NOTHING",
                    );
                    if work.run(first.bind(task.to_string())).await? > 0 {
                        let insert = super::audit(&task.to_string(), Event::Retrieved.name(), now);
                        written += work.run(insert).await?;
                    }
                }
            }
        }
        work.commit(written).await
    }

    async fn make_room(&self) -> Answer<()> {
        Ok(())
    }

    async fn unsealed(&self, after: i64, limit: usize) -> Answer<Unsealed> {
        let mut reader = self.reader.lock().await;
        let now = Timestamp::from_micros(self.now(&mut reader).await?);
        let query = sqlx::query(UNSEALED).bind(after).bind(limit as i64);
        let rows = all(&mut reader, query).await?.iter().map(audit::unsealed).collect::<Answer<_>>()?;
        Ok(Unsealed { now, rows })
    }

    async fn seal(&self, stretches: &[Stretch]) -> Answer<u64> {
        let mut work = self.begin().await?;
        let mut sealed = 0;
        for stretch in stretches {
            let End { link, sealed_at } = stretch.end();
            let raise = sqlx::query(
                "INSERT INTO audit_heads (tenant, seq, hash, sealed_at) VALUES (?1, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET seq = ?3, hash = ?4, sealed_at = ?5 WHERE seq = ?2",
            )
            .bind(stretch.tenant.as_str())
            .bind(stretch.behind as i64)
            .bind(link.seq as i64)
            .bind(link.hash.as_bytes())
            .bind(sealed_at.as_micros());
            if work.run(raise).await? == 0 {
                continue;
            }
            for row in &stretch.rows {
                let log = sqlx::query(SEAL)
                    .bind(row.entry.id)
                    .bind(row.seq as i64)
                    .bind(row.sealed_at.as_micros())
                    .bind(row.hash.as_bytes());
                sealed += work.run(log).await?;
                work.run(sqlx::query("DELETE FROM audit_inbox WHERE id = ?1").bind(row.entry.id)).await?;
            }
        }
        work.commit(sealed).await
    }

    async fn chains(&self, from: Option<&TenantId>, limit: usize) -> Answer<Vec<AuditChain>> {
        let mut reader = self.reader.lock().await;
        let query = sqlx::query(CHAINS).bind(from.map(TenantId::as_str)).bind(limit as i64);
        all(&mut reader, query).await?.iter().map(audit::chain).collect()
    }

    async fn audit_rows(&self, range: &AuditRange, limit: usize) -> Answer<Vec<Sealed>> {
        let mut reader = self.reader.lock().await;
        let query = sqlx::query(ROWS)
            .bind(range.tenant.as_str())
            .bind(range.after as i64)
            .bind(range.since.map_or(i64::MIN, Timestamp::as_micros))
            .bind(limit as i64);
        all(&mut reader, query).await?.iter().map(audit::sealed).collect()
    }

    async fn prune_audit(&self, retention: Option<Duration>, rows_max: u32) -> Answer<bool> {
        let mut work = self.begin().await?;
        let (now, limit) = (work.now, i64::from(rows_max));
        let mut most = 0;
        for (query, kept) in [(sqlx::query(PRUNE_BATCHES), BATCH_KEPT), (sqlx::query(PRUNE_RETRIEVALS), RETRIEVAL_KEPT)]
        {
            most = work.run(query.bind(now - micros(kept)).bind(limit)).await?.max(most);
        }
        if let Some(kept) = retention {
            let old = work.all(sqlx::query(OLD).bind(now - micros(kept)).bind(limit)).await?;
            for row in &old {
                let (tenant, seq) = (there(row.text(0)?, "tenant")?, there(row.long(1)?, "seq")?);
                let anchor = sqlx::query("UPDATE audit_heads SET anchor_seq = ?2, anchor_hash = ?3 WHERE tenant = ?1");
                work.run(anchor.bind(tenant.clone()).bind(seq).bind(row.blob(2)?.map(Vec::from))).await?;
                let forget = sqlx::query("DELETE FROM audit_log WHERE tenant = ?1 AND seq = ?2 AND sealed_at = ?3");
                work.run(forget.bind(tenant).bind(seq).bind(row.long(3)?)).await?;
            }
            most = most.max(old.len() as u64);
        }
        work.commit(most >= limit as u64).await
    }
}

const UNSEALED: &str = concat!(
    "SELECT ",
    entry_columns!("i"),
    ", h.seq, h.hash, h.sealed_at FROM audit_inbox i LEFT JOIN audit_heads h ON h.tenant = i.tenant
WHERE i.id > ?1 ORDER BY i.id LIMIT ?2"
);

const SEAL: &str = "
INSERT INTO audit_log (tenant, seq, sealed_at, hash, id, at, event, task_id, version, owner, tool, reason, subject, trace_id, times)
SELECT tenant, ?2, ?3, ?4, id, at, event, task_id, version, owner, tool, reason, subject, trace_id, times
FROM audit_inbox WHERE id = ?1";

// Rows without a head are somebody else's work, and to be seen.
const CHAINS: &str = "
SELECT t.tenant, h.anchor_seq, h.anchor_hash, h.seq, h.hash
FROM (SELECT tenant FROM audit_heads UNION SELECT DISTINCT tenant FROM audit_log) t
LEFT JOIN audit_heads h ON h.tenant = t.tenant
WHERE ?1 IS NULL OR t.tenant >= ?1 ORDER BY t.tenant LIMIT ?2";

const ROWS: &str = concat!(
    "SELECT ",
    entry_columns!("l"),
    ", l.seq, l.hash, l.sealed_at FROM audit_log l
WHERE l.tenant = ?1 AND l.seq > ?2 AND l.sealed_at >= ?3 ORDER BY l.seq, l.sealed_at LIMIT ?4"
);

const PRUNE_BATCHES: &str =
    "DELETE FROM audit_batches WHERE id IN (SELECT id FROM audit_batches WHERE at <= ?1 LIMIT ?2)";
const PRUNE_RETRIEVALS: &str =
    "DELETE FROM retrievals WHERE task_id IN (SELECT task_id FROM retrievals WHERE expires_at <= ?1 LIMIT ?2)";

// Of each chain its oldest: time does not go back in one.
const OLD: &str = "
SELECT tenant, seq, hash, sealed_at FROM audit_log WHERE sealed_at <= ?1 ORDER BY sealed_at, tenant, seq LIMIT ?2";
