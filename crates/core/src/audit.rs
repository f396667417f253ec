//! What the audit log records; never arguments, results, answers or keys.

mod chain;

use std::time::Duration;

use crate::id::TaskId;
use crate::principal::Principal;
use crate::refusal::Check;
use crate::task::Ending;
use crate::tool::Target;

pub use chain::{Broken, Entry, Hash, Link, NotAHash, Sealed, Walk};

/// A recorded event: this is the closed list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// `mcp.task.created`
    Created,
    /// `mcp.task.input_required`
    InputRequired,
    /// `mcp.task.input_answered`
    InputAnswered,
    /// `mcp.task.completed`
    Completed,
    /// `mcp.task.failed`
    Failed,
    /// `mcp.task.cancelled`
    Cancelled,
    /// `mcp.task.retrieved`: what came of a task went out to its owner for the first time.
    Retrieved,
    /// `mcp.call.refused`
    CallRefused,
    /// `mcp.switch.changed`
    SwitchChanged,
    /// `mcp.credential.created`
    CredentialCreated,
    /// `mcp.credential.rotated`
    CredentialRotated,
    /// `mcp.credential.revoked`
    CredentialRevoked,
}

impl Event {
    /// The event's name in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "mcp.task.created",
            Self::InputRequired => "mcp.task.input_required",
            Self::InputAnswered => "mcp.task.input_answered",
            Self::Completed => "mcp.task.completed",
            Self::Failed => "mcp.task.failed",
            Self::Cancelled => "mcp.task.cancelled",
            Self::Retrieved => "mcp.task.retrieved",
            Self::CallRefused => "mcp.call.refused",
            Self::SwitchChanged => "mcp.switch.changed",
            Self::CredentialCreated => "mcp.credential.created",
            Self::CredentialRotated => "mcp.credential.rotated",
            Self::CredentialRevoked => "mcp.credential.revoked",
        }
    }

    /// The event that records an ending. A tool error counts as failed, as in MCP 2025-11-25.
    pub const fn of(ending: Ending) -> Self {
        match ending {
            Ending::Result { is_error: false } => Self::Completed,
            Ending::Result { is_error: true } | Ending::Error | Ending::Interrupted(_) => Self::Failed,
            Ending::Cancelled => Self::Cancelled,
        }
    }
}

/// What is recorded apart from any change of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// What came of an ended task went out to its owner. The log has only the first time.
    Retrieved(TaskId),
    /// Calls were refused.
    Refused(Refused),
}

/// Refusals of the same calls by the same check within a short time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Whose calls.
    pub principal: Principal,
    /// Calls of what, as [`called`] names it.
    pub called: String,
    /// What was against them.
    pub by: RefusedBy,
    /// The trace of the first of them: 32 hex digits.
    pub trace_id: Option<String>,
    /// How many.
    pub times: u32,
    /// How long ago the first of them was: the database's clock decides when that is.
    pub ago: Duration,
}

/// What can be against a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusedBy {
    /// A check of the admission chain.
    Check(Check),
    /// The limits on open tasks.
    TaskLimit,
}

impl RefusedBy {
    /// Its stable name, as clients read it in `refused_by`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Check(check) => check.name(),
            Self::TaskLimit => "task_limit",
        }
    }

    /// Reads a name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "task_limit" => Some(Self::TaskLimit),
            check => Check::from_name(check).map(Self::Check),
        }
    }
}

/// How the log names what was called: a tool by its name, anything else by its method, because a URI is an argument.
pub fn called(target: &Target) -> &str {
    match target {
        Target::Tool(name) => name,
        Target::Prompt(_) | Target::Resource(_) | Target::CompletePrompt(_) | Target::CompleteTemplate(_) => {
            target.method()
        }
    }
}
