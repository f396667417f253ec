//! Credentials and switches on PostgreSQL.
//!
//! A change locks the row of its kind in `control_changes` first, so that changes are committed in the order of their
//! numbers.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::{Event, Scope, Task};
use longhaul_rpc::{Changes, CredentialChange, CredentialInfo, KeyDigest, NewCredential, Switch, Switched};

use super::PostgresStore;
use crate::store::control::{self, ControlStore, credential_change_columns, info_columns, number};
use crate::store::row::{self, TaskRow as _, task_columns, there};
use crate::store::{Answer, micros};

#[async_trait]
impl ControlStore for PostgresStore {
    async fn create_credential(&self, new: &NewCredential, max: usize) -> Answer<Option<CredentialInfo>> {
        let create = sqlx::query(CREATE_CREDENTIAL)
            .bind(new.id.clone())
            .bind(new.tenant.as_str().to_owned())
            .bind(new.agent.clone())
            .bind(new.sha256.to_vec())
            .bind(new.expires_in.map(micros))
            .bind(max as i64)
            .bind(Event::CredentialCreated.name());
        if let Some(row) = self.calls.all("create_credential", create).await?.first() {
            return control::info(row).map(Some);
        }
        self.with_key(&new.id, &new.sha256).await
    }

    async fn rotate_credential(
        &self,
        id: &str,
        sha256: &KeyDigest,
        overlap: Duration,
        expires_in: Option<Duration>,
    ) -> Answer<Option<CredentialInfo>> {
        let rotate = sqlx::query(ROTATE_CREDENTIAL)
            .bind(id.to_owned())
            .bind(sha256.to_vec())
            .bind(micros(overlap))
            .bind(expires_in.map(micros))
            .bind(Event::CredentialRotated.name());
        if let Some(row) = self.calls.all("rotate_credential", rotate).await?.first() {
            return control::info(row).map(Some);
        }
        self.with_key(id, sha256).await
    }

    async fn revoke_credential(&self, id: &str) -> Answer<Option<CredentialInfo>> {
        let revoke = sqlx::query(REVOKE_CREDENTIAL).bind(id.to_owned()).bind(Event::CredentialRevoked.name());
        if let Some(row) = self.calls.all("revoke_credential", revoke).await?.first() {
            return control::info(row).map(Some);
        }
        let query = sqlx::query(concat!("SELECT ", info_columns!(), " FROM credentials WHERE id = $1"));
        self.calls.all("credential", query.bind(id.to_owned())).await?.first().map(control::info).transpose()
    }

    async fn credentials(&self, tenant: Option<&str>, after: &str, limit: usize) -> Answer<Vec<CredentialInfo>> {
        let query = sqlx::query(CREDENTIALS).bind(tenant.map(str::to_owned)).bind(after.to_owned()).bind(limit as i64);
        self.calls.all("credentials", query).await?.iter().map(control::info).collect()
    }

    async fn credential_changes(&self, since: u64, limit: usize) -> Answer<Changes<CredentialChange>> {
        let query = sqlx::query(CREDENTIAL_CHANGES).bind(number(since)).bind(limit as i64);
        control::changes(&self.calls.all("credential_changes", query).await?, control::credential_change)
    }

    async fn set_switch(&self, scope: &Scope, off: bool, why: &str, max: usize) -> Answer<Switched> {
        let (key, tenant, tool, caller) = control::columns(scope);
        let set = sqlx::query(SET_SWITCH)
            .bind(key)
            .bind(tenant.map(str::to_owned))
            .bind(tool.map(str::to_owned))
            .bind(caller)
            .bind(off)
            .bind(why.to_owned())
            .bind(max as i64)
            .bind(Event::SwitchChanged.name())
            .bind(control::reason(off, why));
        let row = self.calls.one("set_switch", set).await?;
        Ok(match (row.int(0)?, row.int(1)?) {
            (Some(1), _) => Switched::Changed,
            (_, Some(1)) => Switched::Full,
            _ => Switched::Same,
        })
    }

    async fn switch_changes(&self, since: u64, limit: usize) -> Answer<Changes<Switch>> {
        let query = sqlx::query(SWITCH_CHANGES).bind(number(since)).bind(limit as i64);
        control::changes(&self.calls.all("switch_changes", query).await?, control::switch)
    }

    async fn open_within(&self, scope: &Scope, limit: u32) -> Answer<Vec<Task>> {
        let (_, tenant, tool, caller) = control::columns(scope);
        let query = sqlx::query(OPEN_WITHIN)
            .bind(tenant.map(str::to_owned))
            .bind(tool.map(str::to_owned))
            .bind(caller)
            .bind(i64::from(limit));
        self.calls.all("open_within", query).await?.iter().map(row::task).collect()
    }

    async fn prune_control(&self, kept: Duration, limit: u32) -> Answer<bool> {
        let query = sqlx::query(PRUNE_CONTROL).bind(micros(kept)).bind(i64::from(limit));
        let row = self.pulse.one("prune_control", query).await?;
        Ok(there(row.long(0)?, "a count")? >= i64::from(limit))
    }
}

impl PostgresStore {
    /// What an earlier try of the same statement has made.
    async fn with_key(&self, id: &str, sha256: &KeyDigest) -> Answer<Option<CredentialInfo>> {
        let query = sqlx::query(concat!("SELECT ", info_columns!(), " FROM credentials WHERE id = $1 AND sha256 = $2"));
        let rows = self.calls.all("credential", query.bind(id.to_owned()).bind(sha256.to_vec())).await?;
        rows.first().map(control::info).transpose()
    }
}

/// A part of a statement that records what another part of it has done.
macro_rules! record_control_event {
    ($select:literal) => {
        concat!(
            "record_control_event AS (INSERT INTO audit_inbox (at, event, tenant, owner, tool, subject, reason) ",
            $select,
            ")"
        )
    };
}

// create_credential
//
// Credentials that are created at the very same time are not counted.
const CREATE_CREDENTIAL: &str = concat!(
    "WITH number AS (UPDATE control_changes SET last = last + 1 WHERE kind = 'credentials' RETURNING last, longhaul_now() AS now),
added AS (
  INSERT INTO credentials (id, tenant, agent, sha256, created_at, expires_at, changed)
  SELECT $1, $2, $3, $4, now, now + $5::bigint, last FROM number WHERE (SELECT count(*) FROM credentials) < $6
  ON CONFLICT (id) DO NOTHING
  RETURNING *
),
",
    record_control_event!("SELECT created_at, $7, tenant, 'agent:' || octet_length(agent) || ':' || agent, NULL, id, NULL FROM added"),
    " SELECT ",
    info_columns!(),
    " FROM added"
);

// rotate_credential
const ROTATE_CREDENTIAL: &str = concat!(
    "WITH number AS (UPDATE control_changes SET last = last + 1 WHERE kind = 'credentials' RETURNING last, longhaul_now() AS now),
rotated AS (
  UPDATE credentials c SET sha256 = $2, former = c.sha256, former_until = least(now + $3::bigint, c.expires_at),
    expires_at = CASE WHEN $4::bigint IS NULL THEN c.expires_at ELSE now + $4 END, rotated_at = now, changed = last
  FROM number
  WHERE c.id = $1 AND c.sha256 <> $2 AND c.revoked_at IS NULL AND (c.expires_at IS NULL OR c.expires_at > now)
  RETURNING c.*
),
",
    record_control_event!("SELECT rotated_at, $5, tenant, 'agent:' || octet_length(agent) || ':' || agent, NULL, id, NULL FROM rotated"),
    " SELECT ",
    info_columns!(),
    " FROM rotated"
);

// revoke_credential
const REVOKE_CREDENTIAL: &str = concat!(
    "WITH number AS (UPDATE control_changes SET last = last + 1 WHERE kind = 'credentials' RETURNING last, longhaul_now() AS now),
revoked AS (
  UPDATE credentials c SET revoked_at = now, changed = last FROM number WHERE c.id = $1 AND c.revoked_at IS NULL
  RETURNING c.*
),
",
    record_control_event!("SELECT revoked_at, $2, tenant, 'agent:' || octet_length(agent) || ':' || agent, NULL, id, NULL FROM revoked"),
    " SELECT ",
    info_columns!(),
    " FROM revoked"
);

// credentials
const CREDENTIALS: &str = concat!(
    "SELECT ",
    info_columns!(),
    " FROM credentials WHERE ($1::text IS NULL OR tenant = $1) AND id > $2 ORDER BY id LIMIT $3"
);

// credential_changes
const CREDENTIAL_CHANGES: &str = concat!(
    "SELECT n.forgotten, ",
    credential_change_columns!(),
    " FROM control_changes n
LEFT JOIN (SELECT * FROM credentials WHERE changed > $1 ORDER BY changed LIMIT $2) c ON true
WHERE n.kind = 'credentials' ORDER BY c.changed"
);

// set_switch
//
// What was never switched off needs no row to be on.
const SET_SWITCH: &str = concat!(
    "WITH number AS (UPDATE control_changes SET last = last + 1 WHERE kind = 'switches' RETURNING last, longhaul_now() AS now),
before AS MATERIALIZED (SELECT off FROM switches WHERE scope = $1),
written AS (
  INSERT INTO switches AS s (scope, tenant, tool, caller, off, why, changed_at, changed)
  SELECT $1, $2, $3, $4, $5, $6, now, last FROM number
  WHERE EXISTS (SELECT FROM before WHERE off) OR ($5 AND (SELECT count(*) FROM switches WHERE off) < $7)
  ON CONFLICT (scope) DO UPDATE
    SET off = excluded.off, why = excluded.why, changed_at = excluded.changed_at, changed = excluded.changed
    WHERE s.off <> excluded.off OR (s.off AND s.why <> excluded.why)
  RETURNING *
),
",
    record_control_event!("SELECT changed_at, $8, coalesce(tenant, ''), caller, tool, scope, $9 FROM written"),
    " SELECT (EXISTS (SELECT FROM written))::int,
  ($5 AND NOT EXISTS (SELECT FROM before WHERE off) AND (SELECT count(*) FROM switches WHERE off) >= $7)::int"
);

// switch_changes
const SWITCH_CHANGES: &str = "
SELECT n.forgotten, s.changed, s.tenant, s.tool, s.caller, s.off::int, s.why, s.changed_at FROM control_changes n
LEFT JOIN (SELECT * FROM switches WHERE changed > $1 ORDER BY changed LIMIT $2) s ON true
WHERE n.kind = 'switches' ORDER BY s.changed";

// open_within
const OPEN_WITHIN: &str = concat!(
    "SELECT ",
    task_columns!("t"),
    " FROM tasks t WHERE t.phase <> 'ended' AND ($1::text IS NULL OR t.tenant = $1) AND ($2::text IS NULL OR t.tool = $2)
  AND ($3::text IS NULL OR t.owner = $3) LIMIT $4"
);

// prune_control
//
// Each kind at most $2 rows.
const PRUNE_CONTROL: &str = "
WITH clock AS MATERIALIZED (SELECT longhaul_now() AS now),
ended AS (
  DELETE FROM credentials WHERE id IN (
    SELECT id FROM credentials, clock WHERE revoked_at <= now - $1 OR expires_at <= now - $1 LIMIT $2
  ) RETURNING changed
),
idle AS (
  DELETE FROM switches WHERE scope IN (SELECT scope FROM switches, clock WHERE NOT off AND changed_at <= now - $1 LIMIT $2)
  RETURNING changed
),
noted AS (
  UPDATE control_changes SET forgotten = greatest(forgotten, CASE kind
    WHEN 'credentials' THEN (SELECT max(changed) FROM ended) ELSE (SELECT max(changed) FROM idle) END)
  WHERE EXISTS (SELECT FROM ended) OR EXISTS (SELECT FROM idle)
)
SELECT greatest((SELECT count(*) FROM ended), (SELECT count(*) FROM idle))";
