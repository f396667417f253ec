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
//! # Asking the caller
//!
//! A run may ask its caller to fill in a form, or to open a page ([`Ask`]). It waits for as long as that takes, in a task
//! as in a plain call, without a slot; its time limit stands still meanwhile.
//!
//! ```
//! use longhaul_worker::{Answer, Ask, Context, Failure, NoArguments, Response, Tool};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Trip {
//!     /// Where to.
//!     town: String,
//!     seats: u8,
//!     by_night: Option<bool>,
//! }
//!
//! let book = Tool::new("book", async |context: Context, _: NoArguments| {
//!     let trip: Trip = match context.request_input(Ask::form_of::<Trip>("Which trip?")).await? {
//!         Response::Accept(content) => content.parse()?,
//!         Response::Decline | Response::Cancel | Response::Result(_) => return Err(Failure::tool("no trip")),
//!     };
//!     Ok(Answer::text(format!("{} seats to {}", trip.seats, trip.town)))
//! });
//! ```
//!
//! [`Context::request_inputs`] asks several things at once, and [`Tool::on_input`] hears of each answer as it comes. A
//! question counts as declined if its caller cannot be asked it ([`Context::client`]), if it must not be shown, or if it is
//! not answered in time. Ask for no secret by a form: have a page opened ([`Ask::url`]). A plain call may besides ask the
//! client's model ([`Ask::sample`]) and for its roots ([`Ask::roots`]). Answers are never logged.
//!
//! # Becoming a task
//!
//! Where the client leaves it open, a tool that [`decides`](Tool::decides) begins as a plain call, and goes on as a task
//! once it knows that it will take long:
//!
//! ```
//! # use longhaul_worker::{Answer, Context, NoArguments, Tool};
//! let report = Tool::new("report", async |context: Context, _: NoArguments| {
//!     if let Some(task) = context.become_task().await? {
//!         // The caller has been told of the task, and need not wait.
//!         context.set_status_message(format!("working on {}", task.id)).await?;
//!     }
//!     Ok(Answer::text("…"))
//! })
//! .decides();
//! ```
//!
//! # Prompts and resources
//!
//! A worker offers [`Prompt`]s and [`Resource`]s besides, and completes their arguments; they are functions of plain calls,
//! with the same [`Context`].
//!
//! ```no_run
//! # use std::collections::HashMap;
//! # use longhaul_worker::{Config, Contents, Messages, Prompt, Resource, Worker};
//! #[derive(serde::Deserialize)]
//! struct Greeting {
//!     name: String,
//! }
//!
//! # fn worker(config: Config) -> Worker {
//! let greeting = Prompt::new("greeting", async |_, Greeting { name }| Ok(Messages::new().user(format!("Greet {name}."))))
//!     .argument("name", "Whom to greet", true);
//! let row = Resource::template("db://{table}/{id}", "row", async |_, row: HashMap<String, String>| {
//!     Ok(Contents::text(format!("row {} of {}", row["id"], row["table"])))
//! });
//! let worker = Worker::new(config).prompt(greeting).resource(row);
//! // Whoever watches this one hears of it.
//! worker.resources().updated("db://towns/7");
//! # worker
//! # }
//! ```
//!
//! A worker is part of the system, not of its outside: whoever has the service token may claim every tenant's tasks.

#![warn(missing_docs)]

mod answer;
mod ask;
mod asking;
mod backoff;
mod calls;
mod closing;
mod collect;
mod completion;
mod context;
mod definition;
pub mod demo;
mod form;
mod function;
mod journal;
mod json;
mod leases;
mod line;
mod metrics;
mod part;
mod prompt;
mod pump;
mod resolve;
mod resource;
mod run;
mod seat;
mod template;
mod tool;
mod tools;
mod updates;
mod worker;

pub use answer::{Answer, Failure};
pub use ask::{Ask, Content, ContentError, InputError, Response};
pub use context::{Context, Ended, Status, TaskHandle};
pub use journal::JournalError;
pub use leases::Liveness;
pub use longhaul_core::{
    Caller, ClientCapabilities, Ending, Interruption, LogLevel, OnInterrupt, Principal, TaskId, TaskSupport, TenantId,
    Timestamp,
};
pub use longhaul_rpc::client::Target;
pub use longhaul_rpc::{Links, Listener, ServiceToken};
pub use prompt::{Messages, Prompt, Role};
pub use resolve::{Resolver, SystemResolver};
pub use resource::{Contents, Resource};
pub use tool::{NoArguments, Tool};
pub use tools::{Offer, Tools};
pub use updates::Resources;
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
    /// A prompt cannot be offered.
    #[error("prompt {name:?}: {why}")]
    Prompt {
        /// The prompt.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A resource, or a family of them, cannot be offered.
    #[error("resource {uri:?}: {why}")]
    Resource {
        /// Its URI, or URI template.
        uri: String,
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
