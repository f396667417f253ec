//! Gateways over real sockets, a task-store in memory, and a scripted worker behind the real gRPC seam.
#![expect(clippy::unwrap_used, reason = "what a test does not expect fails it")]

mod audit;
mod bad_input;
mod browsers;
mod budgets;
mod calls;
mod client;
mod control;
mod drain;
mod eras;
#[path = "../../../../tests/src/issuer.rs"]
mod issuer;
mod listen;
mod modern;
mod modern_tasks;
mod mrtr;
mod oauth;
mod offers;
mod questions;
mod sessions;
mod tasks;
mod tools;
mod world;
