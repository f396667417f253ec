//! Each verb of each revision as it looks on the wire: the request is read, the reply written, and so is all that we say
//! unasked. Every frame is held against the official schema.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use longhaul_core::{
    CallError, Caller, ClientCapabilities, Ending, Input, InputRequest, InputState, Interruption, LogLevel, LogMessage,
    Outcome, Phase, Principal, Progress, Question, Target, Task, TaskId, TaskSupport, TenantId, Timestamp, TtlWish,
};
use longhaul_mcp::reply::{SERVER_NAME, SERVER_VERSION, Welcome};
use longhaul_mcp::request::Hello;
use longhaul_mcp::{
    Call, Denial, Dialect, Features, Filter, Header, Headers, Listing, Message, Reply, Request, RequestId, Retry,
    TaskRef, TraceContext, Update, Wants, error_body, jsonrpc, listed, v2025, v2026, write,
};
use serde_json::Value;

mod schema;

const POLL_MS: u64 = 1000;
const TASK: TaskId = TaskId::from_random(7);
const ALL: Features = Features { tasks: true, prompts: true, resources: true, completions: true };
const OLD: Dialect = Dialect::V2025_11_25;
const NEW: Dialect = Dialect::V2026_07_28;
/// The schema of the tasks extension.
const TASKS: &str = "ext-tasks-draft";

/// The golden files of a revision, and which of them have been looked at.
struct Golden {
    dialect: Dialect,
    seen: BTreeSet<String>,
}

/// Where a frame is defined: a schema, and a definition in it.
type Definition = (&'static str, &'static str);

impl Golden {
    fn of(dialect: Dialect) -> Self {
        Self { dialect, seen: BTreeSet::new() }
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(self.dialect.version())
    }

    fn file(&mut self, name: String) -> Vec<u8> {
        let bytes = std::fs::read(self.folder().join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        self.seen.insert(name);
        bytes
    }

    /// Reads `VERB.request.json` as `request`.
    fn request(&mut self, verb: &str, definition: Definition, request: &Request) -> RequestId {
        let body = self.file(format!("{verb}.request.json"));
        schema::check(definition.0, definition.1, &serde_json::from_slice(&body).expect("JSON"));
        let Ok(Message::Request { id, method, params }) = jsonrpc::parse(&body) else { panic!("{verb} is no request") };
        let read = if self.dialect.is_modern() {
            let headers = Mirrored { method: &method, name: ["name", "uri", "taskId"].map(|name| params.get(name)) };
            let envelope = v2026::envelope(&headers, &method, &params).expect("a good envelope");
            v2026::read(&method, &params, &envelope, ALL).map_err(|rejection| rejection.error)
        } else {
            v2025::read(self.dialect, &method, &params, ALL)
        };
        assert_eq!(read.as_ref(), Ok(request), "{verb}");
        id
    }

    /// Reads `VERB.request.json` as `request`, and writes `reply` as `VERB.reply.json`, under the request's id.
    fn verb(
        &mut self,
        verb: &str,
        (request_definition, request): (Definition, &Request),
        (result_definition, reply): (Definition, &Reply<'_>),
    ) {
        let id = self.request(verb, request_definition, request);
        let sent = self.said(&format!("{verb}.reply"), &write(self.dialect, &id, reply));
        schema::check(self.dialect.version(), "JSONRPCResultResponse", &sent);
        schema::check(result_definition.0, result_definition.1, &sent["result"]);
    }

    /// Writes `NAME.json`.
    fn said(&mut self, name: &str, frame: &[u8]) -> Value {
        let mut sent: Value = serde_json::from_slice(frame).expect("JSON");
        for server in ["/result/serverInfo/version", "/result/_meta/io.modelcontextprotocol~1serverInfo/version"] {
            if let Some(version) = sent.pointer_mut(server) {
                assert_eq!(*version, SERVER_VERSION);
                *version = "(ours)".into();
            }
        }
        let golden: Value = serde_json::from_slice(&self.file(format!("{name}.json"))).expect("JSON");
        assert_eq!(sent, golden, "{name}\n{sent:#}");
        sent
    }

    fn frame(&mut self, name: &str, definition: Definition, frame: &[u8]) {
        let sent = self.said(&format!("{name}.frame"), frame);
        schema::check(definition.0, definition.1, &sent);
    }

    fn error(&mut self, name: &str, definition: Definition, denial: &Denial<'_>) {
        let error = denial.reject(self.dialect).error;
        let sent = self.said(&format!("{name}.error"), &error_body(RequestId::from_json("9").as_ref(), &error));
        schema::check(definition.0, definition.1, &sent);
    }

    fn no_file_lies_unread(&self) {
        let entries = std::fs::read_dir(self.folder()).expect("the golden folder");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        let there: BTreeSet<_> = entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        assert_eq!(there, self.seen);
    }
}

/// The headers of a client that repeats the body in them.
struct Mirrored<'a> {
    method: &'a str,
    name: [Option<&'a str>; 3],
}

impl Headers for Mirrored<'_> {
    fn header(&self, name: &str) -> Header<'_> {
        match name {
            "mcp-protocol-version" => Header::One(NEW.version()),
            "mcp-method" => Header::One(self.method),
            "mcp-name" => {
                let said = self.name.into_iter().flatten().next();
                said.map_or(Header::Absent, |said| Header::One(said.trim_matches('"')))
            }
            _ => Header::Absent,
        }
    }
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
        client: ClientCapabilities::default(),
        retry: longhaul_core::Retry::default(),
        inputs: Vec::new(),
        reserved: None,
        spent: None,
    }
}

fn form() -> Question {
    let schema = r#"{"type":"object","properties":{"cc":{"type":"string","title":"Cost centre"}},"required":["cc"]}"#;
    Question::Form { message: "Which cost centre?".into(), schema: schema.into() }
}

fn page() -> Question {
    Question::Url { message: "Link your drive to go on.".into(), url: "https://connect.example.net/8h2".into() }
}

fn sampling() -> Question {
    let params = r#"{"messages":[{"role":"user","content":{"type":"text","text":"Hi"}}],"maxTokens":100}"#;
    Question::Sample { params: params.into() }
}

/// A task that has three questions, the second of which was answered.
fn asking() -> Task {
    let open = |question| InputState::Open { question, until: Timestamp::from_micros(i64::MAX) };
    let states = [open(form()), InputState::Closed, open(page())];
    let inputs = (1..).zip(states).map(|(nth, state)| Input { key: format!("q-{nth}"), state });
    let client = ClientCapabilities { elicitation_form: true, elicitation_url: true, ..Default::default() };
    Task { client, inputs: inputs.collect(), ..task(Phase::Queued, Some(3_600_000), None) }
}

fn call(target: Target, arguments: &'static str) -> Call {
    Call {
        target,
        arguments: Bytes::from_static(arguments.as_bytes()),
        wants: Wants::Inline,
        progress_token: None,
        retry: None,
        trace: TraceContext::default(),
    }
}

fn tool(name: &str) -> Target {
    Target::Tool(name.into())
}

fn result(body: &'static str) -> Outcome {
    Outcome::Result { is_error: false, body: Bytes::from_static(body.as_bytes()) }
}

fn failed() -> Outcome {
    let body =
        r#"{"content":[{"type":"text","text":"No such file."}],"isError":true,"_meta":{"example.com/took":1.5}}"#;
    Outcome::Result { is_error: true, body: body.into() }
}

fn said() -> Outcome {
    result(r#"{"content":[{"type":"text","text":"hi"}],"isError":false}"#)
}

fn trace() -> TraceContext {
    TraceContext::new(Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), None, None)
}

fn welcome() -> Welcome<'static> {
    Welcome {
        name: SERVER_NAME,
        version: SERVER_VERSION,
        instructions: Some("Long calls may become tasks."),
        features: ALL,
    }
}

/// One page of each list, as the dialect lists them.
fn pages(dialect: Dialect) -> [(Listing, &'static str, &'static str, Vec<Bytes>); 4] {
    let items = |listing, definitions: &[&'static str]| {
        let supports = [TaskSupport::Optional, TaskSupport::Forbidden];
        let item = |(definition, support): (&&'static str, TaskSupport)| {
            let definition = Bytes::from_static(definition.as_bytes());
            listed(dialect, listing, &definition, Some(support), true).expect("an object")
        };
        definitions.iter().zip(supports).map(item).collect::<Vec<_>>()
    };
    let tools = [
        r#"{"name":"echo","description":"Says it again.","inputSchema":{"type":"object","properties":{"text":{"type":"string","x-mcp-header":"Text"},"ratio":{"type":"number","x-mcp-header":"Ratio"}}}}"#,
        r#"{"name":"up.count","description":"Counts.","execution":{"taskSupport":"required"},"inputSchema":{"type":"object"},"outputSchema":{"type":"integer"}}"#,
    ];
    let prompts = [
        r#"{"name":"greeting","description":"Greets.","arguments":[{"name":"name","required":true}]}"#,
        r#"{"name":"bye","title":"Bye"}"#,
    ];
    let resources = [
        r#"{"uri":"demo://welcome","name":"welcome","mimeType":"text/plain","size":12}"#,
        r#"{"uri":"file:///a%20b","name":"b"}"#,
    ];
    let templates = [r#"{"uriTemplate":"demo://{name}/data","name":"data"}"#];
    [
        (Listing::Tools, "tools", "Tools", items(Listing::Tools, &tools)),
        (Listing::Prompts, "prompts", "Prompts", items(Listing::Prompts, &prompts)),
        (Listing::Resources, "resources", "Resources", items(Listing::Resources, &resources)),
        (Listing::Templates, "templates", "ResourceTemplates", items(Listing::Templates, &templates)),
    ]
}

/// Calls that are no tools', with their answers: a name, the definitions, the call and its outcome.
fn other_calls() -> [(&'static str, &'static str, &'static str, Call, Outcome); 4] {
    let completion = result(r#"{"completion":{"values":["Ada","Alan"],"total":2,"hasMore":false}}"#);
    let argument = r#"{"argument":{ "name": "name", "value": "A" }}"#;
    let with_context = r#"{"argument":{ "name": "name", "value": "A" },"context":{ "arguments": { "x": "y" } }}"#;
    [
        (
            "prompt",
            "GetPromptRequest",
            "GetPromptResult",
            call(Target::Prompt("greeting".into()), r#"{ "name": "Ada" }"#),
            result(r#"{"messages":[{"role":"user","content":{"type":"text","text":"Hello, Ada!"}}]}"#),
        ),
        (
            "resource",
            "ReadResourceRequest",
            "ReadResourceResult",
            call(Target::Resource("demo://welcome".into()), "{}"),
            result(r#"{"contents":[{"uri":"demo://welcome","text":"Welcome."}],"cacheScope":"shared","ttlMs":-1}"#),
        ),
        (
            "complete",
            "CompleteRequest",
            "CompleteResult",
            call(Target::CompletePrompt("greeting".into()), argument),
            completion.clone(),
        ),
        (
            "complete_template",
            "CompleteRequest",
            "CompleteResult",
            call(Target::CompleteTemplate("demo://{name}/data".into()), with_context),
            completion,
        ),
    ]
}

fn progress() -> Progress {
    Progress { progress: 3.0, total: Some(10.0), message: Some("3 of 10".into()) }
}

fn log() -> LogMessage {
    LogMessage { level: LogLevel::Info, logger: Some("db".into()), data: Bytes::from_static(b"{ \"rows\": 3 }") }
}

fn nowhere() -> CallError {
    CallError { code: -32002, message: "Resource not found".into(), data: None }
}

#[test]
fn sessions_read_and_write_as_their_golden_files() {
    const SCHEMA: &str = "2025-11-25";
    let mut golden = Golden::of(OLD);
    let of = |definition| (SCHEMA, definition);

    let capabilities = ClientCapabilities { elicitation_form: true, elicitation_url: true, ..Default::default() };
    let hello = Hello { version: SCHEMA.into(), capabilities, client: Some("cli".into()) };
    golden.verb(
        "hello",
        (of("InitializeRequest"), &Request::Hello(hello)),
        (of("InitializeResult"), &Reply::Hello(welcome())),
    );
    golden.verb("ping", (of("PingRequest"), &Request::Ping), (of("EmptyResult"), &Reply::Done));
    golden.verb(
        "set_level",
        (of("SetLevelRequest"), &Request::SetLevel(LogLevel::Info)),
        (of("EmptyResult"), &Reply::Done),
    );
    let uri = || "demo://welcome".to_owned();
    golden.verb(
        "subscribe",
        (of("SubscribeRequest"), &Request::Subscribe { uri: uri() }),
        (of("EmptyResult"), &Reply::Done),
    );
    golden.verb(
        "unsubscribe",
        (of("UnsubscribeRequest"), &Request::Unsubscribe { uri: uri() }),
        (of("EmptyResult"), &Reply::Done),
    );

    for (listing, name, definition, items) in &pages(OLD) {
        let (request, result) = (format!("List{definition}Request"), format!("List{definition}Result"));
        let (request, result) = (of(&*request.leak()), of(&*result.leak()));
        let asked = Request::List { listing: *listing, cursor: Some("abc".into()) };
        let reply = Reply::Page { listing: *listing, items, next_cursor: Some("def") };
        golden.verb(name, (request, &asked), (result, &reply));
    }

    let arguments = r#"{ "text": "hi", "n": 123456789012345678901234567890 }"#;
    golden.verb(
        "call",
        (of("CallToolRequest"), &Request::Call(call(tool("echo"), arguments))),
        (of("CallToolResult"), &Reply::CallOutcome { target: &tool("echo"), outcome: &said() }),
    );
    for (name, request, result, call, outcome) in &other_calls() {
        golden.verb(
            name,
            (of(request), &Request::Call(call.clone())),
            (of(result), &Reply::CallOutcome { target: &call.target, outcome }),
        );
    }

    golden.verb(
        "create",
        (
            of("CallToolRequest"),
            &Request::Call(Call {
                wants: Wants::Task(TtlWish::Ms(900_000)),
                progress_token: Some(Bytes::from_static(b"\"p7\"")),
                trace: trace(),
                ..call(tool("countdown"), "{}")
            }),
        ),
        (
            of("CreateTaskResult"),
            &Reply::Created { task: &task(Phase::Queued, Some(3_600_000), None), poll_interval_ms: POLL_MS },
        ),
    );

    let named = TaskRef { id: Some(TASK) };
    let lost = Interruption::WorkerLost;
    let interrupted = task(Phase::Ended(Ending::Interrupted(lost)), Some(3_600_000), Some(lost.sentence()));
    for (name, task) in [("get", interrupted), ("get_asking", asking())] {
        golden.verb(
            name,
            (of("GetTaskRequest"), &Request::Get(named)),
            (of("GetTaskResult"), &Reply::Task { task: &task, outcome: None, poll_interval_ms: POLL_MS }),
        );
    }
    golden.verb(
        "result",
        (of("GetTaskPayloadRequest"), &Request::Result(named)),
        (of("CallToolResult"), &Reply::TaskOutcome { task: TASK, outcome: &failed() }),
    );
    let completed = Phase::Ended(Ending::Result { is_error: false });
    let tasks = [task(Phase::Queued, None, Some("3 of 10")), task(completed, Some(3_600_000), None)];
    golden.verb(
        "list",
        (of("ListTasksRequest"), &Request::Tasks { cursor: None }),
        (of("ListTasksResult"), &Reply::Tasks { tasks: &tasks, poll_interval_ms: POLL_MS, next_cursor: Some("def") }),
    );
    let cancelled = task(Phase::Ended(Ending::Cancelled), Some(3_600_000), None);
    golden.verb(
        "cancel",
        (of("CancelTaskRequest"), &Request::Cancel(named)),
        (of("CancelTaskResult"), &Reply::Cancelled { task: &cancelled, poll_interval_ms: POLL_MS }),
    );

    let id = v2025::task_question_id(TASK, 1);
    golden.frame("ask_form", of("ElicitRequest"), &v2025::ask(&id, &form(), Some(TASK)));
    golden.frame("ask_url", of("ElicitRequest"), &v2025::ask(&id, &page(), Some(TASK)));
    golden.frame("ask_model", of("CreateMessageRequest"), &v2025::ask("r1", &sampling(), None));
    golden.frame("ask_roots", of("ListRootsRequest"), &v2025::ask("r1", &Question::Roots, None));
    golden.frame("withdrawn", of("CancelledNotification"), &v2025::notify::cancelled(&id));
    golden.frame("task_status", of("TaskStatusNotification"), &v2025::notify::task_status(&asking(), POLL_MS));
    let told = v2025::notify::progress(b"\"p7\"", &progress(), Some(TASK)).expect("JSON");
    golden.frame("progress", of("ProgressNotification"), &told);
    golden.frame("log", of("LoggingMessageNotification"), &v2025::notify::log(&log()).expect("JSON"));
    golden.frame("updated", of("ResourceUpdatedNotification"), &v2025::notify::resource_updated("demo://welcome"));
    for (name, definition, listing) in [
        ("tools_changed", "ToolListChangedNotification", Listing::Tools),
        ("prompts_changed", "PromptListChangedNotification", Listing::Prompts),
        ("resources_changed", "ResourceListChangedNotification", Listing::Resources),
    ] {
        golden.frame(name, of(definition), &v2025::notify::list_changed(listing));
    }

    golden.error("unknown_resource", of("JSONRPCErrorResponse"), &Denial::UnknownResource("demo://nowhere"));
    golden.error("task_required", of("JSONRPCErrorResponse"), &Denial::TaskRequired);
    golden.no_file_lies_unread();
}

#[test]
fn requests_that_stand_for_themselves_read_and_write_as_their_golden_files() {
    const SCHEMA: &str = "2026-07-28";
    let mut golden = Golden::of(NEW);
    let of = |definition| (SCHEMA, definition);
    let ext = |definition| (TASKS, definition);
    let either = |target, arguments| Call { wants: Wants::Either, ..call(target, arguments) };

    golden.verb(
        "discover",
        (of("DiscoverRequest"), &Request::Discover),
        (of("DiscoverResult"), &Reply::Discovered(welcome())),
    );
    for (listing, name, definition, items) in &pages(NEW) {
        let (request, result) = (format!("List{definition}Request"), format!("List{definition}Result"));
        let (request, result) = (of(&*request.leak()), of(&*result.leak()));
        let asked = Request::List { listing: *listing, cursor: Some("abc".into()) };
        let reply = Reply::Page { listing: *listing, items, next_cursor: Some("def") };
        golden.verb(name, (request, &asked), (result, &reply));
    }

    let arguments = r#"{ "text": "hi", "n": 123456789012345678901234567890 }"#;
    golden.verb(
        "call",
        (of("CallToolRequest"), &Request::Call(call(tool("echo"), arguments))),
        (of("CallToolResult"), &Reply::CallOutcome { target: &tool("echo"), outcome: &said() }),
    );
    for (name, request, result, call, outcome) in &other_calls() {
        golden.verb(
            name,
            (of(request), &Request::Call(call.clone())),
            (of(result), &Reply::CallOutcome { target: &call.target, outcome }),
        );
    }
    let kept = result(r#"{"contents":[],"ttlMs":60000,"cacheScope":"public","resultType":"complete"}"#);
    let welcome_page = Target::Resource("demo://welcome".into());
    golden.verb(
        "resource_kept",
        (of("ReadResourceRequest"), &Request::Call(call(welcome_page.clone(), "{}"))),
        (of("ReadResourceResult"), &Reply::CallOutcome { target: &welcome_page, outcome: &kept }),
    );

    let requests = [("cc", form()), ("link", page()), ("model", sampling()), ("roots", Question::Roots)];
    let requests = requests.map(|(key, question)| InputRequest { key: key.into(), question });
    golden.verb(
        "ask",
        (of("CallToolRequest"), &Request::Call(call(tool("deploy"), r#"{ "env": "stage" }"#))),
        (of("InputRequiredResult"), &Reply::InputRequired { requests: &requests, state: "v1.9Yt" }),
    );
    let retry = Retry {
        state: Some("v1.9Yt".into()),
        responses: vec![("cc".into(), Bytes::from_static(br#"{ "action": "accept", "content": { "cc": "4711" } }"#))],
    };
    golden.verb(
        "retry",
        (
            of("CallToolRequest"),
            &Request::Call(Call { retry: Some(retry), ..call(tool("deploy"), r#"{ "env": "stage" }"#) }),
        ),
        (of("CallToolResult"), &Reply::CallOutcome { target: &tool("deploy"), outcome: &said() }),
    );

    golden.verb(
        "create",
        (
            of("CallToolRequest"),
            &Request::Call(Call {
                progress_token: Some(Bytes::from_static(b"7")),
                trace: trace(),
                ..either(tool("countdown"), "{}")
            }),
        ),
        (
            ext("CreateTaskResult"),
            &Reply::Created { task: &task(Phase::Queued, Some(3_600_000), None), poll_interval_ms: POLL_MS },
        ),
    );
    let named = TaskRef { id: Some(TASK) };
    let (ended, is_error) = (Phase::Ended, |is_error| Ending::Result { is_error });
    let lost = Interruption::WorkerLost;
    let states = [
        ("get_working", task(Phase::Queued, None, Some("3 of 10")), None),
        ("get_asking", asking(), None),
        ("get_completed", task(ended(is_error(false)), Some(3_600_000), None), Some(said())),
        ("get_tool_error", task(ended(is_error(true)), Some(3_600_000), None), Some(failed())),
        ("get_failed", task(ended(Ending::Error), Some(3_600_000), None), Some(Outcome::Error(nowhere()))),
        ("get_interrupted", task(ended(Ending::Interrupted(lost)), Some(3_600_000), Some(lost.sentence())), None),
        ("get_cancelled", task(ended(Ending::Cancelled), Some(3_600_000), None), None),
    ];
    for (name, task, outcome) in &states {
        golden.verb(
            name,
            (ext("GetTaskRequest"), &Request::Get(named)),
            (ext("GetTaskResult"), &Reply::Task { task, outcome: outcome.as_ref(), poll_interval_ms: POLL_MS }),
        );
    }
    let update =
        Update { task: named, responses: vec![("q-1".into(), Bytes::from_static(br#"{ "action": "decline" }"#))] };
    golden.verb(
        "update",
        (ext("UpdateTaskRequest"), &Request::Update(update)),
        (ext("UpdateTaskResult"), &Reply::Done),
    );
    let cancelled = task(Phase::Ended(Ending::Cancelled), Some(3_600_000), None);
    golden.verb(
        "cancel",
        (ext("CancelTaskRequest"), &Request::Cancel(named)),
        (ext("CancelTaskResult"), &Reply::Cancelled { task: &cancelled, poll_interval_ms: POLL_MS }),
    );

    let filter = Filter {
        tools: true,
        prompts: true,
        resources: true,
        resource_uris: vec!["demo://welcome".into()],
        tasks: Some(vec![TASK]),
    };
    golden.verb(
        "listen",
        (of("SubscriptionsListenRequest"), &Request::Listen(filter.clone())),
        (of("SubscriptionsListenResult"), &Reply::ListenEnded),
    );
    let stream = RequestId::from_json("31").expect("an id");
    golden.frame(
        "acknowledged",
        of("SubscriptionsAcknowledgedNotification"),
        &v2026::notify::acknowledged(&stream, &filter),
    );
    let some = Filter { prompts: true, tasks: Some(vec![]), ..Filter::default() };
    let stream_by_text = RequestId::from_json("\"31\"").expect("an id");
    golden.frame(
        "acknowledged_some",
        of("SubscriptionsAcknowledgedNotification"),
        &v2026::notify::acknowledged(&stream_by_text, &some),
    );
    for (name, task, outcome) in &states {
        let frame = v2026::notify::task(&stream, task, outcome.as_ref(), POLL_MS).expect("all is told");
        golden.frame(&name.replace("get", "task"), ext("TaskStatusNotification"), &frame);
    }
    for (name, definition, listing) in [
        ("tools_changed", "ToolListChangedNotification", Listing::Tools),
        ("prompts_changed", "PromptListChangedNotification", Listing::Prompts),
        ("resources_changed", "ResourceListChangedNotification", Listing::Templates),
    ] {
        golden.frame(name, of(definition), &v2026::notify::list_changed(&stream, listing));
    }
    let updated = v2026::notify::resource_updated(&stream, "demo://welcome");
    golden.frame("updated", of("ResourceUpdatedNotification"), &updated);
    let told = v2026::notify::progress(b"7", &progress()).expect("JSON");
    golden.frame("progress", of("ProgressNotification"), &told);
    golden.frame("log", of("LoggingMessageNotification"), &v2026::notify::log(&log()).expect("JSON"));

    let missing = ClientCapabilities { elicitation_form: true, roots: true, ..Default::default() };
    let lacking = of("MissingRequiredClientCapabilityError");
    golden.error("missing_capability", lacking, &Denial::MissingCapability(missing));
    golden.error("tasks_undeclared", lacking, &Denial::TasksUndeclared);
    golden.error("task_required", lacking, &Denial::TaskRequired);
    golden.error("header_mismatch", of("HeaderMismatchError"), &Denial::BadHeader("Mcp-Name does not match"));
    golden.error("unknown_resource", of("JSONRPCErrorResponse"), &Denial::UnknownResource("demo://nowhere"));
    golden.no_file_lies_unread();
}
