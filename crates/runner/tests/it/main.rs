//! Wrapped servers, from the gateway's and the task-store's side: real gRPC, real processes, real HTTP.

#![expect(clippy::unwrap_used, reason = "what a test does not expect fails it")]

mod everything;
mod http;
mod modern;
mod offers;
mod questions;
mod sessions;
mod stdio;
mod world;
