//! What a client is told, said in no dialect.

use bytes::Bytes;
use longhaul_core::{InputRequest, Outcome, Target, Task, TaskId};

use crate::request::Listing;

/// What we call ourselves.
pub const SERVER_NAME: &str = "longhaul";
/// Our version.
pub const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The answer to a [`Request`](crate::Request) that was not refused.
#[derive(Debug, Clone, Copy)]
pub enum Reply<'a> {
    /// A session is open.
    Hello(Welcome<'a>),
    /// This is what we can do.
    Discovered(Welcome<'a>),
    /// Done; there is nothing to say.
    Done,
    /// One page of a list.
    Page {
        /// Which list.
        listing: Listing,
        /// Each as [`listed`](crate::listed) made it.
        items: &'a [Bytes],
        /// Where the page ends, sealed, if there is more.
        next_cursor: Option<&'a str>,
    },
    /// The call became this task.
    Created {
        /// The task.
        task: &'a Task,
        /// How often to ask for it.
        poll_interval_ms: u64,
    },
    /// How the task is.
    Task {
        /// The task.
        task: &'a Task,
        /// Its outcome if it has ended, for the dialect that tells both at once (2026-07-28).
        outcome: Option<&'a Outcome>,
        /// How often to ask for it.
        poll_interval_ms: u64,
    },
    /// The task was cancelled, or had ended before.
    Cancelled {
        /// The task.
        task: &'a Task,
        /// How often to ask for it.
        poll_interval_ms: u64,
    },
    /// One page of tasks.
    Tasks {
        /// The tasks, newest first.
        tasks: &'a [Task],
        /// How often to ask for one of them.
        poll_interval_ms: u64,
        /// Where the page ends, sealed, if there is more.
        next_cursor: Option<&'a str>,
    },
    /// What came of a task.
    TaskOutcome {
        /// The task.
        task: TaskId,
        /// Its outcome.
        outcome: &'a Outcome,
    },
    /// What came of a call that is not a task.
    CallOutcome {
        /// What was called.
        target: &'a Target,
        /// What came of it.
        outcome: &'a Outcome,
    },
    /// The call needs this of its caller, who is to come back with it (2026-07-28).
    InputRequired {
        /// What.
        requests: &'a [InputRequest],
        /// What to come back with, sealed.
        state: &'a str,
    },
    /// A subscription ends, for this reason alone that there is no more to tell or that we shut down (2026-07-28).
    ListenEnded,
}

/// What the gateway says of itself.
#[derive(Debug, Clone, Copy)]
pub struct Welcome<'a> {
    /// The server's name.
    pub name: &'a str,
    /// The server's version.
    pub version: &'a str,
    /// A hint for models.
    pub instructions: Option<&'a str>,
    /// What it serves.
    pub features: Features,
}

/// What is served. What is not is an unknown method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Whether calls may become tasks; only said in dialects that know them.
    pub tasks: bool,
    /// Whether there are prompts.
    pub prompts: bool,
    /// Whether there are resources or templates.
    pub resources: bool,
    /// Whether arguments can be completed.
    pub completions: bool,
}
