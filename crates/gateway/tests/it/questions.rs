//! Questions to clients of sessions: of calls on their own streams, of tasks on whatever stream carries them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_bus::LocalBus;
use longhaul_core::{InputResponse, Question};
use longhaul_gateway::{Config, Pace};
use longhaul_rpc::CallEvent;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{Client, Stream, within};
use crate::world::{ALICE, BOB, World, askable, config, form, text, until};

const RELATED: &str = "io.modelcontextprotocol/related-task";

fn all() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}})
}

/// A world where a claim that is not let go runs out too late for any test.
async fn patient() -> World {
    let pace = Pace { carry: Duration::from_secs(60), ..config().pace };
    World::with(Config { pace, ..config() }, Arc::new(LocalBus::new())).await
}

impl World {
    /// A client of the first gateway that can be asked everything.
    async fn asked(&self) -> Client {
        Client::hello_with(self.a.at, ALICE, all()).await
    }

    /// What runs were answered so far.
    fn answers(&self) -> Vec<(String, Vec<(String, InputResponse)>)> {
        self.worker.responses.lock().unwrap().clone()
    }

    /// What tasks were answered so far.
    fn taken(&self) -> Vec<(u32, InputResponse)> {
        self.store.answers.lock().unwrap().iter().map(|(_, nth, response)| (*nth, response.clone())).collect()
    }

    /// A task that asks for a colour.
    async fn asking(&self, client: &Client) -> String {
        let id = client.create("echo").await;
        self.store.claim(&id);
        self.store.ask(&id, &[("colour", form("colour"))]);
        id
    }
}

fn accepted(content: &str) -> InputResponse {
    InputResponse::Accept(Some(content.to_owned().into()))
}

fn yes(colour: &str) -> Value {
    json!({"action": "accept", "content": {"colour": colour}})
}

/// Nothing but comments comes for a while.
async fn is_quiet(stream: &mut Stream, a_while: Duration) {
    let said = tokio::time::timeout(a_while, stream.event()).await;
    assert!(said.is_err(), "{said:?}");
}

/// The stream of a call that waits, after its first event; and its run.
async fn waiting(world: &World, client: &Client) -> (Stream, crate::world::Run) {
    let mut stream = client.stream(json!("c"), "tools/call", json!({"name": "wait"})).await;
    stream.event().await.unwrap();
    (stream, world.worker.run().await)
}

/// The stream of a task's result, after its first event.
async fn result_of(client: &Client, task: &str) -> Stream {
    let mut stream = client.stream(json!("r"), "tasks/result", json!({"taskId": task})).await;
    stream.event().await.unwrap();
    stream
}

async fn listening(client: &Client) -> Stream {
    let mut stream = client.get(None).await;
    stream.event().await.unwrap();
    stream
}

/// The next message that is no news of a task.
async fn next(stream: &mut Stream) -> Value {
    loop {
        let message = stream.message().await;
        if message["method"] != "notifications/tasks/status" && message["method"] != "notifications/progress" {
            return message;
        }
    }
}

#[tokio::test]
async fn a_call_asks_on_its_own_stream_and_is_answered_at_any_gateway() {
    let world = World::start().await;
    let client = world.asked().await;
    let mut standalone = listening(&client).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}).to_string();
    // As if an answer were soon to come: the question makes it a stream.
    let connection = client.send("POST", "", body.as_bytes()).await;
    let run = world.worker.run().await;
    assert_eq!((run.call.client, run.call.park), (askable(), None));
    let sample = Question::Sample { params: br#"{"messages":[], "maxTokens": 1e2}"#.as_slice().into() };
    let url = Question::Url { message: "Log in".into(), url: "https://example.com/in".into() };
    run.ask("run-1", 1, &[("colour", form("colour")), ("page", url)]);
    run.ask("run-1", 2, &[("model", sample), ("roots", Question::Roots)]);
    let mut stream = crate::client::into_stream(connection).await;
    stream.event().await.unwrap();
    let mut asked = Vec::new();
    for method in ["elicitation/create", "elicitation/create", "sampling/createMessage", "roots/list"] {
        let question = stream.message().await;
        assert_eq!((&question["method"], &question["params"]["_meta"]), (&json!(method), &Value::Null), "{question}");
        asked.push(question);
    }
    assert_eq!(asked[0]["params"]["requestedSchema"]["required"], json!(["colour"]));
    assert_eq!((&asked[0]["params"]["mode"], &asked[1]["params"]["mode"]), (&json!("form"), &json!("url")));
    let ids: std::collections::HashSet<_> = asked.iter().map(|question| question["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 4);

    let roots = json!({"roots": [{"uri": "file:///x"}]});
    let message = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "hi"}});
    let results = [yes("red"), json!({"action": "cancel"}), message.clone(), roots.clone()];
    for (question, result) in asked.iter().zip(results) {
        assert_eq!(client.at(world.b.at).respond(&question["id"], result).await, 202);
    }
    let one = |key: &str, response| ("run-1".to_owned(), vec![(key.to_owned(), response)]);
    let expected = [
        one("colour", accepted(r#"{"colour":"red"}"#)),
        one("page", InputResponse::Cancel),
        one("model", InputResponse::Result(message.to_string().into())),
        one("roots", InputResponse::Result(roots.to_string().into())),
    ];
    assert_eq!(world.answers(), expected);
    run.end(text("done"));
    let answer = stream.message().await;
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(1), &json!("done")));
    assert_eq!(stream.event().await, None);
    is_quiet(&mut standalone, Duration::from_millis(300)).await;
}

#[tokio::test]
async fn a_question_waits_for_the_stream_to_be_resumed_and_is_asked_there_again() {
    let world = World::start().await;
    let client = world.asked().await;
    let mut stream = client.stream(json!("c"), "tools/call", json!({"name": "wait"})).await;
    let seen = stream.event().await.unwrap().id;
    let run = world.worker.run().await;
    run.ask("run-1", 1, &[("colour", form("colour"))]);
    let question = stream.message().await;
    drop(stream);
    until("the stream is gone", || world.a.status.load().streams == 0).await;
    run.ask("run-1", 2, &[("size", form("size"))]);
    let mut stream = client.get(seen.as_deref()).await;
    stream.event().await.unwrap();
    assert_eq!(stream.message().await, question, "the same question has the same id");
    let later = stream.event().await.unwrap();
    let size = later.message();
    assert_eq!(size["params"]["message"], "Which size?");
    assert!(!run.stopped.is_cancelled());

    assert_eq!(client.at(world.b.at).respond(&question["id"], yes("red")).await, 202);
    // The gateway that carries it hears of that.
    within("the question to be closed", async {
        loop {
            let mut stream = client.get(later.id.as_deref()).await;
            stream.event().await.unwrap();
            if stream.message().await == size {
                break;
            }
        }
    })
    .await;
    let mut stream = client.get(later.id.as_deref()).await;
    stream.event().await.unwrap();
    assert_eq!(stream.message().await, size);
    // Nobody waits for it any more, which the client is told before the answer.
    run.end(text("done"));
    let cancelled = stream.message().await;
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], size["id"]);
    assert_eq!(stream.message().await["result"]["content"][0]["text"], "done");
    assert_eq!(client.respond(&size["id"], json!({"action": "cancel"})).await, 202, "a late answer");
}

#[tokio::test]
async fn a_question_that_is_not_answered_in_time_is_withdrawn_and_declined() {
    let config = Config { input_timeout: Duration::from_millis(200), ..config() };
    let world = World::with(config, Arc::new(LocalBus::new())).await;
    let (mut stream, run) = waiting(&world, &world.asked().await).await;
    run.ask("run-1", 1, &[("colour", form("colour"))]);
    let question = stream.message().await;
    let cancelled = stream.message().await;
    assert_eq!(
        (&cancelled["method"], &cancelled["params"]["requestId"]),
        (&json!("notifications/cancelled"), &question["id"])
    );
    until("the worker hears", || !world.answers().is_empty()).await;
    assert_eq!(world.answers(), [("run-1".into(), vec![("colour".into(), InputResponse::Decline)])]);
    run.end(text("without"));
    assert_eq!(stream.message().await["result"]["content"][0]["text"], "without");
}

#[tokio::test]
async fn a_question_that_a_run_gives_up_on_is_withdrawn_from_its_client_and_no_other_is() {
    let world = World::start().await;
    let client = world.asked().await;
    let (mut stream, run) = waiting(&world, &client).await;
    run.ask("run-1", 1, &[("colour", form("colour")), ("size", form("size"))]);
    let (colour, size) = (stream.message().await, stream.message().await);
    run.say.send(Ok(CallEvent::Withdrawn(vec!["colour".into(), "unknown".into()]))).unwrap();
    let cancelled = stream.message().await;
    assert_eq!(
        (&cancelled["method"], &cancelled["params"]["requestId"]),
        (&json!("notifications/cancelled"), &colour["id"])
    );
    // Late, and no harm; the other one still waits.
    assert_eq!(client.respond(&colour["id"], yes("red")).await, 202);
    assert_eq!(client.respond(&size["id"], json!({"action": "cancel"})).await, 202);
    run.end(text("done"));
    assert_eq!(stream.message().await["result"]["content"][0]["text"], "done");
    let declined = world.answers().into_iter().flat_map(|(_, answers)| answers);
    assert!(declined.into_iter().all(|(_, response)| response != InputResponse::Decline), "it needs no answer of ours");
}

#[tokio::test]
async fn a_client_that_cannot_be_asked_is_not() {
    let world = World::start().await;
    let nothing = longhaul_core::ClientCapabilities::default();
    // By what it declared, and by the form in which it takes answers.
    for client in [world.alice().await, world.asked().await.accepting("application/json")] {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait"}}).to_string();
        let mut connection = client.send("POST", "", body.as_bytes()).await;
        let run = world.worker.run().await;
        assert_eq!(run.call.client, nothing);
        // A worker that asks all the same is told no.
        run.ask("run-1", 1, &[("colour", form("colour"))]);
        until("the worker hears", || !world.answers().is_empty()).await;
        let answers = std::mem::take(&mut *world.worker.responses.lock().unwrap());
        assert_eq!(answers, [("run-1".into(), vec![("colour".into(), InputResponse::Decline)])]);
        run.end(text("done"));
        // As a message or as the only one of a stream.
        let body = String::from_utf8(connection.answer().await.unwrap().body).unwrap();
        assert!(body.contains("done") && !body.contains("elicitation"), "{body}");
    }
}

#[tokio::test]
async fn only_an_answer_that_makes_sense_from_the_caller_that_was_asked_is_taken() {
    let world = World::start().await;
    let client = world.asked().await;
    let (mut stream, run) = waiting(&world, &client).await;
    run.ask("run-1", 1, &[("colour", form("colour")), ("size", form("size"))]);
    let (colour, size) = (stream.message().await["id"].clone(), stream.message().await["id"].clone());
    let bob = Client::hello_with(world.b.at, BOB, all()).await;
    let post = async |client: &Client, answer: Value| {
        let answer = client.post(&answer).await;
        (answer.status(), String::from_utf8(answer.body).unwrap())
    };
    let unknown = post(&client, json!({"jsonrpc": "2.0", "id": "nobody's", "result": yes("red")})).await;
    assert_eq!(unknown.0, 400);
    assert!(!unknown.1.contains("\"id\""), "{unknown:?}");
    let text_id = colour.as_str().unwrap();
    for (who, id) in [
        (&bob, colour.clone()),
        (&client, json!(7)),
        (&client, json!("")),
        (&client, json!(text_id[1..])),
        (&client, json!(format!("{text_id}A"))),
        (&client, json!(client.session.clone().unwrap())),
    ] {
        assert_eq!(post(who, json!({"jsonrpc": "2.0", "id": id, "result": yes("red")})).await, unknown, "{id}");
    }
    for result in
        [json!({}), json!(7), json!(null), json!({"action": "yes"}), json!({"action": "accept", "content": 1})]
    {
        let answer = json!({"jsonrpc": "2.0", "id": colour, "result": result});
        assert_eq!(post(&client, answer).await.0, 400, "{result}");
    }
    assert!(world.answers().is_empty());
    // Another session of the caller may answer; an error means no.
    assert_eq!(world.alice().await.respond(&colour, yes("red")).await, 202);
    let error = json!({"jsonrpc": "2.0", "id": size, "error": {"code": -1, "message": "cannot"}});
    assert_eq!(post(&client, error).await.0, 202);
    let one = |key: &str, response| ("run-1".to_owned(), vec![(key.to_owned(), response)]);
    assert_eq!(world.answers(), [one("colour", accepted(r#"{"colour":"red"}"#)), one("size", InputResponse::Decline)]);
    run.end(text("done"));
    stream.message().await;
    // The worker knows no such run any more, or is itself gone.
    drop(run);
    assert_eq!(client.respond(&colour, yes("blue")).await, 202);
    world.store.offer(Vec::new());
    within("the worker to be gone", async {
        while client.call("tools/call", json!({"name": "echo"})).await.code().is_none() {}
    })
    .await;
    assert_eq!(client.respond(&colour, yes("blue")).await, 202);
}

#[tokio::test]
async fn an_answer_that_cannot_be_handed_on_is_to_be_sent_again() {
    let world = World::start().await;
    let client = world.asked().await;
    let task = world.asking(&client).await;
    world.store.down.store(true, Ordering::SeqCst);
    let answer =
        client.post(&json!({"jsonrpc": "2.0", "id": format!("tiq-task-{task}-1"), "result": yes("red")})).await;
    assert_eq!((answer.status(), answer.head.header("retry-after")), (503, Some("1")));
    world.store.down.store(false, Ordering::SeqCst);
    assert_eq!(client.respond(&json!(format!("tiq-task-{task}-1")), yes("red")).await, 202);
    assert_eq!(world.taken(), [(1, accepted(r#"{"colour":"red"}"#))]);
}

#[tokio::test]
async fn a_task_asks_on_a_stream_that_waits_for_its_result() {
    let world = World::start().await;
    let client = world.asked().await;
    let task = client.create("echo").await;
    let mut stream = result_of(&client.at(world.b.at), &task).await;
    world.store.claim(&task);
    world.store.ask(&task, &[("colour", form("colour"))]);
    let question = stream.message().await;
    assert_eq!(
        (&question["method"], &question["id"]),
        (&json!("elicitation/create"), &json!(format!("tiq-task-{task}-1")))
    );
    assert_eq!(question["params"]["_meta"][RELATED]["taskId"], json!(task));
    assert_eq!(client.ok("tasks/get", json!({"taskId": task})).await["status"], "input_required");
    assert_eq!(client.respond(&question["id"], yes("red")).await, 202);
    assert_eq!(world.taken(), [(1, accepted(r#"{"colour":"red"}"#))]);
    assert_eq!(client.ok("tasks/get", json!({"taskId": task})).await["status"], "working");
    let closed = stream.message().await;
    assert_eq!(
        (&closed["method"], &closed["params"]["requestId"]),
        (&json!("notifications/cancelled"), &question["id"])
    );
    // The next question, and the answer while that is open.
    world.store.ask(&task, &[("size", form("size"))]);
    let second = stream.message().await;
    assert_eq!(second["id"], json!(format!("tiq-task-{task}-2")));
    world.store.complete(&task, text("done"));
    let closed = stream.message().await;
    assert_eq!(closed["params"]["requestId"], second["id"]);
    assert_eq!(stream.message().await["result"]["content"][0]["text"], "done");
    assert_eq!(stream.event().await, None);
}

#[tokio::test]
async fn answers_to_a_task_are_taken_once_and_from_its_owner_alone() {
    let world = World::start().await;
    let client = world.asked().await;
    let task = world.asking(&client).await;
    let id = |task: &str, nth: &str| json!(format!("tiq-task-{task}-{nth}"));
    let bob = world.bob().await;
    assert_eq!(bob.respond(&id(&task, "1"), yes("red")).await, 400);
    for (task, nth) in
        [(&*task, "2"), (&*task, "0"), (&*task, "01"), (&*task, "x"), ("aaaaaaaaaaaaaaaaaaaaaaaaaa", "1")]
    {
        assert_eq!(client.respond(&id(task, nth), yes("red")).await, 400, "{task} {nth}");
    }
    assert_eq!(client.respond(&id(&task, "1"), json!({"action": "perhaps"})).await, 400);
    assert!(world.taken().is_empty());
    // What does not fit counts as a decline.
    assert_eq!(client.at(world.b.at).respond(&id(&task, "1"), json!({"action": "decline"})).await, 202);
    assert_eq!(client.respond(&id(&task, "1"), yes("red")).await, 202);
    world.store.complete(&task, text("done"));
    assert_eq!(client.respond(&id(&task, "1"), yes("red")).await, 202);
    assert_eq!(client.respond(&id(&task, "2"), yes("red")).await, 400);
    assert_eq!(world.taken(), [(1, InputResponse::Decline)]);
}

#[tokio::test]
async fn of_two_streams_on_two_gateways_one_asks_and_when_it_is_gone_the_other() {
    let world = patient().await;
    let client = world.asked().await;
    let task = client.create("echo").await;
    world.store.claim(&task);
    let mut streams = [result_of(&client, &task).await, result_of(&client.at(world.b.at), &task).await];
    world.store.ask(&task, &[("colour", form("colour"))]);
    let [one, other] = &mut streams;
    let (question, is_first) = tokio::select! {
        question = one.message() => (question, true),
        question = other.message() => (question, false),
    };
    let [first, second] = streams;
    let (carries, mut waits) = if is_first { (first, second) } else { (second, first) };
    is_quiet(&mut waits, 2 * config().pace.carry_again).await;
    drop(carries);
    assert_eq!(waits.message().await, question, "the same question has the same id");
    assert_eq!(client.respond(&question["id"], yes("red")).await, 202);
    assert_eq!(waits.message().await["method"], "notifications/cancelled");
}

#[tokio::test]
async fn the_newest_stream_of_a_gateway_asks_first() {
    let world = patient().await;
    let client = world.asked().await;
    let task = client.create("echo").await;
    world.store.claim(&task);
    let mut oldest = result_of(&client, &task).await;
    let mut older = result_of(&client, &task).await;
    // It can be asked nothing, so it does not count.
    let mut dumb = result_of(&world.alice().await, &task).await;
    world.store.ask(&task, &[("colour", form("colour"))]);
    let question = older.message().await;
    for stream in [&mut oldest, &mut dumb] {
        is_quiet(stream, 2 * config().pace.carry_again).await;
    }
    drop(older);
    assert_eq!(oldest.message().await, question);
    is_quiet(&mut dumb, 2 * config().pace.carry_again).await;
}

/// What a client is told whose question is no longer one where it was asked.
async fn is_withdrawn(stream: &mut Stream, question: &Value) {
    let told = next(stream).await;
    assert_eq!((&told["method"], &told["params"]["requestId"]), (&json!("notifications/cancelled"), &question["id"]));
}

#[tokio::test]
async fn a_stream_that_opens_while_another_one_asks_takes_the_question_over_on_whatever_gateway() {
    let world = patient().await;
    let client = world.asked().await;
    let elsewhere = client.at(world.b.at);
    let task = world.asking(&client).await;
    // The client of this one has gone without a word.
    let mut first = result_of(&client, &task).await;
    let question = first.message().await;
    let opened = Instant::now();
    let mut second = result_of(&elsewhere, &task).await;
    assert_eq!(second.message().await, question, "the same question has the same id");
    // At the next renewal, and the look that follows it.
    assert!(opened.elapsed() < config().pace.carry_again * 2, "{:?}", opened.elapsed());
    is_withdrawn(&mut first, &question).await;
    is_quiet(&mut first, 2 * config().pace.carry_again).await;
    // What a client says of the withdrawal is no answer to the question.
    let given_up =
        json!({"jsonrpc": "2.0", "id": question["id"], "error": {"code": 0, "message": "Request cancelled"}});
    assert_eq!(client.post(&given_up).await.status(), 202);
    let unknown = json!({"jsonrpc": "2.0", "id": format!("tiq-task-{task}-2"), "error": {"code": 0, "message": ""}});
    assert_eq!(client.post(&unknown).await.status(), 400);
    assert!(world.taken().is_empty());
    // And back, on the first gateway; none of the two older ones takes it back.
    let mut third = result_of(&client, &task).await;
    assert_eq!(third.message().await, question);
    is_withdrawn(&mut second, &question).await;
    for stream in [&mut first, &mut second] {
        is_quiet(stream, 2 * config().pace.carry_again).await;
    }
    assert_eq!(elsewhere.respond(&question["id"], yes("red")).await, 202);
    assert_eq!(client.respond(&question["id"], yes("blue")).await, 202, "it is late");
    assert_eq!(world.taken(), [(1, accepted(r#"{"colour":"red"}"#))]);
    is_withdrawn(&mut third, &question).await;
    world.store.complete(&task, text("done"));
    for stream in [&mut first, &mut second, &mut third] {
        assert_eq!(stream.message().await["result"]["content"][0]["text"], "done", "each hears of it once");
        assert!(stream.event().await.is_none());
    }
}

#[tokio::test]
async fn a_carrier_that_died_is_followed_by_another_once_its_claim_has_run_out() {
    let world = World::start().await;
    let client = world.asked().await;
    let task = world.asking(&client).await;
    let id = task.parse().unwrap();
    let claim = |stream: &str, lease: Duration| {
        world.store.carried.lock().unwrap().insert(id, (stream.to_owned(), Instant::now() + lease));
    };
    claim("of a dead gateway", Duration::from_millis(500));
    let began = Instant::now();
    let mut stream = result_of(&client, &task).await;
    let question = stream.message().await;
    assert!(began.elapsed() >= Duration::from_millis(500));
    let ours = world.store.carried.lock().unwrap()[&id].0.clone();
    // It renews its claim before that runs out.
    let until_now = world.store.carried.lock().unwrap()[&id].1;
    until("the claim is renewed", || world.store.carried.lock().unwrap()[&id].1 > until_now).await;
    assert!(Instant::now() < until_now);
    // It lost it: another one asks now.
    claim("of another gateway", Duration::from_secs(60));
    let withdrawn = stream.message().await;
    assert_eq!(
        (&withdrawn["method"], &withdrawn["params"]["requestId"]),
        (&json!("notifications/cancelled"), &question["id"])
    );
    is_quiet(&mut stream, 2 * config().pace.carry_again).await;
    world.store.carried.lock().unwrap().clear();
    assert_eq!(stream.message().await, question, "when that is gone too");
    assert_eq!(world.store.carried.lock().unwrap()[&id].0, ours);
    // The client's answer ends the claim.
    assert_eq!(client.respond(&question["id"], yes("red")).await, 202);
    stream.message().await;
    until("the claim is let go", || !world.store.carried.lock().unwrap().contains_key(&id)).await;
}

#[tokio::test]
async fn a_claim_outlasts_an_outage_of_the_task_store_and_the_client_is_not_asked_twice() {
    let world = World::start().await;
    let client = world.asked().await;
    let task = world.asking(&client).await;
    let mut stream = result_of(&client, &task).await;
    let question = stream.message().await;
    world.store.down.store(true, Ordering::SeqCst);
    is_quiet(&mut stream, 2 * config().pace.carry).await;
    world.store.down.store(false, Ordering::SeqCst);
    is_quiet(&mut stream, 2 * config().pace.carry_again).await;
    assert_eq!(client.respond(&question["id"], yes("red")).await, 202);
    assert_eq!(stream.message().await["method"], "notifications/cancelled");
}

#[tokio::test]
async fn a_task_that_nobody_waits_for_asks_on_the_stream_of_its_session() {
    let world = patient().await;
    let client = world.asked().await;
    let mut stream = listening(&client.at(world.b.at)).await;
    let task = client.create("echo").await;
    world.store.claim(&task);
    let asked = Instant::now();
    world.store.ask(&task, &[("colour", form("colour"))]);
    let status = stream.message().await;
    assert_eq!(
        (&status["method"], &status["params"]["status"]),
        (&json!("notifications/tasks/status"), &json!("input_required"))
    );
    let question = next(&mut stream).await;
    assert!(asked.elapsed() >= config().pace.carry_grace, "it left no time to others");
    assert_eq!(question["id"], json!(format!("tiq-task-{task}-1")));
    assert_eq!(question["params"]["_meta"][RELATED]["taskId"], json!(task));
    // Who waits for the result comes first, even now.
    let mut late = result_of(&client, &task).await;
    assert_eq!(late.message().await, question);
    is_withdrawn(&mut stream, &question).await;
    assert_eq!(client.respond(&question["id"], yes("red")).await, 202);
    is_withdrawn(&mut late, &question).await;
    // The next question is for those who wait.
    world.store.ask(&task, &[("size", form("size"))]);
    assert_eq!(late.message().await["id"], json!(format!("tiq-task-{task}-2")));
    let nothing = tokio::time::timeout(3 * config().pace.carry_grace, next(&mut stream)).await;
    assert!(nothing.is_err(), "{nothing:?}");
    drop(late);
    assert_eq!(next(&mut stream).await["id"], json!(format!("tiq-task-{task}-2")));
}

#[tokio::test]
async fn another_session_of_the_caller_is_asked_if_that_of_the_task_is_gone() {
    let world = World::start().await;
    let (creator, other) = (world.asked().await, world.asked().await);
    let mut bob = listening(&Client::hello_with(world.a.at, BOB, all()).await).await;
    let mut dumb = listening(&world.alice().await).await;
    let mut stream = listening(&other).await;
    let task = world.asking(&creator).await;
    let question = next(&mut stream).await;
    assert_eq!(question["id"], json!(format!("tiq-task-{task}-1")));
    for stream in [&mut bob, &mut dumb] {
        is_quiet(stream, Duration::from_millis(100)).await;
    }
    assert_eq!(other.respond(&question["id"], yes("red")).await, 202);
    let told = stream.message().await;
    assert_eq!(told["method"], "notifications/cancelled", "it hears of the question alone");
    world.store.complete(&task, text("done"));
    is_quiet(&mut stream, Duration::from_millis(300)).await;
}

#[tokio::test]
async fn a_stream_is_not_asked_what_its_client_has_not_declared() {
    let world = World::start().await;
    let creator = world.asked().await;
    let forms = Client::hello_with(world.a.at, ALICE, json!({"elicitation": {}})).await;
    let task = creator.create("echo").await;
    world.store.claim(&task);
    let mut older = result_of(&creator, &task).await;
    let mut newer = result_of(&forms, &task).await;
    let url = Question::Url { message: "Log in".into(), url: "https://example.com/in".into() };
    world.store.ask(&task, &[("page", url)]);
    assert_eq!(older.message().await["params"]["mode"], "url");
    is_quiet(&mut newer, 2 * config().pace.carry_again).await;
}

#[tokio::test]
async fn a_task_of_2026_07_28_asks_who_waits_for_it_but_no_stream_of_a_session() {
    let world = World::start().await;
    let client = world.asked().await;
    let mut stream = listening(&client).await;
    let task = world.modern().with_tasks().declaring("elicitation", json!({"form": {}})).create("echo").await;
    world.store.claim(&task);
    world.store.ask(&task, &[("colour", form("colour"))]);
    is_quiet(&mut stream, Duration::from_millis(700)).await;
    let mut waits = result_of(&client, &task).await;
    assert_eq!(waits.message().await["id"], json!(format!("tiq-task-{task}-1")));
}

#[tokio::test]
async fn a_caller_of_a_result_that_takes_no_stream_is_asked_nothing() {
    let world = World::start().await;
    let client = world.asked().await;
    let task = world.asking(&client).await;
    let answer = client.accepting("application/json").call("tasks/result", json!({"taskId": task})).await;
    assert_eq!((answer.status(), answer.code()), (200, Some(-31408)));
    assert_eq!(answer.json()["error"]["data"]["status"], "input_required");
    assert!(world.store.carried.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_draining_gateway_lets_go_of_the_questions_it_carries() {
    let world = patient().await;
    let client = world.asked().await;
    let task = world.asking(&client).await;
    let mut stream = result_of(&client, &task).await;
    let question = stream.message().await;
    world.a.drain.cancel();
    let last = stream.event().await.unwrap();
    assert_eq!(stream.event().await, None);
    let mut resumed = client.at(world.b.at).get(last.id.as_deref()).await;
    resumed.event().await.unwrap();
    assert_eq!(resumed.message().await, question);
}

#[tokio::test]
async fn more_questions_than_a_call_may_ask_are_declined() {
    let world = World::start().await;
    let client = world.asked().await;
    let (mut stream, run) = waiting(&world, &client).await;
    let keys: Vec<_> = (0..33).map(|nth| format!("k{nth}")).collect();
    let questions: Vec<_> = keys.iter().map(|key| (&**key, Question::Roots)).collect();
    run.ask("run-1", 1, &questions);
    // The same again is not asked twice.
    run.ask("run-1", 2, &questions[..3]);
    for _ in 0..32 {
        assert_eq!(stream.message().await["method"], "roots/list");
    }
    until("the worker hears", || !world.answers().is_empty()).await;
    assert_eq!(world.answers(), [("run-1".into(), vec![("k32".into(), InputResponse::Decline)])]);
    run.say.send(Ok(CallEvent::Outcome(text("done")))).unwrap();
    for _ in 0..32 {
        assert_eq!(stream.message().await["method"], "notifications/cancelled");
    }
    assert_eq!(stream.message().await["id"], "c");
}
