//! What the audit log records of a task; never its arguments, results or answers.

use crate::task::Ending;

/// A recorded transition.
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
