//! Workers come, go and die.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::join_all;
use longhaul_tests::client::Client;
use longhaul_tests::world::{ALICE, Wiring, World};
use serde_json::json;

async fn is_interrupted(client: &Client, id: &str, words: &str) {
    let answer = client.result(id).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("interrupted") && message.contains(words), "{answer}");
    let task = client.ok("tasks/get", json!({"taskId": id})).await;
    assert_eq!((&task["status"], &task["statusMessage"]), (&json!("failed"), &json!(message)));
}

async fn a_silent_workers_task_is_interrupted_when_its_lease_has_run_out(wiring: Wiring) {
    let world = World::start(wiring).await;
    let [one, other] = world.clients(ALICE).await;
    let id = one.create("hold", json!({})).await;
    world.gate.started().await;
    world.crash("worker-1").await;
    let mut waiting = other.stream("tasks/result", json!({"taskId": id})).await;
    assert_eq!(waiting.next_data().await.as_deref(), Some(""));
    world.advance(Duration::from_secs(15)).await;
    // Two sweeps, at least.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(one.status(&id).await, "working", "not before its time");
    world.advance(Duration::from_secs(16)).await;
    let answer = waiting.next().await.unwrap();
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    is_interrupted(&one, &id, "stopped responding").await;

    world.add_worker("worker-2").await;
    let id = one.create("hold", json!({})).await;
    assert_eq!(world.gate.started().await, id, "and it was not run again");
    world.gate.open();
    assert_eq!(one.result(&id).await["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

/// As after a pause of the whole process: the worker goes on, but its right to the task is gone.
async fn a_worker_that_lost_its_task_stops_and_cannot_complete_it(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let id = client.create("hold", json!({})).await;
    world.gate.started().await;
    while client.status(&id).await == "working" {
        // A heartbeat may come between the two, and renews the lease.
        world.advance(Duration::from_secs(31)).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    assert_eq!(world.gate.stopped().await, id);
    world.gate.open();
    is_interrupted(&client, &id, "stopped responding").await;
    let next = client.create("echo", json!({})).await;
    assert!(client.result(&next).await.get("result").is_some(), "the worker is as good as ever");
    world.stop().await;
}

async fn each_task_runs_once_however_many_workers_ask_for_it(wiring: Wiring) {
    let world = World::start_with(wiring, |config| {
        config.mcp_task_max_open = 0;
        config.runner.slots = 4;
    })
    .await;
    world.start_worker("worker-2").await;
    world.start_worker("worker-3").await;
    let clients = world.clients(ALICE).await;
    world.gate.open();
    let ids = join_all((0..100).map(|at| clients[at % 2].create("hold", json!({})))).await;
    join_all(ids.iter().map(|id| clients[0].result(id))).await;
    world.end("worker").await;
    let mut starts = HashMap::new();
    while let Some(id) = world.gate.try_started().await {
        *starts.entry(id).or_insert(0) += 1;
    }
    assert_eq!(starts.len(), ids.len());
    assert!(ids.iter().all(|id| starts[id] == 1), "{starts:?}");
    world.stop().await;
}

async fn a_worker_that_comes_back_ends_what_it_had_at_once(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let id = client.create("hold", json!({})).await;
    world.gate.started().await;
    world.start_worker("worker-2").await;
    world.crash("worker-1").await;
    world.start_worker("worker-1").await;
    is_interrupted(&client, &id, "stopped responding").await;
    world.stop().await;
}

async fn a_draining_worker_finishes_what_it_has(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let id = client.create("hold", json!({})).await;
    world.gate.started().await;
    world.add_worker("worker-2").await;
    let work = async {
        let next = client.create("hold", json!({})).await;
        assert_eq!(world.gate.started().await, next);
        assert_eq!(client.status(&id).await, "working");
        world.gate.open();
    };
    tokio::join!(world.end("worker-1"), work);
    assert_eq!(client.result(&id).await["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

async fn what_a_drained_worker_could_not_finish_is_interrupted_at_once(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.runner.drain_timeout_s = 1).await;
    let client = world.client(ALICE).await;
    let id = client.create("hold", json!({})).await;
    world.gate.started().await;
    world.end("worker-1").await;
    is_interrupted(&client, &id, "shut down").await;
    world.stop().await;
}

async fn tasks_wait_for_a_free_slot_and_none_is_lost(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.runner.slots = 2).await;
    let client = world.client(ALICE).await;
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(client.create("hold", json!({})).await);
    }
    let first = [world.gate.started().await, world.gate.started().await];
    assert!(ids[..2].iter().all(|id| first.contains(id)), "the oldest first: {first:?} of {ids:?}");
    for id in &ids {
        assert_eq!(client.status(id).await, "working");
    }
    world.gate.open();
    for id in &ids {
        assert_eq!(client.result(id).await["result"]["content"][0]["text"], "let go");
    }
    world.stop().await;
}

/// The panic's own task fails; its neighbour on the same worker does not notice.
async fn a_panic_ends_one_task_and_nothing_else(wiring: Wiring) {
    let world = World::start(wiring).await;
    let client = world.client(ALICE).await;
    let neighbour = client.create("hold", json!({})).await;
    world.gate.started().await;
    let panicked = client.create("panic", json!({})).await;
    assert_eq!(client.result(&panicked).await["error"]["code"], -32603);
    assert_eq!(client.status(&panicked).await, "failed");
    assert_eq!(client.status(&neighbour).await, "working");
    world.gate.open();
    assert_eq!(client.result(&neighbour).await["result"]["content"][0]["text"], "let go");
    world.stop().await;
}

crate::both!(
    a_silent_workers_task_is_interrupted_when_its_lease_has_run_out,
    a_worker_that_lost_its_task_stops_and_cannot_complete_it,
    each_task_runs_once_however_many_workers_ask_for_it,
    a_worker_that_comes_back_ends_what_it_had_at_once,
    a_draining_worker_finishes_what_it_has,
    what_a_drained_worker_could_not_finish_is_interrupted_at_once,
    tasks_wait_for_a_free_slot_and_none_is_lost,
    a_panic_ends_one_task_and_nothing_else,
);
