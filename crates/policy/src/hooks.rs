//! What the chain asks of parts that have their state elsewhere.

use async_trait::async_trait;
use longhaul_core::{Denied, Principal, Target};
use longhaul_rpc::Error;

use crate::budget::Reservation;

/// Knows what operators have switched off.
pub trait Switch: Send + Sync {
    /// Whether calls of this target by this principal are switched off.
    fn check(&self, principal: &Principal, target: &Target) -> Result<(), Denied>;
}

/// Knows what may still be spent.
#[async_trait]
pub trait Budget: Send + Sync {
    /// Sets aside what a call costs; refused if there is not enough left. Dropped, it is given back.
    async fn reserve(&self, principal: &Principal, target: &Target) -> Result<Reservation, Error>;
}

/// Hears of refusals.
pub trait Record: Send + Sync {
    /// A call was refused, in the trace of this `traceparent`. Never waits.
    fn refused(&self, principal: &Principal, target: &Target, denied: &Denied, traceparent: Option<&str>);
}
