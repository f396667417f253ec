//! The worker SDK: let anyone write a tool in 20 lines.
//!
//! ```no_run
//! use std::time::Duration;
//! use longhaul_worker::{Answer, Config, Context, Error, Tool, Worker};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Countdown {
//!     /// From here to zero.
//!     seconds: u32,
//! }
//!
//! # async fn start(drain: tokio_util::sync::CancellationToken) -> Result<(), Error> {
//! let countdown = Tool::new("countdown", async |context: Context, Countdown { seconds }| {
//!     for left in (1..=seconds).rev() {
//!         context.set_status_message(format!("{left} s left")).await?;
//!         tokio::time::sleep(Duration::from_secs(1)).await;
//!     }
//!     Ok(Answer::text("lift-off"))
//! })
//! .description("Counts down to zero.")
//! .timeout(Duration::from_secs(3600));
//!
//! // Without `listen` it takes tasks only, and gateways refuse plain calls of its tools.
//! let config = Config::connect("http://127.0.0.1:50051", "a-token-of-16-characters-or-more")?
//!     .listen(([127, 0, 0, 1], 50060).into())
//!     .await?;
//! Worker::new(config).tool(countdown).run(drain).await
//! # }
//! ```
//!
//! The same function serves a call that is a durable task and one that is not: [`Context`] is the same for both. A
//! [`Tool`] says what it takes, an [`Answer`] or a [`Failure`] what comes of it, a [`Worker`] runs it. A panic, a time
//! limit or a lost connection ends one run and never the worker.
//!
//! A worker is part of the system, not of its outside: whoever has the service token may claim every tenant's tasks.

#![warn(missing_docs)]

mod answer;
mod backoff;
mod calls;
mod context;
pub mod demo;
mod json;
mod leases;
mod metrics;
mod pump;
mod run;
mod tool;
mod tools;
mod worker;

pub use answer::{Answer, Failure};
pub use context::{Context, Ended, Status, TaskHandle};
pub use leases::Liveness;
pub use longhaul_core::{Caller, Ending, Interruption, Principal, TaskId, TaskSupport, TenantId, Timestamp};
pub use longhaul_rpc::client::Target;
pub use longhaul_rpc::{Links, Listener, ServiceToken};
pub use tool::{NoArguments, Tool};
pub use tools::Tools;
pub use worker::{Config, Listening, Worker};

/// Why a worker cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tool cannot be offered.
    #[error("tool {name:?}: {why}")]
    Tool {
        /// The tool.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The task-store cannot be asked, or calls cannot be taken.
    #[error(transparent)]
    Rpc(#[from] longhaul_rpc::Error),
    /// The operating system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(String),
}

/// 128 random bits, in hexadecimal.
fn random() -> Result<String, Error> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| Error::Random(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}
