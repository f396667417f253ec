//! Calls of 2026-07-28 that need something of their client: it comes back with it, or they go on as tasks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_bus::LocalBus;
use longhaul_core::{
    Claimed, ClientCapabilities, Ending, InputResponse, LeaseToken, Outcome, Phase, Question, TaskSupport, ToolDef,
    WorkerId,
};
use longhaul_gateway::{Config, Pace};
use longhaul_rpc::CallEvent;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::client::{Answer, within};
use crate::modern::Modern;
use crate::world::{BOB, Run, World, all_tools, config, form, text, tool, until, with_everything, worker_info};

fn asked(world: &World) -> Modern {
    world.modern().declaring("elicitation", json!({"form": {}})).declaring("roots", json!({}))
}

fn yes(colour: &str) -> Value {
    json!({"action": "accept", "content": {"colour": colour}})
}

fn accepted(content: &str) -> InputResponse {
    InputResponse::Accept(Some(content.to_owned().into()))
}

/// The answer to a call, while its run does what `script` says. However long that takes, it is no stream.
async fn during(client: &Modern, method: &str, params: Value, script: impl AsyncFnOnce()) -> Answer {
    let json_only = client.accepting("application/json");
    tokio::join!(json_only.call(method, params), script()).0
}

impl World {
    /// Parks the run that arrives next, with a question for a colour.
    async fn park(&self, run: &str, round: u32) -> Run {
        let waits = self.worker.run().await;
        waits.ask(run, round, &[("colour", form("colour"))]);
        waits
    }

    /// What a client of a call that was parked has to come back with.
    async fn parked(&self, client: &Modern, params: &Value) -> String {
        let answer = during(client, "tools/call", params.clone(), async || drop(self.park("run-1", 1).await)).await;
        let result = answer.json()["result"].clone();
        assert_eq!((answer.status(), &result["resultType"]), (200, &json!("input_required")), "{result}");
        result["requestState"].as_str().unwrap().to_owned()
    }
}

fn wait() -> Value {
    json!({"name": "wait", "arguments": {"n": 1, "s": "x"}})
}

fn again(state: &str, responses: Value) -> Value {
    json!({"name": "wait", "arguments": {"n": 1, "s": "x"}, "requestState": state, "inputResponses": responses})
}

#[tokio::test]
async fn a_call_that_asks_is_come_back_to_at_any_gateway_round_by_round() {
    let world = World::start().await;
    let client = asked(&world);
    let answer = during(&client, "tools/call", wait(), async || {
        let run = world.worker.run().await;
        assert_eq!(run.call.park, Some(config().input_timeout));
        let client = ClientCapabilities { elicitation_form: true, roots: true, ..ClientCapabilities::default() };
        assert_eq!(run.call.client, client);
        run.ask("run-1", 1, &[("colour", form("colour")), ("where", Question::Roots)]);
    })
    .await;
    assert_eq!(answer.status(), 200);
    let result = &answer.json()["result"];
    assert_eq!(result["resultType"], "input_required");
    let requests = result["inputRequests"].as_object().unwrap();
    assert_eq!(requests.keys().collect::<Vec<_>>(), ["colour", "where"]);
    let colour = &requests["colour"];
    assert_eq!((&colour["method"], &colour["params"]["mode"]), (&json!("elicitation/create"), &json!("form")));
    assert_eq!(requests["where"]["method"], "roots/list");
    assert!(requests.values().all(|request| request.get("id").is_none() && request.get("jsonrpc").is_none()));
    let state = result["requestState"].as_str().unwrap();

    // Part of it, and something that was never asked: the worker asks for the rest again. The same arguments in other
    // words are the same call.
    let mut params = again(state, json!({"colour": yes("red"), "nobody's": 7}));
    params["arguments"] = json!({"s": "x", "n": 1.0});
    let answer = during(&client.at(world.b.at), "tools/call", params, async || {
        world.worker.run().await.ask("run-1", 2, &[("where", Question::Roots)]);
    })
    .await;
    let result = &answer.json()["result"];
    assert_eq!(result["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), ["where"]);
    let second = result["requestState"].as_str().unwrap();
    assert_ne!(state, second);
    let resumed = world.worker.resumes.lock().unwrap()[0].clone();
    assert_eq!((&*resumed.run, resumed.round), ("run-1", 1));
    assert_eq!(resumed.answers, [("colour".to_owned(), accepted(r#"{"colour":"red"}"#))]);

    let roots = json!({"roots": [{"uri": "file:///x"}]});
    let answer = during(&client, "tools/call", again(second, json!({"where": roots})), async || {
        world.worker.run().await.end(text("done"));
    })
    .await;
    assert_eq!(answer.json()["result"]["content"][0]["text"], "done");
    assert_eq!(answer.json()["result"]["resultType"], "complete");
    assert_eq!(
        world.worker.resumes.lock().unwrap()[1].answers,
        [("where".to_owned(), InputResponse::Result(roots.to_string().into()))]
    );
    assert_eq!(world.worker.calls.lock().unwrap().len(), 1, "the call was made again");
    // Each state is good for once.
    for state in [state, second] {
        let answer = client.call("tools/call", again(state, json!({"colour": yes("red")}))).await;
        assert_eq!((answer.status(), &answer.json()["error"]["message"]), (200, &json!("Invalid requestState")));
    }
}

#[tokio::test]
async fn only_who_was_asked_comes_back_with_the_same_call_and_in_time() {
    let world = World::start().await;
    let client = asked(&world).accepting("application/json");
    let state = world.parked(&client, &wait()).await;
    let responses = json!({"colour": yes("red")});
    let flipped = format!("{}{}", if state.starts_with('A') { 'B' } else { 'A' }, &state[1..]);
    for bad in ["", "x", &flipped, &state[1..], &format!("{state}-TAMPERED"), &format!("{state}A"), &"A".repeat(10_000)]
    {
        assert_eq!(client.no("tools/call", again(bad, responses.clone())).await, (200, -32602), "{bad}");
    }
    let bob = Modern { token: BOB, ..client.clone() };
    assert_eq!(bob.no("tools/call", again(&state, responses.clone())).await, (200, -32602));
    for (name, value) in [
        ("name", json!("echo")),
        ("arguments", json!({"n": 2, "s": "x"})),
        ("arguments", json!({"n": 1})),
        ("arguments", json!({"n": "1", "s": "x"})),
    ] {
        let mut other = again(&state, responses.clone());
        other[name] = value;
        assert_eq!(client.no("tools/call", other.clone()).await, (200, -32602), "{other}");
    }
    assert_eq!(client.no("tools/call", again(&state, json!(null))).await, (200, -32602));
    for response in
        [json!(7), json!("yes"), json!({}), json!({"action": "yes"}), json!({"action": "accept", "content": 1})]
    {
        assert_eq!(
            client.no("tools/call", again(&state, json!({"colour": response}))).await,
            (200, -32602),
            "{response}"
        );
    }
    assert!(world.worker.resumes.lock().unwrap().is_empty(), "something of this reached the worker");
    // All that time it was good.
    let answer = during(&client, "tools/call", again(&state, json!({})), async || {
        world.worker.run().await.ask("run-1", 2, &[("colour", form("colour"))]);
    })
    .await;
    assert_eq!(answer.json()["result"]["resultType"], "input_required", "what is missing is asked for again");
    let state = answer.json()["result"]["requestState"].as_str().unwrap().to_owned();
    world.store.clock.advance(config().input_timeout);
    assert_eq!(client.no("tools/call", again(&state, responses)).await, (200, -32602));
}

#[tokio::test]
async fn who_comes_back_without_a_state_makes_a_fresh_call() {
    let world = World::start().await;
    let client = asked(&world);
    let mut params = wait();
    params["inputResponses"] = json!({"colour": yes("red"), "other": 7});
    let answer = during(&client, "tools/call", params, async || drop(world.park("run-2", 1).await)).await;
    assert_eq!(answer.json()["result"]["resultType"], "input_required");
    assert_eq!((world.worker.calls.lock().unwrap().len(), world.worker.resumes.lock().unwrap().len()), (1, 0));
}

#[tokio::test]
async fn only_what_the_request_declares_is_asked() {
    let world = World::start().await;
    let client = world.modern().declaring("roots", json!({}));
    let both = [("colour", form("colour")), ("where", Question::Roots)];
    let answer = during(&client, "tools/call", wait(), async || world.worker.run().await.ask("run-1", 1, &both)).await;
    let requests = answer.json()["result"]["inputRequests"].clone();
    assert_eq!(requests.as_object().unwrap().keys().collect::<Vec<_>>(), ["where"]);
    // A worker that has nothing else to ask can do nothing for this client.
    let answer =
        during(&client, "tools/call", wait(), async || world.worker.run().await.ask("run-2", 1, &both[..1])).await;
    assert_eq!((answer.status(), answer.code()), (400, Some(-32021)));
    assert_eq!(answer.json()["error"]["data"]["requiredCapabilities"], json!({"elicitation": {"form": {}}}));
}

#[tokio::test]
async fn a_run_that_is_gone_is_not_come_back_to() {
    let world = World::start().await;
    let client = asked(&world);
    let state = world.parked(&client, &wait()).await;
    // Its worker has started anew, so it is another.
    let mut other = worker_info("w", Some("memory://w"), all_tools());
    other.id.incarnation = "2".into();
    world.store.offer(vec![other]);
    let answer = within("the end of the old worker", async {
        loop {
            let answer = client.call("tools/call", again(&state, json!({"colour": yes("red")}))).await;
            if world.worker.resumes.lock().unwrap().is_empty() {
                return answer;
            }
            world.worker.resumes.lock().unwrap().clear();
        }
    })
    .await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-32602)));
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("call again"));
}

#[tokio::test]
async fn prompts_and_resources_ask_as_tools_do() {
    let world = World::start().await;
    world.store.offer(vec![with_everything()]);
    let client = asked(&world).accepting("application/json");
    within("the offer", async { while client.call("prompts/list", json!({})).await.status() != 200 {} }).await;
    for (method, params) in
        [("prompts/get", json!({"name": "wait"})), ("resources/read", json!({"uri": "test://wait"}))]
    {
        let answer = during(&client, method, params.clone(), async || drop(world.park("run-1", 1).await)).await;
        let result = answer.json()["result"].clone();
        assert_eq!(result["resultType"], "input_required");
        assert!(result.get("ttlMs").is_none(), "{result}");
        let mut params = params;
        params["requestState"] = result["requestState"].clone();
        params["inputResponses"] = json!({"colour": {"action": "decline"}});
        // Another method's state is none.
        let mut elsewhere = again("", json!({}));
        elsewhere["requestState"] = params["requestState"].clone();
        assert_eq!(client.no("tools/call", elsewhere).await, (200, -32602));
        let body = r#"{"messages":[],"contents":[]}"#;
        let answer = during(&client.at(world.b.at), method, params, async || {
            let outcome = Outcome::Result { is_error: false, body: body.into() };
            world.worker.run().await.end(outcome);
        })
        .await;
        assert_eq!(answer.json()["result"]["resultType"], "complete", "{method}");
    }
}

#[tokio::test]
async fn a_call_that_was_come_back_to_ends_with_its_request_too() {
    let world = World::start().await;
    let client = asked(&world);
    let state = world.parked(&client, &wait()).await;
    let connection = client.begin(json!(2), "tools/call", again(&state, json!({"colour": yes("red")}))).await;
    let run = world.worker.run().await;
    drop(connection);
    within("the worker hears", run.stopped.cancelled()).await;
}

#[tokio::test]
async fn a_question_may_come_after_a_stream_has_begun() {
    let world = World::start().await;
    let client = asked(&world).saying("progressToken", json!(1));
    let mut stream = client.stream(json!("c"), "tools/call", wait()).await;
    let run = world.worker.run().await;
    run.progress(1.0);
    run.ask("run-1", 1, &[("colour", form("colour"))]);
    drop(run);
    assert_eq!(stream.message().await["method"], "notifications/progress");
    let answer = stream.message().await;
    assert_eq!((&answer["id"], &answer["result"]["resultType"]), (&json!("c"), &json!("input_required")));
    assert_eq!(stream.event().await, None);
}

/// A world whose tool `wait-and-see` says itself when it goes on as a task.
async fn deciding(config: Config) -> World {
    let world = World::with(Config { tools_page: 50, ..config }, Arc::new(LocalBus::new())).await;
    let decides = ToolDef { decides: true, ..tool("wait-and-see", TaskSupport::Optional) };
    world.store.offer(vec![worker_info("w", Some("memory://w"), [all_tools(), vec![decides]].concat())]);
    for gateway in [world.a.at, world.b.at] {
        let client = world.modern().at(gateway);
        within("the offer", async {
            while !client.ok("tools/list", json!({})).await.to_string().contains("wait-and-see") {}
        })
        .await;
    }
    world
}

fn see() -> Value {
    json!({"name": "wait-and-see", "arguments": {}})
}

fn becoming(run: &str) -> CallEvent {
    let worker = WorkerId { name: "w".into(), incarnation: "1".into() };
    CallEvent::Becoming { run: run.into(), claimed: Claimed { worker, token: LeaseToken("t".into()) } }
}

#[tokio::test]
async fn a_call_goes_on_as_a_task_when_its_tool_says_so() {
    let world = deciding(config()).await;
    let client = world.modern().with_tasks();
    let answer = during(&client, "tools/call", see(), async || {
        let run = world.worker.run().await;
        assert!(run.call.may_become_task);
        run.say.send(Ok(becoming("run-1"))).unwrap();
        until("it became one", || !world.worker.became.lock().unwrap().is_empty()).await;
        // What the worker says of it now, nobody waits for.
        let _ = run.say.send(Ok(CallEvent::Outcome(text("nobody hears"))));
    })
    .await;
    let result = answer.json()["result"].clone();
    assert_eq!((&result["resultType"], &result["status"]), (&json!("task"), &json!("working")), "{result}");
    let id = result["taskId"].as_str().unwrap();
    let created = world.store.created.lock().unwrap()[0].clone();
    assert_eq!((created.id.to_string(), &*created.tool), (id.to_owned(), "wait-and-see"));
    assert!((created.session, created.progress_token) == (None, None));
    let (run, became) = world.worker.became.lock().unwrap()[0].clone();
    let became = became.unwrap();
    assert_eq!((&*run, became.id.to_string()), ("run-1", id.to_owned()));
    assert!(matches!(became.phase, Phase::Running(_)));
    assert_eq!(client.at(world.b.at).ok("tasks/get", json!({"taskId": id})).await["status"], "working");
    world.store.complete(id, text("done"));
    assert_eq!(client.ok("tasks/get", json!({"taskId": id})).await["result"]["content"][0]["text"], "done");
}

#[tokio::test]
async fn a_call_asks_first_and_then_goes_on_as_a_task() {
    let world = deciding(config()).await;
    let client = asked(&world).with_tasks();
    let answer = during(&client, "tools/call", see(), async || drop(world.park("run-1", 1).await)).await;
    let mut params = see();
    params["requestState"] = answer.json()["result"]["requestState"].clone();
    params["inputResponses"] = json!({"colour": yes("red")});
    // Who comes back without the extension gets no task.
    let mut second = params.clone();
    let answer = during(&asked(&world), "tools/call", params, async || {
        let run = world.worker.run().await;
        run.say.send(Ok(becoming("run-1"))).unwrap();
        until("it is told", || world.worker.became.lock().unwrap().len() == 1).await;
        run.ask("run-1", 2, &[("size", form("size"))]);
    })
    .await;
    assert_eq!(world.worker.became.lock().unwrap()[0], ("run-1".to_owned(), None));
    second["requestState"] = answer.json()["result"]["requestState"].clone();
    let answer = during(&client.at(world.b.at), "tools/call", second, async || {
        world.worker.run().await.say.send(Ok(becoming("run-1"))).unwrap();
        until("it became one", || world.worker.became.lock().unwrap().len() == 2).await;
    })
    .await;
    let result = answer.json()["result"].clone();
    assert_eq!(result["resultType"], "task");
    assert!(result.get("requestState").is_none() && result.get("inputRequests").is_none(), "{result}");
}

#[tokio::test]
async fn a_call_that_cannot_become_a_task_goes_on_as_a_call() {
    let world = deciding(config()).await;
    let client = world.modern().with_tasks();
    let goes_on = async |answer: &str| {
        let before = world.worker.became.lock().unwrap().len();
        let got = during(&client, "tools/call", see(), async || {
            let run = world.worker.run().await;
            run.say.send(Ok(becoming("run-1"))).unwrap();
            until("it is told", || world.worker.became.lock().unwrap().len() > before).await;
            assert_eq!(world.worker.became.lock().unwrap()[before].1, None);
            run.end(text(answer));
        })
        .await;
        assert_eq!(got.json()["result"]["content"][0]["text"], answer);
    };
    world.store.open_max.store(0, Ordering::SeqCst);
    goes_on("too many tasks").await;
    world.store.full.store(true, Ordering::SeqCst);
    goes_on("the store is full").await;
    world.store.full.store(false, Ordering::SeqCst);
    world.store.down.store(true, Ordering::SeqCst);
    goes_on("the store is down").await;
    world.store.down.store(false, Ordering::SeqCst);
    assert!(world.store.tasks.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_task_that_its_worker_does_not_take_is_cancelled_and_the_call_fails() {
    let world = deciding(config()).await;
    world.worker.forgets.store(true, Ordering::SeqCst);
    let client = world.modern().with_tasks();
    let answer = during(&client, "tools/call", see(), async || {
        world.worker.run().await.say.send(Ok(becoming("run-1"))).unwrap();
        until("it was tried", || !world.store.tasks.lock().unwrap().is_empty()).await;
    })
    .await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-32603)));
    until("the task is cancelled", || {
        world.store.tasks.lock().unwrap().values().all(|(task, _)| task.ending() == Some(Ending::Cancelled))
    })
    .await;
}

#[tokio::test]
async fn a_task_that_its_caller_will_never_hear_of_is_cancelled() {
    for is_stream in [false, true] {
        let stream_after = if is_stream { Duration::from_millis(10) } else { Duration::from_secs(60) };
        let world = deciding(Config { pace: Pace { stream_after, ..config().pace }, ..config() }).await;
        let client = world.modern().with_tasks();
        let hold = Arc::new(Notify::new());
        *world.store.hold_creates.lock().unwrap() = Some(hold.clone());
        let mut connection = client.begin(json!(1), "tools/call", see()).await;
        let run = world.worker.run().await;
        if is_stream {
            connection.head().await.unwrap();
        }
        run.say.send(Ok(becoming("run-1"))).unwrap();
        drop(connection);
        until("the request is gone", || world.a.status.load().requests == 0).await;
        hold.notify_one();
        until("the task was created", || !world.store.tasks.lock().unwrap().is_empty()).await;
        until("it is cancelled", || {
            let tasks = world.store.tasks.lock().unwrap();
            tasks.values().all(|(task, _)| task.ending() == Some(Ending::Cancelled))
        })
        .await;
        until("nothing is left", || world.a.status.load() == Default::default()).await;
    }
}

#[tokio::test]
async fn without_the_extension_a_tool_that_decides_runs_to_its_end() {
    let world = deciding(config()).await;
    let legacy = world.alice().await.accepting("application/json");
    let (answer, ()) = tokio::join!(legacy.call("tools/call", see()), async {
        let run = world.worker.run().await;
        assert!(!run.call.may_become_task);
        run.end(text("done"));
    });
    assert_eq!(answer.json()["result"]["content"][0]["text"], "done");
    let answer = during(&world.modern(), "tools/call", see(), async || {
        let run = world.worker.run().await;
        assert!(!run.call.may_become_task);
        run.end(text("done"));
    })
    .await;
    assert_eq!(answer.json()["result"]["resultType"], "complete");
}
