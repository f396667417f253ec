//! Pauses between tries.

use std::time::Duration;

/// The first pause.
const MIN: Duration = Duration::from_millis(50);
/// The longest.
const MAX: Duration = Duration::from_secs(2);

/// Each pause is twice the one before.
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(MIN)
    }
}

impl Backoff {
    pub(crate) async fn wait(&mut self) {
        let pause = self.0;
        self.0 = (pause * 2).min(MAX);
        tokio::time::sleep(pause).await;
    }

    /// What was tried held for so long: if that is longer than any pause, the next one is the first again.
    pub(crate) fn lasted(&mut self, so_long: Duration) {
        if so_long > MAX {
            *self = Self::default();
        }
    }
}
