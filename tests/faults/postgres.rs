//! Postgres dies: a durable server of the test's own.

use std::time::Duration;

use longhaul_tests::processes::{Postgres, Site};
use serde_json::json;

use crate::taskstore::{assert_all_run, create_while};
use crate::{assert_counted, countdown, reaches, running, waiting};

async fn durable(postgres: &Postgres) -> Site {
    let mut site = Site::new(postgres.url(), None).await;
    site.unset("TASKSTORE__ALLOW_UNSAFE_DURABILITY");
    site
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_killed_and_started_again_has_everything_that_was_acknowledged() {
    let mut postgres = Postgres::start();
    let mut site = durable(&postgres).await;
    // Runs outlive an outage shorter than what their worker bears: ten seconds.
    site.set("TASK_HEARTBEAT_MS", "4000");
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"]).await;
    let mut clients = Vec::new();
    for gateway in ["gateway-1", "gateway-2", "gateway-1", "gateway-2"] {
        clients.push(site.client(gateway).await);
    }
    let done = clients[0].create("echo", json!({"at": 42})).await;
    reaches(&clients[0], &done, "completed").await;
    let held = countdown(&clients[0], 8.0).await;
    let mut stream = waiting(&clients[1], &held).await;
    running(&clients[0], &held).await;

    let (acknowledged, _) = create_while(&clients, async {
        postgres.kill();
        tokio::time::sleep(Duration::from_secs(1)).await;
        tokio::task::block_in_place(|| postgres.again());
        // New work goes on.
        reaches(&clients[0], &countdown_when_possible(&clients[0]).await, "completed").await;
    })
    .await;
    assert_eq!(clients[1].ok("tasks/result", json!({"taskId": done})).await["structuredContent"]["at"], 42);
    assert_all_run(&clients[0], &acknowledged).await;
    assert_counted(&stream.next().await.unwrap());
}

/// Starts a short countdown as soon as that can be done.
async fn countdown_when_possible(client: &longhaul_tests::client::Client) -> String {
    let begun = std::time::Instant::now();
    loop {
        let call = json!({"name": "countdown", "arguments": {"seconds": 0.1}, "task": {}});
        match client.attempt("tools/call", call).await {
            Ok(answer) => return answer["result"]["task"]["taskId"].as_str().unwrap().to_owned(),
            Err(miss) => assert!(begun.elapsed() < longhaul_tests::client::PATIENCE, "{miss:?}"),
        }
        tokio::time::sleep(crate::LOOK).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_a_lease_interrupts_no_task_whose_answer_waits_to_be_stored() {
    let mut postgres = Postgres::start();
    let mut site = durable(&postgres).await;
    // The pauses between tries, up to 2 s, are not scaled down: a lease, and so its grace, must be well above them.
    site.set("TASK_HEARTBEAT_MS", "3000");
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 1.5).await;
    running(&client, &id).await;
    postgres.kill();
    // The lease, 9 s, runs out meanwhile.
    tokio::time::sleep(Duration::from_secs(12)).await;
    tokio::task::block_in_place(|| postgres.again());
    reaches(&client, &countdown_when_possible(&client).await, "completed").await;
    assert_counted(&client.ask("tasks/result", json!({"taskId": id})).await);
}
