//! A call becomes a task.

use longhaul_tests::client::Client;
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::json;

/// The main job: the client goes away, comes back elsewhere, and collects its result.
async fn a_result_is_collected_from_another_replica_in_another_session(wiring: Wiring) {
    let world = World::start(wiring).await;
    let id = {
        let client = world.client(ALICE).await;
        let created = client
            .ok("tools/call", json!({"name": "hold", "arguments": {}, "task": {"ttl": 60_000}}))
            .await;
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

crate::both!(a_result_is_collected_from_another_replica_in_another_session);
