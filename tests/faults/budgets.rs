//! Whoever dies, no more is spent than there is.

use std::time::Duration;

use futures::future::join_all;
use longhaul_tests::client::{Client, PATIENCE};
use longhaul_tests::processes::Site;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Units a month.
const LIMIT: u64 = 100;

/// Creates one task after the other, whatever happens; gives how many were acknowledged.
async fn spend(client: &Client, stop: &CancellationToken) -> usize {
    let mut acknowledged = 0;
    while !stop.is_cancelled() {
        match client.attempt("tools/call", json!({"name": "echo", "task": {}})).await {
            Ok(answer) if answer["result"]["task"]["taskId"].is_string() => acknowledged += 1,
            Ok(answer) => {
                let by = &answer["error"]["data"]["refused_by"];
                assert!(by == "budget" || by.is_null(), "{answer}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    acknowledged
}

/// How many tasks are stored.
async fn stored(site: &mut Site) -> u64 {
    let count = site.run(&["tasks", "count"]).await;
    count.lines().find_map(|line| line.strip_prefix("stored ")).unwrap().parse().unwrap()
}

/// What is taken of the budget.
async fn taken(site: &mut Site) -> u64 {
    let status = site.run(&["budget", "status"]).await;
    let line = status.lines().find(|line| line.starts_with("tenants\tacme\t-\t")).expect(&status);
    let (taken, limit) = line.split('\t').nth(3).unwrap().split_once('/').unwrap();
    assert_eq!(limit, LIMIT.to_string());
    taken.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_gateways_and_task_stores_never_make_a_budget_larger() {
    let mut site = Site::shared().await;
    let config = site.folder().join("longhaul.toml");
    let credentials = std::fs::read_to_string(&config).unwrap();
    let budget = format!(
        "[[budgets]]\nname = \"tenants\"\nscope = \"tenant\"\nwindow = \"month\"\nunits = {LIMIT}\n{credentials}"
    );
    std::fs::write(&config, budget).unwrap();
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"]).await;
    let (one, other) = (site.client("gateway-1").await, site.client("gateway-2").await);
    let stop = CancellationToken::new();
    let killing = async {
        // In the middle of it.
        while stored(&mut site).await < 10 {}
        site.kill("gateway-1");
        site.kill("taskstore-1");
        site.spawn("gateway-1", &[]);
        site.spawn("taskstore-1", &[]);
        site.ready("taskstore-1").await;
        site.ready("gateway-1").await;
        while stored(&mut site).await < LIMIT / 4 {}
        site.kill("gateway-2");
        site.start("gateway-2").await;
        // Until all of it is taken, by tasks or by what the dead have held.
        while taken(&mut site).await < LIMIT {}
        stop.cancel();
    };
    let clients = [&one, &one, &other, &other];
    let spending = join_all(clients.map(|client| spend(client, &stop)));
    let both = async { tokio::join!(spending, killing) };
    let (acknowledged, ()) = tokio::time::timeout(3 * PATIENCE, both).await.unwrap();
    let acknowledged: usize = acknowledged.into_iter().sum();
    let (stored, taken) = (stored(&mut site).await, taken(&mut site).await);
    assert!(acknowledged as u64 <= stored && stored <= taken && taken == LIMIT, "{acknowledged} {stored} {taken}");
    assert!(stored >= LIMIT / 4, "{stored}");
}
