//! State that every replica must agree on and that no task carries.

use async_trait::async_trait;
use longhaul_core::Timestamp;

use crate::Error;

/// Ended sessions on one page.
pub const ENDED_SESSIONS_PAGE: usize = 10_000;

/// The task-store's control state.
#[async_trait]
pub trait Control: Send + Sync {
    /// Remembers that a session has ended, until it would have expired.
    async fn end_session(&self, session: &str, expires_at: Timestamp) -> Result<(), Error>;
    /// The sessions that ended and would not have expired yet: at most [`ENDED_SESSIONS_PAGE`], in order, strictly after
    /// `after`.
    async fn ended_sessions(&self, after: &str) -> Result<Vec<String>, Error>;
}
