//! Tell other replicas that something changed.
//!
//! The bus carries hints, never truth: one may be lost, late, doubled or out of order, and only latency changes. Whoever
//! hears a hint reads again; whoever hears nothing reads again on a timer.

#![warn(missing_docs)]

mod deaf;
mod hint;
mod local;
mod metrics;
mod quotas;
mod redis;
mod wire;

pub use deaf::DeafBus;
pub use hint::{Control, Hint};
pub use local::LocalBus;
pub use quotas::{Grant, LocalQuotas, QuotaError, Quotas, WISHES_MAX, Wish};
pub use redis::{RedisBus, RedisBusError};

use std::sync::Arc;

use tokio::sync::broadcast;

/// Hints that one subscriber has not read yet; beyond them it hears that it missed some ([`broadcast::error::RecvError::Lagged`]).
pub const UNREAD_MAX: usize = 16 * 1024;

/// Publishes and hears hints.
pub trait Bus: Send + Sync {
    /// Tells everyone, without waiting: a hint that cannot be sent is dropped and counted.
    fn publish(&self, hint: Hint);
    /// Hears every hint from now on, one's own included. A lagging subscriber must read everything again.
    fn subscribe(&self) -> broadcast::Receiver<Hint>;
    /// Whether hints are believed to arrive: tells how often to read again without one.
    fn healthy(&self) -> bool;
    /// What replicas count together; none if there is nothing that they share.
    fn quotas(&self) -> Option<Arc<dyn Quotas>>;
}
