//! Agents: what their models are sent, what comes of what these say, and how a run goes on elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use longhaul_core::{InputRequest, Outcome, Question, TaskSupport};
use longhaul_runner::ASK_AGENT;
use longhaul_worker::{Answer, Ask, Context, Failure, NoArguments, OnInterrupt, Response, Tool};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::provider::Format::{Anthropic, Openai};
use crate::provider::{Format, Provider, Script, call, say};
use crate::world::{Word, World, word, yes};

/// Counts how often each tool was called.
#[derive(Default)]
struct Counts {
    once: AtomicU32,
    again: AtomicU32,
}

async fn question(context: Context, _: NoArguments) -> Result<Answer, Failure> {
    let form = json!({ "type": "object", "properties": { "town": { "type": "string" } }, "required": ["town"] });
    match context.request_input(Ask::form("Where to?", form).key("where")).await? {
        Response::Accept(content) => Ok(Answer::text(content.parse::<Value>()?["town"].as_str().unwrap_or_default())),
        Response::Decline | Response::Cancel | Response::Result(_) => Err(Failure::tool("declined")),
    }
}

fn tools(counts: &Arc<Counts>) -> Vec<Tool> {
    let (once, again) = (counts.clone(), counts.clone());
    vec![
        Tool::new("things.once", move |_, _: NoArguments| {
            let nth = once.once.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok(Answer::text(format!("done {nth}"))) }
        })
        .description("Does it once."),
        Tool::new("things.again", move |_, _: NoArguments| {
            let nth = again.again.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok(Answer::text(format!("read {nth}"))) }
        })
        .on_interrupt(OnInterrupt::Requeue),
        Tool::new("things.stuck", async |_, _: NoArguments| -> Result<Answer, Failure> {
            std::future::pending().await
        }),
        Tool::new("things.question", question),
        Tool::new("secret", async |_, _: NoArguments| Ok(Answer::text("not allowed"))),
    ]
}

fn agent() -> Value {
    json!({
        "name": "a",
        "description": "An agent.",
        "provider": "p",
        "model": "m-1",
        "system": "Be brief.",
        "tools": ["things.*"],
        "max_steps": 6,
    })
}

async fn world(provider: &Provider, agent: Value) -> (World, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let world = World::with_agents(&[provider.config()], &[agent], tools(&counts)).await;
    world.tool(ASK_AGENT).await;
    (world, counts)
}

const ASKED: &str = r#"{"agent":"a","message":"Do it."}"#;

/// The outcome of a task, and what was said of it before.
async fn ended(words: &mut UnboundedReceiver<Word>) -> (bool, Value) {
    loop {
        if let Word::Outcome(outcome) = word(words).await {
            return read(&outcome);
        }
    }
}

fn read(outcome: &Outcome) -> (bool, Value) {
    let Outcome::Result { is_error, body } = outcome else { panic!("{outcome:?}") };
    (*is_error, serde_json::from_slice(body).unwrap())
}

fn texts(result: &Value) -> Vec<&str> {
    result["content"].as_array().unwrap().iter().map(|block| block["text"].as_str().unwrap()).collect()
}

async fn run(format: Format, scripts: Vec<Script>) -> (bool, Value, Provider, Arc<Counts>) {
    let provider = Provider::start(format, scripts).await;
    let (world, counts) = world(&provider, agent()).await;
    let (is_error, result) = ended(&mut world.task(1, ASK_AGENT, ASKED)).await;
    world.end().await;
    (is_error, result, provider, counts)
}

#[tokio::test]
async fn a_model_calls_its_tools_and_answers_in_both_formats() {
    for format in [Openai, Anthropic] {
        let both = Script::Say {
            text: "Überlege … 😀 ",
            calls: vec![("things_once", "{}"), ("things_again", r#"{"odd": "é\"😀"}"#)],
            usage: (100, 10),
        };
        let (is_error, result, provider, counts) = run(format, vec![both, say("All is done.")]).await;
        assert_eq!((is_error, texts(&result)), (false, vec!["All is done."]), "{format:?}");
        let usage = &result["_meta"]["longhaul.dev/usage"];
        assert_eq!(
            (&usage["steps"], &usage["inputTokens"], &usage["cachedTokens"], &usage["outputTokens"]),
            (&json!(2), &json!(100), &json!(100), &json!(20)),
            "{format:?}"
        );
        assert_eq!((counts.once.load(Ordering::SeqCst), counts.again.load(Ordering::SeqCst)), (1, 1));
        let asked = provider.asked();
        assert_eq!(asked.len(), 2);
        let body = &asked[1].body;
        match format {
            Openai => {
                assert!(
                    asked[0].head.contains("post /v1/chat/completions")
                        && asked[0].head.contains("authorization: bearer sk-secret")
                );
                let roles: Vec<_> =
                    body["messages"].as_array().unwrap().iter().map(|it| it["role"].as_str().unwrap()).collect();
                assert_eq!(roles, ["system", "user", "assistant", "tool", "tool"]);
                assert_eq!(body["messages"][2]["content"], "Überlege … 😀 ");
                assert_eq!(body["messages"][2]["tool_calls"][1]["function"]["arguments"], r#"{"odd": "é\"😀"}"#);
                assert_eq!(
                    (&body["messages"][3]["content"], &body["messages"][4]["tool_call_id"]),
                    (&json!("done 1"), &json!("call_1"))
                );
                assert_eq!(
                    (&body["stream_options"]["include_usage"], &body["max_completion_tokens"]),
                    (&json!(true), &json!(4096))
                );
                let names: Vec<_> =
                    body["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
                assert_eq!(
                    names,
                    ["things_again", "things_once", "things_question", "things_stuck"],
                    "only what is allowed"
                );
            }
            Anthropic => {
                assert!(asked[0].head.contains("post /v1/messages") && asked[0].head.contains("x-api-key: sk-secret"));
                assert_eq!(body["messages"][1]["content"][1]["id"], "call_0");
                assert_eq!(body["messages"][1]["content"][2]["input"]["odd"], "é\"😀");
                assert_eq!(
                    (&body["messages"][2]["role"], &body["messages"][2]["content"][0]["content"]),
                    (&json!("user"), &json!("done 1"))
                );
                assert_eq!(
                    (&body["system"][0]["cache_control"]["type"], &body["max_tokens"]),
                    (&json!("ephemeral"), &json!(4096))
                );
            }
        }
    }
}

#[tokio::test]
async fn a_busy_provider_is_asked_again_and_a_broken_answer_is_paid_for() {
    for format in [Openai, Anthropic] {
        let busy = Script::Status(
            429,
            "Retry-After: 0\r\n",
            json!({ "error": { "type": "rate_limit_error", "message": "slow" } }),
        );
        let down = Script::Status(529, "", json!({ "error": { "type": "overloaded_error" } }));
        let (is_error, result, provider, _) = run(format, vec![busy.clone(), down, say("First."), say("never")]).await;
        assert_eq!((is_error, texts(&result), provider.asked().len()), (false, vec!["First."], 3), "{format:?}");
        for broken in [Script::Cut("half an answer "), Script::Fault("half an answer ")] {
            let (is_error, result, provider, _) = run(format, vec![broken.clone(), say("Whole.")]).await;
            assert_eq!((is_error, texts(&result), provider.asked().len()), (false, vec!["Whole."], 2), "{format:?}");
            let usage = &result["_meta"]["longhaul.dev/usage"];
            assert_eq!((&usage["estimated"], usage["outputTokens"].as_u64() > Some(10)), (&json!(true), true));
            let (is_error, result, ..) = run(format, vec![broken.clone(), broken, say("never")]).await;
            assert!(is_error && texts(&result)[0].contains("is not available"), "{result}");
        }
    }
}

#[tokio::test]
async fn a_refusal_of_the_provider_ends_the_run_without_its_words() {
    for format in [Openai, Anthropic] {
        let body = json!({ "error": { "type": "authentication_error", "message": "bad key sk-secret-of-the-test" } });
        let no = Script::Status(401, "", body);
        let (is_error, result, provider, _) = run(format, vec![call("things_once", "{}"), no]).await;
        let texts = texts(&result);
        assert!(is_error && texts[0].contains("401: authentication_error"), "{texts:?}");
        assert!(texts[1].contains("done 1"), "what was found is kept: {texts:?}");
        assert!(!result.to_string().contains("sk-secret"), "{result}");
        assert_eq!(provider.asked().len(), 2);
    }
}

#[tokio::test]
async fn what_a_model_may_not_or_cannot_call_is_told_to_it() {
    let all = Script::Say {
        text: "",
        calls: vec![("secret", "{}"), ("ask_agent", "{}"), ("things_once", "{\"torn"), ("things_once", "[]")],
        usage: (100, 10),
    };
    let (is_error, result, provider, counts) = run(Openai, vec![all, say("I see.")]).await;
    assert_eq!((is_error, texts(&result), counts.once.load(Ordering::SeqCst)), (false, vec!["I see."], 0));
    let messages = provider.asked()[1].body["messages"].clone();
    let answers: Vec<_> = (3..7).map(|at| messages[at]["content"].as_str().unwrap()).collect();
    assert!(answers[0].starts_with("There is no tool \"secret\"") && answers[1].starts_with("There is no tool"));
    assert!(answers[2..].iter().all(|answer| answer.contains("no JSON object")), "{answers:?}");
}

#[tokio::test]
async fn an_endless_loop_ends_at_the_step_limit_and_keeps_what_was_found() {
    let again = Script::Say { text: "Once more.", calls: vec![("things_again", "{}")], usage: (100, 10) };
    let (is_error, result, provider, counts) = run(Anthropic, vec![again; 20]).await;
    let texts = texts(&result);
    assert!(is_error && texts[0].contains("6 steps") && texts[1].contains("Once more."), "{texts:?}");
    assert_eq!((provider.asked().len(), counts.again.load(Ordering::SeqCst)), (6, 6));
}

#[tokio::test]
async fn tokens_money_and_time_end_a_run_too() {
    let again = || call("things_again", "{}");
    for (key, value, why) in [
        ("max_tokens", json!(200), "200 tokens"),
        ("max_usd", json!(0.0003), "cost as much"),
        ("max_time_s", json!(1), "worked for 1 s"),
    ] {
        let scripts = match key {
            "max_time_s" => vec![again(), call("things_stuck", "{}")],
            _ => vec![again(); 5],
        };
        let provider = Provider::start(Openai, scripts).await;
        let mut agent = agent();
        agent[key] = value;
        agent["prices"] = json!({ "input": 1.0, "cached": 1.0, "output": 10.0 });
        let (world, _) = world(&provider, agent).await;
        let (is_error, result) = ended(&mut world.task(1, ASK_AGENT, ASKED)).await;
        assert!(is_error && texts(&result)[0].contains(why), "{result}");
        assert_eq!(provider.asked().len(), 2, "{key}");
        // 220 tokens: 200 in, 20 out.
        assert_eq!(result["_meta"]["longhaul.dev/usage"]["costMicroUsd"], 400);
        world.end().await;
    }
}

#[tokio::test]
async fn a_question_of_a_tool_is_asked_of_the_agents_caller() {
    let provider = Provider::start(Openai, [call("things_question", "{}"), say("To Ulm.")]).await;
    let (world, _) = world(&provider, agent()).await;
    let mut words = world.task(1, ASK_AGENT, ASKED);
    let asked = loop {
        match word(&mut words).await {
            Word::Input(asked) => break asked,
            Word::Report(_) => {}
            Word::Outcome(outcome) => panic!("{outcome:?}"),
        }
    };
    let [InputRequest { key, question: Question::Form { .. } }] = &*asked else { panic!("{asked:?}") };
    assert_eq!(key, "s1-0.where");
    world.answer(1, 1, yes(r#"{"town":"Ulm"}"#));
    assert_eq!(texts(&ended(&mut words).await.1), ["To Ulm."]);
    assert_eq!(provider.asked()[1].body["messages"][3]["content"], "Ulm");
    world.end().await;
}

#[tokio::test]
async fn a_stopped_run_gives_up_the_request_that_is_on_its_way() {
    for format in [Openai, Anthropic] {
        let mut provider = Provider::start(format, [Script::Hang("I am thinking ")]).await;
        let (world, _) = world(&provider, agent()).await;
        let _words = world.task(1, ASK_AGENT, ASKED);
        provider.hangs().await;
        world.stop(1);
        provider.is_left_alone().await;
        world.end().await;
    }
}

#[tokio::test]
async fn another_worker_goes_on_from_the_journal_and_repeats_no_finished_step() {
    let first = [call("things_once", "{}"), call("things_again", "{}"), Script::Hang("")];
    let mut provider = Provider::start(Openai, first).await;
    let (world, counts) = world(&provider, agent()).await;
    let _first = world.task(1, ASK_AGENT, ASKED);
    provider.hangs().await;
    world.stop(1);
    provider.is_left_alone().await;
    provider.then([say("Twice, done.")]);
    let (is_error, result) = ended(&mut world.attempt(1, 2, ASK_AGENT, ASKED)).await;
    assert_eq!((is_error, texts(&result)), (false, vec!["Twice, done."]));
    assert_eq!((counts.once.load(Ordering::SeqCst), counts.again.load(Ordering::SeqCst)), (1, 1));
    let asked = provider.asked();
    assert_eq!(asked[2].body, asked[3].body, "the model is asked the same again");
    assert_eq!(result["_meta"]["longhaul.dev/usage"]["steps"], 3);
    world.end().await;
}

#[tokio::test]
async fn a_call_in_flight_is_made_again_only_if_it_may_be() {
    let stuck = Script::Say {
        text: "",
        calls: vec![("things_stuck", "{}"), ("things_once", "{}"), ("things_again", "{}")],
        usage: (100, 10),
    };
    let provider = Provider::start(Openai, [stuck]).await;
    let (world, counts) = world(&provider, agent()).await;
    let _first = world.task(1, ASK_AGENT, ASKED);
    // Two of three have their answers.
    world.recorded(1, 4).await;
    world.stop(1);
    provider.then([say("Careful.")]);
    let (is_error, result) = ended(&mut world.attempt(1, 2, ASK_AGENT, ASKED)).await;
    assert_eq!((is_error, texts(&result)), (false, vec!["Careful."]));
    assert_eq!((counts.once.load(Ordering::SeqCst), counts.again.load(Ordering::SeqCst)), (1, 1));
    let messages = &provider.asked()[1].body["messages"];
    assert!(messages[3]["content"].as_str().unwrap().contains("outcome of this call is unknown"), "{messages}");
    assert_eq!((&messages[4]["content"], &messages[5]["content"]), (&json!("done 1"), &json!("read 1")));
    world.end().await;
}

#[tokio::test]
async fn the_tool_says_which_agents_there_are() {
    let provider = Provider::start(Openai, []).await;
    let (world, _) = world(&provider, agent()).await;
    let tool = world.tool(ASK_AGENT).await;
    assert_eq!(
        (tool.task_support, tool.retry.on_interrupt, tool.retry.max_attempts),
        (TaskSupport::Optional, OnInterrupt::Resume, 3)
    );
    let definition: Value = serde_json::from_slice(&tool.definition).unwrap();
    assert_eq!(
        definition["inputSchema"]["properties"]["agent"]["oneOf"],
        json!([{ "const": "a", "description": "An agent." }])
    );
    for (arguments, why) in [
        (r#"{"agent":"b","message":"x"}"#, "There is no agent \"b\". There are: a."),
        (r#"{"agent":"a"}"#, "Invalid arguments: missing field `message`"),
        (r#"{"agent":"a","message":"x","more":1}"#, "unknown field `more`"),
    ] {
        let (is_error, result) = read(&world.call(ASK_AGENT, arguments).await.1);
        assert!(is_error && texts(&result)[0].contains(why), "{result}");
    }
    world.end().await;
}

#[tokio::test]
async fn the_scripted_demo_says_that_it_is_one() {
    let mut demo = agent();
    demo["provider"] = json!("scripted");
    let counts = Arc::new(Counts::default());
    let world = World::with_agents(&[], &[demo], tools(&counts)).await;
    world.tool(ASK_AGENT).await;
    let (_, outcome) = world.call(ASK_AGENT, ASKED).await;
    let (is_error, result) = read(&outcome);
    assert!(!is_error && texts(&result)[0].starts_with("[scripted demo, no AI model]"), "{result}");
    world.end().await;
}

#[tokio::test]
async fn the_journal_has_each_step() {
    let provider = Provider::start(Openai, [call("things_once", "{}"), say("Done.")]).await;
    let (world, _) = world(&provider, agent()).await;
    ended(&mut world.task(1, ASK_AGENT, ASKED)).await;
    let kinds: Vec<String> = world
        .journal(1)
        .iter()
        .map(|entry: &Bytes| {
            serde_json::from_slice::<Value>(entry).unwrap().as_object().unwrap().keys().next().unwrap().clone()
        })
        .collect();
    assert_eq!(kinds, ["said", "begun", "answered", "said"]);
    world.end().await;
}
