//! Say yes or no to a call, in a fixed order.
//!
//! A call that is let in becomes an [`Admitted`]; only [`Chain::admit`] makes one, and it is the only way to a task or
//! to a worker.

#![warn(missing_docs)]

mod admitted;
mod chain;
pub mod follow;
pub mod record;
pub mod switch;

pub use admitted::{Admitted, Becoming, How, Wish};
pub use chain::{Call, Chain};
pub use record::Recorder;
