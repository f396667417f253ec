//! A call becomes a task.

use longhaul_tests::client::Client;
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::json;

/// The main job: the client goes away, comes back elsewhere, and collects its result.
async fn a_result_is_collected_from_another_replica_in_another_session(wiring: Wiring) {
    let world = World::start(wiring).await;
    let id = {
        let client = world.client(ALICE).await;
        let created = client.ok("tools/call", json!({"name": "hold", "arguments": {}, "task": {"ttl": 60_000}})).await;
        let task = &created["task"];
        assert_eq!(task["status"], "working");
        assert_eq!(task["ttl"], 3_600_000, "a minute is less than the floor");
        task["taskId"].as_str().unwrap().to_owned()
    };
    assert_eq!(world.gate.started().await, id);
    let client = Client::connect(&world.urls[1], Some(ALICE)).await;
    assert_eq!(client.status(&id).await, "working");
    let mut stream = client.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(stream.next_data().await.as_deref(), Some(""), "the priming event");
    world.gate.open();
    let answer = stream.next().await.unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "let go");
    assert_eq!(answer["result"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id.as_str());
    assert_eq!(stream.next().await, None);
    assert_eq!(client.status(&id).await, "completed");
    world.stop().await;
}

/// Every member of the answer, and what may change later only if the task does.
async fn a_created_task_is_told_in_full(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let created = client.ok("tools/call", json!({"name": "hold", "task": {}})).await;
    let task = &created["task"];
    let id = task["taskId"].as_str().unwrap();
    assert!(id.len() == 26 && id.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')), "{id}");
    let at = task["createdAt"].as_str().unwrap();
    let expected = json!({
        "task": {"taskId": id, "status": "working", "createdAt": at, "lastUpdatedAt": at, "ttl": 3_600_000, "pollInterval": 1000},
        "_meta": {"io.modelcontextprotocol/related-task": {"taskId": id}},
    });
    assert_eq!(created, expected);
    assert!(at.ends_with('Z'), "{at}");
    world.stop().await;
}

/// An accepted call must yield a task, so a call that cannot work becomes one that has failed.
async fn bad_arguments_make_a_task_that_fails_and_names_the_field(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    for arguments in [json!({}), json!({"seconds": "soon"}), json!({"seconds": []})] {
        let id = client.create("countdown", arguments).await;
        let answer = client.result(&id).await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("seconds"), "{answer}");
        assert_eq!(client.status(&id).await, "failed");
    }
    world.stop().await;
}

/// Nothing is stored for a call that is refused at the door.
async fn a_call_that_is_refused_makes_no_task(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    for (params, code) in [
        (json!({"name": "nothing", "task": {}}), -32602),
        (json!({"name": "call-only", "task": {}}), -32601),
        (json!({"name": "hold", "arguments": [], "task": {}}), -32602),
        (json!({"name": "hold", "task": []}), -32602),
        (json!({"name": 7, "task": {}}), -32602),
        (json!({"name": "hold", "task": {}, "_meta": {"progressToken": 1.5}}), -32602),
    ] {
        assert_eq!(client.error("tools/call", params.clone()).await["code"], code, "{params}");
    }
    assert_eq!(client.ok("tasks/list", json!({})).await, json!({"tasks": []}));
    assert_eq!(world.database().await.audit().await, []);
    world.stop().await;
}

crate::both!(
    a_result_is_collected_from_another_replica_in_another_session,
    a_created_task_is_told_in_full,
    bad_arguments_make_a_task_that_fails_and_names_the_field,
    a_call_that_is_refused_makes_no_task,
);
