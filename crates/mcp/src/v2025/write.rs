//! Neutral replies into bodies.

use bytes::Bytes;
use longhaul_core::{Outcome, Target, Task, TaskId};
use serde::Serialize;

use crate::dialect::Dialect;
use crate::errors::{Denial, code, outcome_error};
use crate::json::{self, Edit, Field, Object};
use crate::jsonrpc::{RequestId, RpcError, append, append_list, error_body, result_body};
use crate::reply::{Features, Reply, Welcome};
use crate::time::rfc3339;
use crate::v2025::{RELATED_TASK, status};

/// About how many bytes a task takes.
const TASK_BYTES: usize = 256;

/// The body of the response to request `id`.
pub fn write(dialect: Dialect, id: &RequestId, reply: &Reply<'_>) -> Bytes {
    match *reply {
        Reply::Hello(welcome) => result_body(id, 512, |out| append(out, &hello(dialect, welcome))),
        Reply::Done => result_body(id, 2, |out| out.extend_from_slice(b"{}")),
        Reply::Page { listing, items, next_cursor } => {
            let size = items.iter().map(|item| item.len() + 1).sum::<usize>() + TASK_BYTES;
            result_body(id, size, |out| {
                append_list(out, listing.items(), items, next_cursor, |out, item| out.extend_from_slice(item));
            })
        }
        Reply::Created { task, poll_interval_ms } => result_body(id, 2 * TASK_BYTES, |out| {
            append(out, &Created { task: WireTask::of(task, poll_interval_ms), meta: RelatedMeta::of(task.id) });
        }),
        Reply::Task { task, poll_interval_ms, outcome: _ } | Reply::Cancelled { task, poll_interval_ms } => {
            result_body(id, TASK_BYTES, |out| append(out, &WireTask::of(task, poll_interval_ms)))
        }
        Reply::Tasks { tasks, poll_interval_ms, next_cursor } => {
            result_body(id, (tasks.len() + 1) * TASK_BYTES, |out| {
                append_list(out, "tasks", tasks, next_cursor, |out, task| {
                    append(out, &WireTask::of(task, poll_interval_ms))
                });
            })
        }
        // Only tools make tasks.
        Reply::TaskOutcome { task, outcome } => outcome_body(dialect, id, outcome, Kind::Tool, Some(task)),
        Reply::CallOutcome { target, outcome } => outcome_body(dialect, id, outcome, Kind::of(target), None),
        // Not said in sessions.
        Reply::Discovered(_) | Reply::InputRequired { .. } | Reply::ListenEnded => {
            error_body(Some(id), &Denial::Fault { trace_id: None }.reject(dialect).error)
        }
    }
}

/// What a result is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tool,
    Resource,
    Other,
}

impl Kind {
    const fn of(target: &Target) -> Self {
        match target {
            Target::Tool(_) => Self::Tool,
            Target::Resource(_) => Self::Resource,
            Target::Prompt(_) | Target::CompletePrompt(_) | Target::CompleteTemplate(_) => Self::Other,
        }
    }
}

fn outcome_body(dialect: Dialect, id: &RequestId, outcome: &Outcome, kind: Kind, task: Option<TaskId>) -> Bytes {
    let error = match outcome {
        Outcome::Result { body, .. } => match Object::read(body) {
            Some(result) => {
                return result_body(id, body.len() + TASK_BYTES, |out| call_result(out, &result, kind, task));
            }
            None => Denial::Fault { trace_id: None }.reject(dialect).error,
        },
        Outcome::Error(error) => outcome_error(dialect, error),
        Outcome::Interrupted(why) => RpcError::new(code::INTERNAL, why.sentence()),
        Outcome::Cancelled => RpcError::new(code::CANCELLED, "Task was cancelled"),
    };
    error_body(Some(id), &error)
}

/// A result as it came, but for what this revision does not know: `structuredContent` is an object in its schema, and
/// results have no type and no freshness. With the task named in its `_meta`.
fn call_result(out: &mut Vec<u8>, result: &Object<'_>, kind: Kind, task: Option<TaskId>) {
    let has_meta = result.get("_meta").is_some();
    let related = task.map(|task| format!(r#"{{"taskId":"{task}"}}"#));
    let edit = |field: &Field<'_>| match (&*field.name, &related) {
        ("structuredContent", _) if kind == Kind::Tool && !json::is_object(field.value) => Edit::Drop,
        ("resultType", _) => Edit::Drop,
        ("ttlMs" | "cacheScope", _) if kind == Kind::Resource => Edit::Drop,
        ("_meta", Some(related)) => Edit::Set(meta_with(field.value, related)),
        _ => Edit::Keep,
    };
    let meta = related.as_ref().filter(|_| !has_meta).map(|related| meta_with("{}", related));
    result.rewrite(out, edit, meta.as_deref().map(|meta| ("_meta", meta)).as_slice());
}

/// A `_meta` with the task named in it. One that is not an object is against the schema, and nothing in it can be kept
/// beside the task's name.
fn meta_with(meta: &str, related: &str) -> String {
    json::with_member(meta, RELATED_TASK, related)
}

fn hello(dialect: Dialect, welcome: Welcome<'_>) -> impl Serialize {
    let Features { tasks, prompts, resources, completions } = welcome.features;
    let mut capabilities = serde_json::json!({ "tools": { "listChanged": true }, "logging": {} });
    if prompts {
        capabilities["prompts"] = serde_json::json!({ "listChanged": true });
    }
    if resources {
        capabilities["resources"] = serde_json::json!({ "subscribe": true, "listChanged": true });
    }
    if completions {
        capabilities["completions"] = serde_json::json!({});
    }
    if tasks && dialect.has_tasks() {
        capabilities["tasks"] =
            serde_json::json!({ "list": {}, "cancel": {}, "requests": { "tools": { "call": {} } } });
    }
    let mut result = serde_json::json!({
        "protocolVersion": dialect.version(),
        "capabilities": capabilities,
        "serverInfo": { "name": welcome.name, "version": welcome.version },
    });
    if let Some(instructions) = welcome.instructions {
        result["instructions"] = instructions.into();
    }
    result
}

/// `CreateTaskResult`. The task is named in `_meta` too: the prose asks for it in all messages of a task but get, list
/// and cancel.
#[derive(Serialize)]
struct Created {
    task: WireTask,
    #[serde(rename = "_meta")]
    meta: RelatedMeta,
}

/// A `_meta` that names a task.
#[derive(Serialize)]
pub(crate) struct RelatedMeta {
    #[serde(rename = "io.modelcontextprotocol/related-task")]
    related: RelatedTask,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RelatedTask {
    task_id: String,
}

impl RelatedMeta {
    pub(crate) fn of(task: TaskId) -> Self {
        Self { related: RelatedTask { task_id: task.to_string() } }
    }
}

/// A task on the wire.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireTask {
    task_id: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<String>,
    created_at: String,
    last_updated_at: String,
    /// Present even if null, says the schema.
    ttl: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_interval: Option<u64>,
}

impl WireTask {
    pub(crate) fn of(task: &Task, poll_interval_ms: u64) -> Self {
        let status = status(task);
        Self {
            task_id: task.id.to_string(),
            status,
            status_message: task
                .status_message
                .clone()
                // A failed task should say why; a tool's own error message is in its result.
                .or_else(|| (status == "failed").then(|| "The tool reported an error".to_owned())),
            created_at: rfc3339(task.created_at),
            last_updated_at: rfc3339(task.updated_at),
            ttl: task.ttl_ms,
            // Nothing more comes of asking for an ended task.
            poll_interval: task.ending().is_none().then_some(poll_interval_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::{CallError, Ending, Interruption, Phase, Question};

    use super::*;
    use crate::request::Listing;
    use crate::v2025::tests::{asking, task};

    const TASK: &str = "aaaaaaaaaaaaaaaaaaaaaaaaab";
    const NEW: Dialect = Dialect::V2025_11_25;

    fn sent(reply: &Reply<'_>) -> String {
        let id = RequestId::from_json("7").unwrap();
        String::from_utf8(write(NEW, &id, reply).to_vec()).unwrap()
    }

    /// What a result becomes, of a call and of a task.
    fn results(body: &str) -> [String; 2] {
        let outcome = Outcome::Result { is_error: false, body: Bytes::copy_from_slice(body.as_bytes()) };
        let (task, target) = (TaskId::from_random(1), Target::Tool("x".into()));
        [Reply::CallOutcome { target: &target, outcome: &outcome }, Reply::TaskOutcome { task, outcome: &outcome }].map(
            |reply| {
                let sent = sent(&reply);
                sent.strip_prefix(r#"{"jsonrpc":"2.0","id":7,"result":"#).unwrap().strip_suffix('}').unwrap().to_owned()
            },
        )
    }

    fn related() -> String {
        format!(r#""io.modelcontextprotocol/related-task":{{"taskId":"{TASK}"}}"#)
    }

    #[test]
    fn a_result_comes_through_as_it_is_with_its_task_named() {
        let deep = format!(r#""deep":{}1{}"#, "[".repeat(5000), "]".repeat(5000));
        for members in [
            r#""content":[{"type":"text","text":"é\u0000\ud800"}],"isError":false"#,
            r#""z":123456789012345678901234567890,"a": {"x" : [1.0, 1e2,-0] },"\u0062":null"#,
            r#""structuredContent":{"a":1,"a":2},"content":[]"#,
            &deep,
        ] {
            let [call, of_task] = results(&format!("{{{members}}}"));
            assert_eq!(call, format!("{{{members}}}"));
            assert_eq!(of_task, format!(r#"{{{members},"_meta":{{{}}}}}"#, related()));
        }
        assert_eq!(results("{ }"), ["{ }".to_owned(), format!(r#"{{"_meta":{{{}}} }}"#, related())]);
    }

    #[test]
    fn the_task_is_named_beside_what_a_tool_wrote_in_its_meta() {
        for (meta, merged) in [
            ("{}", format!("{{{}}}", related())),
            (r#"{ "x": 1.0 ,"y":[]}"#, format!(r#"{{ "x": 1.0 ,"y":[],{}}}"#, related())),
            (
                r#"{"io.modelcontextprotocol/related-task":{"taskId":"forged"},"x":1}"#,
                format!(r#"{{"x":1,{}}}"#, related()),
            ),
            (r#"{"io.modelcontextprotocol\u002frelated-task":7}"#, format!("{{{}}}", related())),
            ("null", format!("{{{}}}", related())),
        ] {
            let body = format!(r#"{{"a":1,"_meta":{meta},"b":2}}"#);
            let [call, of_task] = results(&body);
            assert_eq!(call, body);
            assert_eq!(of_task, format!(r#"{{"a":1,"_meta":{merged},"b":2}}"#));
        }
    }

    #[test]
    fn structured_content_that_is_no_object_is_dropped() {
        for value in ["[1]", "7", "null", r#""x""#] {
            let [call, _] = results(&format!(r#"{{"content":[],"structuredContent":{value},"x":1}}"#));
            assert_eq!(call, r#"{"content":[],"x":1}"#);
        }
    }

    #[test]
    fn other_outcomes_are_errors() {
        let missing = CallError { code: -32021, message: "m".into(), data: None };
        let error = CallError { code: -32042, message: "m".into(), data: Some(Bytes::from_static(b"{\"a\": 1.0}")) };
        let cases = [
            (Outcome::Error(error), r#"{"code":-32042,"message":"m","data":{"a": 1.0}}"#),
            (Outcome::Error(missing), r#"{"code":-32602,"message":"m"}"#),
            (Outcome::Cancelled, r#"{"code":-31499,"message":"Task was cancelled"}"#),
            (
                Outcome::Interrupted(Interruption::WorkerLost),
                r#"{"code":-32603,"message":"Task interrupted: its worker stopped responding"}"#,
            ),
            (
                Outcome::Result { is_error: false, body: Bytes::from_static(b"[]") },
                r#"{"code":-32603,"message":"Internal error"}"#,
            ),
            (
                Outcome::Result { is_error: false, body: Bytes::from_static(b"{\"a\":}") },
                r#"{"code":-32603,"message":"Internal error"}"#,
            ),
        ];
        for (outcome, error) in &cases {
            let expected = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{error}}}"#);
            assert_eq!(sent(&Reply::CallOutcome { target: &Target::Prompt("p".into()), outcome }), expected);
            assert_eq!(sent(&Reply::TaskOutcome { task: TaskId::from_random(1), outcome }), expected);
        }
    }

    #[test]
    fn a_task_says_what_the_schema_asks_for() {
        let working = sent(&Reply::Task { task: &task(Phase::Queued), outcome: None, poll_interval_ms: 1000 });
        let times = r#""createdAt":"2026-11-30T09:00:00.000Z","lastUpdatedAt":"2026-11-30T09:00:01.234Z","ttl":null"#;
        let expected = format!(r#"{{"taskId":"{TASK}","status":"working",{times},"pollInterval":1000}}"#);
        assert_eq!(working, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{expected}}}"#));

        let mut failed = task(Phase::Ended(Ending::Result { is_error: true }));
        let message = |task: &Task| {
            let sent: serde_json::Value =
                serde_json::from_str(&sent(&Reply::Task { task, outcome: None, poll_interval_ms: 1000 })).unwrap();
            assert_eq!(sent["result"].get("pollInterval"), None, "nothing more comes");
            sent["result"]["statusMessage"].as_str().map(str::to_owned)
        };
        assert_eq!(message(&failed).as_deref(), Some("The tool reported an error"));
        failed.status_message = Some("3 of 10".into());
        assert_eq!(message(&failed).as_deref(), Some("3 of 10"));
        assert_eq!(message(&task(Phase::Ended(Ending::Cancelled))), None);
    }

    #[test]
    fn a_task_that_asks_requires_input() {
        let task = asking(Question::Roots);
        let sent = sent(&Reply::Task { task: &task, outcome: None, poll_interval_ms: 1000 });
        assert!(sent.contains(r#""status":"input_required""#) && sent.contains(r#""pollInterval":1000"#), "{sent}");
    }

    #[test]
    fn what_the_other_era_says_of_results_is_dropped() {
        let sent_for = |target: Target, body: &'static str| {
            let outcome = Outcome::Result { is_error: false, body: Bytes::from_static(body.as_bytes()) };
            let sent = sent(&Reply::CallOutcome { target: &target, outcome: &outcome });
            sent.strip_prefix(r#"{"jsonrpc":"2.0","id":7,"result":"#).unwrap().strip_suffix('}').unwrap().to_owned()
        };
        let body = r#"{"resultType":"complete","contents":[],"ttlMs":5,"structuredContent":1,"cacheScope":"public"}"#;
        assert_eq!(sent_for(Target::Resource("a:b".into()), body), r#"{"contents":[],"structuredContent":1}"#);
        assert_eq!(
            sent_for(Target::Tool("x".into()), body),
            r#"{"contents":[],"ttlMs":5,"cacheScope":"public"}"#,
            "of a tool it may be anything"
        );
        let prompt = r#"{"messages":[ ],"description":"d" }"#;
        assert_eq!(sent_for(Target::Prompt("p".into()), prompt), prompt);
        let completion = r#"{"completion":{"values":["a"],"hasMore":false}}"#;
        assert_eq!(sent_for(Target::CompletePrompt("p".into()), completion), completion);
    }

    #[test]
    fn a_page_names_its_items_by_their_kind() {
        let items = [Bytes::from_static(b"{ }"), Bytes::from_static(b"{\"a\":1}")];
        for (listing, name) in [
            (Listing::Tools, "tools"),
            (Listing::Prompts, "prompts"),
            (Listing::Resources, "resources"),
            (Listing::Templates, "resourceTemplates"),
        ] {
            let page = sent(&Reply::Page { listing, items: &items, next_cursor: Some("c\"") });
            let expected = format!(r#"{{"{name}":[{{ }},{{"a":1}}],"nextCursor":"c\""}}"#);
            assert_eq!(page, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{expected}}}"#));
            let page = sent(&Reply::Page { listing, items: &[], next_cursor: None });
            assert_eq!(page, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"{name}":[]}}}}"#));
        }
        assert_eq!(sent(&Reply::Done), r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
    }

    #[test]
    fn only_what_is_served_is_offered_and_tasks_only_where_they_are_known() {
        let offered = |dialect, features| {
            let welcome = Welcome { name: "n", version: "1", instructions: None, features };
            let id = RequestId::from_json("\"a\"").unwrap();
            let sent: serde_json::Value = serde_json::from_slice(&write(dialect, &id, &Reply::Hello(welcome))).unwrap();
            assert_eq!(sent["id"], "a");
            assert_eq!(sent["result"]["protocolVersion"], dialect.version());
            assert_eq!(sent["result"].get("instructions"), None);
            sent["result"]["capabilities"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        let all = Features { tasks: true, prompts: true, resources: true, completions: true };
        let none = Features { tasks: false, prompts: false, resources: false, completions: false };
        assert_eq!(offered(NEW, all), ["tools", "logging", "prompts", "resources", "completions", "tasks"]);
        assert_eq!(offered(NEW, none), ["tools", "logging"]);
        let old = Dialect::V2025_06_18;
        assert_eq!(offered(old, all), ["tools", "logging", "prompts", "resources", "completions"]);
    }

    #[test]
    fn what_sessions_do_not_say_is_a_fault() {
        let features = Features { tasks: true, prompts: false, resources: false, completions: false };
        let welcome = Welcome { name: "n", version: "1", instructions: None, features };
        for reply in
            [Reply::Discovered(welcome), Reply::InputRequired { requests: &[], state: "s" }, Reply::ListenEnded]
        {
            assert!(sent(&reply).contains(r#""error":{"code":-32603"#), "{reply:?}");
        }
    }
}
