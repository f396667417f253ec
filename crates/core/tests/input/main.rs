//! The rules for what people are asked and for what they answer, held against independent witnesses.

#![expect(clippy::unwrap_used, reason = "what a test does not expect fails it")]

mod answers;
mod forms;
mod fuzz;
mod secrets;
mod urls;
mod witness;
