//! So many tasks, and no more.

use std::time::Duration;

use futures::future::join_all;
use longhaul_tests::client::Client;
use longhaul_tests::world::{ALICE, BOB, EVE, Wiring, World};
use serde_json::{Value, json};

async fn start(client: &Client) -> Value {
    client.ask("tools/call", json!({"name": "hold", "task": {}})).await
}

/// The ids of the accepted ones; the others must have been refused by the limit.
fn accepted(answers: &[Value], limit: u32) -> Vec<String> {
    let mut ids = Vec::new();
    for answer in answers {
        match answer["result"]["task"]["taskId"].as_str() {
            Some(id) => ids.push(id.to_owned()),
            None => assert_eq!(
                answer["error"],
                json!({
                    "code": -31429,
                    "message": format!("too many open tasks ({limit} at most)"),
                    "data": {"refused_by": "task_limit"},
                })
            ),
        }
    }
    ids
}

async fn a_callers_limit_is_exact_however_many_ask_at_once(wiring: Wiring) {
    let world = World::start(wiring).await;
    let clients = world.clients(ALICE).await;
    let bob = world.client(BOB).await;
    let ids = accepted(&join_all((0..60).map(|at| start(&clients[at % 2]))).await, 20);
    assert_eq!(ids.len(), 20);
    assert!(accepted(&[start(&bob).await], 20).len() == 1, "each caller has its own");
    assert_eq!(clients[0].ok("tasks/list", json!({})).await["tasks"].as_array().unwrap().len(), 20);
    // Calls that are not tasks are not counted.
    clients[0].ok("tools/call", json!({"name": "echo"})).await;

    // What ends makes room, however it ends, and for no more than that.
    for id in &ids[..5] {
        clients[1].ok("tasks/cancel", json!({"taskId": id})).await;
    }
    let more = accepted(&join_all((0..20).map(|at| start(&clients[at % 2]))).await, 20);
    assert_eq!(more.len(), 5);
    world.gate.open();
    join_all(ids[5..].iter().chain(&more).map(|id| clients[0].result(id))).await;
    let free = join_all((0..20).map(|_| start(&clients[0]))).await;
    assert_eq!(accepted(&free, 20).len(), 20);
    world.stop().await;
}

async fn a_tenants_limit_counts_all_of_its_callers_and_nobody_elses(wiring: Wiring) {
    let world = World::start_with(wiring, |config| config.mcp_task_max_live = 10).await;
    let [alice, _] = world.clients(ALICE).await;
    let [_, bob] = world.clients(BOB).await;
    let eve = world.client(EVE).await;
    let answers = join_all((0..30).map(|at| start(if at % 2 == 0 { &alice } else { &bob }))).await;
    assert_eq!(accepted(&answers, 10).len(), 10);
    assert_eq!(accepted(&[start(&eve).await], 10).len(), 1);
    world.gate.open();
    world.stop().await;
}

async fn whatever_ends_a_task_makes_room(wiring: Wiring) {
    let world = World::start_with(wiring, |config| {
        config.mcp_task_max_open = 4;
        config.mcp_task_min_ttl_ms = 1000;
    })
    .await;
    let client = world.client(ALICE).await;
    let fill = async |params: Value| {
        let mut ids = Vec::new();
        while ids.len() < 4 {
            ids.push(client.ok("tools/call", params.clone()).await["task"]["taskId"].as_str().unwrap().to_owned());
        }
        ids
    };
    for params in
        [json!({"name": "echo", "task": {}}), json!({"name": "panic", "task": {}}), json!({"name": "fail", "task": {}})]
    {
        join_all(fill(params).await.iter().map(|id| client.result(id))).await;
    }
    // Their time to live ends, then their worker.
    let short = fill(json!({"name": "hold", "task": {"ttl": 10_000}})).await;
    assert_eq!(accepted(&[start(&client).await], 4), [""; 0]);
    world.advance(Duration::from_secs(11)).await;
    for _ in &short {
        world.gate.stopped().await;
    }
    let held = fill(json!({"name": "hold", "task": {}})).await;
    assert_eq!(accepted(&[start(&client).await], 4), [""; 0]);
    world.crash("worker-1").await;
    world.start_worker("worker-1").await;
    for answer in join_all(held.iter().map(|id| client.result(id))).await {
        assert!(answer["error"]["message"].as_str().unwrap().contains("interrupted"), "{answer}");
    }
    fill(json!({"name": "hold", "task": {}})).await;
    world.stop().await;
}

async fn zero_is_no_limit(wiring: Wiring) {
    let world = World::start_with(wiring, |config| {
        config.mcp_task_max_open = 0;
        config.mcp_task_max_live = 0;
    })
    .await;
    let clients = world.clients(ALICE).await;
    assert_eq!(accepted(&join_all((0..60).map(|at| start(&clients[at % 2]))).await, 0).len(), 60);
    world.stop().await;
}

crate::both!(
    a_callers_limit_is_exact_however_many_ask_at_once,
    a_tenants_limit_counts_all_of_its_callers_and_nobody_elses,
    whatever_ends_a_task_makes_room,
    zero_is_no_limit,
);
