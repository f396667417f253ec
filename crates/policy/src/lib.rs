//! Say yes or no to a call, in a fixed order.
//!
//! A call that is let in becomes an [`Admitted`]; only [`Chain::admit`] makes one, and it is the only way to a task or
//! to a worker. The order is one array in `chain.rs`: kill switch, rate limits, Cedar policies, budgets, data policies,
//! guardrails. Each is decided from what this process has in its hands; only the external guardrail is waited for.

#![warn(missing_docs)]

mod admitted;
pub mod budget;
pub mod cedar;
mod chain;
pub mod data;
mod files;
pub mod follow;
pub mod glob;
pub mod guardrails;
mod hooks;
mod json;
mod metrics;
pub mod rates;
pub mod record;
pub mod switch;

pub use admitted::{Admitted, Becoming, How, Wish};
pub use budget::{Budgets, Reservation};
pub use chain::{Aim, Call, Chain, Checks, Source};
pub use hooks::{Budget, Record, Switch};
pub use longhaul_rpc::Error;
pub use record::Recorder;
