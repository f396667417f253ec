//! Gateways over real sockets, a task-store in memory, and a scripted worker behind the real gRPC seam.
#![expect(clippy::unwrap_used, reason = "what a test does not expect fails it")]

mod audit;
mod bad_input;
mod browsers;
mod calls;
mod client;
mod control;
mod drain;
mod eras;
mod listen;
mod modern;
mod modern_tasks;
mod mrtr;
mod offers;
mod questions;
mod sessions;
mod tasks;
mod tools;
mod world;
