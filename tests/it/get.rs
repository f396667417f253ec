//! A task is asked for.

use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::{Value, json};

/// The members of a task, without the moments.
fn told(task: &Value) -> Value {
    let mut task = task.clone();
    for moment in ["createdAt", "lastUpdatedAt"] {
        let moment = task.as_object_mut().unwrap().remove(moment).unwrap();
        assert!(moment.as_str().unwrap().ends_with('Z'), "{moment}");
    }
    task
}

async fn a_task_is_told_the_same_by_every_gateway_wherever_it_stands(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.runner.slots = 1).await;
    let [one, other] = world.clients(ALICE).await;
    let task = |id: &str, status: &str| json!({"taskId": id, "status": status, "ttl": 3_600_000});
    let running = one.create("hold", json!({})).await;
    assert_eq!(world.gate.started().await, running);
    let queued = one.create("hold", json!({})).await;
    for id in [&running, &queued] {
        for client in [&one, &other] {
            let told_of = client.ok("tasks/get", json!({"taskId": id})).await;
            let mut expected = task(id, "working");
            // For as long as there is something to wait for.
            expected["pollInterval"] = json!(1000);
            assert_eq!(told(&told_of), expected);
        }
    }
    let cancelled = one.create("echo", json!({})).await;
    one.ok("tasks/cancel", json!({"taskId": cancelled})).await;
    world.gate.open();
    let completed = one.create("echo", json!({})).await;
    let tool_error = one.create("fail", json!({"message": "out of paper"})).await;
    let error = one.create("fail", json!({"message": "no such printer", "code": -32000})).await;
    let panicked = one.create("panic", json!({})).await;
    for id in [&running, &queued, &completed, &tool_error, &error, &panicked] {
        one.result(id).await;
    }
    for (id, status) in
        [(&running, "completed"), (&queued, "completed"), (&completed, "completed"), (&cancelled, "cancelled")]
    {
        let told_of = other.ok("tasks/get", json!({"taskId": id})).await;
        let mut expected = task(id, status);
        if status == "cancelled" {
            expected["statusMessage"] = json!("The task was cancelled");
        }
        assert_eq!(told(&told_of), expected);
        assert!(told_of["createdAt"].as_str() < told_of["lastUpdatedAt"].as_str(), "{told_of}");
    }
    for id in [&tool_error, &error, &panicked] {
        let of_one = one.ok("tasks/get", json!({"taskId": id})).await;
        assert_eq!(of_one["status"], "failed");
        assert!(!of_one["statusMessage"].as_str().unwrap().is_empty(), "{of_one}");
        assert_eq!(of_one, other.ok("tasks/get", json!({"taskId": id})).await);
    }
    world.stop().await;
}

async fn what_the_tool_says_meanwhile_is_the_status_message(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let id = one.create("countdown", json!({"seconds": 3600, "steps": 1})).await;
    loop {
        let task = other.ok("tasks/get", json!({"taskId": id})).await;
        assert_eq!(task["status"], "working");
        match task["statusMessage"].as_str() {
            Some(message) => break assert_eq!(message, "3600.0 s left"),
            None => tokio::task::yield_now().await,
        }
    }
    one.ok("tasks/cancel", json!({"taskId": id})).await;
    world.stop().await;
}

async fn only_the_parameter_names_the_task(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let [mine, other] = [client.create("hold", json!({})).await, client.create("hold", json!({})).await];
    let meta = json!({"io.modelcontextprotocol/related-task": {"taskId": other}});
    let task = client.ok("tasks/get", json!({"taskId": mine, "_meta": meta, "task": {"ttl": 1}})).await;
    assert_eq!(task["taskId"], mine.as_str());
    for wrong in [json!({}), json!({"_meta": meta}), json!({"taskId": null}), json!({"taskId": [mine]})] {
        assert_eq!(client.error("tasks/get", wrong.clone()).await["code"], -32602, "{wrong}");
    }
    world.stop().await;
}

crate::both!(
    a_task_is_told_the_same_by_every_gateway_wherever_it_stands,
    what_the_tool_says_meanwhile_is_the_status_message,
    only_the_parameter_names_the_task,
);
