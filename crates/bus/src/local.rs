//! A bus inside one process.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::metrics::Metrics;
use crate::{Bus, Hint, LocalQuotas, Quotas, UNREAD_MAX};

/// Carries hints between the roles of one process; loses one only to a subscriber that lags.
#[derive(Debug)]
pub struct LocalBus {
    hints: broadcast::Sender<Hint>,
    /// Whether everyone who matters is in this process.
    whole: bool,
    quotas: Arc<LocalQuotas>,
}

impl LocalBus {
    /// A bus of its own: only those who share this value hear each other.
    pub fn new() -> Self {
        Self::of(true)
    }

    /// A bus for a process whose fellows cannot hear it: never healthy, so everyone also reads again on the short timer.
    pub fn alone() -> Self {
        Self::of(false)
    }

    fn of(whole: bool) -> Self {
        Metrics::new("local").connected(whole);
        Self { hints: broadcast::Sender::new(UNREAD_MAX), whole, quotas: Arc::default() }
    }
}

impl Default for LocalBus {
    fn default() -> Self {
        Self::new()
    }
}

impl Bus for LocalBus {
    fn publish(&self, hint: Hint) {
        // An error means that nobody subscribes, which is fine.
        let _ = self.hints.send(hint);
    }

    fn subscribe(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn healthy(&self) -> bool {
        self.whole
    }

    fn quotas(&self) -> Option<Arc<dyn Quotas>> {
        self.whole.then(|| self.quotas.clone() as Arc<dyn Quotas>)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::TaskId;

    use super::*;

    #[test]
    fn every_subscriber_hears_what_is_published_after_it_subscribed() {
        let bus = LocalBus::new();
        let hint = |version| Hint::Task { id: TaskId::from_random(5), version };
        bus.publish(hint(1));
        let mut one = bus.subscribe();
        let mut two = bus.subscribe();
        bus.publish(hint(2));
        for heard in [&mut one, &mut two] {
            assert_eq!(heard.try_recv(), Ok(hint(2)));
            assert_eq!(heard.try_recv(), Err(broadcast::error::TryRecvError::Empty));
        }
        assert!(bus.healthy());
    }

    #[test]
    fn a_subscriber_that_lags_is_told_so_and_hears_the_newest() {
        let bus = LocalBus::new();
        let mut heard = bus.subscribe();
        for version in 0..2 * UNREAD_MAX as u64 {
            bus.publish(Hint::Task { id: TaskId::from_random(5), version });
        }
        assert!(matches!(heard.try_recv(), Err(broadcast::error::TryRecvError::Lagged(_))));
        let mut last = 0;
        while let Ok(Hint::Task { version, .. }) = heard.try_recv() {
            last = version;
        }
        assert_eq!(last, 2 * UNREAD_MAX as u64 - 1);
    }
}
