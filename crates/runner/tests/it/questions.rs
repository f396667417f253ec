//! What servers ask and say during a call, and whom.

use std::time::Duration;

use crate::http::Server;
use crate::world::{self, ANYTHING, Word, World, error, fixture, word, yes};
use longhaul_core::{ClientCapabilities, InputResponse, LogLevel, LogMessage, Outcome, Question, Target};
use longhaul_rpc::CallEvent;
use serde_json::{Value, json};

const FORM: &str = r#"{"type":"object","properties":{"n":{"type":"number","maximum":1e3}},"required":["n"]}"#;

fn upstream(name: &str) -> Value {
    json!({ "name": name, "command": ["python3", fixture(), "stdio"] })
}

/// Arguments for a server that is to ask this.
pub fn ask(requests: &[String]) -> Value {
    json!({ "requests": requests })
}

pub fn form(id: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":"q{id}","method":"elicitation/create","params":{{"message":"How many?","requestedSchema":{FORM}}}}}"#
    )
}

fn page(id: u32, url: &str) -> String {
    let params = json!({ "mode": "url", "elicitationId": "e", "message": "Open it.", "url": url });
    json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params }).to_string()
}

fn sample(id: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"sampling/createMessage","params":{{"messages":[],"maxTokens":1e2,"_meta":{{"progressToken":1}}}}}}"#
    )
}

fn roots(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#)
}

/// The server's view of what it was answered.
pub fn replies(outcome: &Outcome) -> Vec<Value> {
    serde_json::from_str(&world::text(outcome)).unwrap()
}

async fn over_both(test: impl AsyncFn(World)) {
    let server = Server::start().await;
    for config in [upstream("up"), server.upstream("mcp")] {
        let world = World::start(&[config]).await;
        world.tool("up.ask").await;
        test(world).await;
    }
}

#[tokio::test]
async fn a_question_reaches_the_caller_of_its_call_and_the_answer_the_server() {
    over_both(async |world| {
        let requests = [form(1), page(2, "https://longhaul.dev/open?x=1"), sample(3), roots(4)];
        let mut call = world.ask("up.ask", &ask(&requests).to_string()).await;
        let mut asked = Vec::new();
        let mut run = String::new();
        while asked.len() < 4 {
            let more = call.asked().await;
            run = more.run;
            asked.extend(more.requests);
        }
        assert_eq!(
            asked[0].question,
            Question::Form { message: "How many?".into(), schema: FORM.into() },
            "the form is the server's, byte for byte"
        );
        assert_eq!(
            asked[1].question,
            Question::Url { message: "Open it.".into(), url: "https://longhaul.dev/open?x=1".into() }
        );
        assert_eq!(asked[2].question, Question::Sample { params: r#"{"messages":[],"maxTokens":1e2}"#.into() });
        assert_eq!(asked[3].question, Question::Roots);
        let answers = [
            yes(r#"{"n":1e2}"#),
            InputResponse::Accept(None),
            InputResponse::Result(r#"{"role":"assistant","model":"m","content":{"type":"text","text":"hi"}}"#.into()),
            InputResponse::Result(r#"{"roots":[]}"#.into()),
        ];
        let answers = asked.into_iter().map(|asked| asked.key).zip(answers).collect();
        world.respond(&run, answers).await;
        let replies = replies(&call.outcome().await);
        assert_eq!(
            replies[0],
            json!({ "jsonrpc": "2.0", "id": "q1", "result": { "action": "accept", "content": { "n": 100.0 } } })
        );
        assert_eq!(replies[1]["result"], json!({ "action": "accept" }));
        assert_eq!(replies[2]["result"]["content"]["text"], "hi");
        assert_eq!(replies[3]["result"], json!({ "roots": [] }));
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn no_and_not_now_reach_the_server() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.ask").await;
    let requests = [form(1), form(2), sample(3), page(4, "http://localhost/")];
    let mut call = world.ask("up.ask", &ask(&requests).to_string()).await;
    let (mut run, mut keys) = (String::new(), Vec::new());
    while keys.len() < 3 {
        let more = call.asked().await;
        run = more.run;
        keys.extend(more.requests.into_iter().map(|request| request.key));
    }
    let answers = [InputResponse::Decline, InputResponse::Cancel, InputResponse::Decline];
    world.respond(&run, keys.into_iter().zip(answers).collect()).await;
    let replies = replies(&call.outcome().await);
    assert_eq!(replies[0]["result"], json!({ "action": "decline" }));
    assert_eq!(replies[1]["result"], json!({ "action": "cancel" }));
    assert_eq!(replies[2]["error"], json!({ "code": -1, "message": "declined" }));
    assert_eq!(replies[3]["result"], json!({ "action": "decline" }), "nobody is shown such a page");
    world.end().await;
}

#[tokio::test]
async fn a_caller_that_cannot_be_asked_is_not_asked() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.ask").await;
    let requests = [form(1), sample(3), roots(4)];
    let target = Target::Tool("up.ask".into());
    let nobody = ClientCapabilities::default();
    let mut call = world.invoke_for(nobody, None, target, &ask(&requests).to_string()).await;
    let replies = replies(&call.outcome().await);
    assert_eq!(replies[0]["result"], json!({ "action": "decline" }));
    for reply in &replies[1..] {
        assert_eq!(reply["error"], json!({ "code": -32601, "message": "not supported" }));
    }
    world.end().await;
}

#[tokio::test]
async fn a_task_asks_its_owner_but_not_for_models_and_roots() {
    over_both(async |world| {
        let mut task = world.task(1, "up.ask", &ask(&[form(1), sample(3), roots(4)]).to_string());
        let Word::Input(asked) = word(&mut task).await else { panic!() };
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].question, Question::Form { message: "How many?".into(), schema: FORM.into() });
        world.answer(1, 1, yes(r#"{"n":7}"#));
        let outcome = loop {
            match word(&mut task).await {
                Word::Outcome(outcome) => break outcome,
                Word::Report(_) | Word::Input(_) => {}
            }
        };
        let replies = replies(&outcome);
        assert_eq!(replies[0]["result"], json!({ "action": "accept", "content": { "n": 7 } }));
        for reply in &replies[1..] {
            assert_eq!(reply["error"], json!({ "code": -32601, "message": "not supported" }));
        }
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_parked_call_goes_on_where_it_stood() {
    over_both(async |world| {
        let target = Target::Tool("up.ask".into());
        let park = Some(Duration::from_secs(60));
        let mut call = world.invoke_for(ANYTHING, park, target, &ask(&[form(1)]).to_string()).await;
        let asked = call.asked().await;
        assert_eq!(call.next().await, None, "it is parked");
        let mut again = world.resume(&asked, vec![(asked.requests[0].key.clone(), yes(r#"{"n":7}"#))]).await;
        assert_eq!(replies(&again.outcome().await)[0]["result"]["content"], json!({ "n": 7 }));
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_question_that_does_not_say_whose_it_is_goes_to_the_only_call() {
    let server = Server::start().await;
    for (config, push) in [(upstream("up"), false), (server.upstream("mcp"), true)] {
        let world = World::start(&[config]).await;
        world.tool("up.ask").await;
        if push {
            world.text("up.seen", r#"{"event": "listening", "times": 2}"#).await;
        }
        let mut arguments = ask(&[form(1)]);
        arguments["push"] = json!(push);
        let mut call = world.ask("up.ask", &arguments.to_string()).await;
        let asked = call.asked().await;
        world.respond(&asked.run, vec![(asked.requests[0].key.clone(), yes(r#"{"n":7}"#))]).await;
        assert_eq!(replies(&call.outcome().await)[0]["result"]["content"], json!({ "n": 7 }));

        let mut other = world.begin("up.wait", "{}").await;
        assert!(matches!(other.next().await, Some(CallEvent::Progress(_))));
        let mut arguments = ask(&[form(2)]);
        arguments["push"] = json!(push);
        let refused = &replies(&world.call("up.ask", &arguments.to_string()).await.1)[0];
        assert_eq!(
            refused["error"],
            json!({ "code": -32603, "message": "several calls are running, and it does not say to which it belongs" })
        );
        assert!(other.is_silent(), "nobody else was asked");

        // It may still ask for the one that is given up, unless it is not asked to go on.
        drop(other);
        if push {
            world.text("up.seen", r#"{"event": "listening", "times": 3}"#).await;
        }
        let mut arguments = ask(&[form(3)]);
        arguments["push"] = json!(push);
        let mut call = world.ask("up.ask", &arguments.to_string()).await;
        let asked = call.asked().await;
        world.respond(&asked.run, vec![(asked.requests[0].key.clone(), yes(r#"{"n":7}"#))]).await;
        assert_eq!(replies(&call.outcome().await)[0]["result"]["content"], json!({ "n": 7 }));
        world.end().await;
    }
}

#[tokio::test]
async fn over_http_each_of_several_calls_has_its_own_questions() {
    let server = Server::start().await;
    let world = World::start(&[server.upstream("mcp")]).await;
    world.tool("up.ask").await;
    let mut one = world.ask("up.ask", &ask(&[form(11)]).to_string()).await;
    let mut other = world.ask("up.ask", &ask(&[form(12)]).to_string()).await;
    let (first, second) = (one.asked().await, other.asked().await);
    assert_ne!(first.run, second.run);
    for (asked, content) in [(second, r#"{"n":2}"#), (first, r#"{"n":1}"#)] {
        world.respond(&asked.run, vec![(asked.requests[0].key.clone(), yes(content))]).await;
    }
    for (call, n) in [(&mut one, 1), (&mut other, 2)] {
        assert_eq!(replies(&call.outcome().await)[0]["result"]["content"], json!({ "n": n }));
    }
    world.end().await;
}

#[tokio::test]
async fn a_server_that_dies_with_an_open_question_ends_its_call_alone() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.ask").await;
    let mut call = world.ask("up.ask", &ask(&[form(1)]).to_string()).await;
    let asked = call.asked().await;
    let mut task = world.task(1, "up.crash", "{}");
    assert_eq!(error(&call.outcome().await), (-32603, "the upstream server up stopped"));
    let Word::Outcome(outcome) = word(&mut task).await else { panic!() };
    assert_eq!(error(&outcome), (-32603, "the upstream server up stopped"));
    let late = world.try_respond(&asked.run, vec![(asked.requests[0].key.clone(), yes(r#"{"n":7}"#))]).await;
    assert!(late.is_err(), "nobody waits for it");
    world.text("up.raw", "{}").await;
    world.end().await;
}

#[tokio::test]
async fn a_question_that_the_server_withdraws_needs_no_answer() {
    over_both(async |world| {
        let mut arguments = ask(&[form(1)]);
        arguments["withdraw"] = json!(true);
        let mut call = world.ask("up.ask", &arguments.to_string()).await;
        let asked = call.asked().await;
        world.text("up.seen", r#"{"note": "withdraw", "event": "withdraw"}"#).await;
        assert_eq!(world::text(&call.outcome().await), "withdrawn");
        let late = world.try_respond(&asked.run, vec![(asked.requests[0].key.clone(), yes(r#"{"n":7}"#))]).await;
        assert!(late.is_err(), "the call is over");
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_wants_a_page_opened_first_is_called_again() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.pages").await;
    let url = "https://longhaul.dev/connect";
    let mut call = world.ask("up.pages", &json!({ "times": 1, "pages": 2, "url": url }).to_string()).await;
    let asked = call.asked().await;
    assert_eq!(asked.requests.len(), 2);
    for request in &asked.requests {
        assert_eq!(request.question, Question::Url { message: "Open it.".into(), url: url.into() });
    }
    let yes = |request: longhaul_core::InputRequest| (request.key, InputResponse::Accept(None));
    world.respond(&asked.run, asked.requests.into_iter().map(yes).collect()).await;
    assert_eq!(world::text(&call.outcome().await), "opened");

    let mut call = world.ask("up.pages", &json!({ "times": 100, "url": url }).to_string()).await;
    let asked = call.asked().await;
    world.respond(&asked.run, vec![(asked.requests[0].key.clone(), InputResponse::Decline)]).await;
    let Outcome::Result { is_error: true, body } = call.outcome().await else { panic!() };
    let said = std::str::from_utf8(&body).unwrap();
    assert!(said.contains("the upstream server up wants a page opened first: that was declined"), "{said}");
    assert!(!said.contains("longhaul.dev"), "nobody is shown the page");

    // One that nobody may be shown, and one that is never enough.
    let local = json!({ "times": 100, "url": "https://localhost/" });
    let Outcome::Result { is_error: true, body } = world.call("up.pages", &local.to_string()).await.1 else { panic!() };
    assert!(!std::str::from_utf8(&body).unwrap().contains("localhost"));
    let mut call = world.ask("up.pages", &json!({ "times": 100, "url": url }).to_string()).await;
    for _ in 0..10 {
        let asked = call.asked().await;
        world.respond(&asked.run, vec![(asked.requests[0].key.clone(), InputResponse::Accept(None))]).await;
    }
    assert_eq!(error(&call.outcome().await), (-32603, "the upstream server up asks again and again"));
    world.end().await;
}

#[tokio::test]
async fn log_messages_reach_the_caller_of_their_call() {
    over_both(async |world| {
        let mut call = world.begin("up.log", "{}").await;
        assert_eq!(world::text(&call.outcome().await), "logged");
        let data = r#"{"n":123456789012345678901234567890}"#;
        let expected = LogMessage { level: LogLevel::Warning, logger: Some("db".into()), data: data.into() };
        assert_eq!(call.logs, [expected]);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_log_message_of_nobody_knows_whom_is_dropped() {
    let world = World::start(&[upstream("up")]).await;
    world.tool("up.log").await;
    let mut one = world.begin("up.log", r#"{"hold": "go"}"#).await;
    assert!(matches!(one.next().await, Some(CallEvent::Log(_))), "it was the only one");
    let mut other = world.begin("up.log", r#"{"hold": "go"}"#).await;
    world.text("up.seen", r#"{"note": "go", "event": "go"}"#).await;
    for call in [&mut one, &mut other] {
        assert_eq!(world::text(&call.outcome().await), "logged");
        assert!(call.logs.is_empty(), "{:?}", call.logs);
    }
    world.end().await;
}
