//! What the task-store asks of a database engine about what operators decide: credentials and switches.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::{Caller, Scope, Task, TenantId, Timestamp};
use longhaul_rpc::{Changes, CredentialChange, CredentialInfo, KeyDigest, NewCredential, Switch, Switched};

use super::row::{TaskRow, moment, there};
use super::{Answer, Fault};

/// As [`Store`](super::Store): every method may be repeated without harm. What changes something is numbered after all that
/// was committed before it, and recorded for the audit log.
#[async_trait]
pub(crate) trait ControlStore {
    /// `None` if there are as many as there may be.
    async fn create_credential(&self, new: &NewCredential, max: usize) -> Answer<Option<CredentialInfo>>;
    /// `None` if there is none of this id that is still accepted.
    async fn rotate_credential(
        &self,
        id: &str,
        sha256: &KeyDigest,
        overlap: Duration,
        expires_in: Option<Duration>,
    ) -> Answer<Option<CredentialInfo>>;
    /// `None` if there is none of this id.
    async fn revoke_credential(&self, id: &str) -> Answer<Option<CredentialInfo>>;
    async fn credentials(&self, tenant: Option<&str>, after: &str, limit: usize) -> Answer<Vec<CredentialInfo>>;
    async fn credential_changes(&self, since: u64, limit: usize) -> Answer<Changes<CredentialChange>>;
    async fn set_switch(&self, scope: &Scope, off: bool, why: &str, max: usize) -> Answer<Switched>;
    async fn switch_changes(&self, since: u64, limit: usize) -> Answer<Changes<Switch>>;
    /// Some tasks within a scope that have not ended.
    async fn open_within(&self, scope: &Scope, limit: u32) -> Answer<Vec<Task>>;
    /// Forgets credentials that ended and switches that were switched on so long ago; of each kind at most `limit`. Answers whether there may be more.
    async fn prune_control(&self, kept: Duration, limit: u32) -> Answer<bool>;
}

/// The columns that [`info`] reads.
macro_rules! info_columns {
    () => {
        "id, tenant, agent, created_at, expires_at, rotated_at, former_until, revoked_at"
    };
}
pub(crate) use info_columns;

pub(crate) fn info(row: &impl TaskRow) -> Answer<CredentialInfo> {
    let later = |at| Ok::<_, Fault>(row.long(at)?.map(Timestamp::from_micros));
    Ok(CredentialInfo {
        id: there(row.text(0)?, "id")?,
        tenant: TenantId::new(there(row.text(1)?, "tenant")?),
        agent: there(row.text(2)?, "agent")?,
        created_at: moment(row, 3)?,
        expires_at: later(4)?,
        rotated_at: later(5)?,
        former_until: later(6)?,
        revoked_at: later(7)?,
    })
}

/// From rows of `forgotten` and the columns of one change each; without changes, of a row without one.
pub(crate) fn changes<R: TaskRow, T>(rows: &[R], one: fn(&R) -> Answer<Option<T>>) -> Answer<Changes<T>> {
    let forgotten = there(there(rows.first(), "a row")?.long(0)?, "a number")? as u64;
    let changes = rows.iter().filter_map(|row| one(row).transpose()).collect::<Result<_, _>>()?;
    Ok(Changes { changes, forgotten })
}

/// The columns that [`credential_change`] reads, after `forgotten`.
macro_rules! credential_change_columns {
    () => {
        "c.changed, c.id, c.tenant, c.agent, c.sha256, c.expires_at, c.former, c.former_until, c.revoked_at"
    };
}
pub(crate) use credential_change_columns;

pub(crate) fn credential_change(row: &impl TaskRow) -> Answer<Option<CredentialChange>> {
    let Some(number) = row.long(1)? else { return Ok(None) };
    let key = |at| {
        let Some(digest) = row.blob(at)? else { return Ok::<_, Fault>(None) };
        let digest: KeyDigest =
            (&*digest).try_into().map_err(|_| Fault::Failed("a digest of another length".into()))?;
        Ok(Some((digest, row.long(at + 1)?.map(Timestamp::from_micros))))
    };
    let keys = match row.long(9)? {
        Some(_revoked) => Vec::new(),
        None => [key(5)?, key(7)?].into_iter().flatten().collect(),
    };
    Ok(Some(CredentialChange {
        number: number as u64,
        id: there(row.text(2)?, "id")?,
        tenant: TenantId::new(there(row.text(3)?, "tenant")?),
        agent: there(row.text(4)?, "agent")?,
        keys,
    }))
}

pub(crate) fn switch(row: &impl TaskRow) -> Answer<Option<Switch>> {
    let Some(number) = row.long(1)? else { return Ok(None) };
    let caller = row.text(4)?.map(|caller| there(Caller::from_owner(&caller), "a caller")).transpose()?;
    Ok(Some(Switch {
        number: number as u64,
        scope: Scope { tenant: row.text(2)?.map(TenantId::new), tool: row.text(3)?, caller },
        off: row.int(5)? == Some(1),
        why: there(row.text(6)?, "why")?,
        changed_at: moment(row, 7)?,
    }))
}

/// A scope as its columns: the whole, then tenant, tool, caller.
pub(crate) fn columns(scope: &Scope) -> (String, Option<&str>, Option<&str>, Option<String>) {
    let Scope { tenant, tool, caller } = scope;
    (scope.key(), tenant.as_ref().map(TenantId::as_str), tool.as_deref(), caller.as_ref().map(Caller::owner))
}

/// What the log says of a switch.
pub(crate) fn reason(off: bool, why: &str) -> String {
    format!("{}: {why}", if off { "off" } else { "on" })
}

/// A change's number as it is stored.
pub(crate) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
