//! How long a stream may go on.

use longhaul_core::Timestamp;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Streams that may last longer than this have no timer.
const TIMED_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// When a stream ends although there may be more to tell: with its gateway, or with the token that opened it.
#[derive(Clone)]
pub(crate) struct Until {
    drain: CancellationToken,
    expires: Option<Instant>,
}

impl Until {
    /// `expires_at`: when the token expires, if it does.
    pub(crate) fn new(drain: &CancellationToken, now: Timestamp, expires_at: Option<Timestamp>) -> Self {
        let left = |end: Timestamp| u64::try_from(end.as_micros().saturating_sub(now.as_micros())).unwrap_or_default();
        let expires = expires_at.map(|end| Duration::from_micros(left(end))).filter(|left| *left < TIMED_MAX);
        Self { drain: drain.clone(), expires: expires.map(|left| Instant::now() + left) }
    }

    /// Waits for the end of the gateway or of the token.
    pub(crate) async fn over(self) {
        let drain = self.drain.clone();
        tokio::select! {
            () = drain.cancelled() => {}
            () = self.expired() => {}
        }
    }

    /// Waits for the end of the token.
    pub(crate) async fn expired(self) {
        match self.expires {
            Some(end) => tokio::time::sleep_until(end).await,
            None => std::future::pending().await,
        }
    }
}
