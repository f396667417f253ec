//! State that every replica must agree on and that no task carries.

use async_trait::async_trait;
use longhaul_core::{LogLevel, Timestamp};

use crate::Error;

/// Sessions on one page.
pub const SESSIONS_PAGE: usize = 10_000;
/// Resources that one session subscribes to.
pub const SUBSCRIPTIONS_MAX: usize = 100;

/// The task-store's control state.
#[async_trait]
pub trait Control: Send + Sync {
    /// Remembers that a session has ended, until it would have expired.
    async fn end_session(&self, session: &str, expires_at: Timestamp) -> Result<(), Error>;
    /// Remembers from which level on a session wants log messages.
    async fn set_log_level(&self, session: &str, level: LogLevel, expires_at: Timestamp) -> Result<(), Error>;
    /// What is known of sessions that would not have expired yet: at most [`SESSIONS_PAGE`], in order, strictly after
    /// `after`.
    async fn sessions(&self, after: &str) -> Result<Vec<SessionNote>, Error>;
    /// Begins or ends a session's subscription to a resource; false if it has [`SUBSCRIPTIONS_MAX`] already.
    async fn subscribe(&self, session: &str, uri: &str, subscribed: bool, expires_at: Timestamp)
    -> Result<bool, Error>;
    /// The resources that a session has subscribed to.
    async fn subscriptions(&self, session: &str) -> Result<Vec<String>, Error>;
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
}
