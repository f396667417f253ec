//! The session's own stream of notifications.

use longhaul_tests::client::{Client, Events};
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use serde_json::{Value, json};

async fn open(client: &Client) -> Events {
    let mut stream = Events::new(client.get(None).await);
    assert_eq!(stream.next_data().await.as_deref(), Some(""), "the priming event");
    stream
}

async fn next(stream: &mut Events) -> Value {
    stream.next().await.expect("the stream goes on")
}

async fn a_sessions_tasks_are_told_on_its_stream_and_on_no_other(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let mut stream = open(&client.at(&world.urls[1])).await;
    let mut others = Vec::new();
    for token in [ALICE, BOB, EVE] {
        let other = world.client(token).await;
        others.push((open(&other).await, other));
    }
    let params = json!({"name": "countdown", "arguments": {"seconds": 0.8, "steps": 4}, "task": {}, "_meta": {"progressToken": "p7"}});
    let id = client.ok("tools/call", params).await["task"]["taskId"].as_str().unwrap().to_owned();
    let (mut progress, mut last) = (Vec::new(), Value::Null);
    while last["params"]["status"] != "completed" {
        let message = next(&mut stream).await;
        let params = &message["params"];
        match message["method"].as_str().unwrap() {
            "notifications/progress" => {
                assert_eq!(params["progressToken"], "p7");
                assert_eq!(params["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id.as_str());
                progress.push(params["progress"].as_f64().unwrap());
            }
            "notifications/tasks/status" => {
                assert_eq!(params["taskId"], id.as_str());
                longhaul_tests::schema::Schema::V2025.check("TaskStatusNotification", &message);
                last = message;
            }
            other => panic!("{other}"),
        }
    }
    assert!(!progress.is_empty() && progress.is_sorted_by(|a, b| a < b), "{progress:?}");
    assert_eq!(last["params"], client.ok("tasks/get", json!({"taskId": id})).await);
    // Each of the others hears of its own task first.
    for (stream, client) in &mut others {
        let own = client.create("hold", json!({})).await;
        client.ok("tasks/cancel", json!({"taskId": own})).await;
        let message = next(stream).await;
        assert_eq!(
            (&message["method"], &message["params"]["taskId"]),
            (&json!("notifications/tasks/status"), &json!(own))
        );
    }
    drop((stream, others));
    world.stop().await;
}

async fn the_newest_stream_of_a_session_is_the_only_one(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let mut first = open(&client).await;
    let mut second = open(&client.at(&world.urls[1])).await;
    assert_eq!(first.next().await, None, "a newer stream on the other gateway has taken over");
    let mut third = open(&client.at(&world.urls[1])).await;
    assert_eq!(second.next().await, None, "and one on the same gateway");
    let id = client.create("echo", json!({})).await;
    assert_eq!(next(&mut third).await["params"]["taskId"], id.as_str());
    drop(third);
    world.stop().await;
}

async fn a_stream_that_comes_back_is_told_of_what_is_to_come(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let stream = open(&client).await;
    let event = stream.last_id.clone().unwrap();
    drop(stream);
    let mut stream = Events::new(client.at(&world.urls[1]).get(Some(&event)).await);
    assert_eq!(stream.next_data().await.as_deref(), Some(""));
    let id = client.create("echo", json!({})).await;
    let message = next(&mut stream).await;
    assert_eq!((&message["method"], &message["params"]["taskId"]), (&json!("notifications/tasks/status"), &json!(id)));
    drop(stream);
    world.stop().await;
}

crate::both!(
    a_sessions_tasks_are_told_on_its_stream_and_on_no_other,
    the_newest_stream_of_a_session_is_the_only_one,
    a_stream_that_comes_back_is_told_of_what_is_to_come,
);
