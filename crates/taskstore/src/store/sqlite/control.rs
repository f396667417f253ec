//! Credentials and switches on SQLite.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::{Caller, Event, Scope, Task};
use longhaul_rpc::{Changes, CredentialChange, CredentialInfo, KeyDigest, NewCredential, Switch, Switched};
use sqlx::sqlite::SqliteRow;

use super::{Sql, SqliteStore, Work, all};
use crate::store::control::{self, ControlStore, credential_change_columns, info_columns, number};
use crate::store::row::{self, TaskRow as _, task_columns, there};
use crate::store::{Answer, micros};

#[async_trait]
impl ControlStore for SqliteStore {
    async fn create_credential(&self, new: &NewCredential, max: usize) -> Answer<Option<CredentialInfo>> {
        let mut work = self.begin().await?;
        let number = work.number("credentials").await?;
        let create = sqlx::query(concat!(
            "INSERT INTO credentials (id, tenant, agent, sha256, created_at, expires_at, changed)
             SELECT ?1, ?2, ?3, ?4, ?5, ?5 + ?6, ?7 WHERE (SELECT count(*) FROM credentials) < ?8
             ON CONFLICT (id) DO NOTHING RETURNING ",
            info_columns!()
        ))
        .bind(&new.id)
        .bind(new.tenant.as_str())
        .bind(&new.agent)
        .bind(&new.sha256[..])
        .bind(work.now)
        .bind(new.expires_in.map(micros))
        .bind(number)
        .bind(max as i64);
        let created = work.all(create).await?;
        work.credential(created, Event::CredentialCreated, &new.id, Some(&new.sha256)).await
    }

    async fn rotate_credential(
        &self,
        id: &str,
        sha256: &KeyDigest,
        overlap: Duration,
        expires_in: Option<Duration>,
    ) -> Answer<Option<CredentialInfo>> {
        let mut work = self.begin().await?;
        let number = work.number("credentials").await?;
        let rotate = sqlx::query(concat!(
            "UPDATE credentials SET sha256 = ?2, former = sha256, former_until = min(?3, coalesce(expires_at, ?3)),
               expires_at = coalesce(?4, expires_at), rotated_at = ?5, changed = ?6
             WHERE id = ?1 AND sha256 <> ?2 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?5)
             RETURNING ",
            info_columns!()
        ))
        .bind(id)
        .bind(&sha256[..])
        .bind(work.now + micros(overlap))
        .bind(expires_in.map(|later| work.now + micros(later)))
        .bind(work.now)
        .bind(number);
        let rotated = work.all(rotate).await?;
        work.credential(rotated, Event::CredentialRotated, id, Some(sha256)).await
    }

    async fn revoke_credential(&self, id: &str) -> Answer<Option<CredentialInfo>> {
        let mut work = self.begin().await?;
        let number = work.number("credentials").await?;
        let revoke = sqlx::query(concat!(
            "UPDATE credentials SET revoked_at = ?2, changed = ?3 WHERE id = ?1 AND revoked_at IS NULL RETURNING ",
            info_columns!()
        ));
        let revoked = work.all(revoke.bind(id).bind(work.now).bind(number)).await?;
        work.credential(revoked, Event::CredentialRevoked, id, None).await
    }

    async fn credentials(&self, tenant: Option<&str>, after: &str, limit: usize) -> Answer<Vec<CredentialInfo>> {
        let mut reader = self.reader.lock().await;
        let query = sqlx::query(concat!(
            "SELECT ",
            info_columns!(),
            " FROM credentials WHERE (?1 IS NULL OR tenant = ?1) AND id > ?2 ORDER BY id LIMIT ?3"
        ));
        let rows = all(&mut reader, query.bind(tenant).bind(after).bind(limit as i64)).await?;
        rows.iter().map(control::info).collect()
    }

    async fn credential_changes(&self, since: u64, limit: usize) -> Answer<Changes<CredentialChange>> {
        let mut reader = self.reader.lock().await;
        let query = sqlx::query(concat!(
            "SELECT n.forgotten, ",
            credential_change_columns!(),
            " FROM control_changes n
             LEFT JOIN (SELECT * FROM credentials WHERE changed > ?1 ORDER BY changed LIMIT ?2) c
             WHERE n.kind = 'credentials' ORDER BY c.changed"
        ));
        let rows = all(&mut reader, query.bind(number(since)).bind(limit as i64)).await?;
        control::changes(&rows, control::credential_change)
    }

    async fn set_switch(&self, scope: &Scope, off: bool, why: &str, max: usize) -> Answer<Switched> {
        let (key, tenant, tool, caller) = control::columns(scope);
        let mut work = self.begin().await?;
        let before = sqlx::query("SELECT off, why FROM switches WHERE scope = ?1").bind(&key);
        let before = work.all(before).await?;
        let (was_off, same_why) = match before.first() {
            Some(row) => (row.int(0)? == Some(1), row.text(1)?.as_deref() == Some(why)),
            None => (false, false),
        };
        if was_off == off && (!off || same_why) {
            return work.commit(Switched::Same).await;
        }
        let others = work.all(sqlx::query("SELECT count(*) FROM switches WHERE off")).await?;
        let others = there(there(others.first(), "a row")?.long(0)?, "a count")?;
        if off && !was_off && others >= max as i64 {
            return work.commit(Switched::Full).await;
        }
        let number = work.number("switches").await?;
        let set = sqlx::query(
            "INSERT INTO switches (scope, tenant, tool, caller, off, why, changed_at, changed)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (scope) DO UPDATE SET off = ?5, why = ?6, changed_at = ?7, changed = ?8",
        );
        let set = set.bind(&key).bind(tenant).bind(tool).bind(caller.clone()).bind(off).bind(why);
        let set = set.bind(work.now).bind(number);
        work.run(set).await?;
        let insert = record_control_event(Event::SwitchChanged, work.now, tenant.unwrap_or_default(), caller, &key);
        work.run(insert.bind(tool).bind(control::reason(off, why))).await?;
        work.commit(Switched::Changed).await
    }

    async fn switch_changes(&self, since: u64, limit: usize) -> Answer<Changes<Switch>> {
        let mut reader = self.reader.lock().await;
        let query = sqlx::query(
            "SELECT n.forgotten, s.changed, s.tenant, s.tool, s.caller, s.off, s.why, s.changed_at FROM control_changes n
             LEFT JOIN (SELECT * FROM switches WHERE changed > ?1 ORDER BY changed LIMIT ?2) s
             WHERE n.kind = 'switches' ORDER BY s.changed",
        );
        let rows = all(&mut reader, query.bind(number(since)).bind(limit as i64)).await?;
        control::changes(&rows, control::switch)
    }

    async fn open_within(&self, scope: &Scope, limit: u32) -> Answer<Vec<Task>> {
        let (_, tenant, tool, caller) = control::columns(scope);
        let mut reader = self.reader.lock().await;
        let query = sqlx::query(concat!(
            "SELECT ",
            task_columns!("t"),
            " FROM tasks t WHERE t.phase <> 'ended' AND (?1 IS NULL OR t.tenant = ?1) AND (?2 IS NULL OR t.tool = ?2)
               AND (?3 IS NULL OR t.owner = ?3) LIMIT ?4"
        ));
        let rows = all(&mut reader, query.bind(tenant).bind(tool).bind(caller).bind(i64::from(limit))).await?;
        rows.iter().map(row::task).collect()
    }

    async fn prune_control(&self, kept: Duration, limit: u32) -> Answer<bool> {
        let mut work = self.begin().await?;
        let (now, limit) = (work.now, i64::from(limit));
        let mut most = 0;
        for (kind, delete) in [
            (
                "credentials",
                "DELETE FROM credentials WHERE id IN (
                   SELECT id FROM credentials WHERE revoked_at <= ?1 OR expires_at <= ?1 LIMIT ?2
                 ) RETURNING changed",
            ),
            (
                "switches",
                "DELETE FROM switches WHERE scope IN (
                   SELECT scope FROM switches WHERE NOT off AND changed_at <= ?1 LIMIT ?2
                 ) RETURNING changed",
            ),
        ] {
            let gone = work.all(sqlx::query(delete).bind(now - micros(kept)).bind(limit)).await?;
            for row in &gone {
                let note = sqlx::query("UPDATE control_changes SET forgotten = max(forgotten, ?2) WHERE kind = ?1");
                work.run(note.bind(kind).bind(row.long(0)?)).await?;
            }
            most = most.max(gone.len() as i64);
        }
        work.commit(most >= limit).await
    }
}

impl Work<'_> {
    /// The number of a change.
    async fn number(&mut self, kind: &'static str) -> Answer<i64> {
        let next = sqlx::query("UPDATE control_changes SET last = last + 1 WHERE kind = ?1 RETURNING last").bind(kind);
        let rows = self.all(next).await?;
        there(there(rows.first(), "a row")?.long(0)?, "a number")
    }

    /// Records a change of a credential and commits; without one, answers with the credential of this id if it has the key.
    async fn credential(
        mut self,
        changed: Vec<SqliteRow>,
        event: Event,
        id: &str,
        sha256: Option<&KeyDigest>,
    ) -> Answer<Option<CredentialInfo>> {
        if let Some(row) = changed.first() {
            let info = control::info(row)?;
            let caller = Caller::Agent(info.agent.clone()).owner();
            let insert = record_control_event(event, self.now, info.tenant.as_str(), Some(caller), &info.id);
            self.run(insert).await?;
            return self.commit(Some(info)).await;
        }
        let query = sqlx::query(concat!(
            "SELECT ",
            info_columns!(),
            " FROM credentials WHERE id = ?1 AND (?2 IS NULL OR sha256 = ?2)"
        ));
        let rows = self.all(query.bind(id).bind(sha256.map(|sha256| &sha256[..]))).await?;
        let known = rows.first().map(control::info).transpose()?;
        self.commit(known).await
    }
}

/// Records what was decided; the tool and the reason may be bound to it.
fn record_control_event<'q>(
    event: Event,
    now: i64,
    tenant: &'q str,
    caller: Option<String>,
    subject: &'q str,
) -> Sql<'q> {
    let insert =
        "INSERT INTO audit_inbox (at, event, tenant, owner, subject, tool, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    sqlx::query(insert).bind(now).bind(event.name()).bind(tenant).bind(caller).bind(subject)
}
