//! Each verb of MCP 2025-11-25 as it looks on the wire: the request is read, the reply written.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use longhaul_core::{
    Caller, Ending, Interruption, Outcome, Phase, Principal, Task, TaskId, TaskSupport, TenantId, Timestamp, ToolDef,
    TtlWish,
};
use longhaul_mcp::reply::Welcome;
use longhaul_mcp::request::{ClientCapabilities, Hello};
use longhaul_mcp::{Call, Dialect, Message, Reply, Request, TaskRef, TraceContext, Wants, jsonrpc, v2025};
use serde_json::Value;

const DIALECT: Dialect = Dialect::V2025_11_25;
const POLL_MS: u64 = 1000;
const TASK: TaskId = TaskId::from_random(7);

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/2025-11-25")
}

/// Reads `VERB.request.json` as `request`, and writes `reply` as `VERB.reply.json`, under the request's id.
fn golden(verb: &str, request: &Request, reply: &Reply<'_>) {
    let file = |kind| std::fs::read(folder().join(format!("{verb}.{kind}.json"))).expect("a golden file");
    let body = file("request");
    let Ok(Message::Request { id, method, params }) = jsonrpc::parse(&body) else { panic!("{verb} is no request") };
    assert_eq!(v2025::read(DIALECT, &method, &params, true).as_ref(), Ok(request), "{verb}");
    let sent: Value = serde_json::from_slice(&v2025::write(DIALECT, &id, reply)).expect("JSON");
    let golden: Value = serde_json::from_slice(&file("reply")).expect("JSON");
    assert_eq!(sent, golden, "{verb}");
}

fn task(phase: Phase, ttl_ms: Option<u64>, status_message: Option<&str>) -> Task {
    let created = 1_796_029_200_000_000;
    let updated = if matches!(phase, Phase::Ended(_)) { created + 210_000_000 } else { created };
    Task {
        id: TASK,
        owner: Principal { tenant: TenantId::new("t"), caller: Caller::Agent("a".into()) },
        tool: "countdown".into(),
        phase,
        version: 1,
        attempt: 0,
        status_message: status_message.map(str::to_owned),
        progress: None,
        progress_token: None,
        session: None,
        created_at: Timestamp::from_micros(created),
        updated_at: Timestamp::from_micros(updated),
        ttl_ms,
    }
}

fn call(tool: &str, arguments: &'static str) -> Call {
    Call {
        tool: tool.into(),
        arguments: Bytes::from_static(arguments.as_bytes()),
        wants: Wants::Inline,
        progress_token: None,
        trace: TraceContext::default(),
    }
}

#[test]
fn each_verb_reads_and_writes_as_its_golden_files() {
    let capabilities = ClientCapabilities { elicitation_form: true, elicitation_url: true, ..Default::default() };
    golden(
        "hello",
        &Request::Hello(Hello { version: "2025-11-25".into(), capabilities, client: Some("cli".into()) }),
        &Reply::Hello(Welcome {
            name: "longhaul",
            version: "0.1.0",
            instructions: Some("Long calls may become tasks."),
            tools_list_changed: true,
            tasks: true,
        }),
    );
    golden("ping", &Request::Ping, &Reply::Pong);

    let tools: Vec<_> = [
        (TaskSupport::Optional, r#"{"name":"echo","description":"Says it again.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}"#),
        (TaskSupport::Forbidden, r#"{"name":"up.count","description":"Counts.","execution":{"taskSupport":"required"},"inputSchema":{"type":"object"},"outputSchema":{"type":"integer"}}"#),
    ]
    .into_iter()
    .map(|(task_support, definition)| {
        let def = ToolDef { name: "x".into(), task_support, definition: definition.into() };
        v2025::tool(DIALECT, &def, true).expect("an object")
    })
    .collect();
    golden(
        "tools",
        &Request::Tools { cursor: Some("abc".into()) },
        &Reply::Tools { tools: &tools, next_cursor: Some("def") },
    );

    let said = Outcome::Result {
        is_error: false,
        body: r#"{"content":[{"type":"text","text":"hi"}],"isError":false}"#.into(),
    };
    let arguments = r#"{ "text": "hi", "n": 123456789012345678901234567890 }"#;
    golden("call", &Request::Call(call("echo", arguments)), &Reply::CallOutcome(&said));

    golden(
        "create",
        &Request::Call(Call {
            wants: Wants::Task(TtlWish::Ms(900_000)),
            progress_token: Some(Bytes::from_static(b"\"p7\"")),
            trace: TraceContext::new(Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), None, None),
            ..call("countdown", "{}")
        }),
        &Reply::Created { task: &task(Phase::Queued, Some(3_600_000), None), poll_interval_ms: POLL_MS },
    );

    let named = TaskRef { id: Some(TASK) };
    let lost = Interruption::WorkerLost;
    let interrupted = task(Phase::Ended(Ending::Interrupted(lost)), Some(3_600_000), Some(lost.sentence()));
    golden("get", &Request::Get(named), &Reply::Task { task: &interrupted, poll_interval_ms: POLL_MS });

    let failed = Outcome::Result {
        is_error: true,
        body: r#"{"content":[{"type":"text","text":"No such file."}],"isError":true,"_meta":{"example.com/took":1.5}}"#
            .into(),
    };
    golden("result", &Request::Result(named), &Reply::TaskOutcome { task: TASK, outcome: &failed });

    let completed = Phase::Ended(Ending::Result { is_error: false });
    let tasks = [task(Phase::Queued, None, Some("3 of 10")), task(completed, Some(3_600_000), None)];
    golden(
        "list",
        &Request::List { cursor: None },
        &Reply::Tasks { tasks: &tasks, poll_interval_ms: POLL_MS, next_cursor: Some("def") },
    );

    let cancelled = task(Phase::Ended(Ending::Cancelled), Some(3_600_000), None);
    golden("cancel", &Request::Cancel(named), &Reply::Task { task: &cancelled, poll_interval_ms: POLL_MS });
}

#[test]
fn no_golden_file_lies_unread() {
    let verbs = ["hello", "ping", "tools", "call", "create", "get", "result", "list", "cancel"];
    let expected: BTreeSet<_> =
        verbs.iter().flat_map(|verb| [format!("{verb}.request.json"), format!("{verb}.reply.json")]).collect();
    let entries = std::fs::read_dir(folder()).expect("the golden folder");
    let there: BTreeSet<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(there, expected);
}
