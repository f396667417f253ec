//! State that every replica must agree on and that no task carries.

use std::time::Duration;

use async_trait::async_trait;
use longhaul_core::audit::Sealed;
use longhaul_core::{BudgetKey, LogLevel, Principal, Scope, TenantId, Timestamp};

use crate::Error;
use crate::audit::{AuditChain, AuditRange, Batch};
use crate::budgets::{BudgetLease, BudgetReturn, BudgetState, BudgetWish};
use crate::credentials::{CredentialChange, CredentialInfo, KeyDigest, NewCredential};
use crate::switches::{Switch, Switched};

/// Sessions of one caller of which something is remembered. Those that expire make room; some at once may be over it.
pub const SESSION_NOTES_MAX: usize = 10_000;
/// Sessions on one page.
pub const SESSIONS_PAGE: usize = 10_000;
/// Resources that one session subscribes to.
pub const SUBSCRIPTIONS_MAX: usize = 100;

/// The task-store's control state.
#[async_trait]
pub trait Control: Send + Sync {
    /// Remembers that a caller's session has ended, until it would have expired; false if so much is remembered of other
    /// sessions of its that there is no room ([`SESSION_NOTES_MAX`]).
    async fn end_session(&self, owner: &Principal, session: &str, expires_at: Timestamp) -> Result<bool, Error>;
    /// Remembers from which level on a caller's session wants log messages; false if there is no room.
    async fn set_log_level(
        &self,
        owner: &Principal,
        session: &str,
        level: LogLevel,
        expires_at: Timestamp,
    ) -> Result<bool, Error>;
    /// What is known of sessions that would not have expired yet: at most [`SESSIONS_PAGE`], those that changed first at
    /// the front, strictly after `after`. A change that is being made may come to lie before one that is there already, by
    /// as long as a statement takes.
    async fn sessions(&self, after: &SessionPosition) -> Result<Vec<SessionNote>, Error>;
    /// Begins or ends a session's subscription to a resource; false if it has [`SUBSCRIPTIONS_MAX`] already.
    async fn subscribe(&self, session: &str, uri: &str, subscribed: bool, expires_at: Timestamp)
    -> Result<bool, Error>;
    /// The resources that a session has subscribed to.
    async fn subscriptions(&self, session: &str) -> Result<Vec<String>, Error>;

    /// Adds to the audit log what no change of a task records. The same batch again changes nothing.
    async fn record(&self, batch: Batch) -> Result<(), Error>;
    /// The chains of the audit log: at most [`CHAINS_PAGE`](crate::CHAINS_PAGE), by tenant, `from` this one on.
    async fn audit_chains(&self, from: Option<&TenantId>) -> Result<Vec<AuditChain>, Error>;
    /// The first rows of a range of a chain: at most [`AUDIT_PAGE`](crate::AUDIT_PAGE), in order.
    async fn audit_rows(&self, range: AuditRange) -> Result<Vec<Sealed>, Error>;

    /// Stores a credential; `None` if there are [`CREDENTIALS_MAX`](crate::CREDENTIALS_MAX).
    async fn create_credential(&self, new: NewCredential) -> Result<Option<CredentialInfo>, Error>;
    /// Gives a credential another key, and the former one so much longer; the one before that ends. `None` if there is no
    /// such credential that is still accepted. `expires_in` is how long it is accepted from now; `None` leaves that.
    async fn rotate_credential(
        &self,
        id: &str,
        sha256: KeyDigest,
        overlap: Duration,
        expires_in: Option<Duration>,
    ) -> Result<Option<CredentialInfo>, Error>;
    /// Ends a credential; `None` if there is none of this id.
    async fn revoke_credential(&self, id: &str) -> Result<Option<CredentialInfo>, Error>;
    /// The credentials of a tenant, or of all: at most [`CREDENTIALS_PAGE`](crate::CREDENTIALS_PAGE), by id, strictly after
    /// `after`.
    async fn credentials(&self, tenant: Option<&str>, after: &str) -> Result<Vec<CredentialInfo>, Error>;
    /// What became of credentials after this change: at most [`CREDENTIALS_PAGE`](crate::CREDENTIALS_PAGE), in the order of
    /// the changes.
    async fn credential_changes(&self, since: u64) -> Result<Changes<CredentialChange>, Error>;
    /// Switches the calls within exactly this scope off, or on again.
    async fn set_switch(&self, scope: &Scope, off: bool, why: &str) -> Result<Switched, Error>;
    /// What became of switches after this change: at most [`SWITCHES_PAGE`](crate::SWITCHES_PAGE), in the order of the
    /// changes.
    async fn switch_changes(&self, since: u64) -> Result<Changes<Switch>, Error>;
    /// Cancels some of the open tasks within a scope.
    async fn stop_running(&self, scope: &Scope) -> Result<Stopped, Error>;
    /// Leases slices of budgets, at most [`BUDGET_LEASES_MAX`](crate::BUDGET_LEASES_MAX): one answer per wish, in order.
    async fn lease_budget(&self, wishes: Vec<BudgetWish>) -> Result<Vec<BudgetLease>, Error>;
    /// Gives back what was not used of leased slices, at most [`BUDGET_LEASES_MAX`](crate::BUDGET_LEASES_MAX) of them.
    async fn return_budget(&self, returns: Vec<BudgetReturn>) -> Result<(), Error>;
    /// How budgets stand in their present windows: at most [`BUDGETS_PAGE`](crate::BUDGETS_PAGE), in order, strictly after
    /// `after`; of those that nobody has drawn on there is nothing.
    async fn budgets(&self, after: Option<BudgetKey>) -> Result<Vec<BudgetState>, Error>;
}

/// What has changed, in order; a full page means that there is more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes<T> {
    /// The changes; of one thing only the last.
    pub changes: Vec<T>,
    /// Up to this number some are no longer known: whoever has seen less, but something, reads everything again.
    pub forgotten: u64,
}

/// What a batch of cancellations did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Tasks cancelled.
    pub stopped: u64,
    /// There may be more.
    pub more: bool,
}

/// What is remembered of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionNote {
    /// Its tag.
    pub session: String,
    /// Whether it has ended.
    pub ended: bool,
    /// The least level of log messages that it wants, if it said.
    pub log_level: Option<LogLevel>,
    /// When this was last changed, by the task-store's clock.
    pub changed_at: Timestamp,
}

/// A place among [`SessionNote`]s.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionPosition {
    /// When the note was changed.
    pub changed_at: Timestamp,
    /// Its session.
    pub session: String,
}

impl SessionPosition {
    /// Before all that have changed since then.
    pub fn since(moment: Timestamp) -> Self {
        Self { changed_at: moment, session: String::new() }
    }

    /// Before all.
    pub fn first() -> Self {
        Self::since(Timestamp::from_micros(i64::MIN))
    }
}

impl From<&SessionNote> for SessionPosition {
    fn from(note: &SessionNote) -> Self {
        Self { changed_at: note.changed_at, session: note.session.clone() }
    }
}
