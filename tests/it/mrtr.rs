//! A call that is not a task asks its caller: by coming back in 2026-07-28, on its own stream in 2025-11-25.

use longhaul_tests::client::{Client, Events, message};
use longhaul_tests::modern::Modern;
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use serde_json::{Value, json};

fn plain(world: &World, gateway: usize) -> Modern {
    Modern::new(&world.urls[gateway], Some(ALICE)).plain()
}

fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

fn ask() -> Value {
    json!({"name": "ask", "arguments": {"question": "Who?"}})
}

/// The same call again, with answers and the state.
fn again(call: &Value, asked: &Value, responses: Value) -> Value {
    let mut call = call.clone();
    call["inputResponses"] = responses;
    call["requestState"] = asked["requestState"].clone();
    call
}

/// The key of the only question.
fn key(asked: &Value) -> String {
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let requests = asked["inputRequests"].as_object().unwrap();
    assert_eq!(requests.len(), 1, "{asked}");
    requests.keys().next().unwrap().clone()
}

async fn a_call_goes_on_where_its_caller_comes_back(wiring: Wiring) {
    let world = World::start(wiring).await;
    world.add_worker("worker-2").await;
    for round in 0..4 {
        let (one, other) = (plain(&world, round % 2), plain(&world, (round + 1) % 2));
        let asked = one.ok("tools/call", ask()).await;
        let key = key(&asked);
        let question = &asked["inputRequests"][&key];
        assert_eq!(
            (&question["method"], &question["params"]["message"]),
            (&json!("elicitation/create"), &json!("Who?"))
        );
        // The same arguments, written otherwise.
        let call = json!({"name": "ask", "arguments": {"question": "\u{57}ho?"}});
        let answered =
            other.ok("tools/call", again(&call, &asked, json!({key: accept(json!({"answer": "me"}))}))).await;
        assert_eq!(answered["content"][0]["text"], "You said: me", "{answered}");
        assert_eq!(answered["resultType"], "complete");
    }
    world.stop().await;
}

async fn what_is_not_answered_is_asked_again_under_a_new_state(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = plain(&world, 0);
    let call = json!({"name": "ask-many", "arguments": {}});
    let first = alice.ok("tools/call", call.clone()).await;
    assert_eq!(first["inputRequests"].as_object().unwrap().len(), 2);
    let responses = json!({"name": accept(json!({"text": "Ann"})), "unknown": {"ignored": true}});
    let second = alice.ok("tools/call", again(&call, &first, responses)).await;
    assert_eq!(key(&second), "colour");
    assert_ne!(second["requestState"], first["requestState"]);
    let third = alice.ok("tools/call", again(&call, &second, json!({}))).await;
    assert_eq!(key(&third), "colour", "nothing answered, asked once more");
    let last = alice.ok("tools/call", again(&call, &third, json!({"colour": {"action": "decline"}}))).await;
    assert_eq!(last["content"][0]["text"], "Ann (declined)");
    world.stop().await;
}

async fn a_state_is_good_for_its_caller_its_call_and_once(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = plain(&world, 0);
    let asked = alice.ok("tools/call", ask()).await;
    let responses = || json!({key(&asked): accept(json!({"answer": "me"}))});
    let right = again(&ask(), &asked, responses());
    let state = asked["requestState"].as_str().unwrap();
    let mut cases = Vec::new();
    for forged in
        [format!("{state}-TAMPERED"), state[..state.len() - 1].to_owned(), format!("B{}", &state[1..]), String::new()]
    {
        let mut call = right.clone();
        call["requestState"] = json!(forged);
        cases.push(call);
    }
    let mut other_arguments = right.clone();
    other_arguments["arguments"]["question"] = json!("Where?");
    let mut other_tool = right.clone();
    other_tool["name"] = json!("ask-many");
    cases.extend([other_arguments, other_tool]);
    for call in cases {
        let (status, error) = alice.error("tools/call", call).await;
        assert_eq!((status, &error["code"]), (200, &json!(-32602)), "{error}");
    }
    for token in [BOB, EVE] {
        let (_, error) = alice.with_token(token).error("tools/call", right.clone()).await;
        assert_eq!(error["code"], -32602, "{error}");
    }
    for odd in [json!(null), json!([]), json!({key(&asked): 7})] {
        let mut call = right.clone();
        call["inputResponses"] = odd;
        let (_, error) = alice.error("tools/call", call).await;
        assert_eq!(error["code"], -32602, "{error}");
    }
    assert_eq!(alice.ok("tools/call", right.clone()).await["content"][0]["text"], "You said: me");
    let (_, error) = alice.error("tools/call", right).await;
    assert_eq!(error["code"], -32602, "it is over: {error}");
    world.stop().await;
}

async fn answers_without_a_state_are_ignored(wiring: Wiring) {
    // Nobody comes back to the run, which would hold up the worker's end.
    let world = World::start_with(wiring, |config| config.runner.drain_timeout_s = 1).await;
    let mut call = ask();
    call["inputResponses"] = json!({"q-1": accept(json!({"answer": "me"}))});
    assert_eq!(plain(&world, 0).ok("tools/call", call).await["resultType"], "input_required");
    world.stop().await;
}

async fn a_lost_worker_is_an_error_and_not_silence(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = plain(&world, 0);
    let asked = alice.ok("tools/call", ask()).await;
    world.crash("worker-1").await;
    world.start_worker("worker-1").await;
    let known = async {
        loop {
            let (status, answer) =
                alice.exchange("tools/call", again(&ask(), &asked, json!({key(&asked): {"action": "cancel"}}))).await;
            if status != 503 {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let answer = tokio::time::timeout(longhaul_tests::client::PATIENCE, known).await.unwrap();
    assert!(answer["error"]["code"].is_i64(), "{answer}");
    world.stop().await;
}

async fn a_call_asks_and_then_goes_on_as_a_task(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = Modern::new(&world.urls[0], Some(ALICE));
    let call = json!({"name": "grow", "arguments": {}});
    let asked = alice.ok("tools/call", call.clone()).await;
    let retry = again(&call, &asked, json!({"name": accept(json!({"name": "Ann"}))}));
    let handle = alice.at(&world.urls[1]).ok("tools/call", retry).await;
    assert_eq!(handle["resultType"], "task", "{handle}");
    for absent in ["requestState", "inputRequests"] {
        assert!(handle.get(absent).is_none(), "{handle}");
    }
    let id = handle["taskId"].as_str().unwrap();
    assert_eq!(world.gate.started().await, id, "the run knows its task");
    let old = world.client(ALICE).await;
    assert_eq!(old.status(id).await, "working");
    world.gate.open();
    assert_eq!(alice.until(id, "completed").await["result"]["content"][0]["text"], "welcome, Ann");
    world.gate.close();

    // Its worker dies: as any task.
    let asked = alice.ok("tools/call", call.clone()).await;
    let retry = again(&call, &asked, json!({"name": accept(json!({"name": "Ann"}))}));
    let id = alice.ok("tools/call", retry).await["taskId"].as_str().unwrap().to_owned();
    assert_eq!(world.gate.started().await, id);
    world.crash("worker-1").await;
    world.start_worker("worker-1").await;
    assert_eq!(alice.until(&id, "failed").await["error"]["code"], -32603);

    // Without the extension it stays a call, in 2025 with `task` it is one from the start.
    let plain = alice.plain();
    let asked = plain.ok("tools/call", call.clone()).await;
    world.gate.open();
    let done = plain.ok("tools/call", again(&call, &asked, json!({"name": accept(json!({"name": "Bob"}))}))).await;
    assert_eq!(done["content"][0]["text"], "welcome, Bob");
    assert_eq!(world.gate.started().await, "");
    let old = Client::declaring(&world.urls[0], Some(ALICE), json!({"elicitation": {}})).await;
    let id = old.create("grow", json!({})).await;
    alice.until(&id, "input_required").await;
    alice.ok("tasks/update", json!({"taskId": id, "inputResponses": {"name": accept(json!({"name": "Eve"}))}})).await;
    assert_eq!(old.result(&id).await["result"]["content"][0]["text"], "welcome, Eve");
    assert_eq!(world.gate.started().await, id);
    world.stop().await;
}

async fn a_call_of_2025_asks_on_its_own_stream(wiring: Wiring) {
    let world = World::start(wiring).await;
    let one = Client::declaring(&world.urls[0], Some(ALICE), json!({"elicitation": {}})).await;
    let other = one.at(&world.urls[1]);
    let frame = one.frame("tools/call", &ask());
    let mut stream = Events::new(one.post(&frame, longhaul_tests::client::BOTH).await);
    let asked = stream.next().await.unwrap();
    assert_eq!((&asked["method"], &asked["params"]["message"]), (&json!("elicitation/create"), &json!("Who?")));
    assert!(
        asked["params"].get("_meta").is_none_or(|meta| meta.as_object().unwrap().is_empty()),
        "there is no task: {asked}"
    );
    for token in [BOB, EVE] {
        let stranger = Client::connect(&world.urls[0], Some(token)).await;
        assert_eq!(stranger.answer(&asked["id"], accept(json!({"answer": "forged"}))).await, 400);
    }
    // A lost connection loses nothing: the question comes again where the client comes back.
    let event = stream.last_id.clone().unwrap();
    drop(stream);
    let mut stream = Events::new(one.get(Some(&event)).await);
    let again = stream.next().await.unwrap();
    assert_eq!(again, asked);
    assert_eq!(other.answer(&asked["id"], accept(json!({"answer": "me"}))).await, 202);
    let mut answer = stream.next().await.unwrap();
    if answer["method"] == "notifications/cancelled" {
        // Another replica took the answer, so this stream cannot know whose it was.
        answer = stream.next().await.unwrap();
    }
    assert_eq!(
        (&answer["id"], &answer["result"]["content"][0]["text"]),
        (&frame["id"], &json!("You said: me")),
        "{answer}"
    );
    assert_eq!(other.answer(&asked["id"], accept(json!({"answer": "late"}))).await, 202);

    // Who takes no stream, or cannot be asked, is not.
    let no_stream = one.post(&one.frame("tools/call", &ask()), longhaul_tests::client::JSON).await;
    assert_eq!(message(no_stream).await["result"]["content"][0]["text"], "declined");
    let cannot = world.client(ALICE).await.ok("tools/call", ask()).await;
    assert_eq!(cannot["content"][0]["text"], "declined");
    world.stop().await;
}

async fn log_messages_come_from_the_level_that_was_asked_for(wiring: Wiring) {
    let world = World::start(wiring).await;
    let told = async |mut events: Events| {
        let mut told = Vec::new();
        while let Some(message) = events.next().await {
            if message["method"] == "notifications/message" {
                told.push(message["params"]["level"].as_str().unwrap().to_owned());
            } else {
                assert_eq!(message["result"]["content"][0]["text"], "logged");
            }
        }
        told
    };
    let alice = plain(&world, 0);
    for (level, expected) in [("debug", vec!["debug", "info", "error"]), ("warning", vec!["error"])] {
        let params = json!({"name": "log", "_meta": {"io.modelcontextprotocol/logLevel": level}});
        let frame = alice.frame("tools/call", params);
        let response = alice.request(&frame, "text/event-stream").send().await.unwrap();
        assert_eq!(told(Events::modern(response)).await, expected);
    }
    let frame = alice.frame("tools/call", json!({"name": "log"}));
    let response = alice.request(&frame, "text/event-stream").send().await.unwrap();
    assert_eq!(told(Events::modern(response)).await, Vec::<String>::new(), "nothing unasked");
    let (_, error) =
        alice.error("tools/call", json!({"name": "log", "_meta": {"io.modelcontextprotocol/logLevel": "loud"}})).await;
    assert_eq!(error["code"], -32602);

    let [one, other] = world.clients(ALICE).await;
    let call = async |client: &Client| {
        let frame = client.frame("tools/call", &json!({"name": "log"}));
        told(Events::new(client.post(&frame, "text/event-stream").await)).await
    };
    assert_eq!(call(&one).await, ["info", "error"]);
    assert_eq!(one.ok("logging/setLevel", json!({"level": "error"})).await, json!({}));
    let elsewhere = one.at(&world.urls[1]);
    let heard = async {
        while call(&elsewhere).await != ["error"] {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(longhaul_tests::client::PATIENCE, heard).await.unwrap();
    assert_eq!(call(&other).await, ["info", "error"], "another session");
    assert_eq!(one.error("logging/setLevel", json!({"level": "loud"})).await["code"], -32602);
    world.stop().await;
}

crate::both!(
    a_call_goes_on_where_its_caller_comes_back,
    what_is_not_answered_is_asked_again_under_a_new_state,
    a_state_is_good_for_its_caller_its_call_and_once,
    answers_without_a_state_are_ignored,
    a_lost_worker_is_an_error_and_not_silence,
    a_call_asks_and_then_goes_on_as_a_task,
    a_call_of_2025_asks_on_its_own_stream,
    log_messages_come_from_the_level_that_was_asked_for,
);
