//! Servers of 2026-07-28: without sessions, over Streamable HTTP and over standard input and output.

use crate::http::Server;
use crate::world::{self, ANYTHING, SOON, TRACEPARENT, Word, World, error, word, yes};
use futures::StreamExt as _;
use longhaul_core::{ClientCapabilities, InputResponse, LogLevel, Outcome, Question, Target};
use longhaul_rpc::CallEvent;
use serde_json::{Value, json};
use tokio::time::timeout;

const FORM: &str = r#"{"type":"object","properties":{"n":{"type":"number","maximum":1e3}},"required":["n"]}"#;

fn fixture() -> String {
    format!("{}/tests/fixtures/modern.py", env!("CARGO_MANIFEST_DIR"))
}

fn over_stdio() -> Value {
    json!({ "name": "up", "command": ["python3", fixture(), "stdio"] })
}

async fn over_http() -> Server {
    Server::start_program(&fixture(), 0).await
}

async fn over_both(test: impl AsyncFn(World)) {
    let server = over_http().await;
    for config in [server.upstream("mcp"), over_stdio()] {
        let world = World::start(&[config]).await;
        world.tool("up.raw").await;
        test(world).await;
    }
}

/// A round of questions, by the server's keys.
fn round(questions: &[(&str, &str, Value)]) -> Value {
    let question = |(key, method, params): &(&str, &str, Value)| {
        ((*key).to_owned(), json!({ "method": method, "params": params }))
    };
    Value::Object(questions.iter().map(question).collect())
}

fn form(key: &str) -> Value {
    round(&[(key, "elicitation/create", json!({ "message": "How many?", "requestedSchema": "@form" }))])
}

#[tokio::test]
async fn everything_comes_through_as_it_is() {
    over_both(async |world| {
        let tool = world.tool("up.raw").await;
        assert_eq!(tool.definition, r#"{"n":1e2,"name":"up.raw","inputSchema":{"type":"object"},"new":-0}"#);
        let result = world.result(Target::Tool("up.raw".into()), r#"{ "z": 1e2 }"#).await;
        assert!(result.starts_with(r#"{ "n":123456789012345678901234567890, "content""#), "{result}");
        let sent: Value = serde_json::from_str(&world.text("up.raw", r#"{ "z": 1e2 }"#).await).unwrap();
        let meta = &sent["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
        assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "longhaul");
        assert_eq!(meta["progressToken"], sent["id"]);
        let trace = ["traceparent", "tracestate", "baggage"].map(|name| meta[name].as_str().unwrap_or_default());
        assert_eq!(trace, [TRACEPARENT, "a=b", "k=v"]);

        let prompt = world.result(Target::Prompt("up.été".into()), "{}").await;
        assert_eq!(prompt, r#"{ "n":1e2, "messages": [], "resultType":"complete" }"#);
        let read = world.result(Target::Resource("up+test://a".into()), "{}").await;
        assert!(read.contains(r#""contents":[{ "uri":"up+test://a","text":"a","n":1e2 }]"#), "{read}");
        let wanted = r#"{"argument":{"name":"a","value":"o"}}"#;
        let completed = world.result(Target::CompletePrompt("up.été".into()), wanted).await;
        assert_eq!(completed, r#"{"resultType":"complete","completion":{"values":["one"]}}"#);

        let seen = world.text("up.seen", r#"{"event": "listen"}"#).await;
        for odd in ["refused", "session", "stream", "response"] {
            assert!(!seen.contains(odd), "{seen}");
        }
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn arguments_go_into_headers_where_the_tool_says_so() {
    let server = over_http().await;
    let world = World::start(&[server.upstream("mcp")]).await;
    world.tool("up.headers").await;
    assert!(!world.names().contains(&"up.badly-annotated".to_owned()), "{:?}", world.names());
    for arguments in
        [r#"{"region": "us-west1"}"#, r#"{"region": "Genève ", "in": {"n": -7}}"#, "{}", r#"{"region": null}"#]
    {
        assert_eq!(world.text("up.headers", arguments).await, "mirrored", "{arguments}");
    }
    world.end().await;

    let world = World::start(&[over_stdio()]).await;
    world.tool("up.badly-annotated").await;
    world.end().await;
}

#[tokio::test]
async fn a_call_that_needs_answers_is_made_again_with_them() {
    over_both(async |world| {
        let rounds = json!({ "rounds": [
            round(&[
                ("how.many", "elicitation/create", json!({ "mode": "form", "message": "How many?", "requestedSchema": "@form" })),
                ("page", "elicitation/create", json!({ "mode": "url", "message": "Open it.", "url": "https://longhaul.dev/" })),
                ("a model", "sampling/createMessage", json!({ "messages": [], "maxTokens": 5 })),
                ("roots", "roots/list", json!({})),
            ]),
            Value::Null,
            form("how.many"),
        ] });
        let mut call = world.ask("up.ask", &rounds.to_string()).await;
        let asked = call.asked().await;
        let questions: Vec<_> = asked.requests.iter().map(|request| request.question.clone()).collect();
        assert_eq!(
            questions,
            [
                Question::Form { message: "How many?".into(), schema: FORM.into() },
                Question::Url { message: "Open it.".into(), url: "https://longhaul.dev/".into() },
                Question::Sample { params: r#"{"messages":[],"maxTokens":5}"#.into() },
                Question::Roots,
            ]
        );
        let answers = [
            yes(r#"{"n":7}"#),
            InputResponse::Cancel,
            InputResponse::Result(r#"{"role":"assistant"}"#.into()),
            InputResponse::Result(r#"{"roots":[]}"#.into()),
        ];
        let answers = asked.requests.into_iter().map(|request| request.key).zip(answers).collect();
        world.respond(&asked.run, answers).await;
        let again = call.asked().await;
        assert_eq!(again.requests[0].key, "how.many", "the server's own, where it can be");
        world.respond(&again.run, vec![(again.requests[0].key.clone(), InputResponse::Decline)]).await;
        let last: Value = serde_json::from_str(&world::text(&call.outcome().await)).unwrap();
        assert_eq!(last, json!({ "how.many": { "action": "decline" } }));
        let seen = world.text("up.seen", r#"{"event": "answered", "times": 2}"#).await;
        let events: Vec<String> = serde_json::from_str(&seen).unwrap();
        let answered: Vec<Value> = events
            .iter()
            .filter_map(|event| Some(serde_json::from_str(event.strip_prefix("answered ")?).unwrap()))
            .collect();
        assert_eq!(
            answered[0],
            json!({
                "how.many": { "action": "accept", "content": { "n": 7 } },
                "page": { "action": "cancel" },
                "a model": { "role": "assistant" },
                "roots": { "roots": [] },
            })
        );
        assert_eq!(answered.len(), 2, "a round without questions has no answers: {answered:?}");
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_task_asks_its_owner() {
    over_both(async |world| {
        let mut task = world.task(1, "up.ask", &json!({ "rounds": [form("a"), form("a")] }).to_string());
        for nth in 1..=2 {
            let Word::Input(asked) = word(&mut task).await else { panic!() };
            assert_eq!(asked[0].question, Question::Form { message: "How many?".into(), schema: FORM.into() });
            world.answer(1, nth, yes(&format!(r#"{{"n":{nth}}}"#)));
        }
        let outcome = loop {
            match word(&mut task).await {
                Word::Outcome(outcome) => break outcome,
                Word::Report(_) | Word::Input(_) => {}
            }
        };
        assert_eq!(world::text(&outcome), r#"{"a": {"action": "accept", "content": {"n": 2}}}"#);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_is_told_what_its_caller_can_be_asked() {
    let world = World::start(&[over_stdio()]).await;
    world.tool("up.raw").await;
    for (client, capabilities) in [
        (ANYTHING, json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {} })),
        (
            ClientCapabilities { elicitation_form: true, ..ClientCapabilities::default() },
            json!({ "elicitation": { "form": {} } }),
        ),
        (ClientCapabilities::default(), json!({})),
    ] {
        let outcome = world.invoke_for(client, None, Target::Tool("up.raw".into()), "{}").await.outcome().await;
        let sent: Value = serde_json::from_str(&world::text(&outcome)).unwrap();
        assert_eq!(sent["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"], capabilities);
    }
    let mut task = world.task(1, "up.raw", "{}");
    let Word::Outcome(outcome) = word(&mut task).await else { panic!() };
    let sent: Value = serde_json::from_str(&world::text(&outcome)).unwrap();
    let meta = &sent["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({ "elicitation": { "form": {}, "url": {} } }));
    assert_eq!(meta.get("io.modelcontextprotocol/logLevel"), None, "nobody reads a task's log");
    world.end().await;
}

#[tokio::test]
async fn a_server_that_never_has_enough_fails_its_call() {
    let world = World::start(&[over_stdio()]).await;
    world.tool("up.again").await;
    let (_, outcome) = world.call("up.again", "{}").await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up asks again and again"));

    let declined = json!({ "rounds": [round(&[("m", "sampling/createMessage", json!({ "messages": [] }))])] });
    let (_, outcome) = world.call("up.ask", &declined.to_string()).await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up asks something that has no answer: declined"));

    let odd = json!({ "rounds": [round(&[("m", "tasks/list", json!({}))])] });
    let (_, outcome) = world.call("up.ask", &odd.to_string()).await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up asks a question that cannot be read"));

    let (_, outcome) = world.call("up.fail", r#"{"odd": true}"#).await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up answers in a way that MCP does not foresee"));
    let (_, outcome) = world.call("up.fail", r#"{"code": -32020}"#).await;
    assert_eq!(error(&outcome), (-32603, "the upstream server up refuses: no (-32020)"), "that is between it and us");
    let Outcome::Error(lacking) = world.call("up.fail", r#"{"code": -32021}"#).await.1 else { panic!() };
    let data: Value = serde_json::from_slice(&lacking.data.unwrap()).unwrap();
    assert_eq!((lacking.code, data), (-32021, json!({ "requiredCapabilities": { "sampling": {} } })));
    world.end().await;
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_upstream() {
    over_both(async |world| {
        let mut call = world.begin("up.wait", "{}").await;
        assert!(matches!(call.next().await, Some(CallEvent::Progress(_))));
        drop(call);
        world.text("up.seen", r#"{"event": "gave up"}"#).await;
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn log_messages_come_if_the_caller_may_want_them() {
    over_both(async |world| {
        let mut call = world.begin("up.log", "{}").await;
        assert_eq!(world::text(&call.outcome().await), "logged");
        let logs: Vec<_> = call.logs.iter().map(|log| (log.level, &log.data[..])).collect();
        assert_eq!(logs, [(LogLevel::Info, &b"\"debug\""[..])]);
        let seen = world.text("up.seen", r#"{"event": "listen"}"#).await;
        assert!(!seen.contains("response was sent"), "what must not be asked is not answered: {seen}");
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn changes_are_heard_of_through_subscriptions() {
    over_both(async |world| {
        world.text("up.seen", r#"{"event": "listen {\"toolsListChanged\": true}"}"#).await;
        world.text("up.grow", "{}").await;
        world.tool("up.extra").await;

        let mut watcher = world.watch("up+test://a").await;
        soon(&mut watcher).await;
        let both = r#"listen {\"toolsListChanged\": true, \"resourceSubscriptions\": [\"test://a\"]}"#;
        world.text("up.seen", &format!(r#"{{"event": "{both}"}}"#)).await;
        touch_until_heard(&world, &mut watcher).await;
        // The one without the resource is no longer needed.
        world.text("up.seen", r#"{"event": "left {\"toolsListChanged\": true}"}"#).await;

        // One that the server ends is begun again, and what was missed is made up for.
        world.text("up.touch", r#"{"end": true}"#).await;
        soon(&mut watcher).await;
        world.text("up.seen", &format!(r#"{{"event": "{both}", "times": 2}}"#)).await;
        touch_until_heard(&world, &mut watcher).await;
        drop(watcher);
        world.text("up.seen", r#"{"event": "listen {\"toolsListChanged\": true}", "times": 2}"#).await;
        world.end().await;
    })
    .await;
}

async fn touch_until_heard(
    world: &World,
    watcher: &mut (impl futures::Stream<Item = Result<(), longhaul_rpc::Error>> + Unpin),
) {
    let touching = async {
        loop {
            assert_eq!(world.text("up.touch", r#"{"uri": "test://a"}"#).await, "touched");
        }
    };
    tokio::select! {
        () = soon(watcher) => {}
        () = touching => {}
    }
}

async fn soon(watcher: &mut (impl futures::Stream<Item = Result<(), longhaul_rpc::Error>> + Unpin)) {
    timeout(SOON, watcher.next()).await.expect("it has changed").unwrap().unwrap();
}

#[tokio::test]
async fn the_config_may_say_which_mcp_a_server_speaks() {
    let server = over_http().await;
    let old = Server::start().await;
    let mut modern = server.upstream("mcp");
    modern["era"] = json!("2026");
    let mut wrong = server.upstream("mcp");
    wrong["name"] = json!("wrong");
    wrong["era"] = json!("2025");
    let mut next = server.upstream("next");
    next["name"] = json!("next");
    let mut sessions = old.upstream("mcp");
    sessions["name"] = json!("sessions");
    sessions["era"] = json!("2025");
    let mut wrong_too = old.upstream("mcp");
    wrong_too["name"] = json!("wrong-too");
    wrong_too["era"] = json!("2026");
    let world = World::start(&[modern, wrong, next, sessions, wrong_too]).await;
    world.tool("up.raw").await;
    world.tool("sessions.raw").await;
    let missing = |at: usize| world.runner.status()[at].missing.clone().unwrap_or_default();
    let told = async {
        while [1, 2, 4].map(missing).iter().any(|why| why == "is being started") {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, told).await.unwrap();
    assert!(missing(1).starts_with("refuses: "), "{}", missing(1));
    assert_eq!(missing(2), "speaks MCP \"2027-01-01\", which we do not");
    assert_eq!(missing(4), "does not speak MCP 2026-07-28");
    world.end().await;
}

#[tokio::test]
async fn a_server_that_stops_at_the_question_is_met_the_old_way() {
    // It reads one line, and goes on only if that is one it knows.
    let run = format!(
        r#"read -r first; case "$first" in *initialize*) (printf '%s\n' "$first"; cat) | python3 '{}' stdio;; *) exit 1;; esac"#,
        world::fixture().display()
    );
    let world = World::start(&[json!({ "name": "up", "command": ["sh", "-c", run] })]).await;
    world.tool("up.raw").await;
    assert!(world.text("up.raw", "{}").await.contains("tools/call"));
    world.end().await;
}
