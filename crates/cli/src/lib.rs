//! Compose roles into processes: config, telemetry, start-up, drain, and `longhaul dev`.

pub mod admission;
mod audit;
pub mod budgets;
pub mod callers;
pub mod check;
pub mod compose;
pub mod config;
mod credentials;
mod dev;
pub mod keys;
pub mod management;
pub mod role;
pub mod services;
pub mod shutdown;
mod switch;
pub mod telemetry;
