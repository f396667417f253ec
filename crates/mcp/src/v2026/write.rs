//! Neutral replies into bodies.

use bytes::Bytes;
use longhaul_core::limits::{STATUS_MESSAGE_BYTES_MAX, cut};
use longhaul_core::{Ending, Interruption, Outcome, Phase, Question, Target, Task};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::dialect::{Dialect, SUPPORTED_VERSIONS};
use crate::errors::{Denial, TASKS_EXTENSION, code, outcome_error};
use crate::json::{self, Edit, Field, Object};
use crate::jsonrpc::{RequestId, RpcError, append, append_error, append_list, error_body, result_body};
use crate::question::Asked;
use crate::reply::{Features, Reply, SERVER_NAME, SERVER_VERSION, Welcome};
use crate::time::rfc3339;
use crate::v2025::RELATED_TASK;
use crate::v2026::META_SUBSCRIPTION;

const DIALECT: Dialect = Dialect::V2026_07_28;
const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// How long a page of a list, and what we can do, may be kept: both change when workers come and go, of which those hear at
/// once who listen.
const LIST_TTL_MS: u64 = 5_000;
/// How long a resource may be kept of which nobody said how long: not at all.
const RESOURCE_TTL_MS: u64 = 0;
/// What one caller may see, another may not.
const CACHE_SCOPE: &str = r#""private""#;

/// About how many bytes a task, or what is around a result, takes.
const TASK_BYTES: usize = 512;

/// The body of the response to request `id`.
pub fn write(id: &RequestId, reply: &Reply<'_>) -> Bytes {
    let fault = || error_body(Some(id), &fault());
    match *reply {
        Reply::Discovered(welcome) => result_body(id, 1024, |out| append(out, &discovered(welcome))),
        Reply::Done | Reply::Cancelled { .. } => result_body(id, TASK_BYTES, |out| {
            out.extend_from_slice(br#"{"resultType":"complete""#);
            close_with_meta(out);
        }),
        Reply::Page { listing, items, next_cursor } => {
            let size = items.iter().map(|item| item.len() + 1).sum::<usize>() + TASK_BYTES;
            result_body(id, size, |out| {
                append_list(out, listing.items(), items, next_cursor, |out, item| out.extend_from_slice(item));
                reopen(out);
                let freshness = format!(r#","resultType":"complete","ttlMs":{LIST_TTL_MS},"cacheScope":{CACHE_SCOPE}"#);
                out.extend_from_slice(freshness.as_bytes());
                close_with_meta(out);
            })
        }
        Reply::Created { task, poll_interval_ms } => result_body(id, TASK_BYTES, |out| {
            append(out, &WireTask::of(task, status(task), None, poll_interval_ms, Some("task")));
            reopen(out);
            close_with_meta(out);
        }),
        Reply::Task { task, outcome, poll_interval_ms } => match Detail::of(task, outcome) {
            Some(detail) => result_body(id, detail.size() + TASK_BYTES, |out| {
                append_open_task(out, task, &detail, poll_interval_ms, Some("complete"));
                close_with_meta(out);
            }),
            None => fault(),
        },
        Reply::CallOutcome { target, outcome } => match outcome {
            Outcome::Result { body, .. } => match Object::read(body) {
                Some(result) => result_body(id, body.len() + TASK_BYTES, |out| call_result(out, &result, Some(target))),
                None => fault(),
            },
            Outcome::Error(error) => error_body(Some(id), &outcome_error(DIALECT, error)),
            Outcome::Interrupted(why) => error_body(Some(id), &interrupted(*why)),
            Outcome::Cancelled => error_body(Some(id), &RpcError::new(code::CANCELLED, "The call was cancelled")),
        },
        Reply::InputRequired { requests, state } => result_body(id, TASK_BYTES, |out| {
            let requests = requests.iter().map(|request| (request.key.as_str(), &request.question)).collect();
            append(
                out,
                &InputRequired { result_type: "input_required", input_requests: Asks(requests), request_state: state },
            );
            reopen(out);
            close_with_meta(out);
        }),
        Reply::ListenEnded => result_body(id, TASK_BYTES, |out| {
            let meta = json!({ META_SERVER: server(SERVER_NAME, SERVER_VERSION) }).to_string();
            let meta = json::with_member(&meta, META_SUBSCRIPTION, &id.to_json());
            out.extend_from_slice(format!(r#"{{"resultType":"complete","_meta":{meta}}}"#).as_bytes());
        }),
        // Not said where there are no sessions.
        Reply::Hello(_) | Reply::Tasks { .. } | Reply::TaskOutcome { .. } => fault(),
    }
}

fn fault() -> RpcError {
    Denial::Fault { trace_id: None }.reject(DIALECT).error
}

fn interrupted(why: Interruption) -> RpcError {
    RpcError::new(code::INTERNAL, why.sentence())
}

fn server(name: &str, version: &str) -> serde_json::Value {
    json!({ "name": name, "version": version })
}

/// Takes back the closing brace of the object at the end, so that members can follow.
fn reopen(out: &mut Vec<u8>) {
    out.pop();
}

/// Closes an object that has members, with a `_meta` that says who we are.
fn close_with_meta(out: &mut Vec<u8>) {
    out.extend_from_slice(br#","_meta":"#);
    append(out, &json!({ META_SERVER: server(SERVER_NAME, SERVER_VERSION) }));
    out.push(b'}');
}

/// `server/discover`; `logging`, because a request may ask for log messages of its own.
fn discovered(welcome: Welcome<'_>) -> serde_json::Value {
    let Features { tasks, prompts, resources, completions } = welcome.features;
    let mut capabilities = json!({ "tools": { "listChanged": true }, "logging": {} });
    if prompts {
        capabilities["prompts"] = json!({ "listChanged": true });
    }
    if resources {
        capabilities["resources"] = json!({ "subscribe": true, "listChanged": true });
    }
    if completions {
        capabilities["completions"] = json!({});
    }
    if tasks {
        capabilities["extensions"] = json!({ TASKS_EXTENSION: {} });
    }
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": SUPPORTED_VERSIONS,
        "capabilities": capabilities,
        "ttlMs": LIST_TTL_MS,
        "cacheScope": "private",
        "_meta": { META_SERVER: server(welcome.name, welcome.version) },
    });
    if let Some(instructions) = welcome.instructions {
        result["instructions"] = instructions.into();
    }
    result
}

/// Appends a result as it came, but for what its envelope wants otherwise. `target`: what was called; `None` if the result
/// is told in another, of a task, which says who we are itself.
fn call_result(out: &mut Vec<u8>, result: &Object<'_>, target: Option<&Target>) {
    let is_resource = matches!(target, Some(Target::Resource(_)));
    let is_ttl = |value: &str| json::is_integer(value) && !value.starts_with('-');
    let is_scope = |value: &str| matches!(json::string(value).as_deref(), Some("public" | "private"));
    let ttl =
        result.get("ttlMs").filter(|value| is_ttl(value)).map_or_else(|| RESOURCE_TTL_MS.to_string(), str::to_owned);
    let scope = result.get("cacheScope").filter(|value| is_scope(value)).unwrap_or(CACHE_SCOPE);
    let meta = meta(result.get("_meta"), target.is_some());

    let mut added = vec![("resultType", r#""complete""#)];
    if is_resource {
        added.extend([("ttlMs", ttl.as_str()), ("cacheScope", scope)]);
    }
    added.extend(meta.as_deref().map(|meta| ("_meta", meta)));
    // Only reads may be kept by others (server/utilities/caching).
    let edit = |field: &Field<'_>| match &*field.name {
        "resultType" | "ttlMs" | "cacheScope" | "_meta" => Edit::Drop,
        _ => Edit::Keep,
    };
    result.rewrite(out, edit, &added);
}

/// A `_meta` without what others wrote in our place, and with who we are if it stands for itself.
fn meta(meta: Option<&str>, is_whole: bool) -> Option<String> {
    let ours = server(SERVER_NAME, SERVER_VERSION).to_string();
    let added = is_whole.then_some((META_SERVER, ours.as_str()));
    let came = Object::read(meta.unwrap_or_default().as_bytes());
    if came.is_none() && added.is_none() {
        return None;
    }
    let came = came.or_else(|| Object::read(b"{}"))?;
    let edit = |field: &Field<'_>| match &*field.name {
        META_SERVER | RELATED_TASK => Edit::Drop,
        _ => Edit::Keep,
    };
    let mut out = Vec::new();
    came.rewrite(&mut out, edit, added.as_slice());
    Some(String::from_utf8(out).expect("invariant: made of strings"))
}

/// `InputRequiredResult`
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InputRequired<'a> {
    result_type: &'static str,
    input_requests: Asks<'a>,
    request_state: &'a str,
}

/// `InputRequests`: questions by their keys.
pub(super) struct Asks<'a>(Vec<(&'a str, &'a Question)>);

impl Serialize for Asks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, question)| (key, Asked::<()>::of(question, None, None))))
    }
}

/// What a task says besides its status.
pub(super) enum Detail<'a> {
    Working,
    Asking(Asks<'a>),
    Completed { result: Object<'a>, size: usize },
    Failed(RpcError),
    Cancelled,
}

impl<'a> Detail<'a> {
    /// `None` if the task ended with something to tell, and `outcome` does not tell it.
    pub(super) fn of(task: &'a Task, outcome: Option<&'a Outcome>) -> Option<Self> {
        match task.phase {
            Phase::Queued | Phase::Running(_) if task.is_asking() => {
                // Who looks may be asked less than who made the task: `client` says what. The task
                // waits for the rest all the same.
                let open = task.open_inputs().filter(|(_, _, question)| task.client.can_answer(question));
                Some(Self::Asking(Asks(open.map(|(_, key, question)| (key, question)).collect())))
            }
            Phase::Queued | Phase::Running(_) => Some(Self::Working),
            Phase::Ended(Ending::Cancelled) => Some(Self::Cancelled),
            Phase::Ended(Ending::Interrupted(why)) => Some(Self::Failed(interrupted(why))),
            Phase::Ended(Ending::Result { .. } | Ending::Error) => Some(match outcome? {
                Outcome::Result { body, .. } => match Object::read(body) {
                    Some(result) => Self::Completed { result, size: body.len() },
                    None => Self::Failed(fault()),
                },
                Outcome::Error(error) => Self::Failed(outcome_error(DIALECT, error)),
                Outcome::Interrupted(why) => Self::Failed(interrupted(*why)),
                Outcome::Cancelled => Self::Cancelled,
            }),
        }
    }

    const fn status(&self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Asking(_) => "input_required",
            Self::Completed { .. } => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// About how many bytes it takes.
    pub(super) const fn size(&self) -> usize {
        match self {
            Self::Completed { size, .. } => *size,
            Self::Working | Self::Asking(_) | Self::Failed(_) | Self::Cancelled => 0,
        }
    }
}

/// A task's status without its outcome. A tool that says that it failed has completed.
fn status(task: &Task) -> &'static str {
    match task.phase {
        Phase::Queued | Phase::Running(_) if task.is_asking() => "input_required",
        Phase::Queued | Phase::Running(_) => "working",
        Phase::Ended(Ending::Result { .. }) => "completed",
        Phase::Ended(Ending::Cancelled) => "cancelled",
        Phase::Ended(Ending::Error | Ending::Interrupted(_)) => "failed",
    }
}

/// Appends a task with all there is to say of it, as an object that is still open.
pub(super) fn append_open_task(
    out: &mut Vec<u8>,
    task: &Task,
    detail: &Detail<'_>,
    poll_interval_ms: u64,
    result_type: Option<&'static str>,
) {
    let why = match detail {
        Detail::Failed(error) => Some(cut(&error.message, STATUS_MESSAGE_BYTES_MAX)),
        Detail::Working | Detail::Asking(_) | Detail::Completed { .. } | Detail::Cancelled => None,
    };
    append(out, &WireTask::of(task, detail.status(), why, poll_interval_ms, result_type));
    reopen(out);
    match detail {
        Detail::Working | Detail::Cancelled => {}
        Detail::Asking(asks) => {
            out.extend_from_slice(br#","inputRequests":"#);
            append(out, asks);
        }
        Detail::Completed { result, .. } => {
            out.extend_from_slice(br#","result":"#);
            call_result(out, result, None);
        }
        Detail::Failed(error) => {
            out.extend_from_slice(br#","error":"#);
            append_error(out, error);
        }
    }
}

/// A task on the wire.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireTask<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
    task_id: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status_message: Option<&'a str>,
    created_at: String,
    last_updated_at: String,
    /// Present even if null, says the schema.
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_interval_ms: Option<u64>,
}

impl<'a> WireTask<'a> {
    /// `why`: what to say if the task says nothing itself.
    fn of(
        task: &'a Task,
        status: &'static str,
        why: Option<&'a str>,
        poll_interval_ms: u64,
        result_type: Option<&'static str>,
    ) -> Self {
        Self {
            result_type,
            task_id: task.id.to_string(),
            status,
            status_message: task.status_message.as_deref().or(why),
            created_at: rfc3339(task.created_at),
            last_updated_at: rfc3339(task.updated_at),
            ttl_ms: task.ttl_ms,
            // Nothing more comes of asking for an ended task; 0 would be no interval.
            poll_interval_ms: task.ending().is_none().then_some(poll_interval_ms.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::CallError;
    use proptest::prelude::*;

    use super::*;
    use crate::request::Listing;
    use crate::v2025::tests::{asking, task};

    const OURS: &str = concat!(
        r#""io.modelcontextprotocol/serverInfo":{"name":"longhaul","version":""#,
        env!("CARGO_PKG_VERSION"),
        r#""}"#
    );

    fn sent(reply: &Reply<'_>) -> String {
        let id = RequestId::from_json("7").unwrap();
        String::from_utf8(write(&id, reply).to_vec()).unwrap()
    }

    fn result_of(reply: &Reply<'_>) -> String {
        let sent = sent(reply);
        sent.strip_prefix(r#"{"jsonrpc":"2.0","id":7,"result":"#).expect(&sent).strip_suffix('}').unwrap().to_owned()
    }

    fn outcome(body: &str) -> Outcome {
        Outcome::Result { is_error: false, body: Bytes::copy_from_slice(body.as_bytes()) }
    }

    /// What a result becomes: of a call, and told in its task.
    fn results(target: Target, body: &str) -> [String; 2] {
        let outcome = outcome(body);
        let call = result_of(&Reply::CallOutcome { target: &target, outcome: &outcome });
        let ended = task(Phase::Ended(Ending::Result { is_error: false }));
        let told = result_of(&Reply::Task { task: &ended, outcome: Some(&outcome), poll_interval_ms: 1000 });
        let (_, told) = told.split_once(r#","result":"#).expect(&told);
        let told = told.strip_suffix(&format!(r#","_meta":{{{OURS}}}}}"#)).expect(told);
        [call, told.to_owned()]
    }

    fn tool() -> Target {
        Target::Tool("x".into())
    }

    #[test]
    fn a_result_comes_through_as_it_is_in_its_envelope() {
        let deep = format!(r#""deep":{}1{}"#, "[".repeat(5000), "]".repeat(5000));
        for members in [
            r#""content":[{"type":"text","text":"é\u0000\ud800"}],"isError":false"#,
            r#""z":123456789012345678901234567890,"a": {"x" : [1.0, 1e2,-0] },"\u0062":null"#,
            r#""structuredContent":[1],"content":[]"#,
            &deep,
        ] {
            for target in [tool(), Target::Prompt("p".into()), Target::CompletePrompt("p".into())] {
                let [call, told] = results(target, &format!("{{{members}}}"));
                assert_eq!(call, format!(r#"{{{members},"resultType":"complete","_meta":{{{OURS}}}}}"#));
                assert_eq!(told, format!(r#"{{{members},"resultType":"complete"}}"#));
            }
        }
        let envelope = r#"{"resultType":"task","a":1,"ttlMs":5,"cacheScope":"public","resultT\u0079pe":7}"#;
        let [call, told] = results(tool(), envelope);
        assert_eq!(call, format!(r#"{{"a":1,"resultType":"complete","_meta":{{{OURS}}}}}"#), "what is ours is ours");
        assert_eq!(told, r#"{"a":1,"resultType":"complete"}"#);
    }

    const NAMES: [&str; 8] =
        ["content", "\\u0061", "resultType", "result\\u0054ype", "ttlMs", "cacheScope", "_meta", "a b"];
    const VALUES: [&str; 6] =
        ["1.00", "{ \"resultType\" : [ ] }", "\"a,b}\\\"\"", "[1 , 2]", "123456789012345678901234567890", "null"];

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_member_of_a_result_changes_but_those_of_its_envelope(
            members in prop::collection::vec((0..NAMES.len(), 0..VALUES.len()), 0..10),
            space in prop::sample::select(vec!["", " ", "\n\t"]),
        ) {
            let member = |(name, value): &(usize, usize)| format!("{space}\"{}\":{}{space}", NAMES[*name], VALUES[*value]);
            let body = format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","));
            let is_ours = |name: &str| matches!(name, "resultType" | "ttlMs" | "cacheScope" | "_meta");
            let kept = |body: &str| {
                let object = Object::read(body.as_bytes()).unwrap();
                let members = object.fields.iter().filter(|field| !is_ours(&field.name));
                members.map(|field| (field.name.clone().into_owned(), field.value.to_owned())).collect::<Vec<_>>()
            };
            for target in [tool(), Target::Resource("a:b".into())] {
                for told in results(target, &body) {
                    prop_assert_eq!(kept(&told), kept(&body), "{}", body);
                    let types = Object::read(told.as_bytes()).unwrap();
                    let types: Vec<_> = types.fields.iter().filter(|field| field.name == "resultType").collect();
                    prop_assert_eq!(types.len(), 1);
                    prop_assert_eq!(types[0].value, "\"complete\"");
                }
            }
        }
    }

    #[test]
    fn meta_keeps_what_a_tool_wrote_but_not_in_our_place() {
        for (meta, kept) in [
            ("{}", ""),
            (r#"{ "x": 1.0 ,"y":[]}"#, r#" "x": 1.0 ,"y":[],"#),
            (r#"{"io.modelcontextprotocol/serverInfo":{"name":"up"},"x":1}"#, r#""x":1,"#),
            (r#"{"x":1,"io.modelcontextprotocol/related-task":{"taskId":"t"}}"#, r#""x":1,"#),
        ] {
            let [call, told] = results(tool(), &format!(r#"{{"a":1,"_meta":{meta}}}"#));
            assert_eq!(call, format!(r#"{{"a":1,"resultType":"complete","_meta":{{{kept}{OURS}}}}}"#));
            let kept = kept.strip_suffix(',').unwrap_or(kept);
            assert_eq!(told, format!(r#"{{"a":1,"resultType":"complete","_meta":{{{kept}}}}}"#));
        }
        let [call, told] = results(tool(), r#"{"a":1,"_meta":7}"#);
        assert_eq!(call, format!(r#"{{"a":1,"resultType":"complete","_meta":{{{OURS}}}}}"#));
        assert_eq!(told, r#"{"a":1,"resultType":"complete"}"#);
    }

    #[test]
    fn only_what_may_be_kept_says_for_how_long() {
        let read = |members: &str| {
            let [read, _] = results(Target::Resource("a:b".into()), &format!(r#"{{"contents":[]{members}}}"#));
            let read: serde_json::Value = serde_json::from_str(&read).unwrap();
            (read["ttlMs"].as_u64().unwrap(), read["cacheScope"].as_str().unwrap().to_owned())
        };
        for (members, ttl, scope) in [
            ("", 0, "private"),
            (r#","ttlMs":60000,"cacheScope":"public""#, 60_000, "public"),
            (r#","ttlMs":0,"cacheScope":"private""#, 0, "private"),
            (r#","ttlMs":-1,"cacheScope":"shared""#, 0, "private"),
            (r#","ttlMs":1.5,"cacheScope":null"#, 0, "private"),
            (r#","ttlMs":"5","cacheScope":7"#, 0, "private"),
        ] {
            assert_eq!(read(members), (ttl, scope.to_owned()), "{members}");
        }
        let cacheable = |reply: &Reply<'_>| {
            let result: serde_json::Value = serde_json::from_str(&result_of(reply)).unwrap();
            assert_eq!(result.get("ttlMs").is_some(), result.get("cacheScope").is_some());
            assert!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "longhaul");
            result.get("cacheScope").is_some()
        };
        let features = Features { tasks: false, prompts: false, resources: false, completions: false };
        let welcome = Welcome { name: "longhaul", version: "1", instructions: None, features };
        assert!(cacheable(&Reply::Discovered(welcome)));
        for listing in [Listing::Tools, Listing::Prompts, Listing::Resources, Listing::Templates] {
            assert!(cacheable(&Reply::Page { listing, items: &[], next_cursor: None }));
        }
        let said = outcome(r#"{"ttlMs":5,"cacheScope":"public"}"#);
        for target in [tool(), Target::Prompt("p".into()), Target::CompleteTemplate("p".into())] {
            assert!(!cacheable(&Reply::CallOutcome { target: &target, outcome: &said }));
        }
        for reply in [Reply::Done, Reply::InputRequired { requests: &[], state: "s" }, Reply::ListenEnded] {
            assert!(!cacheable(&reply));
        }
    }

    #[test]
    fn other_outcomes_are_errors() {
        let error = CallError { code: -32042, message: "m".into(), data: Some(Bytes::from_static(b"{\"a\": 1.0}")) };
        for (outcome, error) in [
            (Outcome::Error(error), r#"{"code":-32603,"message":"m","data":{"a": 1.0}}"#),
            (Outcome::Cancelled, r#"{"code":-31499,"message":"The call was cancelled"}"#),
            (
                Outcome::Interrupted(Interruption::WorkerLost),
                r#"{"code":-32603,"message":"Task interrupted: its worker stopped responding"}"#,
            ),
            (outcome("[]"), r#"{"code":-32603,"message":"Internal error"}"#),
            (outcome("{\"a\":}"), r#"{"code":-32603,"message":"Internal error"}"#),
        ] {
            let sent = sent(&Reply::CallOutcome { target: &tool(), outcome: &outcome });
            assert_eq!(sent, format!(r#"{{"jsonrpc":"2.0","id":7,"error":{error}}}"#));
        }
    }

    #[test]
    fn a_task_whose_result_is_none_has_failed_and_one_whose_outcome_is_not_at_hand_is_a_fault() {
        let get = |ending, outcome: Option<&Outcome>| {
            let task = task(Phase::Ended(ending));
            let sent = sent(&Reply::Task { task: &task, outcome, poll_interval_ms: 1000 });
            serde_json::from_str::<serde_json::Value>(&sent).unwrap()
        };
        let answered = Ending::Result { is_error: false };
        let broken = get(answered, Some(&outcome("{")));
        assert_eq!(
            (&broken["result"]["status"], &broken["result"]["error"]["code"]),
            (&json!("failed"), &json!(-32603))
        );
        for ending in [answered, Ending::Error] {
            assert_eq!(get(ending, None)["error"]["code"], -32603);
        }
        let id = RequestId::from_json("1").unwrap();
        assert_eq!(crate::v2026::notify::task(&id, &task(Phase::Ended(answered)), None, 1000), None);
        assert_eq!(get(Ending::Cancelled, None)["result"]["status"], "cancelled");
        assert_eq!(get(Ending::Interrupted(Interruption::Expired), None)["result"]["error"]["code"], -32603);
    }

    #[test]
    fn a_failed_task_says_why() {
        let mut failed = task(Phase::Ended(Ending::Error));
        let long = "é".repeat(STATUS_MESSAGE_BYTES_MAX);
        let error = Outcome::Error(CallError { code: 1, message: long.clone(), data: None });
        let message = |task: &Task| {
            let sent = result_of(&Reply::Task { task, outcome: Some(&error), poll_interval_ms: 1000 });
            let sent: serde_json::Value = serde_json::from_str(&sent).unwrap();
            assert_eq!((&sent["error"]["message"], sent.get("pollIntervalMs")), (&json!(long), None));
            sent["statusMessage"].as_str().unwrap().to_owned()
        };
        assert_eq!(message(&failed), "é".repeat(STATUS_MESSAGE_BYTES_MAX / 2));
        failed.status_message = Some("3 of 10".into());
        assert_eq!(message(&failed), "3 of 10");
    }

    #[test]
    fn a_handle_is_a_task_and_nothing_else() {
        for (phase, status) in [
            (Phase::Queued, "working"),
            (Phase::Ended(Ending::Result { is_error: true }), "completed"),
            (Phase::Ended(Ending::Error), "failed"),
            (Phase::Ended(Ending::Cancelled), "cancelled"),
        ] {
            let task = task(phase);
            let sent = result_of(&Reply::Created { task: &task, poll_interval_ms: 0 });
            let poll = if status == "working" { r#","pollIntervalMs":1"# } else { "" };
            let times = r#""createdAt":"2026-11-30T09:00:00.000Z","lastUpdatedAt":"2026-11-30T09:00:01.234Z""#;
            assert_eq!(
                sent,
                format!(
                    r#"{{"resultType":"task","taskId":"aaaaaaaaaaaaaaaaaaaaaaaaab","status":"{status}",{times},"ttlMs":null{poll},"_meta":{{{OURS}}}}}"#
                )
            );
        }
        let sent = result_of(&Reply::Created { task: &asking(Question::Roots), poll_interval_ms: 1 });
        assert!(sent.contains(r#""status":"input_required""#) && !sent.contains("inputRequests"), "{sent}");
    }

    #[test]
    fn who_looks_at_a_task_reads_those_questions_alone_that_it_can_be_asked() {
        let form = Question::Form { message: "m".into(), schema: Bytes::from_static(b"{ \"x\":1.0 }") };
        let mut task = asking(form);
        let get = |task: &Task| result_of(&Reply::Task { task, outcome: None, poll_interval_ms: 1000 });
        let asked = r#"{"q-1":{"method":"elicitation/create","params":{"mode":"form","message":"m","requestedSchema":{ "x":1.0 }}}}"#;
        assert!(get(&task).contains(r#""status":"input_required""#));
        assert!(get(&task).contains(&format!(r#""inputRequests":{asked}"#)), "{}", get(&task));
        task.client.elicitation_form = false;
        assert!(get(&task).contains(r#""status":"input_required""#));
        assert!(get(&task).contains(r#""inputRequests":{}"#), "{}", get(&task));
    }

    #[test]
    fn what_is_served_is_declared() {
        let declared = |features| {
            let welcome = Welcome { name: "longhaul", version: "1", instructions: None, features };
            let sent: serde_json::Value = serde_json::from_str(&result_of(&Reply::Discovered(welcome))).unwrap();
            assert_eq!(sent["supportedVersions"], json!(SUPPORTED_VERSIONS));
            assert_eq!(sent.get("instructions"), None);
            sent["capabilities"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        let none = Features { tasks: false, prompts: false, resources: false, completions: false };
        assert_eq!(declared(none), ["tools", "logging"]);
        assert_eq!(declared(Features { tasks: true, ..none }), ["tools", "logging", "extensions"]);
        assert_eq!(declared(Features { prompts: true, ..none }), ["tools", "logging", "prompts"]);
        assert_eq!(declared(Features { resources: true, ..none }), ["tools", "logging", "resources"]);
        assert_eq!(declared(Features { completions: true, ..none }), ["tools", "logging", "completions"]);
    }

    #[test]
    fn what_sessions_say_is_a_fault() {
        let features = Features { tasks: true, prompts: false, resources: false, completions: false };
        let welcome = Welcome { name: "n", version: "1", instructions: None, features };
        let outcome = outcome("{}");
        for reply in [
            Reply::Hello(welcome),
            Reply::Tasks { tasks: &[], poll_interval_ms: 1, next_cursor: None },
            Reply::TaskOutcome { task: longhaul_core::TaskId::from_random(1), outcome: &outcome },
        ] {
            assert!(sent(&reply).contains(r#""error":{"code":-32603"#), "{reply:?}");
        }
    }
}
