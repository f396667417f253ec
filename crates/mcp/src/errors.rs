//! The one place where a "no" becomes a JSON-RPC error.

use longhaul_core::{CallError, Check, ClientCapabilities, Denied, Ending, Outcome, Refusal, Task};
use serde_json::{Value, json};

use crate::dialect::Dialect;
use crate::json::{self, Object};
use crate::jsonrpc::RpcError;
use crate::v2025::status;

/// Error codes. Those of Longhaul lie outside the range that JSON-RPC and MCP keep for themselves.
pub mod code {
    /// Not JSON.
    pub const PARSE: i32 = -32700;
    /// Not a message.
    pub const INVALID_REQUEST: i32 = -32600;
    /// No such method; before 2026-07-28 also a tool called without the task it requires, or with one that it forbids.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// Parameters that make no sense; also a task, tool, prompt or cursor that does not exist.
    pub const INVALID_PARAMS: i32 = -32602;
    /// A fault of ours, or a task that was interrupted.
    pub const INTERNAL: i32 = -32603;
    /// A resource that does not exist; before 2026-07-28 only.
    pub const RESOURCE_NOT_FOUND: i32 = -32002;
    /// A header that is missing, malformed or unlike the body (2026-07-28).
    pub const HEADER_MISMATCH: i32 = -32020;
    /// The client has not declared what the request needs (2026-07-28).
    pub const MISSING_CAPABILITY: i32 = -32021;
    /// A version that we do not speak.
    pub const UNSUPPORTED_VERSION: i32 = -32022;
    /// The wait for a result lapsed; the task goes on.
    pub const WAIT_LAPSED: i32 = -31408;
    /// Refused by a check of the admission chain.
    pub const REFUSED: i32 = -31403;
    /// Refused by a limit.
    pub const LIMIT: i32 = -31429;
    /// The task whose result was asked for was cancelled.
    pub const CANCELLED: i32 = -31499;
}

/// Says in the `_meta` of a result that stands for another why that cannot be seen.
const WITHHELD: &str = "longhaul/withheld";

/// The name of the tasks extension (2026-07-28).
pub(crate) const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The HTTP status that goes with a JSON-RPC response. In 2026-07-28 a client reads 400 as "may be no modern server": it is
/// for what the specification asks it for and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// 200
    Ok,
    /// 400
    BadRequest,
    /// 404
    NotFound,
}

/// A "no" on its way to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The HTTP status that it goes with.
    pub status: Status,
    /// What the client reads.
    pub error: RpcError,
}

impl From<RpcError> for Rejection {
    fn from(error: RpcError) -> Self {
        Self { status: Status::Ok, error }
    }
}

/// Why a well-formed request gets an error.
#[derive(Debug, Clone, PartialEq)]
pub enum Denial<'a> {
    /// A task says no.
    Refused(Refusal),
    /// There is no such method, or what it needs is not served.
    UnknownMethod,
    /// There is no such tool.
    UnknownTool(&'a str),
    /// There is no such prompt.
    UnknownPrompt(&'a str),
    /// There is no resource of this URI.
    UnknownResource(&'a str),
    /// The tool runs as a task only, and the call asked for none, or its caller cannot take one.
    TaskRequired,
    /// The tool never runs as a task, and the call asked for one.
    TaskForbidden,
    /// The caller has not declared the tasks extension, which the request needs.
    TasksUndeclared,
    /// The caller has not declared this, without which the call makes no sense.
    MissingCapability(ClientCapabilities),
    /// The cursor is not one of ours for this caller, or too old.
    BadCursor,
    /// The `requestState` is not one of ours for this caller and call, or too old.
    BadState,
    /// The call that the `requestState` names no longer waits for its caller.
    RunLost,
    /// A header is not as the body wants it; says which and how.
    BadHeader(&'static str),
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
    /// The error, and the HTTP status that it goes with, in a dialect.
    pub fn reject(&self, dialect: Dialect) -> Rejection {
        let modern = dialect.is_modern();
        let error = self.error(modern);
        // In 2026-07-28 it follows from the code (basic/transports/streamable-http).
        let status = match error.code {
            code::METHOD_NOT_FOUND if modern => Status::NotFound,
            code::HEADER_MISMATCH | code::MISSING_CAPABILITY => Status::BadRequest,
            _ => Status::Ok,
        };
        Rejection { status, error }
    }

    fn error(&self, modern: bool) -> RpcError {
        match self {
            Self::Refused(refusal) => refused(refusal),
            Self::UnknownMethod => RpcError::new(code::METHOD_NOT_FOUND, "Method not found"),
            Self::UnknownTool(name) => RpcError::new(code::INVALID_PARAMS, format!("Unknown tool: {name}")),
            Self::UnknownPrompt(name) => RpcError::new(code::INVALID_PARAMS, format!("Unknown prompt: {name}")),
            Self::UnknownResource(uri) => {
                let code = if modern { code::INVALID_PARAMS } else { code::RESOURCE_NOT_FOUND };
                RpcError::with_data(code, "Resource not found", &json!({ "uri": uri }))
            }
            Self::TaskRequired if modern => missing("This tool runs as a task only", &tasks_extension()),
            Self::TaskRequired => RpcError::new(code::METHOD_NOT_FOUND, "This tool must be called as a task"),
            // A modern call has no way to ask for a task.
            Self::TaskForbidden if modern => {
                RpcError::new(code::INVALID_PARAMS, "This tool cannot be called as a task")
            }
            Self::TaskForbidden => RpcError::new(code::METHOD_NOT_FOUND, "This tool cannot be called as a task"),
            Self::TasksUndeclared if modern => missing("The tasks extension is required", &tasks_extension()),
            // In a session the extension means nothing, and so does what needs it.
            Self::TasksUndeclared => RpcError::new(code::METHOD_NOT_FOUND, "Method not found"),
            Self::MissingCapability(needed) => {
                let error = missing("The client cannot be asked what this needs", &declaration(*needed));
                if modern { error } else { RpcError { code: code::INVALID_PARAMS, ..error } }
            }
            Self::BadCursor => RpcError::new(code::INVALID_PARAMS, "Invalid cursor"),
            Self::BadState => RpcError::new(code::INVALID_PARAMS, "Invalid requestState"),
            Self::RunLost => {
                RpcError::new(code::INVALID_PARAMS, "The call no longer waits for its answers; call again")
            }
            Self::BadHeader(what) => RpcError::new(code::HEADER_MISMATCH, *what),
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

fn missing(message: &'static str, capabilities: &Value) -> RpcError {
    RpcError::with_data(code::MISSING_CAPABILITY, message, &json!({ "requiredCapabilities": capabilities }))
}

fn tasks_extension() -> Value {
    json!({ "extensions": { TASKS_EXTENSION: {} } })
}

/// Capabilities as a client declares them.
fn declaration(capabilities: ClientCapabilities) -> Value {
    let ClientCapabilities { elicitation_form, elicitation_url, sampling, roots } = capabilities;
    let mut declared = json!({});
    for (is_there, name) in [(elicitation_form, "form"), (elicitation_url, "url")] {
        if is_there {
            declared["elicitation"][name] = json!({});
        }
    }
    for (is_there, name) in [(sampling, "sampling"), (roots, "roots")] {
        if is_there {
            declared[name] = json!({});
        }
    }
    declared
}

fn refused(refusal: &Refusal) -> RpcError {
    let message = refusal.to_string();
    match refusal {
        Refusal::NotFound | Refusal::Expired | Refusal::NotAsked => RpcError::new(code::INVALID_PARAMS, message),
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
        Refusal::Denied(Denied { by, retry_after, .. }) => {
            let code = match by {
                Check::RateLimit | Check::Budget => code::LIMIT,
                Check::KillSwitch | Check::Policy | Check::DataPolicy | Check::Guardrail => code::REFUSED,
            };
            let mut data = json!({ "refused_by": by.name() });
            if let Some(wait) = retry_after {
                // Rounded up: a client that comes at that time must not be early.
                data["retryAfterMs"] = json!(u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX));
            }
            RpcError::with_data(code, message, &data)
        }
        // Said to workers only: a client that hears them has met a bug.
        Refusal::Fenced
        | Refusal::KeyUsed(_)
        | Refusal::TooManyQuestions
        | Refusal::Unaskable
        | Refusal::JournalFull => RpcError::new(code::INTERNAL, "Internal error"),
    }
}

/// What stands in a look at a task for an outcome that may not be seen; `is_error` if that was an error.
pub fn withheld(denied: &Denied, is_error: bool) -> Outcome {
    let error = refused(&Refusal::Denied(denied.clone()));
    if is_error {
        return Outcome::Error(CallError { code: error.code, message: error.message.into_owned(), data: error.data });
    }
    // The task has not failed: its result is to be read as an error by whoever goes on with it.
    let body = json!({
        "content": [{ "type": "text", "text": denied.message }],
        "isError": true,
        "_meta": { WITHHELD: { "refused_by": denied.by.name() } },
    });
    Outcome::Result { is_error: true, body: body.to_string().into() }
}

/// The HTTP status of a response with this outcome: 400 for a tool that misses a capability in 2026-07-28 (basic/index,
/// "Per-request protocol fields").
pub fn outcome_status(dialect: Dialect, outcome: &Outcome) -> Status {
    match outcome {
        Outcome::Error(error) if outcome_error(dialect, error).code == code::MISSING_CAPABILITY => Status::BadRequest,
        Outcome::Result { .. } | Outcome::Error(_) | Outcome::Cancelled | Outcome::Interrupted(_) => Status::Ok,
    }
}

/// The error that ended a call, with a code that the dialect allows there. Tools and servers behind us say what they like;
/// what they say is kept, unless the specification gives the code another meaning, or none (MCP 2026-07-28, basic/index,
/// "Error Codes").
pub(crate) fn outcome_error(dialect: Dialect, error: &CallError) -> RpcError {
    let recoded = if dialect.is_modern() {
        match error.code {
            // Without its data a client cannot know what is missing.
            code::MISSING_CAPABILITY if says_what_is_missing(error) => code::MISSING_CAPABILITY,
            code::RESOURCE_NOT_FOUND => code::INVALID_PARAMS,
            // The method is known, or there would be no outcome.
            code::METHOD_NOT_FOUND | -32099..=-32000 => code::INTERNAL,
            other => other,
        }
    } else {
        match error.code {
            code::MISSING_CAPABILITY => code::INVALID_PARAMS,
            other => other,
        }
    };
    RpcError { code: recoded, message: error.message.clone().into(), data: error.data.clone() }
}

fn says_what_is_missing(error: &CallError) -> bool {
    let data = error.data.as_deref().and_then(Object::read);
    data.is_some_and(|data| data.get("requiredCapabilities").is_some_and(json::is_object))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use longhaul_core::{Interruption, LimitScope};

    use super::*;
    use crate::v2025::tests::task;

    const ALL: [Dialect; 3] = [Dialect::V2025_06_18, Dialect::V2025_11_25, Dialect::V2026_07_28];

    fn data(error: &RpcError) -> Option<Value> {
        error.data.as_ref().map(|data| serde_json::from_slice(data).unwrap())
    }

    #[test]
    fn what_is_withheld_says_why_in_the_place_of_what_it_was() {
        let denied = Denied { by: Check::DataPolicy, message: "no".into(), retry_after: None };
        let Outcome::Result { is_error: true, body } = withheld(&denied, false) else { panic!() };
        assert_eq!(
            serde_json::from_slice::<Value>(&body).unwrap(),
            json!({
                "content": [{"type": "text", "text": "no"}],
                "isError": true,
                "_meta": {"longhaul/withheld": {"refused_by": "data_policy"}},
            })
        );
        let Outcome::Error(CallError { code, message, data }) = withheld(&denied, true) else { panic!() };
        assert_eq!((code, &*message), (code::REFUSED, "no"));
        assert_eq!(data.unwrap(), r#"{"refused_by":"data_policy"}"#);
    }

    #[test]
    fn every_no_has_its_code_and_its_words_the_same_in_all_dialects() {
        let running = task(longhaul_core::Phase::Queued);
        let ended = |ending| Denial::Refused(Refusal::AlreadyEnded(ending));
        let limit = |scope| Denial::Refused(Refusal::TaskLimit { scope, limit: 20 });
        let by_limit = || Some(json!({ "refused_by": "task_limit" }));
        let denied =
            |by, retry_after| Denial::Refused(Refusal::Denied(Denied { by, message: "no".into(), retry_after }));
        let by = |name: &str| Some(json!({ "refused_by": name }));
        let later = |name: &str| Some(json!({ "refused_by": name, "retryAfterMs": 2 }));
        let cases = [
            (denied(Check::KillSwitch, None), -31403, "no", by("kill_switch")),
            (denied(Check::RateLimit, Some(Duration::from_micros(1001))), -31429, "no", later("rate_limit")),
            (denied(Check::Policy, None), -31403, "no", by("policy")),
            (denied(Check::Budget, Some(Duration::from_millis(2))), -31429, "no", later("budget")),
            (denied(Check::DataPolicy, None), -31403, "no", by("data_policy")),
            (denied(Check::Guardrail, None), -31403, "no", by("guardrail")),
            (Refusal::NotFound.into(), -32602, "Task not found", None),
            (Refusal::Expired.into(), -32602, "Failed to retrieve task: Task has expired", None),
            (Refusal::NotAsked.into(), -32602, "none of these questions waits for an answer", None),
            (ended(Ending::Result { is_error: false }), -32602, "Cannot cancel task: already completed", None),
            (ended(Ending::Result { is_error: true }), -32602, "Cannot cancel task: already failed", None),
            (ended(Ending::Error), -32602, "Cannot cancel task: already failed", None),
            (ended(Ending::Interrupted(Interruption::Expired)), -32602, "Cannot cancel task: already failed", None),
            (ended(Ending::Cancelled), -32602, "Cannot cancel task: already cancelled", None),
            (limit(LimitScope::Caller), -31429, "too many open tasks (20 at most)", by_limit()),
            (limit(LimitScope::Tenant), -31429, "too many open tasks (20 at most)", by_limit()),
            (Refusal::Fenced.into(), -32603, "Internal error", None),
            (Refusal::KeyUsed("k".into()).into(), -32603, "Internal error", None),
            (Refusal::TooManyQuestions.into(), -32603, "Internal error", None),
            (Refusal::Unaskable.into(), -32603, "Internal error", None),
            (Denial::UnknownTool("x"), -32602, "Unknown tool: x", None),
            (Denial::UnknownPrompt("x"), -32602, "Unknown prompt: x", None),
            (Denial::BadCursor, -32602, "Invalid cursor", None),
            (Denial::BadState, -32602, "Invalid requestState", None),
            (Denial::RunLost, -32602, "The call no longer waits for its answers; call again", None),
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
        for (denial, code, message, expected) in cases {
            for dialect in ALL {
                let Rejection { status, error } = denial.reject(dialect);
                assert_eq!((status, error.code, &*error.message), (Status::Ok, code, message), "{denial:?}");
                assert_eq!(data(&error), expected, "{denial:?}");
            }
        }
    }

    #[test]
    fn some_noes_differ_between_the_eras() {
        let tasks = json!({ "requiredCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } } });
        let needed = ClientCapabilities::from_bits(0b1110);
        let missing = json!({ "requiredCapabilities": { "elicitation": { "url": {} }, "sampling": {}, "roots": {} } });
        let form = ClientCapabilities::from_bits(1);
        let missing_form = json!({ "requiredCapabilities": { "elicitation": { "form": {} } } });
        let uri = json!({ "uri": "a:b" });
        let (ok, bad) = (Status::Ok, Status::BadRequest);
        for (denial, sessions, modern, sessions_data, modern_data) in [
            (Denial::UnknownMethod, (ok, -32601), (Status::NotFound, -32601), None, None),
            (Denial::UnknownResource("a:b"), (ok, -32002), (ok, -32602), Some(&uri), Some(&uri)),
            (Denial::TaskRequired, (ok, -32601), (bad, -32021), None, Some(&tasks)),
            (Denial::TaskForbidden, (ok, -32601), (ok, -32602), None, None),
            (Denial::TasksUndeclared, (ok, -32601), (bad, -32021), None, Some(&tasks)),
            (Denial::MissingCapability(needed), (ok, -32602), (bad, -32021), Some(&missing), Some(&missing)),
            (Denial::MissingCapability(form), (ok, -32602), (bad, -32021), Some(&missing_form), Some(&missing_form)),
            (Denial::BadHeader("h"), (bad, -32020), (bad, -32020), None, None),
        ] {
            for dialect in ALL {
                let Rejection { status, error } = denial.reject(dialect);
                let (expected, expected_data) =
                    if dialect.is_modern() { (modern, modern_data) } else { (sessions, sessions_data) };
                assert_eq!((status, error.code), expected, "{denial:?} {dialect:?}");
                assert_eq!(data(&error).as_ref(), expected_data, "{denial:?} {dialect:?}");
            }
        }
    }

    #[test]
    fn a_code_that_a_dialect_does_not_allow_is_told_as_another() {
        let named = Bytes::from_static(br#"{"requiredCapabilities":{"sampling":{}}}"#);
        for (code, data, sessions, modern, status) in [
            (-32002, None, -32002, -32602, Status::Ok),
            (-32042, None, -32042, -32603, Status::Ok),
            (-32000, None, -32000, -32603, Status::Ok),
            (-32001, None, -32001, -32603, Status::Ok),
            (-32019, None, -32019, -32603, Status::Ok),
            (-32020, None, -32020, -32603, Status::Ok),
            (-32021, None, -32602, -32603, Status::Ok),
            (-32021, Some(&named), -32602, -32021, Status::BadRequest),
            (-32022, None, -32022, -32603, Status::Ok),
            (-32023, None, -32023, -32603, Status::Ok),
            (-32099, None, -32099, -32603, Status::Ok),
            (-32601, None, -32601, -32603, Status::Ok),
            // These mean the same everywhere.
            (-32100, None, -32100, -32100, Status::Ok),
            (-31999, None, -31999, -31999, Status::Ok),
            (-32600, None, -32600, -32600, Status::Ok),
            (-32602, None, -32602, -32602, Status::Ok),
            (-32603, None, -32603, -32603, Status::Ok),
            (-32700, None, -32700, -32700, Status::Ok),
            (-31403, None, -31403, -31403, Status::Ok),
            (7, None, 7, 7, Status::Ok),
        ] {
            let error = CallError { code, message: "m".into(), data: data.cloned() };
            for dialect in ALL {
                let expected = if dialect.is_modern() { modern } else { sessions };
                let told = outcome_error(dialect, &error);
                assert_eq!((told.code, &*told.message, &told.data), (expected, "m", &error.data), "{code} {dialect:?}");
                let expected = if dialect.is_modern() { status } else { Status::Ok };
                assert_eq!(outcome_status(dialect, &Outcome::Error(error.clone())), expected, "{code} {dialect:?}");
            }
        }
        for outcome in [Outcome::Cancelled, Outcome::Result { is_error: true, body: Bytes::new() }] {
            assert_eq!(outcome_status(Dialect::V2026_07_28, &outcome), Status::Ok);
        }
    }
}
