//! What a client is told, said in no dialect.

use bytes::Bytes;
use longhaul_core::{Outcome, Task, TaskId};

/// The answer to a [`Request`](crate::Request) that was not refused.
#[derive(Debug, Clone, Copy)]
pub enum Reply<'a> {
    /// A session is open.
    Hello(Welcome<'a>),
    /// Here.
    Pong,
    /// One page of tools.
    Tools {
        /// Each as [`v2025::tool`](crate::v2025::tool) made it.
        tools: &'a [Bytes],
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
    /// How the task is; also the answer to a cancel.
    Task {
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
    CallOutcome(&'a Outcome),
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
    /// Whether it will say that the list of tools has changed.
    pub tools_list_changed: bool,
    /// Whether calls may become tasks; only said in dialects that know them.
    pub tasks: bool,
}
