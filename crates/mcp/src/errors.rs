//! The one place where a "no" becomes a JSON-RPC error.

use longhaul_core::{Ending, Refusal, Task};
use serde_json::json;

use crate::jsonrpc::RpcError;
use crate::v2025::status;

/// Error codes. Those of Longhaul lie outside the range that JSON-RPC and MCP keep for themselves.
pub mod code {
    /// Not JSON.
    pub const PARSE: i32 = -32700;
    /// Not a message.
    pub const INVALID_REQUEST: i32 = -32600;
    /// No such method; also a tool called without the task it requires, or with one that it forbids.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// Parameters that make no sense; also a task, tool or cursor that does not exist.
    pub const INVALID_PARAMS: i32 = -32602;
    /// A fault of ours, or a task that was interrupted.
    pub const INTERNAL: i32 = -32603;
    /// A version in the header that we do not speak.
    pub const UNSUPPORTED_VERSION: i32 = -32022;
    /// The wait for a result lapsed; the task goes on.
    pub const WAIT_LAPSED: i32 = -31408;
    /// Refused by a limit.
    pub const LIMIT: i32 = -31429;
    /// The task whose result was asked for was cancelled.
    pub const CANCELLED: i32 = -31499;
}

/// Why a well-formed request gets an error.
#[derive(Debug, Clone, PartialEq)]
pub enum Denial<'a> {
    /// A task says no.
    Refused(Refusal),
    /// There is no such tool.
    UnknownTool(&'a str),
    /// The tool runs as a task only, and the call asked for none.
    TaskRequired,
    /// The tool never runs as a task, and the call asked for one.
    TaskForbidden,
    /// The cursor is not one of ours for this caller, or too old.
    BadCursor,
    /// A caller that takes no stream has waited long enough for this task.
    WaitLapsed {
        /// The task, which goes on.
        task: &'a Task,
        /// How often to ask for it.
        poll_interval_ms: u64,
    },
    /// Something that the answer needs cannot be reached.
    Unavailable,
    /// A fault of ours.
    Fault {
        /// The trace in which operators find it.
        trace_id: Option<&'a str>,
    },
}

impl From<Refusal> for Denial<'_> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Denial<'_> {
    /// The error in MCP 2025-11-25 and before. It goes with HTTP 200.
    pub fn v2025(&self) -> RpcError {
        match self {
            Self::Refused(refusal) => refused(refusal),
            Self::UnknownTool(name) => RpcError::new(code::INVALID_PARAMS, format!("Unknown tool: {name}")),
            Self::TaskRequired => RpcError::new(code::METHOD_NOT_FOUND, "This tool must be called as a task"),
            Self::TaskForbidden => RpcError::new(code::METHOD_NOT_FOUND, "This tool cannot be called as a task"),
            Self::BadCursor => RpcError::new(code::INVALID_PARAMS, "Invalid cursor"),
            Self::WaitLapsed { task, poll_interval_ms } => RpcError::with_data(
                code::WAIT_LAPSED,
                "The task has not ended yet; ask again",
                &json!({ "status": status(task), "pollInterval": poll_interval_ms, "retry": true }),
            ),
            Self::Unavailable => RpcError::new(code::INTERNAL, "Temporarily unavailable; try again"),
            Self::Fault { trace_id: None } => RpcError::new(code::INTERNAL, "Internal error"),
            Self::Fault { trace_id: Some(trace) } => {
                RpcError::with_data(code::INTERNAL, "Internal error", &json!({ "trace_id": trace }))
            }
        }
    }
}

fn refused(refusal: &Refusal) -> RpcError {
    let message = refusal.to_string();
    match refusal {
        Refusal::NotFound | Refusal::Expired => RpcError::new(code::INVALID_PARAMS, message),
        Refusal::AlreadyEnded(ending) => RpcError::new(
            code::INVALID_PARAMS,
            match ending {
                Ending::Result { is_error: false } => "Cannot cancel task: already completed",
                Ending::Cancelled => "Cannot cancel task: already cancelled",
                Ending::Result { is_error: true } | Ending::Error | Ending::Interrupted(_) => {
                    "Cannot cancel task: already failed"
                }
            },
        ),
        Refusal::TaskLimit { .. } => RpcError::with_data(code::LIMIT, message, &json!({ "refused_by": "task_limit" })),
        // Said to workers only: a client that hears it has met a bug.
        Refusal::Fenced => RpcError::new(code::INTERNAL, "Internal error"),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{Interruption, LimitScope};

    use super::*;
    use crate::v2025::tests::task;

    #[test]
    fn every_no_has_its_code_and_its_words() {
        let running = task(longhaul_core::Phase::Queued);
        let ended = |ending| Denial::Refused(Refusal::AlreadyEnded(ending));
        let limit = |scope| Denial::Refused(Refusal::TaskLimit { scope, limit: 20 });
        let by_limit = || Some(json!({ "refused_by": "task_limit" }));
        let cases = [
            (Refusal::NotFound.into(), -32602, "Task not found", None),
            (Refusal::Expired.into(), -32602, "Failed to retrieve task: Task has expired", None),
            (ended(Ending::Result { is_error: false }), -32602, "Cannot cancel task: already completed", None),
            (ended(Ending::Result { is_error: true }), -32602, "Cannot cancel task: already failed", None),
            (ended(Ending::Error), -32602, "Cannot cancel task: already failed", None),
            (ended(Ending::Interrupted(Interruption::Expired)), -32602, "Cannot cancel task: already failed", None),
            (ended(Ending::Cancelled), -32602, "Cannot cancel task: already cancelled", None),
            (limit(LimitScope::Caller), -31429, "too many open tasks (20 at most)", by_limit()),
            (limit(LimitScope::Tenant), -31429, "too many open tasks (20 at most)", by_limit()),
            (Refusal::Fenced.into(), -32603, "Internal error", None),
            (Denial::UnknownTool("x"), -32602, "Unknown tool: x", None),
            (Denial::TaskRequired, -32601, "This tool must be called as a task", None),
            (Denial::TaskForbidden, -32601, "This tool cannot be called as a task", None),
            (Denial::BadCursor, -32602, "Invalid cursor", None),
            (
                Denial::WaitLapsed { task: &running, poll_interval_ms: 1000 },
                -31408,
                "The task has not ended yet; ask again",
                Some(json!({ "status": "working", "pollInterval": 1000, "retry": true })),
            ),
            (Denial::Unavailable, -32603, "Temporarily unavailable; try again", None),
            (Denial::Fault { trace_id: None }, -32603, "Internal error", None),
            (Denial::Fault { trace_id: Some("ab") }, -32603, "Internal error", Some(json!({ "trace_id": "ab" }))),
        ];
        for (denial, code, message, data) in cases {
            let error = denial.v2025();
            assert_eq!((error.code, &*error.message), (code, message), "{denial:?}");
            let got: Option<serde_json::Value> = error.data.map(|data| serde_json::from_slice(&data).unwrap());
            assert_eq!(got, data, "{denial:?}");
        }
    }
}
