//! A task asks its owner, in either era, on any replica.

use std::time::Duration;

use longhaul_tests::client::{Client, Events, JSON};
use longhaul_tests::modern::Modern;
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use serde_json::{Value, json};

const RELATED: &str = "io.modelcontextprotocol/related-task";

fn can_ask() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}})
}

/// A client of each gateway in one session that can be asked.
async fn askable(world: &World) -> [Client; 2] {
    let one = Client::declaring(&world.urls[0], Some(ALICE), can_ask()).await;
    let other = one.at(&world.urls[1]);
    [one, other]
}

fn modern(world: &World, gateway: usize) -> Modern {
    Modern::new(&world.urls[gateway], Some(ALICE))
}

/// Waits as a client of 2025 does.
async fn until(client: &Client, id: &str, status: &str) {
    let reached = async {
        while client.status(id).await != status {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reached).await.unwrap_or_else(|_| panic!("never {status}"));
}

/// The next request of the server's on a stream.
async fn question(events: &mut Events) -> Value {
    let message = events.next().await.expect("the stream ended without a question");
    assert_eq!(message["method"], "elicitation/create", "{message}");
    message
}

/// The next message but progress and status, which come as they like.
async fn word(events: &mut Events) -> Value {
    loop {
        let message = events.next().await.expect("the stream ended");
        if !["notifications/progress", "notifications/tasks/status"].contains(&message["method"].as_str().unwrap_or(""))
        {
            return message;
        }
    }
}

/// The answer to the request, after whatever else there is to say.
async fn answer(events: &mut Events) -> Value {
    loop {
        let message = word(events).await;
        if message.get("method").is_none() {
            return message;
        }
        // Another replica took the answer, so the carrier cannot know whose it was.
        assert_eq!(message["method"], "notifications/cancelled", "{message}");
    }
}

fn accept(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

async fn a_question_comes_on_the_result_stream_and_its_answer_goes_to_any_replica(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = askable(&world).await;
    let id = one.create("ask", json!({"question": "Which cost centre?"})).await;
    let mut stream = one.stream("tasks/result", json!({"taskId": id})).await;
    let asked = question(&mut stream).await;
    assert_eq!(asked["id"], json!(format!("tiq-task-{id}-1")));
    assert_eq!((&asked["params"]["mode"], &asked["params"]["message"]), (&json!("form"), &json!("Which cost centre?")));
    assert_eq!(asked["params"]["_meta"][RELATED]["taskId"], json!(id));
    assert_eq!(one.status(&id).await, "input_required");
    assert_eq!(other.answer(&asked["id"], accept(json!({"answer": "4711"}))).await, 202);
    let result = answer(&mut stream).await;
    assert_eq!(result["result"]["content"][0]["text"], "You said: 4711", "{result}");
    assert_eq!(one.status(&id).await, "completed");
    world.stop().await;
}

/// Whether the stream is told that a question of its is no longer one.
async fn is_withdrawn(events: &mut Events, asked: &Value) {
    let told = word(events).await;
    assert_eq!(
        (&told["method"], &told["params"]["requestId"]),
        (&json!("notifications/cancelled"), &asked["id"]),
        "{told}"
    );
}

async fn one_stream_at_a_time_carries_a_question_and_the_newest_takes_it_over(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = askable(&world).await;
    let id = one.create("give-up", json!({})).await;
    until(&one, &id, "input_required").await;
    let mut first = one.stream("tasks/result", json!({"taskId": id})).await;
    let asked = question(&mut first).await;
    // On the other gateway, while the first one is as good as dead.
    let mut second = other.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(question(&mut second).await, asked, "the same question under the same id");
    is_withdrawn(&mut first, &asked).await;
    // When the newer one is gone, whoever is left.
    drop(second);
    assert_eq!(question(&mut first).await, asked);
    // Of two that were there before the next question, one is asked, until it is gone.
    let mut second = other.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(question(&mut second).await, asked);
    is_withdrawn(&mut first, &asked).await;
    world.gate.open();
    is_withdrawn(&mut second, &asked).await;
    let (next, of_first) = tokio::select! {
        next = question(&mut first) => (next, true),
        next = question(&mut second) => (next, false),
    };
    assert_eq!(next["id"], json!(format!("tiq-task-{id}-2")));
    let (carries, mut waits) = if of_first { (first, second) } else { (second, first) };
    drop(carries);
    assert_eq!(question(&mut waits).await, next);
    assert_eq!(other.answer(&next["id"], accept(json!({"text": "me"}))).await, 202);
    assert_eq!(answer(&mut waits).await["result"]["content"][0]["text"], "me");
    assert_eq!(waits.next().await, None, "one answer");
    world.stop().await;
}

async fn a_question_that_its_tool_gives_up_on_is_withdrawn_in_both_eras(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [old, _] = askable(&world).await;
    let new = modern(&world, 1);
    let keys = |task: &Value| -> Vec<String> {
        task["inputRequests"].as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default()
    };
    let id = old.create("give-up", json!({})).await;
    let mut stream = old.stream("tasks/result", json!({"taskId": id})).await;
    let first = question(&mut stream).await;
    assert_eq!(keys(&new.until(&id, "input_required").await), ["first"]);
    world.gate.open();
    is_withdrawn(&mut stream, &first).await;
    let second = question(&mut stream).await;
    assert_eq!(second["id"], json!(format!("tiq-task-{id}-2")), "its number stays used");
    assert_eq!(keys(&new.task(&id).await), ["second"]);
    // Too late for the first, in either era.
    assert_eq!(old.answer(&first["id"], accept(json!({"text": "late"}))).await, 202);
    let late = json!({"taskId": id, "inputResponses": {"first": accept(json!({"text": "late"}))}});
    assert_eq!(new.ok("tasks/update", late).await["resultType"], "complete");
    assert_eq!(keys(&new.task(&id).await), ["second"]);
    assert_eq!(old.answer(&second["id"], accept(json!({"text": "in time"}))).await, 202);
    assert_eq!(answer(&mut stream).await["result"]["content"][0]["text"], "in time");
    world.gate.close();

    // In a call that is no task, on its own stream.
    let frame = old.frame("tools/call", &json!({"name": "give-up", "arguments": {}}));
    let mut stream = Events::new(old.post(&frame, longhaul_tests::client::BOTH).await);
    let first = question(&mut stream).await;
    world.gate.open();
    is_withdrawn(&mut stream, &first).await;
    let second = question(&mut stream).await;
    assert_eq!(old.answer(&first["id"], accept(json!({"text": "late"}))).await, 202);
    assert_eq!(old.answer(&second["id"], accept(json!({"text": "me"}))).await, 202);
    assert_eq!(answer(&mut stream).await["result"]["content"][0]["text"], "me");
    world.gate.close();

    // Parked: who comes back with the answer is asked what is asked now.
    let plain = modern(&world, 0).plain();
    let call = json!({"name": "give-up", "arguments": {}});
    let parked = plain.ok("tools/call", call.clone()).await;
    assert_eq!(keys(&parked), ["first"]);
    world.gate.open();
    let again = |asked: &Value, responses: Value| {
        let mut call = call.clone();
        (call["inputResponses"], call["requestState"]) = (responses, asked["requestState"].clone());
        call
    };
    // Its run may not have heard yet that the gate is open; then the answer to the first is as good.
    let asked = plain.ok("tools/call", again(&parked, json!({"first": accept(json!({"text": "late"}))}))).await;
    assert_eq!(keys(&asked), ["second"], "{asked}");
    let done = plain.ok("tools/call", again(&asked, json!({"second": accept(json!({"text": "me"}))}))).await;
    assert_eq!(done["content"][0]["text"], "me");
    world.stop().await;
}

async fn a_stream_that_is_resumed_takes_the_question_with_it(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, _] = askable(&world).await;
    let id = one.create("ask", json!({"question": "Who?"})).await;
    let mut lost = one.stream("tasks/result", json!({"taskId": id})).await;
    let asked = question(&mut lost).await;
    // The server does not know that it is lost.
    let mut resumed = Events::new(one.get(lost.last_id.as_deref()).await);
    assert_eq!(question(&mut resumed).await, asked);
    assert_eq!(lost.next().await, None, "one stream goes on");
    assert_eq!(one.answer(&asked["id"], accept(json!({"answer": "me"}))).await, 202);
    assert_eq!(answer(&mut resumed).await["result"]["content"][0]["text"], "You said: me");
    world.stop().await;
}

async fn a_client_that_only_polls_is_asked_on_its_get_stream(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = askable(&world).await;
    let mut stream = Events::new(other.get(None).await);
    let id = one.create("ask", json!({"question": "Who?"})).await;
    let asked = loop {
        let message = word(&mut stream).await;
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    assert_eq!(asked["id"], json!(format!("tiq-task-{id}-1")));
    assert_eq!(one.answer(&asked["id"], accept(json!({"answer": "me"}))).await, 202);
    until(&one, &id, "completed").await;
    world.stop().await;
}

async fn what_is_no_answer_of_its_owner_changes_nothing(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = askable(&world).await;
    let id = one.create("ask", json!({"question": "Who?"})).await;
    until(&one, &id, "input_required").await;
    let key = json!(format!("tiq-task-{id}-1"));
    for token in [BOB, EVE] {
        let stranger = Client::connect(&world.urls[1], Some(token)).await;
        let nobodys = stranger.answer(&json!("tiq-task-aaaaaaaaaaaaaaaaaaaaaaaaaa-1"), accept(json!({}))).await;
        assert_eq!(nobodys, 400);
        assert_eq!(stranger.answer(&key, accept(json!({"answer": "forged"}))).await, nobodys);
    }
    for odd in
        [json!("tiq-task-"), json!(format!("tiq-task-{id}-x")), json!(format!("tiq-task-{id}")), json!(1), json!("")]
    {
        assert_eq!(one.answer(&odd, accept(json!({"answer": "odd"}))).await, 400, "{odd}");
    }
    // A question that was never asked.
    assert_eq!(one.answer(&json!(format!("tiq-task-{id}-2")), accept(json!({"answer": "early"}))).await, 400);
    assert_eq!(one.status(&id).await, "input_required");
    let session_of_another_client = Client::connect(&world.urls[1], Some(ALICE)).await;
    assert_eq!(session_of_another_client.answer(&key, accept(json!({"answer": "me"}))).await, 202, "she is the same");
    for late in [&one, &other] {
        assert_eq!(late.answer(&key, accept(json!({"answer": "late"}))).await, 202);
    }
    assert_eq!(one.result(&id).await["result"]["content"][0]["text"], "You said: me");
    assert_eq!(one.answer(&key, accept(json!({"answer": "later"}))).await, 202);
    world.stop().await;
}

async fn an_answer_that_does_not_fit_and_an_error_count_as_declined(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, _] = askable(&world).await;
    for answer in [
        json!({"action": "decline"}),
        json!({"action": "cancel"}),
        accept(json!({"answer": 7})),
        accept(json!({})),
        accept(json!({"answer": "x", "more": 1})),
    ] {
        let id = one.create("ask", json!({"question": "Who?"})).await;
        until(&one, &id, "input_required").await;
        assert_eq!(one.answer(&json!(format!("tiq-task-{id}-1")), answer.clone()).await, 202);
        let result = one.result(&id).await;
        assert_eq!(
            (&result["result"]["isError"], &result["result"]["content"][0]["text"]),
            (&json!(true), &json!("declined")),
            "{answer}"
        );
    }
    let id = one.create("ask", json!({"question": "Who?"})).await;
    until(&one, &id, "input_required").await;
    let failed =
        json!({"jsonrpc": "2.0", "id": format!("tiq-task-{id}-1"), "error": {"code": -32603, "message": "no screen"}});
    assert_eq!(one.post(&failed, JSON).await.status(), 202);
    assert_eq!(one.result(&id).await["result"]["isError"], true);
    world.stop().await;
}

async fn several_questions_are_answered_one_by_one_and_their_keys_go_at_once(wiring: Wiring) {
    let world = World::start(wiring).await;
    let (one, other) = (modern(&world, 0), modern(&world, 1));
    let id = one.create("ask-many", json!({})).await;
    let asked = one.until(&id, "input_required").await;
    let keys = |task: &Value| -> Vec<String> {
        task["inputRequests"].as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default()
    };
    assert_eq!(keys(&asked), ["name", "colour"]);
    let first = &asked["inputRequests"]["name"];
    assert_eq!((&first["method"], &first["params"]["message"]), (&json!("elicitation/create"), &json!("Your name?")));

    let update = async |client: &Modern, responses: Value| {
        client.exchange("tasks/update", json!({"taskId": id, "inputResponses": responses})).await
    };
    let (_, unknown) = update(&one, json!({"unknown": {"ignored": true}})).await;
    assert_eq!(unknown["result"]["resultType"], "complete");
    let (_, bad) = update(&one, json!({"name": accept(json!({"text": "x"})), "colour": {"action": "perhaps"}})).await;
    assert_eq!(bad["error"]["code"], -32602, "{bad}");
    assert_eq!(keys(&other.task(&id).await), ["name", "colour"], "nothing of a bad update is taken");
    update(&one, json!({"name": accept(json!({"text": "Ann"}))})).await;
    let half = other.task(&id).await;
    assert_eq!((half["status"].as_str(), keys(&half)), (Some("input_required"), vec!["colour".to_owned()]));
    update(&other, json!({"name": accept(json!({"text": "Bob"})), "colour": {"action": "decline"}})).await;
    let over = one.until(&id, "completed").await;
    assert_eq!(over["result"]["content"][0]["text"], "Ann (declined)");
    let (_, late) = update(&one, json!({"name": accept(json!({"text": "late"}))})).await;
    assert_eq!(late["result"]["resultType"], "complete");
    for odd in [json!(null), json!([]), json!("x")] {
        assert_eq!(update(&one, odd).await.1["error"]["code"], -32602);
    }
    world.stop().await;
}

async fn either_era_answers_what_the_other_was_shown(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [old, _] = askable(&world).await;
    let new = modern(&world, 1);
    // Shown in 2025, answered in 2026: the carrier hears that it is too late.
    let id = old.create("ask-many", json!({})).await;
    let mut stream = old.stream("tasks/result", json!({"taskId": id})).await;
    let asked = [question(&mut stream).await, question(&mut stream).await];
    let ids: Vec<_> = asked.iter().map(|asked| asked["id"].clone()).collect();
    assert_eq!(ids, [1, 2].map(|nth| json!(format!("tiq-task-{id}-{nth}"))));
    let responses = json!({"name": accept(json!({"text": "Ann"}))});
    new.ok("tasks/update", json!({"taskId": id, "inputResponses": responses})).await;
    let withdrawn = word(&mut stream).await;
    assert_eq!((&withdrawn["method"], &withdrawn["params"]["requestId"]), (&json!("notifications/cancelled"), &ids[0]));
    // Answered in 2025, gone in 2026.
    assert_eq!(old.answer(&ids[1], accept(json!({"text": "red"}))).await, 202);
    let result = answer(&mut stream).await;
    assert_eq!(result["result"]["content"][0]["text"], "Ann red", "{result}");
    assert!(new.task(&id).await.get("inputRequests").is_none());

    let id = new.create("ask", json!({"question": "Who?"})).await;
    new.until(&id, "input_required").await;
    assert_eq!(old.status(&id).await, "input_required");
    assert_eq!(old.answer(&json!(format!("tiq-task-{id}-1")), accept(json!({"answer": "me"}))).await, 202);
    assert_eq!(new.until(&id, "completed").await["result"]["content"][0]["text"], "You said: me");
    world.stop().await;
}

async fn a_subscription_shows_questions_as_they_come_and_go(wiring: Wiring) {
    let world = World::start(wiring).await;
    let new = modern(&world, 0);
    let id = new.create("ask-many", json!({})).await;
    let (_, _, mut events) = modern(&world, 1).listen(json!({"taskIds": [id]})).await;
    let shown = async |events: &mut Events, count: usize| loop {
        let message = events.next().await.unwrap();
        let open = message["params"]["inputRequests"].as_object().map_or(0, |all| all.len());
        if open == count {
            return message["params"].clone();
        }
    };
    assert_eq!(shown(&mut events, 2).await["status"], "input_required");
    let answer = |key: &str| json!({"taskId": id, "inputResponses": {key: accept(json!({"text": key}))}});
    new.ok("tasks/update", answer("colour")).await;
    let one_left = shown(&mut events, 1).await;
    assert!(one_left["inputRequests"].get("name").is_some(), "{one_left}");
    new.ok("tasks/update", answer("name")).await;
    let over = async {
        loop {
            let message = events.next().await.unwrap();
            if message["params"]["status"] == "completed" {
                return message;
            }
        }
    };
    let over = tokio::time::timeout(Duration::from_secs(30), over).await.unwrap();
    assert_eq!(over["params"]["result"]["content"][0]["text"], "name colour");
    world.stop().await;
}

async fn who_cannot_be_asked_is_not_and_is_told_so(wiring: Wiring) {
    let world = World::start(wiring).await;
    let old = world.client(ALICE).await;
    let id = old.create("ask", json!({"question": "Who?"})).await;
    assert_eq!(old.result(&id).await["result"]["content"][0]["text"], "declined");
    let new = modern(&world, 0).declaring(json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}));
    let id = new.create("ask-many", json!({})).await;
    let over = new.until(&id, "completed").await;
    assert_eq!(over["result"]["content"][0]["text"], "(declined) (declined)");
    assert!(over["statusMessage"].as_str().unwrap_or_default().contains("cannot be asked"), "{over}");
    // Who looks without being able to answer is shown no question, and told that there is one.
    let asking = modern(&world, 0);
    let id = asking.create("ask", json!({"question": "Who?"})).await;
    asking.until(&id, "input_required").await;
    let hidden = new.task(&id).await;
    assert_eq!((&hidden["status"], &hidden["inputRequests"]), (&json!("input_required"), &json!({})), "{hidden}");
    asking.ok("tasks/cancel", json!({"taskId": id})).await;
    world.stop().await;
}

async fn what_must_not_be_asked_is_declined_unseen(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, _] = askable(&world).await;
    let string = |name: &str, more: Value| {
        let mut property = json!({"type": "string"});
        property.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"form": {"type": "object", "properties": {name: property}}})
    };
    for odd in [
        string("password", json!({})),
        string("x", json!({"title": "Your API key"})),
        string("x", json!({"description": "Die PIN Ihrer Karte"})),
        string("x", json!({"contentEncoding": "base64"})),
        json!({"form": {"type": "object", "properties": {"x": {"type": "object"}}}}),
        json!({"form": {"type": "string"}}),
        json!({"url": "http://example.com/"}),
        json!({"url": "https://127.0.0.1/"}),
        json!({"url": "https://localhost/"}),
        json!({"url": "https://user:pass@example.com/"}),
    ] {
        let id = one.create("ask-odd", odd.clone()).await;
        // A stream whether it is over already or not.
        let frame = one.frame("tasks/result", &json!({"taskId": id}));
        let mut stream = Events::new(one.post(&frame, "text/event-stream").await);
        let first = word(&mut stream).await;
        assert_eq!(first["result"]["content"][0]["text"], "declined", "{odd}: {first}");
    }
    let id = one.create("ask-odd", string("keyboard_layout", json!({"title": "Keyboard layout"}))).await;
    let mut stream = one.stream("tasks/result", json!({"taskId": id})).await;
    question(&mut stream).await;
    one.ok("tasks/cancel", json!({"taskId": id})).await;
    world.stop().await;
}

async fn a_cancelled_tasks_question_is_withdrawn(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = askable(&world).await;
    let id = one.create("ask", json!({"question": "Who?"})).await;
    let mut stream = one.stream("tasks/result", json!({"taskId": id})).await;
    let asked = question(&mut stream).await;
    assert_eq!(other.ok("tasks/cancel", json!({"taskId": id})).await["status"], "cancelled");
    let withdrawn = word(&mut stream).await;
    assert_eq!(
        (&withdrawn["method"], &withdrawn["params"]["requestId"]),
        (&json!("notifications/cancelled"), &asked["id"])
    );
    assert_eq!(word(&mut stream).await["error"]["code"], -31499);
    assert_eq!(one.answer(&asked["id"], accept(json!({"answer": "late"}))).await, 202);
    assert_eq!(one.status(&id).await, "cancelled");
    world.stop().await;
}

async fn a_question_without_an_answer_in_time_counts_as_declined(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_input_timeout_s = 1).await;
    let [one, _] = askable(&world).await;
    let id = one.create("ask", json!({"question": "Who?"})).await;
    let mut stream = one.stream("tasks/result", json!({"taskId": id})).await;
    let asked = question(&mut stream).await;
    let withdrawn = word(&mut stream).await;
    assert_eq!(
        (&withdrawn["method"], &withdrawn["params"]["requestId"]),
        (&json!("notifications/cancelled"), &asked["id"])
    );
    let result = word(&mut stream).await;
    assert_eq!(result["result"]["content"][0]["text"], "declined", "{result}");
    assert_eq!(one.answer(&asked["id"], accept(json!({"answer": "late"}))).await, 202);
    world.stop().await;
}

async fn an_answer_is_nowhere_but_where_it_went(wiring: Wiring) {
    const CANARY: &str = "canary-6f1c0e";
    let world = World::start(wiring).await;
    let [one, _] = askable(&world).await;
    let id = one.create("ask-many", json!({})).await;
    until(&one, &id, "input_required").await;
    assert_eq!(one.answer(&json!(format!("tiq-task-{id}-1")), accept(json!({"text": CANARY}))).await, 202);
    let mut database = world.database().await;
    assert!(database.contains("ask-many").await, "it looks where something is");
    assert!(!database.contains(CANARY).await, "half answered");
    one.ok("tasks/cancel", json!({"taskId": id})).await;
    assert!(!database.contains(CANARY).await, "cancelled");
    world.stop().await;
}

crate::both!(
    a_question_comes_on_the_result_stream_and_its_answer_goes_to_any_replica,
    one_stream_at_a_time_carries_a_question_and_the_newest_takes_it_over,
    a_question_that_its_tool_gives_up_on_is_withdrawn_in_both_eras,
    a_stream_that_is_resumed_takes_the_question_with_it,
    a_client_that_only_polls_is_asked_on_its_get_stream,
    what_is_no_answer_of_its_owner_changes_nothing,
    an_answer_that_does_not_fit_and_an_error_count_as_declined,
    several_questions_are_answered_one_by_one_and_their_keys_go_at_once,
    either_era_answers_what_the_other_was_shown,
    a_subscription_shows_questions_as_they_come_and_go,
    who_cannot_be_asked_is_not_and_is_told_so,
    what_must_not_be_asked_is_declined_unseen,
    a_cancelled_tasks_question_is_withdrawn,
    a_question_without_an_answer_in_time_counts_as_declined,
    an_answer_is_nowhere_but_where_it_went,
);
