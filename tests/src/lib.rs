//! The harness: clients of `/mcp`, the whole system in this process, and the real binary as processes.
#![expect(clippy::unwrap_used, reason = "a broken harness may as well panic")]

pub mod capture;
pub mod certificates;
pub mod client;
pub mod database;
pub mod issuer;
pub mod modern;
pub mod processes;
pub mod schema;
pub mod services;
pub mod world;
