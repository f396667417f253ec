//! A bus that carries nothing.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::metrics::Metrics;
use crate::{Bus, Hint, Quotas};

/// Drops every hint and says so: proves that hints only make things faster.
#[derive(Debug)]
pub struct DeafBus {
    // Held so that subscribers wait for ever instead of hearing that the bus has closed.
    silence: broadcast::Sender<Hint>,
}

impl DeafBus {
    /// A bus that nobody hears.
    pub fn new() -> Self {
        Metrics::new("deaf").connected(false);
        Self { silence: broadcast::Sender::new(1) }
    }
}

impl Default for DeafBus {
    fn default() -> Self {
        Self::new()
    }
}

impl Bus for DeafBus {
    fn publish(&self, _hint: Hint) {}

    fn subscribe(&self) -> broadcast::Receiver<Hint> {
        self.silence.subscribe()
    }

    fn healthy(&self) -> bool {
        false
    }

    fn quotas(&self) -> Option<Arc<dyn Quotas>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Control;

    #[test]
    fn nothing_is_heard_and_the_bus_does_not_claim_otherwise() {
        let bus = DeafBus::new();
        let mut heard = bus.subscribe();
        bus.publish(Hint::Control(Control::Tools));
        assert_eq!(heard.try_recv(), Err(broadcast::error::TryRecvError::Empty));
        assert!(!bus.healthy());
    }
}
