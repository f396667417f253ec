//! Redis dies, freezes, drops its subscribers, or was never there.

use std::time::{Duration, Instant};

use longhaul_tests::client::{Client, PATIENCE};
use longhaul_tests::processes::{Redis, Site};
use longhaul_tests::services;
use serde_json::json;

use crate::{LOOK, MARGIN, assert_counted, countdown, page, reaches, running, waiting};

/// What a result may cost more than with Redis: while a frozen one is not noticed, and once it is known to be away.
const FROZEN: Duration = Duration::from_secs(7);
const DOWN: Duration = Duration::from_millis(2500);
/// With Redis.
const HEALTHY: Duration = Duration::from_secs(1);
const ROLES: [&str; 5] = ["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"];

async fn site(redis: &Redis) -> Site {
    Site::new(&services::empty_database().await, Some(&redis.url())).await
}

/// How long after one replica shows a task's end a stream of another one tells its result. `then` happens while it runs.
async fn lag(client: &Client, elsewhere: &Client, seconds: f64, then: impl FnOnce()) -> Duration {
    let id = countdown(client, seconds).await;
    let mut stream = waiting(elsewhere, &id).await;
    running(client, &id).await;
    then();
    let told = async {
        assert_counted(&stream.next().await.unwrap());
        Instant::now()
    };
    let (told, ended) = tokio::join!(told, reaches(client, &id, "completed"));
    told.saturating_duration_since(ended)
}

/// Panics unless every method answers about as fast as ever.
async fn every_method_answers(client: &Client) {
    let begun = Instant::now();
    let within = |what: &str, since: Instant| assert!(since.elapsed() < MARGIN, "{what}: {:?}", since.elapsed());
    let id = countdown(client, 600.0).await;
    within("create", begun);
    for (method, params) in [
        ("ping", json!({})),
        ("tools/list", json!({})),
        ("tools/call", json!({"name": "echo", "arguments": {}})),
        ("tasks/get", json!({"taskId": id})),
        ("tasks/list", json!({})),
        ("tasks/cancel", json!({"taskId": id})),
    ] {
        let since = Instant::now();
        client.ok(method, params).await;
        within(method, since);
    }
    let since = Instant::now();
    assert_eq!(client.error("tasks/result", json!({"taskId": id})).await["code"], -31499);
    within("tasks/result", since);
    let since = Instant::now();
    let fresh = Client::connect(client.url(), Some(longhaul_tests::world::ALICE)).await;
    within("initialize", since);
    let ended = fresh.request(reqwest::Method::DELETE).send().await.unwrap();
    assert!(ended.status().is_success(), "{ended:?}");
    within("DELETE", since);
}

/// Waits until every role that uses it says that Redis is there, or away.
async fn connected(site: &mut Site, wanted: bool) {
    let row = format!("longhaul_bus_connected{{backend=\"redis\"}} {}", u8::from(wanted));
    let begun = Instant::now();
    for role in ROLES.into_iter().filter(|role| !role.starts_with("runner")) {
        let url = site.management(role, "/metrics");
        loop {
            let (_, text) = page(&url).await;
            if text.contains(&row) {
                break;
            }
            let rows: Vec<_> = text.lines().filter(|line| line.contains("bus_connected")).collect();
            assert!(begun.elapsed() < PATIENCE, "{role}: {rows:?}");
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Panics unless hints come again, and not by the timer: that comes every 10 s with Redis.
async fn assert_hints_are_back(client: &Client, elsewhere: &Client) {
    for _ in 0..3 {
        let lag = lag(client, elsewhere, 0.3, || {}).await;
        assert!(lag < HEALTHY, "{lag:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_redis_costs_time_and_nothing_else_until_it_is_back() {
    let mut redis = Redis::started().await;
    let mut site = site(&redis).await;
    site.up(&ROLES).await;
    let (client, elsewhere) = (site.client("gateway-1").await, site.client("gateway-2").await);
    connected(&mut site, true).await;
    assert_hints_are_back(&client, &elsewhere).await;

    let lag = lag(&client, &elsewhere, 1.0, || redis.kill()).await;
    assert!(lag < DOWN + MARGIN, "{lag:?}");
    every_method_answers(&client).await;
    connected(&mut site, false).await;

    redis.start().await;
    connected(&mut site, true).await;
    assert_hints_are_back(&client, &elsewhere).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_costs_time_and_nothing_else_until_it_thaws() {
    let redis = Redis::started().await;
    let mut site = site(&redis).await;
    site.up(&ROLES).await;
    let (client, elsewhere) = (site.client("gateway-1").await, site.client("gateway-2").await);
    connected(&mut site, true).await;

    let frozen = Instant::now();
    let lag_before_it_is_noticed = lag(&client, &elsewhere, 1.0, || redis.signal("STOP")).await;
    assert!(lag_before_it_is_noticed < FROZEN + MARGIN, "{lag_before_it_is_noticed:?}");
    every_method_answers(&client).await;
    connected(&mut site, false).await;
    let lag_after = lag(&client, &elsewhere, 0.3, || {}).await;
    assert!(lag_after < DOWN + MARGIN, "{lag_after:?}");
    tokio::time::sleep_until((frozen + Duration::from_secs(8)).into()).await;

    redis.signal("CONT");
    connected(&mut site, true).await;
    assert_hints_are_back(&client, &elsewhere).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_subscriptions_come_back_by_themselves() {
    let redis = Redis::started().await;
    let mut site = site(&redis).await;
    site.up(&ROLES).await;
    let (client, elsewhere) = (site.client("gateway-1").await, site.client("gateway-2").await);
    connected(&mut site, true).await;

    let lag = lag(&client, &elsewhere, 1.0, || {
        // Two gateways, two task-stores and a runner.
        assert_eq!(redis.command(&["client", "kill", "type", "pubsub"]), "5");
    })
    .await;
    assert!(lag < DOWN + MARGIN, "{lag:?}");
    every_method_answers(&client).await;
    connected(&mut site, true).await;
    assert_hints_are_back(&client, &elsewhere).await;
    assert_eq!(redis.command(&["pubsub", "numsub", "longhaul:control"]).lines().last(), Some("5"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_from_the_start_everything_works_and_it_is_taken_up_when_it_comes() {
    let mut redis = Redis::absent();
    let mut site = site(&redis).await;
    site.up(&ROLES).await;
    let (client, elsewhere) = (site.client("gateway-1").await, site.client("gateway-2").await);
    every_method_answers(&client).await;
    for _ in 0..3 {
        let lag = lag(&client, &elsewhere, 0.3, || {}).await;
        assert!(lag < DOWN + MARGIN, "{lag:?}");
    }
    redis.start().await;
    connected(&mut site, true).await;
    assert_hints_are_back(&client, &elsewhere).await;
}
