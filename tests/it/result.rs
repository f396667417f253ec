//! A result is collected.

use std::time::Duration;

use futures::future::join_all;
use longhaul_tests::client::{BOTH, Client, Events, JSON, message};
use longhaul_tests::world::{ALICE, BOB, Wiring, World};
use serde_json::{Value, json};

async fn every_ending_is_answered_as_the_call_would_have_been(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let related = |id: &str| json!({"io.modelcontextprotocol/related-task": {"taskId": id}});
    let both = async |id: &str| -> Value {
        let (first, again) = tokio::join!(one.result(id), other.result(id));
        let bare = |mut answer: Value| {
            answer.as_object_mut().unwrap().remove("id").unwrap();
            answer
        };
        let first = bare(first);
        assert_eq!(first, bare(again));
        assert_eq!(first, bare(one.result(id).await), "asked again");
        first
    };

    let id = one.create("echo", json!({"text": "hello"})).await;
    let answer = both(&id).await;
    assert_eq!(answer["result"]["structuredContent"], json!({"text": "hello"}));
    assert_eq!(answer["result"]["_meta"], related(&id));

    let id = one.create("fail", json!({"message": "out of paper"})).await;
    let expected =
        json!({"content": [{"type": "text", "text": "out of paper"}], "isError": true, "_meta": related(&id)});
    assert_eq!(both(&id).await, json!({"jsonrpc": "2.0", "result": expected}));
    assert_eq!(one.status(&id).await, "failed");

    let data = json!({"tray": 2, "list": [null, 1.5]});
    let id = one.create("fail", json!({"message": "no such printer", "code": -32001, "data": data})).await;
    let expected = json!({"code": -32001, "message": "no such printer", "data": data});
    assert_eq!(both(&id).await, json!({"jsonrpc": "2.0", "error": expected}));
    assert_eq!(one.status(&id).await, "failed");

    let id = one.create("panic", json!({})).await;
    let answer = both(&id).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert!(!answer.to_string().contains("as asked"), "what a panic says is not for clients: {answer}");
    assert_eq!(one.status(&id).await, "failed");

    let id = one.create("hold", json!({})).await;
    one.ok("tasks/cancel", json!({"taskId": id})).await;
    let expected = json!({"code": -31499, "message": "Task was cancelled"});
    assert_eq!(both(&id).await, json!({"jsonrpc": "2.0", "error": expected}));
    world.stop().await;
}

async fn all_who_wait_on_whatever_gateway_are_answered(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let id = one.create("hold", json!({})).await;
    world.gate.started().await;
    let ask = json!({"taskId": id});
    let mut streams = Vec::new();
    for client in [&one, &other, &one, &other] {
        let mut stream = client.stream("tasks/result", ask.clone()).await;
        assert_eq!(stream.next_data().await.as_deref(), Some(""), "the priming event");
        assert!(stream.last_id.is_some());
        streams.push(stream);
    }
    let plain = [&one, &other]
        .map(|client| async { message(client.post(&client.frame("tasks/result", &ask), JSON).await).await });
    let let_go = async {
        // The gate may open before these two wait: they are answered in any case.
        world.gate.open();
    };
    let (plain, ()) = tokio::join!(join_all(plain), let_go);
    let mut answers = join_all(streams.into_iter().map(Events::last)).await;
    answers.extend(plain);
    for answer in answers {
        assert_eq!(answer["result"]["content"][0]["text"], "let go", "{answer}");
    }
    world.stop().await;
}

async fn a_caller_without_streams_waits_for_a_while_and_asks_again(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_result_wait_s = 1).await;
    let client = world.client(ALICE).await;
    let id = client.create("hold", json!({})).await;
    let frame = client.frame("tasks/result", &json!({"taskId": id}));
    let response = client.post(&frame, JSON).await;
    assert_eq!(response.status(), 200);
    let answer = message(response).await;
    assert_eq!(answer["error"]["code"], -31408, "{answer}");
    assert_eq!(answer["error"]["data"], json!({"status": "working", "pollInterval": 1000, "retry": true}));
    assert_eq!(client.status(&id).await, "working");
    world.gate.open();
    let answer = message(client.post(&client.frame("tasks/result", &json!({"taskId": id})), JSON).await).await;
    assert_eq!(answer["result"]["content"][0]["text"], "let go", "{answer}");
    world.stop().await;
}

async fn a_wait_that_is_cancelled_or_dropped_leaves_the_task_alone(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let id = one.create("hold", json!({})).await;
    drop(one.stream("tasks/result", json!({"taskId": id})).await);
    let frame = one.frame("tasks/result", &json!({"taskId": id}));
    let mut stream = Events::new(one.post(&frame, BOTH).await);
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    one.at(&world.urls[1]).notify("notifications/cancelled", json!({"requestId": frame["id"]})).await;
    assert_eq!(stream.next().await, None, "an answer that nobody wants is not sent");
    assert_eq!(other.status(&id).await, "working");
    world.gate.open();
    assert_eq!(other.result(&id).await["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

/// Opens a stream, reads its first event and loses the connection. Gives the request's id and the event's.
async fn lose(client: &Client, task: &str) -> (Value, String) {
    let frame = client.frame("tasks/result", &json!({"taskId": task}));
    let mut stream = Events::new(client.post(&frame, BOTH).await);
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    (frame["id"].clone(), stream.last_id.unwrap())
}

async fn a_lost_stream_is_resumed_at_the_other_gateway(wiring: Wiring) {
    let world = World::start(wiring).await;
    let here = world.client(ALICE).await;
    let there = here.at(&world.urls[1]);
    let id = here.create("hold", json!({})).await;
    let (request, event) = lose(&here, &id).await;

    let mut resumed = Events::new(there.get(Some(&event)).await);
    assert_eq!(resumed.next_data().await.as_deref(), Some(""), "again");
    let again = resumed.last_id.clone().unwrap();
    drop(resumed);
    let mut resumed = Events::new(here.get(Some(&again)).await);
    assert_eq!(resumed.next_data().await.as_deref(), Some(""));
    world.gate.open();
    let answer = resumed.next().await.unwrap();
    assert_eq!(answer["id"], request, "the answer to the request that opened the stream");
    assert_eq!(answer["result"]["content"][0]["text"], "let go");
    let last = resumed.last_id.clone().unwrap();
    assert_eq!(resumed.next().await, None);

    // Late, when the task has long ended.
    let late = Events::new(there.get(Some(&event)).await).last().await;
    assert_eq!((&late["id"], &late["result"]), (&request, &answer["result"]));
    // A client that has seen everything hears nothing twice.
    let response = there.get(Some(&last)).await;
    assert!(!response.text().await.unwrap().contains("let go"));
    world.stop().await;
}

async fn an_event_id_of_somebody_else_or_of_nobody_replays_nothing(wiring: Wiring) {
    let world = World::start(wiring).await;
    let alice = world.client(ALICE).await;
    let id = alice.create("echo", json!({"text": "mine"})).await;
    alice.result(&id).await;
    let held = alice.create("hold", json!({})).await;
    let (_, event) = lose(&alice, &held).await;
    world.gate.open();
    alice.result(&held).await;
    let bob = world.client(BOB).await;
    let other_session = world.client(ALICE).await;
    let mut altered = event.clone().into_bytes();
    let middle = altered.len() / 2;
    altered[middle] = if altered[middle] == b'A' { b'B' } else { b'A' };
    let altered = String::from_utf8(altered).unwrap();
    let mut answers = Vec::new();
    for (client, event) in [
        (&bob, &*event),
        (&other_session, &event),
        (&alice, &altered),
        (&alice, &event[..event.len() - 4]),
        (&alice, "1"),
        (&alice, "x' OR 1=1"),
        (&alice, alice.session()),
    ] {
        let response = client.get(Some(event)).await;
        answers.push((response.status().as_u16(), response.text().await.unwrap()));
    }
    assert_eq!(answers[0].0, 400, "{answers:?}");
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    world.stop().await;
}

/// A stream that is quiet for long is kept open by comments, and its client may take that for all it hears.
async fn a_quiet_stream_shows_that_it_lives(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.gateway.sse_keepalive_s = 1).await;
    let client = world.client(ALICE).await;
    let id = client.create("hold", json!({})).await;
    let mut stream = client.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let gate = world.gate.clone();
    let (answer, ()) = tokio::join!(stream.next(), async {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        gate.open();
    });
    assert_eq!(answer.unwrap()["result"]["content"][0]["text"], "let go");
    assert!(stream.comments >= 2, "{}", stream.comments);
    world.stop().await;
}

crate::both!(
    every_ending_is_answered_as_the_call_would_have_been,
    all_who_wait_on_whatever_gateway_are_answered,
    a_caller_without_streams_waits_for_a_while_and_asks_again,
    a_wait_that_is_cancelled_or_dropped_leaves_the_task_alone,
    a_lost_stream_is_resumed_at_the_other_gateway,
    an_event_id_of_somebody_else_or_of_nobody_replays_nothing,
    a_quiet_stream_shows_that_it_lives,
);
