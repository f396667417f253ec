//! Servers that run as children.

use crate::world::{self, SOON, Word, World, error, fixture, lives, word};
use longhaul_core::{CallError, Outcome, TaskSupport};
use longhaul_rpc::{CallEvent, Report};
use serde_json::{Value, json};
use tokio::time::timeout;

/// What the fixture says, apart from the name that a tool gets here and the `execution` that is ours to write.
const EXACT_TOOL: &str = r#"{"zeta":-0,"name":"up.exact","description":"caf\u00e9","inputSchema":{"type":"object","properties":{"n":{"type":"number","maximum":123456789012345678901234567890,"multipleOf":1e-2}},"x-order":["b","a"]},"alpha":1e2,"annotations":{"openWorldHint":false,"new":1.10}}"#;
const EXACT_RESULT: &str = r#"{ "zeta": -0, "content": [{"type":"text","text":"caf\u00e9","unknown":[1.10]}], "structuredContent":{"big":123456789012345678901234567890,"exp":1e2,"b":1,"a":2}, "alpha": {"more":null} }"#;

fn upstream(name: &str) -> Value {
    json!({ "name": name, "command": ["python3", fixture(), "stdio"] })
}

#[tokio::test]
async fn tools_and_results_come_through_as_they_are() {
    let mut config = upstream("up");
    config["task_support"] = json!("forbidden");
    config["tools"] = json!({ "exact": { "task_support": "required" } });
    let world = World::start(&[config]).await;
    let tool = world.tool("up.exact").await;
    let written = String::from_utf8(tool.definition.to_vec()).unwrap();
    assert_eq!(squeeze(&written), EXACT_TOOL);
    assert_eq!(tool.task_support, TaskSupport::Required);
    assert_eq!(world.tool("up.raw").await.task_support, TaskSupport::Forbidden);
    let names = [
        "exact", "raw", "count", "wait", "seen", "crash", "fail", "grow", "huge", "ask", "env", "forget", "headers",
        "odd", "log", "pages", "touch", "poll", "later",
    ];
    assert_eq!(world.names(), names.map(|name| format!("up.{name}")), "both pages, without what cannot be offered");

    let (_, outcome) = world.call("up.exact", "{}").await;
    assert_eq!(outcome, Outcome::Result { is_error: false, body: EXACT_RESULT.into() });

    let (_, outcome) = world.call("up.fail", "{}").await;
    let data = r#"{"big":123456789012345678901234567890,"exp":1e2}"#;
    assert_eq!(outcome, Outcome::Error(CallError { code: -32042, message: "no".into(), data: Some(data.into()) }));

    let arguments = "{ \"b\": 123456789012345678901234567890,\n \"a\": [-0, 1e2] }";
    let sent = world.text("up.raw", arguments).await;
    assert!(sent.contains(&arguments.replace('\n', " ")), "{sent}");

    assert_eq!(error(&world.call("up.odd", "{}").await.1).0, -32603, "a result that is no object is none");
    world.end().await;
}

/// Without the white space outside strings; the strings at hand have none.
fn squeeze(json: &str) -> String {
    json.split_ascii_whitespace().collect()
}

#[tokio::test]
async fn a_task_hears_of_progress_in_words() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.count").await;
    let mut task = world.task(1, "up.count", r#"{"to": 3, "talk": true, "hold": "go"}"#);
    let mut last = Report::default();
    while last.status_message.as_deref() != Some("step 3") {
        let Word::Report(report) = word(&mut task).await else { panic!() };
        last = report;
    }
    let progress = last.progress.unwrap();
    assert_eq!((progress.progress, progress.total, progress.message.as_deref()), (3.0, Some(3.0), Some("step 3")));
    world.text("up.seen", r#"{"note": "go", "event": "go"}"#).await;
    let Word::Outcome(outcome) = word(&mut task).await else { panic!() };
    assert_eq!(world::text(&outcome), "counted");

    // Without words of the server's, the numbers are put into some.
    let mut task = world.task(2, "up.count", r#"{"to": 2}"#);
    let mut said = None;
    loop {
        match word(&mut task).await {
            Word::Report(report) => said = report.status_message.or(said),
            Word::Outcome(outcome) => break assert_eq!(world::text(&outcome), "counted"),
            Word::Input(asked) => panic!("{asked:?}"),
        }
    }
    assert_eq!(said.as_deref(), Some("2 of 2"));

    let (news, _) = world.call("up.count", r#"{"to": 5}"#).await;
    assert_eq!(news.last().map(|news| (news.progress, news.total)), Some((5.0, Some(5.0))));
    world.end().await;
}

#[tokio::test]
async fn a_cancelled_call_or_task_is_cancelled_upstream() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.wait").await;
    let mut call = world.begin("up.wait", "{}").await;
    let first = call.next().await;
    assert!(matches!(first, Some(CallEvent::Progress(_))), "{first:?}");
    drop(call);
    world.text("up.seen", r#"{"event": "gave up"}"#).await;

    let mut task = world.task(1, "up.wait", "{}");
    assert!(matches!(word(&mut task).await, Word::Report(_)));
    world.stop(1);
    world.text("up.seen", r#"{"event": "gave up", "times": 2}"#).await;
    world.end().await;
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cancelled_upstream() {
    let mut config = upstream("up");
    config["tools"] = json!({ "wait": { "timeout_s": 1 } });
    let world = World::start(&[config]).await;
    world.tool("up.wait").await;
    let (_, outcome) = world.call("up.wait", "{}").await;
    assert_eq!(error(&outcome), (-32603, "timed out after 1 s"));
    world.text("up.seen", r#"{"event": "gave up"}"#).await;
    world.end().await;
}

#[tokio::test]
async fn a_server_that_died_is_started_again_and_its_calls_end() {
    let world = World::start(&[upstream("up"), upstream("other")]).await;
    world.tool("up.crash").await;
    world.tool("other.wait").await;
    let mut elsewhere = world.begin("other.wait", "{}").await;
    let mut call = world.begin("up.wait", "{}").await;
    for call in [&mut elsewhere, &mut call] {
        call.next().await.unwrap();
    }
    let stopped = (-32603, "the upstream server up stopped");
    assert_eq!(error(&world.call("up.crash", "{}").await.1), stopped);
    assert_eq!(error(&world::finish(call).await.1), stopped);
    for _ in 0..3 {
        assert_eq!(world.call("up.exact", "{}").await.1.ending(), longhaul_core::Ending::Result { is_error: false });
        assert_eq!(error(&world.call("up.crash", "{}").await.1), stopped);
    }
    assert!(elsewhere.is_silent(), "the other server's call goes on");
    drop(elsewhere);
    world.end().await;
}

#[tokio::test]
async fn a_changed_list_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = upstream("up");
    config["env"] = json!([format!("GROWN={}", folder.path().join("grown").display())]);
    let world = World::start(&[config]).await;
    world.tool("up.grow").await;
    assert!(!world.names().contains(&"up.extra".to_owned()));
    assert_eq!(world.text("up.grow", "{}").await, "grown");
    world.tool("up.extra").await;
    assert_eq!(world.text("up.extra", "{}").await, "called extra");
    world.end().await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_fails_its_call_alone() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.huge").await;
    let mut waiting = world.begin("up.wait", "{}").await;
    waiting.next().await.unwrap();
    for arguments in [r#"{"bytes": 6000000}"#, r#"{"bytes": 6000000, "id_last": true}"#] {
        let (_, outcome) = world.call("up.huge", arguments).await;
        assert_eq!(error(&outcome), (-32603, "the upstream server up sent too large an answer"));
    }
    assert!(waiting.is_silent());
    assert_eq!(world.text("up.huge", r#"{"bytes": 3000000}"#).await.len(), 3_000_000);

    // Whose answer it was cannot be seen: rather than let somebody wait in vain, the server is started anew.
    let (_, outcome) = world.call("up.huge", r#"{"bytes": 6000000, "id_hidden": true}"#).await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up stopped"));
    assert_eq!(error(&world::finish(waiting).await.1), (-32603, "the upstream server up stopped"));
    world.text("up.raw", "{}").await;
    world.end().await;
}

#[tokio::test]
async fn how_large_an_answer_may_be_is_for_the_operator_to_say() {
    let world = World::start_with(&[upstream("up")], 8_000_000).await;
    world.tool("up.huge").await;
    assert_eq!(world.text("up.huge", r#"{"bytes": 6000000}"#).await.len(), 6_000_000);
    let (_, outcome) = world.call("up.huge", r#"{"bytes": 9000000}"#).await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up sent too large an answer"));
    world.end().await;

    // Less than the list of its tools.
    let world = World::start_with(&[upstream("up")], 100).await;
    world.tool("up.huge").await;
    assert_eq!(world.text("up.huge", r#"{"bytes": 10}"#).await.len(), 10);
    let (_, outcome) = world.call("up.huge", r#"{"bytes": 1000}"#).await;
    assert_eq!(error(&outcome).0, -32603);
    world.end().await;
}

#[tokio::test]
async fn a_server_is_told_what_we_do_and_what_not() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.ask").await;
    let requests = json!({ "requests": [
        r#"{"jsonrpc":"2.0","id":"ping-1","method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"tasks/list"}"#,
        r#"{"jsonrpc":"2.0","id":8,"method":"elicitation/create","params":{"mode":"form"}}"#,
    ] });
    let replies: Value = serde_json::from_str(&world.text("up.ask", &requests.to_string()).await).unwrap();
    assert_eq!(replies[0], json!({ "jsonrpc": "2.0", "id": "ping-1", "result": {} }));
    assert_eq!(replies[1]["error"], json!({ "code": -32601, "message": "not supported" }));
    assert_eq!(replies[2]["error"], json!({ "code": -32602, "message": "the question cannot be read" }));
    let promised = r#"initialize {\"elicitation\": {\"form\": {}, \"url\": {}}, \"sampling\": {}, \"roots\": {}}"#;
    let seen = world.text("up.seen", r#"{"event": "initialize"}"#).await;
    assert!(seen.contains(promised), "{seen}");
    assert!(seen.contains("level debug"), "{seen}");
    world.end().await;
}

#[tokio::test]
async fn a_child_has_a_clean_environment_and_leaves_with_us() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = upstream("up");
    config["env"] = json!(["STUBBORN=1"]);
    config["cwd"] = json!(folder.path());
    let world = World::start(&[config]).await;
    world.tool("up.env").await;
    let said = world.text("up.env", "{}").await;
    let (names, cwd, processes): (Vec<String>, String, [u32; 2]) = serde_json::from_str(&said).unwrap();
    assert_eq!(cwd, folder.path().canonicalize().unwrap().to_str().unwrap());
    assert!(names.contains(&"STUBBORN".into()) && names.contains(&"PATH".into()), "{names:?}");
    assert!(!names.contains(&"CARGO_MANIFEST_DIR".into()), "{names:?}");
    assert!(processes.into_iter().all(lives));
    // It does not leave when its input ends, and has started another.
    world.end().await;
    assert!(!lives(processes[0]));
    let gone = async {
        while lives(processes[1]) {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, gone).await.expect("what it started is gone too");
}

#[tokio::test]
async fn a_server_that_is_not_there_hinders_nobody() {
    let world = World::start(&[json!({ "name": "gone", "command": ["/nonexistent/server"] }), upstream("up")]).await;
    world.tool("up.exact").await;
    let status = world.runner.status();
    assert!(status[0].missing.as_ref().unwrap().starts_with("cannot be started"), "{status:?}");
    let up = &status[1];
    assert_eq!((&*up.name, up.tools, up.prompts, up.resources, &up.missing), ("up", 21, 2, 4, &None));
    world.end().await;
}
