//! Say yes or no to a call, in a fixed order.
//!
//! A call that is let in becomes an [`Admitted`]; only [`Chain::admit`] makes one, and it is the only way to a task or
//! to a worker.

#![warn(missing_docs)]

mod admitted;
pub mod budget;
mod chain;
pub mod follow;
mod glob;
pub mod switch;

pub use admitted::{Admitted, Becoming, How, Wish};
pub use budget::{Budgets, Reservation};
pub use chain::{Call, Chain};
